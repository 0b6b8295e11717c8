"""The kubelet's PodResources server, v1: what active pods hold. List has the side effect that it has in a kubelet.

Rules of Kubernetes 1.37 (pkg/kubelet/apis/podresources, server_v1.go).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import grpc

from topoalloc.admission.memory import MemoryBlock
from topoalloc.admission.numa_mask import nodes_of
from topoalloc.admission.pod import Container, Pod
from topoalloc.kubelet.simulated.device_manager import DeviceManager
from topoalloc.kubelet.simulated.exclusive import ExclusiveResources
from topoalloc.kubelet.simulated.pod_store import Phase, PodStore
from topoalloc.kubelet.simulated.rate import TokenBucket
from topoalloc.pb import podresources_v1_pb2 as wire
from topoalloc.pb import podresources_v1_pb2_grpc as wire_grpc

RATE_HZ = 100.0  # DefaultQPS and DefaultBurstTokens of the kubelet's rate limiter, shared by all clients
BURST = 10


class PodResourcesService(wire_grpc.PodResourcesListerServicer):
    """One kubelet process's PodResources endpoint."""

    def __init__(
        self,
        pods: PodStore,
        devices: DeviceManager,
        exclusive: ExclusiveResources,
        now_s: Callable[[], float] | None,
    ) -> None:
        """`now_s` is the clock of the rate limit; None: no limit."""
        self._pods = pods
        self._devices = devices
        self._exclusive = exclusive
        self._bucket = None if now_s is None else TokenBucket(RATE_HZ, BURST, now_s)
        self._lock = threading.Lock()
        self._settled: dict[str, wire.PodResources] = {}

    def List(  # noqa: N802
        self, request: wire.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> wire.ListPodResourcesResponse:
        self._limit(context)
        active = self._pods.active()
        self._devices.collect()
        return wire.ListPodResourcesResponse(pod_resources=[self._of_pod(pod) for pod in active])

    def Get(  # noqa: N802
        self, request: wire.GetPodResourcesRequest, context: grpc.ServicerContext
    ) -> wire.GetPodResourcesResponse:
        self._limit(context)
        wanted = (request.pod_namespace, request.pod_name)
        for stored in reversed(self._pods.all()):  # of several with one name the youngest; active or not
            if (stored.pod.namespace, stored.pod.name) == wanted:
                return wire.GetPodResourcesResponse(pod_resources=self._of_pod(stored.pod))
        context.abort(grpc.StatusCode.UNKNOWN, f"pod {request.pod_name} in namespace {request.pod_namespace} not found")
        raise AssertionError("abort raises")

    def GetAllocatableResources(  # noqa: N802
        self, request: wire.AllocatableResourcesRequest, context: grpc.ServicerContext
    ) -> wire.AllocatableResourcesResponse:
        self._limit(context)
        devices: list[wire.ContainerDevices] = []
        for resource, listed in self._devices.tables.listed.items():
            healthy = (device for device in listed.nodes if device in listed.healthy)
            devices.extend(_device_messages(resource, healthy, listed.nodes.get))
        return wire.AllocatableResourcesResponse(
            devices=devices,
            cpu_ids=list(self._exclusive.allocatable_cpus()),
            memory=_memory_messages(self._exclusive.allocatable_memory()),
        )

    def _limit(self, context: grpc.ServicerContext) -> None:
        if self._bucket is not None and not self._bucket.take():
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")

    def _of_pod(self, pod: Pod) -> wire.PodResources:
        """What a pod's app containers and sidecars hold; ordinary init containers are not listed.

        Built once for a pod whose admission is over, since nothing changes for it any more.
        """
        with self._lock:
            known = self._settled.get(pod.uid)
        if known is not None:
            return known
        stored = self._pods.find(pod.uid)
        shown = [container for container in pod.containers if container.restartable or not container.init]
        message = wire.PodResources(
            name=pod.name,
            namespace=pod.namespace,
            containers=[self._of_container(pod, container) for container in shown],
        )
        if stored is not None and stored.phase is Phase.RUNNING:
            with self._lock:
                self._settled[pod.uid] = message
        return message

    def _of_container(self, pod: Pod, container: Container) -> wire.ContainerResources:
        tables = self._devices.tables
        devices: list[wire.ContainerDevices] = []
        for owner, ids in tables.recorded.items():
            if (owner.pod_uid, owner.container) == (pod.uid, container.name):
                nodes = tables.listed[owner.resource].nodes if owner.resource in tables.listed else {}
                devices.extend(_device_messages(owner.resource, sorted(ids), nodes.get))
        return wire.ContainerResources(
            name=container.name,
            devices=devices,
            cpu_ids=list(self._exclusive.cpus_of(pod.uid, container.name)),
            memory=_memory_messages(self._exclusive.memory_of(pod.uid, container.name)),
        )


def _device_messages(
    resource: str, ids: Iterable[str], nodes_of_device: Callable[[str], tuple[int, ...] | None]
) -> Iterable[wire.ContainerDevices]:
    """One entry per device, and of a device with several NUMA nodes one per node."""
    for device in ids:
        nodes = nodes_of_device(device)
        for node in nodes or (None,):
            topology = None if node is None else wire.TopologyInfo(nodes=[wire.NUMANode(ID=node)])
            yield wire.ContainerDevices(resource_name=resource, device_ids=[device], topology=topology)


def _memory_messages(blocks: Iterable[MemoryBlock]) -> list[wire.ContainerMemory]:
    return [
        wire.ContainerMemory(
            memory_type=block.kind,
            size=block.size_bytes,
            topology=wire.TopologyInfo(nodes=[wire.NUMANode(ID=node) for node in nodes_of(block.mask)]),
        )
        for block in blocks
    ]
