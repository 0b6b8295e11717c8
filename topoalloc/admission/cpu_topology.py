"""CPUs, cores, sockets, NUMA nodes and last-level caches as the CPU manager knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Machine


@dataclass(frozen=True, slots=True)
class CpuPlace:
    """Where one CPU (hardware thread) sits. `core` is the lowest CPU number of its core, as in the kubelet."""

    core: int
    socket: int
    numa_node: int


@dataclass(frozen=True, slots=True)
class CpuTopology:
    """All online CPUs. The counts are the kubelet's own: `socket_count` comes from another source than `places`."""

    places: Mapping[int, CpuPlace]
    socket_count: int

    @property
    def cpus(self) -> CpuSet:
        raise NotImplementedError

    @property
    def core_count(self) -> int:
        raise NotImplementedError

    @property
    def cpus_per_core(self) -> int:
        """CPUs divided by cores, rounded down: a hybrid machine has less than its widest core."""
        raise NotImplementedError

    @property
    def cpus_per_socket(self) -> int:
        raise NotImplementedError

    @property
    def numa_nodes(self) -> tuple[int, ...]:
        """Ids of the nodes that have CPUs, ascending."""
        raise NotImplementedError

    def cpus_of_nodes(self, mask: int) -> CpuSet:
        raise NotImplementedError


def cpu_topology(machine: Machine) -> CpuTopology:
    """The CPUs of a machine whose NUMA CPU lists are known. Raises InputError where they are not.

    Threads and sockets are not part of the machine model: each CPU is then its own core and each NUMA node its
    own socket, so that the order of CPUs is right up to hyper-thread siblings.
    """
    raise NotImplementedError
