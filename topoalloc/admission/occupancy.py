"""What the containers of a node hold and what the node can give, as the kubelet's PodResources API tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from topoalloc.admission.memory import MemoryBlock
from topoalloc.topology.cpus import CpuSet


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """One container: device ids by resource, CPUs and memory that are its own (empty where it shares)."""

    namespace: str
    pod: str
    container: str
    devices: Mapping[str, frozenset[str]] = field(default_factory=dict)
    cpus: CpuSet = field(default_factory=CpuSet)
    memory: tuple[MemoryBlock, ...] = ()


@dataclass(frozen=True, slots=True)
class Allocatable:
    """What can be given out, in use or not.

    `devices[resource][id]` are the NUMA nodes of a healthy device; a resource without any is missing. `cpus` is empty
    and `memory_bytes` (by node and kind) too where that manager's policy is `none`.
    """

    devices: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    cpus: CpuSet = field(default_factory=CpuSet)
    memory_bytes: Mapping[int, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """A whole node at one moment."""

    containers: tuple[ContainerUse, ...]
    allocatable: Allocatable

    def devices_in_use(self) -> dict[str, frozenset[str]]:
        """Device ids that somebody holds, by resource."""
        used: dict[str, frozenset[str]] = {}
        for container in self.containers:
            for resource, ids in container.devices.items():
                used[resource] = used.get(resource, frozenset()) | ids
        return used

    def exclusive_cpus(self) -> CpuSet:
        """CPUs that some container has to itself."""
        taken = CpuSet()
        for container in self.containers:
            taken = taken | container.cpus
        return taken
