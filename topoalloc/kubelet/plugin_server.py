"""One resource's DevicePlugin server: the kubelet's calls in, the desk's answers out. It decides nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import grpc

from topoalloc.errors import MachineError
from topoalloc.kubelet.channel import SERVER_OPTIONS
from topoalloc.pb import deviceplugin_v1beta1_pb2 as pb
from topoalloc.pb.deviceplugin_v1beta1_pb2_grpc import DevicePluginServicer, add_DevicePluginServicer_to_server
from topoalloc.sharing.edits import ContainerEdits
from topoalloc.sharing.inventory import Device, Resource

HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"
# A stream holds a worker for its whole life: one for the kubelet's, one for that of a dying kubelet. The rest is for
# calls (the kubelet makes one at a time, at most a second one for a container that is re-allocated at its start).
STREAMS_MAX = 3  # when another one is opened, the oldest is ended: its reader is gone or no kubelet
WORKERS = STREAMS_MAX + 3
# Updates in bursts have crashed kubelets (k/k #119560, #103838). A list goes out at once unless the one before is this
# young; what changes until then goes out together. A list after an Allocate has to be there before the next pod is.
LISTS_APART_S = 0.05
PIECE_DEVICES = 256  # encoded at once: thousands of decoded devices are megabytes that the process would keep
STOP_GRACE_S = 0.5


class Refused(Exception):  # noqa: N818 - a refusal is an answer, not a fault
    """Allocate is refused; the text reaches the pod's user."""


class Desk(Protocol):
    """Where calls are decided."""

    def prefer(
        self, resource: Resource, available: tuple[str, ...], must_include: frozenset[str], size: int
    ) -> tuple[str, ...]:
        """Exactly `size` of the available ids; never fails."""

    def allocate(self, resource: Resource, ids: frozenset[str]) -> ContainerEdits:
        """Grant the ids or raise Refused."""


class DeviceList:
    """The list sent to the kubelet: the same ids for ever, health changing. Encoded once per change."""

    def __init__(self, resource: Resource, apart_s: float = LISTS_APART_S) -> None:
        self.apart_s = apart_s
        self._resource = resource
        self._changed = threading.Condition()
        self._version = 0
        self._unhealthy: frozenset[str] = frozenset()
        self._withheld: frozenset[str] = frozenset()
        self._encoded: bytes | None = self._encode()

    def set_unhealthy(self, keys: frozenset[str]) -> None:
        """Mark the devices of these keys Unhealthy and all others Healthy. An id is never dropped: the kubelet
        dereferences nil when a device it has recorded vanishes (seen on 1.37.2)."""
        keys &= {device.key for device in self._resource.devices}
        with self._changed:
            if keys != self._unhealthy:
                self._unhealthy = keys
                self._tell()

    def set_withheld(self, ids: frozenset[str]) -> None:
        """Mark these ids Unhealthy beside those of unhealthy keys, and no others."""
        with self._changed:
            changed = ids ^ self._withheld
            if any(device.id in changed for device in self._resource.devices):
                self._withheld = ids
                self._tell()

    def healthy(self) -> frozenset[str]:
        """The ids that the latest list shows Healthy."""
        with self._changed:
            return frozenset(device.id for device in self._resource.devices if self._is_healthy(device))

    def wake(self) -> None:
        """Let every waiting stream look whether it should end."""
        with self._changed:
            self._changed.notify_all()

    def current(self) -> tuple[int, pb.ListAndWatchResponse]:
        """The list and its version; kept encoded, since thousands of decoded devices are megabytes that rest unused."""
        with self._changed:
            if self._encoded is None:
                self._encoded = self._encode()
            return self._version, pb.ListAndWatchResponse.FromString(self._encoded)

    def wait_beyond(self, version: int, stop: Callable[[], bool]) -> None:
        """Block until the list differs from `version` or `stop` says so (then `wake` has to be called)."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version or stop())

    def _tell(self) -> None:
        """Encoding is left to the stream that sends: whoever changes health may be answering the kubelet."""
        self._version += 1
        self._encoded = None
        self._changed.notify_all()

    def _is_healthy(self, device: Device) -> bool:
        return device.key not in self._unhealthy and device.id not in self._withheld

    def _encode(self) -> bytes:
        """Piece by piece, since messages put one behind the other are one (protobuf's encoding)."""
        devices = self._resource.devices
        pieces = (devices[begin : begin + PIECE_DEVICES] for begin in range(0, len(devices), PIECE_DEVICES))
        return b"".join(self._encoded_piece(piece) for piece in pieces)

    def _encoded_piece(self, devices: tuple[Device, ...]) -> bytes:
        message = pb.ListAndWatchResponse(
            devices=[
                pb.Device(
                    ID=device.id,
                    health=HEALTHY if self._is_healthy(device) else UNHEALTHY,
                    # An empty TopologyInfo was once read as "has topology" (k/k #112234): leave it out instead.
                    topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in device.numa_nodes])
                    if device.numa_nodes
                    else None,
                )
                for device in devices
            ]
        )
        return message.SerializeToString()


