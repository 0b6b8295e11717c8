"""What the kubelet says of its containers on the PodResources socket, asked with the generated stubs alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc

from topoalloc.pb import podresources_v1_pb2 as pb
from topoalloc.pb import podresources_v1_pb2_grpc as rpc

T = TypeVar("T")
TRIES_MAX = 100
PAUSE_S = 0.1


@dataclass(frozen=True)
class Held:
    """What one container holds; `devices` by resource, sorted."""

    devices: dict[str, tuple[str, ...]]
    cpus: tuple[int, ...]
    memory_nodes: tuple[int, ...]


@dataclass
class PodResourcesOf:
    """Of one kubelet."""

    socket: Path

    def listed(self) -> dict[tuple[str, str], Held]:
        """(pod, container) -> what it holds. Asks again while the kubelet starts or limits the rate."""
        answer = self._ask(lambda stub: stub.List(pb.ListPodResourcesRequest(), timeout=10))
        return {(pod.name, box.name): _held(box) for pod in answer.pod_resources for box in pod.containers}

    def allocatable(self) -> dict[str, frozenset[str]]:
        """Resource -> the healthy device ids."""
        answer = self._ask(lambda stub: stub.GetAllocatableResources(pb.AllocatableResourcesRequest(), timeout=10))
        found: dict[str, set[str]] = {}
        for device in answer.devices:
            found.setdefault(device.resource_name, set()).update(device.device_ids)
        return {resource: frozenset(ids) for resource, ids in found.items()}

    def allocatable_cpus(self) -> set[int]:
        """The CPUs that the CPU Manager can give."""
        answer = self._ask(lambda stub: stub.GetAllocatableResources(pb.AllocatableResourcesRequest(), timeout=10))
        return set(answer.cpu_ids)

    def memory_by_node(self) -> dict[int, int]:
        """NUMA node -> bytes that the Memory Manager can give."""
        answer = self._ask(lambda stub: stub.GetAllocatableResources(pb.AllocatableResourcesRequest(), timeout=10))
        blocks = [block for block in answer.memory if block.memory_type == "memory"]
        return {node.ID: block.size for block in blocks for node in block.topology.nodes}

    def _ask(self, call: Callable[[rpc.PodResourcesListerStub], T]) -> T:
        options = [("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", 64 << 20)]
        for attempt in range(TRIES_MAX):
            with grpc.insecure_channel(f"unix:{self.socket}", options=options) as channel:
                try:
                    return call(rpc.PodResourcesListerStub(channel))
                except grpc.RpcError:
                    if attempt == TRIES_MAX - 1:
                        raise
            time.sleep(PAUSE_S)
        raise AssertionError


def _held(box: pb.ContainerResources) -> Held:
    devices: dict[str, set[str]] = {}
    for device in box.devices:
        devices.setdefault(device.resource_name, set()).update(device.device_ids)
    nodes = {node.ID for block in box.memory for node in block.topology.nodes}
    return Held({name: tuple(sorted(ids)) for name, ids in devices.items()}, tuple(box.cpu_ids), tuple(sorted(nodes)))
