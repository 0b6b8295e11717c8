"""What is served under which name: the resource names, the memory unit, NIC pools and NUMA reporting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from topoalloc.topology.machine import Machine, Nic, NicFunction, NicLink, Unknown

CORES_PER_GPU = 100
MEMORY_UNIT_BYTES = 256 * 1024**2  # GaiaGPU's unit
CORE_RESOURCE = "topoalloc.io/vgpu-core"
MEMORY_RESOURCE = "topoalloc.io/vgpu-memory"
NIC_RESOURCE = "topoalloc.io/nic"
TENCENT_CORE_RESOURCE = "tencent.com/vcuda-core"
TENCENT_MEMORY_RESOURCE = "tencent.com/vcuda-memory"


class NumaReporting(StrEnum):
    """Which NUMA nodes the kubelet is told for each device of a resource."""

    NODE = "node"  # the device's own node
    NONE = "none"  # nothing: the Topology Manager leaves the choice to us
    ALL = "all"  # every node with CPUs: no preference, yet the resource still gives hints


@dataclass(frozen=True, slots=True)
class NicSelector:
    """Which NICs a pool offers; a None field asks nothing. A fact that is unknown never satisfies a field that asks."""

    rdma: bool | None = None
    function: NicFunction | None = None
    link: NicLink | None = None
    drivers: frozenset[str] | None = None

    def matches(self, nic: Nic) -> bool:
        """Whether the NIC satisfies every field that asks."""
        if self.rdma is not None and (isinstance(nic.rdma, Unknown) or (nic.rdma is not None) != self.rdma):
            return False
        if self.function is not None and nic.function != self.function:
            return False
        if self.link is not None and nic.link != self.link:
            return False
        return self.drivers is None or (isinstance(nic.driver, str) and nic.driver in self.drivers)


@dataclass(frozen=True, slots=True)
class NicPool:
    """One NIC resource. A NIC belongs to the first pool that selects it, so no port is offered twice."""

    resource: str
    selector: NicSelector = field(default_factory=NicSelector)


@dataclass(frozen=True, slots=True)
class SharingSettings:
    """How a machine is cut into resources. `numa` overrides the default reporting by resource name."""

    core_resource: str = CORE_RESOURCE
    memory_resource: str = MEMORY_RESOURCE
    memory_unit_bytes: int = MEMORY_UNIT_BYTES
    nic_pools: tuple[NicPool, ...] = (NicPool(NIC_RESOURCE),)
    numa: Mapping[str, NumaReporting] = field(default_factory=lambda: MappingProxyType({}))


def pool_of(nic: Nic, machine: Machine, pools: tuple[NicPool, ...]) -> int | None:
    """Position of the pool that offers this NIC, or None.

    A PF whose VFs are in the machine carries their traffic, so it is offered only by a pool that asks for PFs.
    """
    carries_vfs = any(other.physical_function == nic.bdf for other in machine.nics)
    for position, pool in enumerate(pools):
        if carries_vfs and pool.selector.function is not NicFunction.PHYSICAL:
            continue
        if pool.selector.matches(nic):
            return position
    return None
