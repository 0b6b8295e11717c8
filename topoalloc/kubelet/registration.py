"""Telling the kubelet that a resource is served."""

from __future__ import annotations

from pathlib import Path

import grpc

from topoalloc.errors import KubeletError
from topoalloc.kubelet.channel import reason_of, unix_channel
from topoalloc.pb import deviceplugin_v1beta1_pb2 as pb
from topoalloc.pb.deviceplugin_v1beta1_pb2_grpc import RegistrationStub

API_VERSION = "v1beta1"
# Register returns only after the kubelet has dialled our socket (up to 10 s) and asked for our options.
REGISTER_TIMEOUT_S = 15.0


def register(kubelet_socket: Path, endpoint: str, resource: str) -> None:
    """Register once; the socket must be served already. Raises KubeletError with the kubelet's words."""
    request = pb.RegisterRequest(
        version=API_VERSION,
        endpoint=endpoint,
        resource_name=resource,
        options=pb.DevicePluginOptions(get_preferred_allocation_available=True),
    )
    with unix_channel(kubelet_socket) as channel:
        try:
            RegistrationStub(channel).Register(request, timeout=REGISTER_TIMEOUT_S)
        except grpc.RpcError as error:
            raise KubeletError(f"registration of {resource} failed: {reason_of(error)}") from error
