"""Telling the kubelet that a resource is served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc

from topoalloc.errors import KubeletError
from topoalloc.kubelet.channel import reason_of, unix_channel
from topoalloc.pb import deviceplugin_v1beta1_pb2 as pb
from topoalloc.pb.deviceplugin_v1beta1_pb2_grpc import RegistrationStub

API_VERSION = "v1beta1"
# Register returns only after the kubelet has dialled our socket (up to 10 s) and asked for our options.
REGISTER_TIMEOUT_S = 15.0
LOOK_PERIOD_S = 0.1


def register(kubelet_socket: Path, endpoint: str, resource: str, given_up: Callable[[], bool]) -> None:
    """Register once; the socket must be served already. Raises KubeletError with the kubelet's words.

    `given_up` is asked while the kubelet does not answer, so that a hanging kubelet cannot keep the agent from ending.
    A kubelet that starts empties the directory and listens right after that; a socket that was bound just before is
    gone, and it would be dialled for ten seconds all the same.
    """
    request = pb.RegisterRequest(
        version=API_VERSION,
        endpoint=endpoint,
        resource_name=resource,
        options=pb.DevicePluginOptions(get_preferred_allocation_available=True),
    )
    with unix_channel(kubelet_socket) as channel:
        call = RegistrationStub(channel).Register.future(request, timeout=REGISTER_TIMEOUT_S)
        _wait(call, resource, kubelet_socket.with_name(endpoint), given_up)


def _wait(call: grpc.Future[pb.Empty], resource: str, own_socket: Path, given_up: Callable[[], bool]) -> None:
    """Until the kubelet answers, the call's own deadline passes, nobody can be dialled or the agent gives up."""
    try:
        while not _answered(call):
            if given_up():
                call.cancel()
                raise KubeletError(f"registration of {resource} given up: the agent is stopping")
            if not own_socket.exists():
                call.cancel()
                raise KubeletError(f"registration of {resource} given up: the kubelet removed {own_socket.name}")
    except grpc.RpcError as error:
        raise KubeletError(f"registration of {resource} failed: {reason_of(error)}") from error


def _answered(call: grpc.Future[pb.Empty]) -> bool:
    """Whether the kubelet has answered within the next moment; raises what it answered if that was an error."""
    try:
        call.result(timeout=LOOK_PERIOD_S)
    except grpc.FutureTimeoutError:
        return False
    return True
