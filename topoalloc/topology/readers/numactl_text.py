"""`numactl -H`: CPUs, memory and distances of every NUMA node; adds to another source."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Unknown
from topoalloc.topology.readers.printed_text import plain_head, printed_lines
from topoalloc.topology.readers.smi_list import is_prompt
from topoalloc.topology.reading import NumaReading, Reading, SourceRefusal, Standing

NODES_MAX = 1024  # CONFIG_NODES_SHIFT is at most 10
LOCAL_DISTANCE = 10  # fixed by ACPI (System Locality Information Table)

_AVAILABLE = re.compile(r"\s*available:\s*(\d{1,4})\s+nodes?\s*\(([\d,\s-]*)\)\s*")
_CPUS = re.compile(r"\s*node\s+(\d{1,4})\s+cpus:([\s\d]*)")
_SIZE = re.compile(r"\s*node\s+(\d{1,4})\s+size:\s*(\d{1,12})\s*MB\s*")
_FREE = re.compile(r"\s*node\s+\d{1,4}\s+free:\s*\d+\s*MB\s*")
_NO_SIZE = re.compile(r"\s*node\s+\d{1,4}\s+(?:size|free):\s*<not available>\s*")
_DISTANCES = re.compile(r"\s*node\s+distances:\s*")
_NO_DISTANCES = re.compile(r"\s*No distance information available\.?\s*")
_DISTANCE_HEADER = re.compile(r"\s*node((?:\s+\d{1,4})+)\s*")
_DISTANCE_ROW = re.compile(r"\s*(\d{1,4}):((?:\s+\d{1,3})+)\s*")
_HEAD = re.compile(r"^[^\S\n]*available: *\d+ +nodes? *\(|^[^\S\n]*node +\d+ +cpus:", re.MULTILINE)


@dataclass(slots=True)
class _Parts:
    """What the lines have told so far."""

    available: tuple[int, ...] | None = None
    cpus: dict[int, CpuSet] = field(default_factory=dict)
    memory_bytes: dict[int, int] = field(default_factory=dict)
    header: tuple[int, ...] | None = None
    distances: dict[int, tuple[int, ...]] = field(default_factory=dict)
    has_no_distances: bool = False


def recognise(head: str) -> bool:
    """Whether the beginning of a file looks like this output."""
    return _HEAD.search(plain_head(head)) is not None


def parse(text: str, name: str) -> Reading | SourceRefusal:
    """One NumaReading per available node; memory counted in MiB, as numactl cuts it."""
    source = f"numactl -H ({name})"
    lines = printed_lines(text, source)
    if isinstance(lines, SourceRefusal):
        return lines
    parts = _Parts()
    for number, line in enumerate(lines.lines, 1):
        problem = _take(parts, line)
        if problem is not None:
            return SourceRefusal(source, f"line {number}: {problem}")
    problem = _gap(parts)
    if problem is not None:
        return SourceRefusal(source, f"{problem}; record it again")
    assert parts.available is not None, "checked by _gap"
    nodes = tuple(
        NumaReading(
            id=node,
            cpus=parts.cpus[node],
            memory_bytes=parts.memory_bytes.get(node, Unknown("numactl gives no size")),
            distances=parts.distances.get(node, Unknown("numactl has no distance information")),
        )
        for node in parts.available
    )
    return Reading(source=source, standing=Standing.ADDITION, numa_nodes=nodes, all_numa_nodes=True)


def _take(parts: _Parts, line: str) -> str | None:
    """Add what a line says; or why it cannot be used."""
    if available := _AVAILABLE.fullmatch(line):
        return _take_available(parts, int(available[1]), available[2])
    if cpus := _CPUS.fullmatch(line):
        return _take_cpus(parts, int(cpus[1]), cpus[2])
    if size := _SIZE.fullmatch(line):
        if int(size[1]) in parts.memory_bytes:
            return f"node {size[1]} has two sizes"
        parts.memory_bytes[int(size[1])] = int(size[2]) << 20
        return None
    if header := _DISTANCE_HEADER.fullmatch(line):
        parts.header = tuple(int(node) for node in header[1].split())
        return None
    if row := _DISTANCE_ROW.fullmatch(line):
        if int(row[1]) in parts.distances:
            return f"node {row[1]} has two rows of distances"
        parts.distances[int(row[1])] = tuple(int(distance) for distance in row[2].split())
        return None
    if _NO_DISTANCES.fullmatch(line):
        parts.has_no_distances = True
        return None
    if any(pattern.fullmatch(line) for pattern in (_FREE, _NO_SIZE, _DISTANCES)) or is_prompt(line):
        return None
    if re.match(r"\s*(?:\S*[$#>]\s*)?numactl\b", line):
        return None
    return f"not a line of `numactl -H`: {line.strip()[:60]!r}"


def _take_available(parts: _Parts, count: int, ids: str) -> str | None:
    if parts.available is not None:
        return "a second `available:` line; give the output for one machine"
    try:
        parts.available = tuple(CpuSet.from_list(ids))
    except ValueError:
        return f"not a list of nodes: {ids.strip()[:60]!r}"
    if not 0 < count <= NODES_MAX:
        return f"{count} nodes; Linux has 1 to {NODES_MAX}"
    if len(parts.available) != count:
        return f"{count} nodes, but {len(parts.available)} are listed"
    return None


def _take_cpus(parts: _Parts, node: int, cpus: str) -> str | None:
    if node in parts.cpus:
        return f"node {node} has two lists of CPUs"
    try:
        parts.cpus[node] = CpuSet.of(int(cpu) for cpu in cpus.split())
    except ValueError as error:
        return f"node {node}: {error}"
    return None


def _gap(parts: _Parts) -> str | None:
    """What is missing or does not fit, so that a text cut short is not taken for a smaller machine."""
    nodes = parts.available
    if nodes is None:
        return "no line `available: N nodes (...)` in it"
    for told, what in ((parts.cpus, "CPUs"), (parts.memory_bytes, "sizes"), (parts.distances, "distances")):
        stranger = next((node for node in told if node not in nodes), None)
        if stranger is not None:
            return f"{what} of node {stranger}, which is not available"
    missing = next((node for node in nodes if node not in parts.cpus), None)
    if missing is not None:
        return f"the CPUs of node {missing} are missing"
    return None if parts.has_no_distances else _distance_gap(parts, nodes)


def _distance_gap(parts: _Parts, nodes: tuple[int, ...]) -> str | None:
    if parts.header != nodes:
        return "the header of the node distances is missing or names other nodes"
    for place, node in enumerate(nodes):
        row = parts.distances.get(node, ())
        if len(row) != len(nodes):
            return f"the distances of node {node} are incomplete"
        if row[place] != LOCAL_DISTANCE:
            return f"the distance of node {node} to itself is {row[place]}, not {LOCAL_DISTANCE}"
    return None
