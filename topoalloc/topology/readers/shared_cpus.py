"""The sign of two faults: NUMA nodes that list the same CPUs.

Linux puts every CPU on one node. A BIOS that tells it otherwise lists all CPUs everywhere, and hwloc gives a node
without CPUs of its own (HBM, persistent memory) those of the node beside it.
"""

from __future__ import annotations

from collections.abc import Iterable

from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.reading import NumaReading


def shared_cpus(nodes: Iterable[NumaReading]) -> tuple[str, ...]:
    """One warning for each node whose CPUs are already listed by nodes before it."""
    seen = CpuSet()
    warnings: list[str] = []
    for node in nodes:
        if not isinstance(node.cpus, CpuSet):
            continue
        shared = node.cpus & seen
        if shared:
            warnings.append(f"NUMA node {node.id} lists CPUs {shared}, which other nodes list too")
        seen = seen | node.cpus
    return tuple(warnings)
