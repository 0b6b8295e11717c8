"""Which CPUs the static CPU manager takes out of those free: whole NUMA nodes and sockets, whole cores, threads.

Semantics of pkg/kubelet/cm/cpumanager/cpu_assignment.go (1.37), faults included where they decide the outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from topoalloc.admission.cpu_topology import CpuTopology
from topoalloc.topology.cpus import CpuSet


@dataclass(frozen=True, slots=True)
class NotTaken:
    """The kubelet's error text."""

    text: str


def not_enough(requested: int, available: CpuSet) -> NotTaken:
    counts = f"requested={requested}, available={len(available)}"
    return NotTaken(f"not enough cpus available to satisfy request: {counts}")


def take_packed(
    topology: CpuTopology, available: CpuSet, count: int, *, spread_over_cores: bool = False
) -> CpuSet | NotTaken:
    """Take `count` CPUs as closely together as they come: best fit, from the fullest place that still suffices."""
    taking = Taking(topology, available, count)
    if taking.is_satisfied():
        return taking.taken
    if count > len(available):
        return not_enough(count, available)
    levels = (taking.take_full_sockets, taking.take_full_numa_nodes)
    steps = [*(levels if topology.sockets_above_numa else reversed(levels))]
    if not spread_over_cores:
        steps.append(taking.take_full_cores)
    for step in steps:
        step()
        if taking.is_satisfied():
            return taking.taken
    taking.take_threads(spread_over_cores)
    return taking.taken if taking.is_satisfied() else NotTaken("failed to allocate cpus")


class Taking:
    """One allocation under way: what is still free, what is taken, how many are missing."""

    __slots__ = ("free", "needed", "taken", "topology")

    def __init__(self, topology: CpuTopology, available: CpuSet, count: int) -> None:
        self.topology = topology
        self.free = available & topology.cpus
        self.needed = count
        self.taken = CpuSet()

    def is_satisfied(self) -> bool:
        return self.needed < 1

    def take(self, cpus: CpuSet) -> None:
        """Claim these CPUs. The count falls by all of them, also by those taken before: as the kubelet counts."""
        self.taken = self.taken | cpus
        self.free = self.free - self.taken
        self.needed -= len(cpus)

    def take_full_numa_nodes(self) -> None:
        nodes = self.topology.by_numa_node
        free = [node for node in self.numa_nodes_in_order() if self._free_in(nodes[node]) == len(nodes[node])]
        self._take_whole(nodes[node] for node in free)

    def take_full_sockets(self) -> None:
        sockets, full = self.topology.by_socket, self.topology.cpus_per_socket
        free = [socket for socket in self.sockets_in_order() if self._free_in(sockets[socket]) == full]
        self._take_whole(sockets[socket] for socket in free)

    def take_full_cores(self) -> None:
        """A core is free when it has the average number of threads free: on a hybrid machine, a core of two threads
        with one of them busy is taken whole all the same."""
        cores, full = self.topology.by_core, self.topology.cpus_per_core
        free = [core for core in self._cores_in_order() if self._free_in(cores[core]) == full]
        self._take_whole(cores[core] for core in free)

    def take_threads(self, spread_over_cores: bool) -> None:
        order = self._threads_by_socket() if spread_over_cores else self._threads_by_core()
        for cpu in order:
            self.take(CpuSet(1 << cpu))
            if self.is_satisfied():
                return

    def numa_nodes_in_order(self) -> list[int]:
        """NUMA nodes with a free CPU, the fullest first; below sockets: socket by socket."""
        if not self.topology.sockets_above_numa:
            return self._fullest_first(self.topology.by_numa_node, self.free)
        return [
            node
            for socket in self.sockets_in_order()
            for node in self._fullest_first(self.topology.by_numa_node, self._free_of_socket(socket))
        ]

    def sockets_in_order(self) -> list[int]:
        """Sockets with a free CPU, the fullest first; below NUMA nodes: node by node."""
        if self.topology.sockets_above_numa:
            return self._fullest_first(self.topology.by_socket, self.free)
        return [
            socket
            for node in self.numa_nodes_in_order()
            for socket in self._fullest_first(self.topology.by_socket, self.free_of_node(node))
        ]

    def free_of_node(self, node: int) -> CpuSet:
        return self.free & self.topology.by_numa_node.get(node, CpuSet())

    def _free_of_socket(self, socket: int) -> CpuSet:
        return self.free & self.topology.by_socket.get(socket, CpuSet())

    def _free_in(self, cpus: CpuSet) -> int:
        return len(self.free & cpus)

    def _take_whole(self, groups: Iterable[CpuSet]) -> None:
        for cpus in groups:
            if self.needed >= len(cpus):
                self.take(cpus)

    def _fullest_first(self, groups: Mapping[int, CpuSet], within: CpuSet) -> list[int]:
        """The groups with a free CPU in `within`, fewest free CPUs first (counted in the whole group), then by id."""
        return sorted(
            (group for group, cpus in groups.items() if cpus & within),
            key=lambda group: (self._free_in(groups[group]), group),
        )

    def _cores_in_order(self) -> list[int]:
        if self.topology.sockets_above_numa:
            places = [self.free_of_node(node) for node in self.numa_nodes_in_order()]
        else:
            places = [self._free_of_socket(socket) for socket in self.sockets_in_order()]
        return [core for place in places for core in self._fullest_first(self.topology.by_core, place)]

    def _threads_by_core(self) -> list[int]:
        return [cpu for core in self._cores_in_order() for cpu in self.free & self.topology.by_core[core]]

    def _threads_by_socket(self) -> list[int]:
        return [cpu for socket in self.sockets_in_order() for cpu in self._free_of_socket(socket)]
