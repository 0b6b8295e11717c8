"""A device plugin of a few lines on a real gRPC server, whose answers a test decides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from topoalloc.pb import deviceplugin_v1beta1_pb2 as wire
from topoalloc.pb import deviceplugin_v1beta1_pb2_grpc as wire_grpc

CALL_LIMIT_S = 20.0


class RefusedCallError(Exception):
    """Raised by an answer function: the call fails with this code and text."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Asked:
    """One GetPreferredAllocation call."""

    available: frozenset[str]
    must: frozenset[str]
    size: int


def device(device_id: str, *nodes: int, healthy: bool = True, empty_topology: bool = False) -> wire.Device:
    """A device of the wire; without nodes there is no topology message unless it shall be empty."""
    topology = wire.TopologyInfo(nodes=[wire.NUMANode(ID=node) for node in nodes])
    return wire.Device(
        ID=device_id,
        health="Healthy" if healthy else "Unhealthy",
        topology=topology if nodes or empty_topology else None,
    )


def first_fit(asked: Asked) -> Sequence[str] | None:
    rest = sorted(asked.available - asked.must)
    return [*sorted(asked.must), *rest[: asked.size - len(asked.must)]]


def plain_grant(ids: frozenset[str]) -> wire.ContainerAllocateResponse | None:
    return wire.ContainerAllocateResponse(envs={"DEVICES": ",".join(sorted(ids))})


@dataclass
class ToyPlugin(wire_grpc.DevicePluginServicer):
    """Serves one resource on `directory`/`socket_name` from `start` to `stop`."""

    directory: Path
    resource: str
    devices: list[wire.Device]
    socket_name: str = "toy.sock"
    prefers: bool = True
    prefer: Callable[[Asked], Sequence[str] | None] = first_fit
    grant: Callable[[frozenset[str]], wire.ContainerAllocateResponse | None] = plain_grant
    asked: list[Asked] = field(default_factory=list)
    allocated: list[frozenset[str]] = field(default_factory=list)
    options_asked: int = 0

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._version = 0
        self._stopping = False
        self._server: grpc.Server | None = None

    def start(self) -> ToyPlugin:
        self._server = grpc.server(futures.ThreadPoolExecutor(8), options=(("grpc.so_reuseport", 0),))
        wire_grpc.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.directory / self.socket_name}")
        self._server.start()
        return self

    def register(self, **changes: str) -> None:
        """Call the kubelet's Register; raises grpc.RpcError when it refuses."""
        request = wire.RegisterRequest(version="v1beta1", endpoint=self.socket_name, resource_name=self.resource)
        for name, value in changes.items():
            setattr(request, name, value)
        options = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
        with grpc.insecure_channel(f"unix:{self.directory / 'kubelet.sock'}", options=options) as channel:
            wire_grpc.RegistrationStub(channel).Register(request, timeout=CALL_LIMIT_S, wait_for_ready=True)

    def serve(self) -> ToyPlugin:
        self.start()
        self.register()
        return self

    def send(self, devices: list[wire.Device]) -> None:
        """Send a new list on every open stream."""
        with self._changed:
            self.devices = devices
            self._version += 1
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._server is not None:
            self._server.stop(grace=None).wait(CALL_LIMIT_S)

    def GetDevicePluginOptions(self, request: wire.Empty, context: grpc.ServicerContext) -> wire.DevicePluginOptions:
        self.options_asked += 1
        return wire.DevicePluginOptions(get_preferred_allocation_available=self.prefers)

    def ListAndWatch(self, request: wire.Empty, context: grpc.ServicerContext) -> Iterator[wire.ListAndWatchResponse]:
        def wake() -> None:
            with self._changed:
                self._changed.notify_all()

        context.add_callback(wake)
        sent = -1
        while self._wait(sent, context):
            with self._changed:
                sent = self._version
                message = wire.ListAndWatchResponse(devices=self.devices)
            yield message

    def _wait(self, sent: int, context: grpc.ServicerContext) -> bool:
        """Wait for another list than `sent`; False when the stream is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or not context.is_active() or self._version != sent)
            return not self._stopping and context.is_active()

    def GetPreferredAllocation(
        self, request: wire.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> wire.PreferredAllocationResponse:
        (one,) = request.container_requests
        asked = Asked(frozenset(one.available_deviceIDs), frozenset(one.must_include_deviceIDs), one.allocation_size)
        self.asked.append(asked)
        try:
            ids = self.prefer(asked)
        except RefusedCallError as refusal:
            context.abort(refusal.code, str(refusal))
        if ids is None:
            return wire.PreferredAllocationResponse()
        return wire.PreferredAllocationResponse(
            container_responses=[wire.ContainerPreferredAllocationResponse(deviceIDs=ids)]
        )

    def Allocate(self, request: wire.AllocateRequest, context: grpc.ServicerContext) -> wire.AllocateResponse:
        (one,) = request.container_requests
        ids = frozenset(one.devices_ids)
        self.allocated.append(ids)
        try:
            answer = self.grant(ids)
        except RefusedCallError as refusal:
            context.abort(refusal.code, str(refusal))
        return wire.AllocateResponse(container_responses=[] if answer is None else [answer])

    def PreStartContainer(
        self, request: wire.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> wire.PreStartContainerResponse:
        raise AssertionError("this plugin did not ask for it")
