"""NUMA nodes and online CPUs from a sysfs tree, old kernels' spellings included."""

from __future__ import annotations

import re
from dataclasses import dataclass

from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Unknown
from topoalloc.topology.readers.files import Files, text_of
from topoalloc.topology.readers.shared_cpus import shared_cpus
from topoalloc.topology.reading import NumaReading

NODES_MAX = 1024  # Linux MAX_NUMNODES with NODES_SHIFT at its largest, 10
_NODES = "devices/system/node"
_CPUS = "devices/system/cpu"
_DISTANCE_MAX = 255  # ACPI SLIT entries are bytes; 255 means unreachable


@dataclass(frozen=True, slots=True)
class NumaTree:
    """The nodes in order of their ids; `online` is None where the source does not say which CPUs are online."""

    nodes: tuple[NumaReading, ...]
    online: CpuSet | None
    listed: bool  # the source has a node folder at all
    warnings: tuple[str, ...]

    def cpus_of(self, node_id: int) -> CpuSet | None:
        """The node's usable CPUs; None where the node or its CPUs are unknown."""
        for node in self.nodes:
            if node.id == node_id:
                return node.cpus if isinstance(node.cpus, CpuSet) else None
        return None

    def has(self, node_id: int) -> bool:
        return any(node.id == node_id for node in self.nodes)


def read_numa_tree(sys: Files) -> NumaTree | str:
    """The nodes below a sysfs root, or the reason why they cannot be read."""
    ids = sorted(int(name[4:]) for name in sys.names(_NODES) if re.fullmatch(r"node\d{1,5}", name))
    if len(ids) > NODES_MAX:
        return f"more than {NODES_MAX} NUMA nodes, more than Linux can have"
    online = _online_cpus(sys)
    warnings: list[str] = []
    nodes = tuple(
        NumaReading(
            id=node_id,
            cpus=_usable_cpus(sys, node_id, online),
            memory_bytes=_memory_bytes(sys, node_id),
            distances=_distances(sys, node_id, len(ids), warnings),
        )
        for node_id in ids
    )
    return NumaTree(nodes, online, sys.is_folder(_NODES), (*warnings, *shared_cpus(nodes)))


def cpu_list(text: str | None) -> CpuSet | None:
    """A CPU list, or None where it is missing or no list."""
    try:
        return None if text is None else CpuSet.from_list(text)
    except ValueError:
        return None


def _cpu_mask(text: str | None) -> CpuSet | None:
    try:
        return CpuSet.from_mask(text) if text else None
    except ValueError:
        return None


def _online_cpus(sys: Files) -> CpuSet | None:
    """The online list, or on kernels before it (2.6.24) the CPUs whose own `online` file does not say 0."""
    online = cpu_list(text_of(sys, f"{_CPUS}/online"))
    if online is not None:
        return online
    numbers = [int(name[3:]) for name in sys.names(_CPUS) if re.fullmatch(r"cpu\d{1,5}", name)]
    # CPU 0 often has no such file: it cannot be taken offline.
    here = [number for number in numbers if text_of(sys, f"{_CPUS}/cpu{number}/online") != "0"]
    try:
        return CpuSet.of(here) if here else None
    except ValueError:
        return None


def _usable_cpus(sys: Files, node_id: int, online: CpuSet | None) -> CpuSet | Unknown:
    """A node's CPUs that are online; a list may still name offline or absent ones where the mask does not."""
    folder = f"{_NODES}/node{node_id}"
    spellings = (cpu_list(text_of(sys, f"{folder}/cpulist")), _cpu_mask(text_of(sys, f"{folder}/cpumap")))
    told = [cpus for cpus in spellings if cpus is not None]
    if not told:
        return Unknown(f"node{node_id} has no readable cpulist or cpumap")
    cpus = told[0]
    for other in told[1:]:
        cpus = cpus & other
    return cpus if online is None else cpus & online


def _memory_bytes(sys: Files, node_id: int) -> int | Unknown:
    meminfo = text_of(sys, f"{_NODES}/node{node_id}/meminfo")
    match = re.search(r"^Node\s+\d+\s+MemTotal:\s+(\d{1,15})\s*kB", meminfo or "", re.MULTILINE)
    if match is None:
        return Unknown(f"node{node_id} has no readable meminfo")
    return int(match.group(1)) * 1024


def _distances(sys: Files, node_id: int, node_count: int, warnings: list[str]) -> tuple[int, ...] | Unknown:
    """One value per node that exists, in order of the ids and not indexed by them (node_read_distance in Linux)."""
    text = text_of(sys, f"{_NODES}/node{node_id}/distance")
    if text is None:
        return Unknown(f"node{node_id} has no readable distance")
    words = text.split()
    if len(words) != node_count or not all(re.fullmatch(r"\d{1,3}", word) for word in words):
        warnings.append(f"NUMA node {node_id}: its distance row does not hold {node_count} distances: {text[:60]!r}")
        return Unknown(f"the distance row of node{node_id} does not fit the nodes")
    row = tuple(int(word) for word in words)
    if max(row) > _DISTANCE_MAX:
        return Unknown(f"the distance row of node{node_id} holds values above {_DISTANCE_MAX}")
    return row
