"""The NUMA nodes of the machine: every node that a source names, with what the sources tell of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from topoalloc.topology.agreement import Agreement, Claim, longer_list, uncut_size
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Gpu, Nic, NumaNode, Unknown
from topoalloc.topology.reading import NumaReading, Reading


def joined_nodes(
    readings: Sequence[Reading], gpus: Sequence[Gpu], nics: Sequence[Nic], agreement: Agreement
) -> tuple[NumaNode, ...]:
    """All nodes in order of their ids, those that only a device names too."""
    mentions: dict[int, list[tuple[str, NumaReading]]] = {}
    for reading in readings:
        for node in reading.numa_nodes:
            mentions.setdefault(node.id, []).append((reading.source, node))
    devices: tuple[Gpu | Nic, ...] = (*gpus, *nics)
    for device in devices:
        if not isinstance(device.numa_node, Unknown):
            mentions.setdefault(device.numa_node, [])
    ids = sorted(mentions)
    distances = _distances(readings, ids, agreement)
    affinities = whole_affinities(gpus)
    return tuple(_node(number, mentions[number], agreement, affinities, distances[number]) for number in ids)


def _node(
    number: int,
    mentions: Sequence[tuple[str, NumaReading]],
    agreement: Agreement,
    affinities: Mapping[int, CpuSet],
    distances: tuple[int, ...] | Unknown,
) -> NumaNode:
    name = f"NUMA node {number}"
    cpus = agreement.on(name, "CPU list", [Claim(source, node.cpus) for source, node in mentions], longer_list)
    memory = agreement.on(name, "memory", [Claim(source, node.memory_bytes) for source, node in mentions], uncut_size)
    if cpus is None:
        cpus = affinities.get(number, Unknown("no source tells the CPUs of the node"))
    if memory is None:
        memory = Unknown("no source tells the memory of the node")
    return NumaNode(number, cpus, memory, distances)


def whole_affinities(gpus: Sequence[Gpu]) -> dict[int, CpuSet]:
    """CPUs per node where the GPUs' CPU affinities can be taken for the node's whole list.

    `nvidia-smi topo -m` prints the node's list cut by the cpuset of the calling process. A cut shows as GPUs of
    one node that disagree, or as one CPU claimed by GPUs of two nodes; then no list is taken.
    """
    lists: dict[int, set[CpuSet]] = {}
    for gpu in gpus:
        if isinstance(gpu.numa_node, Unknown):
            continue
        told = lists.setdefault(gpu.numa_node, set())
        told.add(CpuSet() if isinstance(gpu.cpus, Unknown) else gpu.cpus)
    whole = {node: next(iter(told)) for node, told in lists.items() if len(told) == 1}
    claimed = [(node, cpus) for node, told in lists.items() for cpus in told]
    return {
        node: cpus
        for node, cpus in whole.items()
        if cpus and not any(other != node and cpus & others for other, others in claimed)
    }


def _distances(
    readings: Sequence[Reading], ids: Sequence[int], agreement: Agreement
) -> dict[int, tuple[int, ...] | Unknown]:
    """Distance rows in the order of `ids`; a row with a gap is unknown, since its order would mislead."""
    claims: dict[tuple[int, int], list[Claim[int]]] = {}
    for reading in readings:
        columns = [node.id for node in reading.numa_nodes]
        for node in reading.numa_nodes:
            if node.distances is None or isinstance(node.distances, Unknown):
                continue
            for to, distance in zip(columns, node.distances, strict=False):
                claims.setdefault((node.id, to), []).append(Claim(reading.source, distance))
    rows: dict[int, tuple[int, ...] | Unknown] = {}
    for start in ids:
        settled = {to: _distance(start, to, claims.get((start, to), []), agreement) for to in ids}
        missing = [to for to, distance in settled.items() if distance is None]
        row = tuple(distance for distance in settled.values() if isinstance(distance, int))
        rows[start] = row if not missing else Unknown(f"no source tells the distance to node {missing[0]}")
    return rows


def _distance(start: int, to: int, claims: Sequence[Claim[int]], agreement: Agreement) -> int | None:
    value: int | Unknown | None = agreement.on(f"NUMA node {start}", f"distance to node {to}", claims)
    return value if isinstance(value, int) else None


def unlisted_nodes(readings: Sequence[Reading], nodes: Sequence[NumaNode]) -> tuple[str, ...]:
    """Warnings for nodes that a source which lists all nodes does not have."""
    return tuple(
        f"NUMA nodes {', '.join(map(str, extra))} are named by other sources and not listed by {reading.source}"
        for reading in readings
        if reading.all_numa_nodes
        for extra in (sorted({node.id for node in nodes} - {node.id for node in reading.numa_nodes}),)
        if extra
    )
