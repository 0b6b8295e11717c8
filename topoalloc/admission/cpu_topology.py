"""CPUs, cores, sockets and NUMA nodes as the CPU manager knows them (pkg/kubelet/cm/cpumanager/topology)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from topoalloc.errors import InputError
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Machine, Unknown


@dataclass(frozen=True, slots=True)
class CpuPlace:
    """Where one CPU (hardware thread) sits. `core` is the lowest CPU number of its core, as in the kubelet."""

    core: int
    socket: int
    numa_node: int


@dataclass(frozen=True, slots=True)
class CpuTopology:
    """All online CPUs, indexed every way that the allocation looks at them.

    `socket_count` is a fact of its own: the kubelet reads it from another file than the places of the CPUs.
    """

    places: Mapping[int, CpuPlace]
    socket_count: int
    cpus: CpuSet
    by_core: Mapping[int, CpuSet]
    by_socket: Mapping[int, CpuSet]
    by_numa_node: Mapping[int, CpuSet]
    sockets_of_numa_node: Mapping[int, frozenset[int]]

    @classmethod
    def of(cls, places: Mapping[int, CpuPlace], socket_count: int | None = None) -> CpuTopology:
        """Index the places; sockets are counted among them unless told."""
        by_socket = _grouped((place.socket, cpu) for cpu, place in places.items())
        by_numa_node = _grouped((place.numa_node, cpu) for cpu, place in places.items())
        return cls(
            places=places,
            socket_count=len(by_socket) if socket_count is None else socket_count,
            cpus=CpuSet.of(places),
            by_core=_grouped((place.core, cpu) for cpu, place in places.items()),
            by_socket=by_socket,
            by_numa_node=by_numa_node,
            sockets_of_numa_node={
                node: frozenset(places[cpu].socket for cpu in cpus) for node, cpus in by_numa_node.items()
            },
        )

    @property
    def cpus_per_core(self) -> int:
        """CPUs divided by cores, rounded down: on a hybrid machine less than its widest core has."""
        return len(self.cpus) // len(self.by_core) if self.by_core else 0

    @property
    def cpus_per_socket(self) -> int:
        return len(self.cpus) // self.socket_count if self.socket_count else 0

    @property
    def numa_nodes(self) -> tuple[int, ...]:
        """Ids of the nodes that have CPUs, ascending."""
        return tuple(sorted(self.by_numa_node))

    @property
    def sockets_above_numa(self) -> bool:
        """Whether a socket holds several NUMA nodes; on a tie NUMA nodes are looked at first."""
        return self.socket_count < len(self.by_numa_node)

    def cpus_of_nodes(self, nodes: Iterable[int]) -> CpuSet:
        """The CPUs of these NUMA nodes; ids without CPUs add none."""
        bits = 0
        for node in nodes:
            bits |= self.by_numa_node.get(node, CpuSet()).bits
        return CpuSet(bits)

    def sockets_of_nodes(self, nodes: Iterable[int]) -> frozenset[int]:
        """The sockets that these NUMA nodes touch."""
        return frozenset().union(*(self.sockets_of_numa_node.get(node, frozenset()) for node in nodes))


def _grouped(pairs: Iterable[tuple[int, int]]) -> dict[int, CpuSet]:
    bits: dict[int, int] = {}
    for group, cpu in pairs:
        bits[group] = bits.get(group, 0) | 1 << cpu
    return {group: CpuSet(bits[group]) for group in sorted(bits)}


def cpu_topology(machine: Machine) -> CpuTopology:
    """The CPUs of a machine whose NUMA CPU lists are known. Raises InputError where they are not.

    Threads and sockets are not part of the machine model: each CPU is then its own core and each NUMA node its
    own socket. Which node CPUs come from is right all the same; which of a core's threads are taken together
    is not, and `full-pcpus-only` has nothing to refuse.
    """
    places: dict[int, CpuPlace] = {}
    for node in machine.numa_nodes:
        if isinstance(node.cpus, Unknown):
            raise InputError(
                f"the CPUs of NUMA node {node.id} are unknown ({node.cpus.evidence}): the static CPU manager needs "
                "a source that lists them, such as a sysfs dump or numactl -H"
            )
        places.update((cpu, CpuPlace(core=cpu, socket=node.id, numa_node=node.id)) for cpu in node.cpus)
    if not places:
        raise InputError("no CPU of this machine is known: the static CPU manager needs a source that lists them")
    return CpuTopology.of(places)
