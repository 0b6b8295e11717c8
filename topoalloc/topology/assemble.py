"""One Machine from what several sources say of it.

Devices are joined by same_gpus and same_nics, facts by agreement. The order of the sources matters only where they
contradict each other: the earlier one wins and a warning names both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from topoalloc.topology.agreement import Agreement
from topoalloc.topology.checks import check_machine
from topoalloc.topology.joined_devices import distinct_devices, joined_gpus, joined_nics
from topoalloc.topology.joined_links import joined_links
from topoalloc.topology.joined_nodes import joined_nodes, unlisted_nodes
from topoalloc.topology.links import switch_groups
from topoalloc.topology.machine import Gpu, LinkClass, Machine, Nic, NumaNode, Unknown
from topoalloc.topology.reading import Reading, SourceRefusal, Standing
from topoalloc.topology.same_devices import Cluster, strangers
from topoalloc.topology.same_gpus import same_gpus
from topoalloc.topology.same_nics import same_nics

# Links grow with the square of the devices, so both bounds keep a machine within seconds and tens of MiB. They are
# far above one server: 16 GPUs, and eight network cards with 64 virtual functions each.
GPUS_MAX = 256
NICS_MAX = 640
WHOLE_SOURCES = (
    "a sysfs dump, NCCL topology XML, hwloc XML, `nvidia-smi topo -m`, `lspci -tv` or a `topoalloc record` snapshot"
)


def assemble(readings: Sequence[Reading], gpu_memory_bytes: int | None) -> Machine | SourceRefusal:
    """Join readings of one machine, the most trusted first.

    `gpu_memory_bytes` is the memory of GPUs whose memory neither a source nor the model table tells. Refuses when no
    reading describes a machine by itself and when numbers and addresses cannot be brought together.
    """
    readings = tuple(dict.fromkeys(readings))
    refusal = _refusal(readings)
    if refusal is not None:
        return refusal
    gpu_match = same_gpus(readings)
    if isinstance(gpu_match, SourceRefusal):
        return gpu_match
    nic_match = same_nics(readings, gpu_match.clusters)
    nic_clusters = nic_match.clusters[:NICS_MAX]
    clusters = (*gpu_match.clusters, *nic_clusters)
    agreement = Agreement()
    nics = joined_nics(readings, nic_clusters, agreement)
    gpus, name_warnings = distinct_devices(joined_gpus(readings, gpu_match.clusters, agreement, gpu_memory_bytes), nics)
    nics = _with_nodes_of_near_gpus(readings, clusters, gpus, nics)
    links, link_warnings = joined_links(readings, clusters, gpus, nics, agreement)
    nodes = joined_nodes(readings, gpus, nics, agreement)
    sources = [reading.source for reading in readings]
    warnings = (
        *(warning for reading in readings for warning in reading.warnings),
        *gpu_match.warnings,
        *nic_match.warnings,
        *strangers(sources, gpu_match.clusters, "GPU"),
        *strangers(sources, nic_clusters, "NIC"),
        *_left_out(nic_match.clusters, nic_clusters),
        *name_warnings,
        *link_warnings,
        *unlisted_nodes(readings, nodes),
        *agreement.warnings(),
    )
    machine = Machine(
        numa_nodes=nodes,
        gpus=tuple(_with_cpus_of_node(gpu, nodes, _only_node(readings, nodes)) for gpu in gpus),
        nics=nics,
        links=links,
        switch_groups=switch_groups(links),
        nvswitches=tuple(sorted({switch for reading in readings for switch in reading.nvswitches})),
        sources=tuple(dict.fromkeys(sources)),
        warnings=tuple(dict.fromkeys(warnings)),
    )
    broken = check_machine(machine)
    assert not broken, broken
    return machine


def _refusal(readings: Sequence[Reading]) -> SourceRefusal | None:
    if not readings:
        return SourceRefusal("machine", f"no source is given; give {WHOLE_SOURCES}")
    if all(reading.standing is Standing.ADDITION for reading in readings):
        return SourceRefusal(
            readings[0].source,
            f"this text only adds to another source of the same machine; give also {WHOLE_SOURCES} of it",
        )
    for reading in readings:
        if len(reading.gpus) > GPUS_MAX:
            return SourceRefusal(reading.source, f"it lists {len(reading.gpus)} GPUs; a machine has {GPUS_MAX} at most")
    return None


def _left_out(found: Sequence[Cluster], kept: Sequence[Cluster]) -> tuple[str, ...]:
    if len(found) == len(kept):
        return ()
    return (f"{len(found)} NIC ports are found; those after the first {len(kept)} are left out",)


def _with_nodes_of_near_gpus(
    readings: Sequence[Reading], clusters: Sequence[Cluster], gpus: Sequence[Gpu], nics: Sequence[Nic]
) -> tuple[Nic, ...]:
    """Tables name no NUMA node of a NIC: it is that of the GPUs nearer to it than SYS, where they agree.

    Only where every source is silent. One that says -1 was asked and does not know, and a node that a BIOS gives to
    one of two neighbours alone is more often wrong than right.
    """
    silent = [
        all(readings[mention.reading].nics[mention.position].numa_node is None for mention in cluster)
        for cluster in clusters[len(gpus) :]
    ]
    if not any(silent):
        return tuple(nics)
    # The classes that follow from the nodes found here are settled, and contradictions noted, afterwards.
    links, _ = joined_links(readings, clusters, gpus, nics, Agreement())
    node_of = {gpu.id: gpu.numa_node for gpu in gpus}
    near: dict[str, set[int | Unknown]] = {}
    for link in links:
        if link.a in node_of and not isinstance(link.pcie, Unknown) and link.pcie < LinkClass.SYS:
            near.setdefault(link.b, set()).add(node_of[link.a])
    return tuple(
        replace(nic, numa_node=_common_node(near.get(nic.id, set()))) if is_silent else nic
        for nic, is_silent in zip(nics, silent, strict=True)
    )


def _common_node(nodes: set[int | Unknown]) -> int | Unknown:
    known = {node for node in nodes if not isinstance(node, Unknown)}
    if len(known) == 1:
        return next(iter(known))
    if known:
        return Unknown(f"GPUs nearer than SYS are on the nodes {', '.join(map(str, sorted(known)))}")
    return Unknown("no source tells the NUMA node, and no GPU of known node is nearer than SYS")


def _with_cpus_of_node(gpu: Gpu, nodes: Sequence[NumaNode], only_node: int | None) -> Gpu:
    """Where no source lists the CPUs near a GPU they are those of its node, as in the kernel's local_cpulist.

    Of a machine known to have one node they are that node's even if the firmware told no node: there are no others.
    The GPU's node stays unknown then; with one node nothing hangs on it.
    """
    node_id = only_node if isinstance(gpu.numa_node, Unknown) else gpu.numa_node
    if not isinstance(gpu.cpus, Unknown) or node_id is None:
        return gpu
    return replace(gpu, cpus=next(node.cpus for node in nodes if node.id == node_id))


def _only_node(readings: Sequence[Reading], nodes: Sequence[NumaNode]) -> int | None:
    is_complete = any(reading.all_numa_nodes for reading in readings)
    return nodes[0].id if is_complete and len(nodes) == 1 else None
