"""Reading the whole node from the kubelet's PodResources API: what every container holds and what there is to give."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import grpc

from topoalloc.admission.memory import MemoryBlock
from topoalloc.admission.numa_mask import partial_mask_of
from topoalloc.admission.occupancy import Allocatable, ContainerUse
from topoalloc.errors import KubeletError
from topoalloc.kubelet.channel import reason_of, unix_channel, within_rate
from topoalloc.pb import podresources_v1_pb2 as pb
from topoalloc.pb.podresources_v1_pb2_grpc import PodResourcesListerStub
from topoalloc.topology.cpus import CPU_NUMBER_MAX, CpuSet

Answer = TypeVar("Answer")

# Nobody waits for these answers, so a kubelet in distress is given time.
TIMEOUT_S = 5.0


class NodeOccupancy:
    """Client of one PodResources socket."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._channel = unix_channel(socket)
        self._stub = PodResourcesListerStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def containers(self) -> tuple[ContainerUse, ...]:
        """What every container holds now; raises KubeletError.

        A List while an Allocate is running can make the kubelet forget that call's devices, so it is not for moments
        in which pods are being admitted.
        """
        answer = self._asked("List", lambda: self._stub.List(pb.ListPodResourcesRequest(), timeout=TIMEOUT_S))
        return tuple(_container(pod, container) for pod in answer.pod_resources for container in pod.containers)

    def allocatable(self) -> Allocatable:
        """What there is to give, which has no side effect; raises KubeletError."""
        request = pb.AllocatableResourcesRequest()
        return _allocatable(
            self._asked(
                "GetAllocatableResources", lambda: self._stub.GetAllocatableResources(request, timeout=TIMEOUT_S)
            )
        )

    def _asked(self, call: str, question: Callable[[], Answer]) -> Answer:
        if not self._socket.exists():
            raise KubeletError(f"PodResources: {self._socket} does not exist")
        try:
            return within_rate(question)
        except grpc.RpcError as error:
            raise KubeletError(f"PodResources {call} failed: {reason_of(error)}") from error
        except ValueError as error:  # the channel was closed: we are ending
            raise KubeletError(f"PodResources {call} failed: {error}") from error


def _container(pod: pb.PodResources, container: pb.ContainerResources) -> ContainerUse:
    devices: dict[str, set[str]] = {}
    for entry in container.devices:
        devices.setdefault(entry.resource_name, set()).update(entry.device_ids)
    return ContainerUse(
        namespace=pod.namespace,
        pod=pod.name,
        container=container.name,
        devices={resource: frozenset(ids) for resource, ids in devices.items()},
        cpus=_cpus(container.cpu_ids),
        memory=tuple(
            MemoryBlock(block.memory_type, partial_mask_of(_nodes(block.topology)), block.size)
            for block in container.memory
        ),
    )


def _allocatable(answer: pb.AllocatableResourcesResponse) -> Allocatable:
    devices: dict[str, dict[str, tuple[int, ...]]] = {}
    for entry in answer.devices:  # a device with several nodes comes once for each
        of_resource = devices.setdefault(entry.resource_name, {})
        for device_id in entry.device_ids:
            of_resource[device_id] = of_resource.get(device_id, ()) + _nodes(entry.topology)
    memory: dict[int, dict[str, int]] = {}
    for block in answer.memory:
        for node in _nodes(block.topology)[:1]:  # what can be given is told node by node
            memory.setdefault(node, {})[block.memory_type] = block.size
    return Allocatable(devices, _cpus(answer.cpu_ids), memory)


def _nodes(topology: pb.TopologyInfo) -> tuple[int, ...]:
    return tuple(node.ID for node in topology.nodes)


def _cpus(ids: Iterable[int]) -> CpuSet:
    return CpuSet.of(cpu for cpu in ids if 0 <= cpu <= CPU_NUMBER_MAX)
