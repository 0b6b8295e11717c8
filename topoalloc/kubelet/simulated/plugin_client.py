"""One connection from the kubelet to a device plugin's socket: it carries calls and decides nothing.

As in Kubernetes 1.37: the device list may have 4 MiB, GetPreferredAllocation and Allocate have no deadline.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from topoalloc.pb import deviceplugin_v1beta1_pb2 as wire
from topoalloc.pb import deviceplugin_v1beta1_pb2_grpc as wire_grpc

RECEIVE_BYTES_MAX = 4 * 1024 * 1024  # gRPC-Go's default, which the kubelet leaves as it is (k/k #109304)
DIAL_LIMIT_S = 10.0  # pkg/kubelet/cm/devicemanager/plugin/v1beta1: the dial inside Register
JOIN_LIMIT_S = 5.0  # a cancelled stream ends in milliseconds; anything longer is a fault worth hearing about
HEALTHY = "Healthy"  # every other word is unhealthy

_CHANNEL_OPTIONS = (
    ("grpc.default_authority", "localhost"),  # as k/k PR 112597; strict servers refuse a path here
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    # A global pool would hand the back-off of a dead socket path to the next connection.
    ("grpc.use_local_subchannel_pool", 1),
)

# gRPC-Go spells the codes in an error's text this way (google.golang.org/grpc/codes, code_string.go).
_GO_CODES = {
    grpc.StatusCode.OK: "OK",
    grpc.StatusCode.CANCELLED: "Canceled",
    grpc.StatusCode.UNKNOWN: "Unknown",
    grpc.StatusCode.INVALID_ARGUMENT: "InvalidArgument",
    grpc.StatusCode.DEADLINE_EXCEEDED: "DeadlineExceeded",
    grpc.StatusCode.NOT_FOUND: "NotFound",
    grpc.StatusCode.ALREADY_EXISTS: "AlreadyExists",
    grpc.StatusCode.PERMISSION_DENIED: "PermissionDenied",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "ResourceExhausted",
    grpc.StatusCode.FAILED_PRECONDITION: "FailedPrecondition",
    grpc.StatusCode.ABORTED: "Aborted",
    grpc.StatusCode.OUT_OF_RANGE: "OutOfRange",
    grpc.StatusCode.UNIMPLEMENTED: "Unimplemented",
    grpc.StatusCode.INTERNAL: "Internal",
    grpc.StatusCode.UNAVAILABLE: "Unavailable",
    grpc.StatusCode.DATA_LOSS: "DataLoss",
    grpc.StatusCode.UNAUTHENTICATED: "Unauthenticated",
}


class PluginCallError(Exception):
    """A call to a plugin failed; the text is what a kubelet would print."""


@dataclass(frozen=True, slots=True)
class DeviceList:
    """One ListAndWatch message. `nodes`: NUMA ids of every device, `()` for an empty TopologyInfo, None for none."""

    nodes: Mapping[str, tuple[int, ...] | None]
    healthy: frozenset[str]


class PluginClient:
    """A plugin behind one socket path. `watch` runs its stream in a thread of its own."""

    def __init__(self, resource: str, path: Path) -> None:
        self.resource = resource
        self.path = path
        self.prefers = False
        self._channel = grpc.insecure_channel(f"unix:{path}", options=_CHANNEL_OPTIONS)
        self._stub = wire_grpc.DevicePluginStub(self._channel)
        self._stream: grpc.Call | None = None
        self._thread: threading.Thread | None = None
        self._beginning = threading.Lock()  # whoever closes meanwhile finds the stream begun or not, never half

    def connect(self, limit_s: float = DIAL_LIMIT_S) -> None:
        """Dial and ask for the options; raises PluginCallError, after which the client is of no use."""
        try:
            options = self._stub.GetDevicePluginOptions(wire.Empty(), wait_for_ready=True, timeout=limit_s)
        except grpc.RpcError as error:
            self._channel.close()
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise PluginCallError("failed to dial device plugin: context deadline exceeded") from error
            raise PluginCallError(go_text(error)) from error
        self.prefers = options.get_preferred_allocation_available

    def watch(
        self,
        on_list: Callable[[PluginClient, DeviceList], None],
        on_end: Callable[[PluginClient, str], None],
    ) -> None:
        """Start the stream; `on_list` gets every complete list, `on_end` the reason, once and last."""

        def run(stream: Iterable[wire.ListAndWatchResponse]) -> None:
            reason = "ListAndWatch ended: EOF"
            try:
                for message in stream:
                    on_list(self, device_list_of(message))
            except grpc.RpcError as error:
                reason = f"ListAndWatch ended unexpectedly: {go_text(error)}"
            on_end(self, reason)

        with self._beginning:
            self._stream = stream = self._stub.ListAndWatch(wire.Empty())
            name = f"list-and-watch {self.resource}"
            self._thread = threading.Thread(target=run, args=(stream,), name=name, daemon=True)
            self._thread.start()

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...] | None:
        """GetPreferredAllocation of one container; None where the plugin expressed no preference."""
        request = wire.PreferredAllocationRequest(
            container_requests=[
                wire.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
                )
            ]
        )
        try:
            response = self._stub.GetPreferredAllocation(request)
        except grpc.RpcError as error:
            raise PluginCallError(go_text(error)) from error
        if not response.container_responses:
            return None
        return tuple(response.container_responses[0].deviceIDs)

    def allocate(self, ids: Sequence[str]) -> bytes | None:
        """Allocate for one container: its serialised ContainerAllocateResponse, or None for an empty answer."""
        request = wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=ids)])
        try:
            response = self._stub.Allocate(request)
        except grpc.RpcError as error:
            raise PluginCallError(go_text(error)) from error
        if not response.container_responses:
            return None
        return response.container_responses[0].SerializeToString(deterministic=True)

    def close(self) -> None:
        """Cancel the stream and the connection."""
        with self._beginning:
            stream, thread = self._stream, self._thread
        if stream is not None:
            stream.cancel()
        self._channel.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_LIMIT_S)


def device_list_of(message: wire.ListAndWatchResponse) -> DeviceList:
    """The devices of a message; of two with one id the last counts, as in the kubelet's map."""
    nodes: dict[str, tuple[int, ...] | None] = {}
    health: dict[str, bool] = {}
    for device in message.devices:
        nodes[device.ID] = tuple(node.ID for node in device.topology.nodes) if device.HasField("topology") else None
        health[device.ID] = device.health == HEALTHY
    return DeviceList(nodes, frozenset(name for name, healthy in health.items() if healthy))


def go_text(error: grpc.RpcError) -> str:
    """An RPC error in gRPC-Go's words, which the kubelet repeats to the user."""
    return f"rpc error: code = {_GO_CODES[error.code()]} desc = {error.details() or ''}"