class DeviceLists:
    """The lists of all resources of a node."""

    def __init__(self, resources: tuple[Resource, ...], apart_s: float = LISTS_APART_S) -> None:
        self.by_resource = tuple((resource, DeviceList(resource, apart_s)) for resource in resources)

    def set_unhealthy(self, keys: frozenset[str]) -> None:
        """Report the devices of these keys Unhealthy."""
        for _, devices in self.by_resource:
            devices.set_unhealthy(keys)

    def set_withheld(self, ids: frozenset[str]) -> None:
        """Report these ids Unhealthy too."""
        for _, devices in self.by_resource:
            devices.set_withheld(ids)

    def healthy(self) -> dict[str, frozenset[str]]:
        """The ids that are shown Healthy, by resource name."""
        return {resource.name: devices.healthy() for resource, devices in self.by_resource}


class PluginServer(DevicePluginServicer):
    """Serves one resource on one socket path, from construction until `stop`."""

    def __init__(
        self, path: Path, resource: Resource, devices: DeviceList, desk: Desk, on_stream_change: Callable[[], None]
    ) -> None:
        self.path = path
        self._resource = resource
        self._devices = devices
        self._desk = desk
        self._stopping = threading.Event()
        self._streams_lock = threading.Lock()
        self._ends: list[threading.Event] = []
        self._on_stream_change = on_stream_change
        self._server = grpc.server(
            ThreadPoolExecutor(WORKERS, thread_name_prefix=f"plugin-{resource.kind}"), options=SERVER_OPTIONS
        )
        add_DevicePluginServicer_to_server(self, self._server)
        try:
            self._server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise MachineError(f"cannot serve on {path}: {error}") from error
        self._server.start()

    @property
    def streams(self) -> int:
        """ListAndWatch streams open now."""
        with self._streams_lock:
            return len(self._ends)

    def stop(self) -> None:
        """End the streams, let running calls finish for a moment, remove the socket."""
        self._stopping.set()
        self._devices.wake()
        self._server.stop(STOP_GRACE_S).wait()
        self.path.unlink(missing_ok=True)

    def GetDevicePluginOptions(self, request: pb.Empty, context: grpc.ServicerContext) -> pb.DevicePluginOptions:  # noqa: N802
        return pb.DevicePluginOptions(pre_start_required=False, get_preferred_allocation_available=True)

    def ListAndWatch(self, request: pb.Empty, context: grpc.ServicerContext) -> Iterator[pb.ListAndWatchResponse]:  # noqa: N802
        ended = threading.Event()

        def end() -> None:
            ended.set()
            self._devices.wake()

        def over() -> bool:
            return ended.is_set() or self._stopping.is_set()

        self._open(ended)
        try:
            if not context.add_callback(end):
                return
            while not over():
                version, message = self._devices.current()
                yield message
                del message
                next_at_s = time.monotonic() + self._devices.apart_s
                self._devices.wait_beyond(version, over)
                ended.wait(max(0.0, next_at_s - time.monotonic()))
        finally:
            self._close(ended)

    def GetPreferredAllocation(  # noqa: N802
        self, request: pb.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> pb.PreferredAllocationResponse:
        return pb.PreferredAllocationResponse(
            container_responses=[
                pb.ContainerPreferredAllocationResponse(
                    deviceIDs=self._desk.prefer(
                        self._resource,
                        tuple(item.available_deviceIDs),
                        frozenset(item.must_include_deviceIDs),
                        item.allocation_size,
                    )
                )
                for item in request.container_requests
            ]
        )

    def Allocate(self, request: pb.AllocateRequest, context: grpc.ServicerContext) -> pb.AllocateResponse:  # noqa: N802
        try:
            return pb.AllocateResponse(
                container_responses=[
                    _container_response(self._desk.allocate(self._resource, frozenset(item.devices_ids)))
                    for item in request.container_requests
                ]
            )
        except Refused as refusal:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refusal))

    def PreStartContainer(  # noqa: N802
        self, request: pb.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> pb.PreStartContainerResponse:
        return pb.PreStartContainerResponse()

    def _open(self, stream: threading.Event) -> None:
        with self._streams_lock:
            self._ends.append(stream)
            for oldest in self._ends[:-STREAMS_MAX]:
                oldest.set()
        self._devices.wake()
        self._on_stream_change()

    def _close(self, stream: threading.Event) -> None:
        with self._streams_lock:
            self._ends.remove(stream)
        self._on_stream_change()


def _container_response(edits: ContainerEdits) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=dict(edits.envs),
        devices=[pb.DeviceSpec(container_path=p, host_path=p, permissions="rw") for p in edits.device_paths],
        cdi_devices=[pb.CDIDevice(name=name) for name in edits.cdi_devices],
        mounts=[
            pb.Mount(container_path=m.container_path, host_path=m.host_path, read_only=m.read_only)
            for m in edits.mounts
        ],
    )
