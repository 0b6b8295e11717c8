"""The NUMA layout that a kubelet is shown: files as below /sys/devices/system, made from a machine of topoalloc.

What the machine's source does not tell is made up: 16 CPUs and 64 GiB a node, distances 10 and 20, one socket a node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Machine, NumaNode, Unknown

GIB = 2**30
CPUS_MADE_UP = 16
MEMORY_MADE_UP_BYTES = 64 * GIB
HUGE_PAGE_KIB = (2048, 1048576)
NODE_LISTS = ("online", "possible", "has_cpu", "has_memory", "has_normal_memory")


@dataclass(frozen=True)
class LaidNode:
    """One NUMA node as the kubelet will read it; `distances` in the order of the layout."""

    id: int
    cpus: CpuSet
    memory_bytes: int
    distances: tuple[int, ...]
    socket: int = 0


def layout_of(machine: Machine) -> tuple[LaidNode, ...]:
    """A layout with the machine's node ids, CPUs, memory and distances as far as they are known."""
    nodes = machine.numa_nodes
    all_known = not any(isinstance(node.cpus, Unknown) for node in nodes)
    laid = []
    for place, node in enumerate(nodes):
        made_up = CpuSet.of(range(place * CPUS_MADE_UP, (place + 1) * CPUS_MADE_UP))
        cpus = node.cpus if all_known and isinstance(node.cpus, CpuSet) else made_up
        memory_bytes = MEMORY_MADE_UP_BYTES if isinstance(node.memory_bytes, Unknown) else node.memory_bytes
        made_up_row = tuple(10 if other == place else 20 for other in range(len(nodes)))
        distances = made_up_row if isinstance(node.distances, Unknown) else node.distances
        laid.append(LaidNode(node.id, cpus, memory_bytes, distances, place))
    return tuple(laid) or (LaidNode(0, CpuSet.of(range(CPUS_MADE_UP)), MEMORY_MADE_UP_BYTES, (10,)),)


def as_laid(machine: Machine, layout: Iterable[LaidNode]) -> Machine:
    """The machine with the NUMA nodes of a layout, made-up parts included."""
    nodes = tuple(NumaNode(node.id, node.cpus, node.memory_bytes, node.distances) for node in layout)
    return replace(machine, numa_nodes=nodes)


def write_sysfs(root: Path, layout: Iterable[LaidNode]) -> None:
    """Write `root/node` and `root/cpu`, what cAdvisor and the kubelet read of a machine's layout."""
    layout = tuple(layout)
    ids = str(CpuSet.of(node.id for node in layout))
    files = {f"node/{name}": ids for name in NODE_LISTS}
    for node in layout:
        files |= _node_files(node)
    every = CpuSet.of(cpu for node in layout for cpu in node.cpus)
    files |= {f"cpu/{name}": str(every) for name in ("online", "possible", "present")}
    files["cpu/offline"] = ""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def _node_files(node: LaidNode) -> dict[str, str]:
    kib, folder = node.memory_bytes // 1024, f"node/node{node.id}"
    files = {
        f"{folder}/cpulist": str(node.cpus),
        f"{folder}/distance": " ".join(map(str, node.distances)),
        f"{folder}/meminfo": f"Node {node.id} MemTotal: {kib} kB\nNode {node.id} MemFree: {kib} kB",
    }
    for size in HUGE_PAGE_KIB:
        for name in ("nr", "free", "surplus"):
            files[f"{folder}/hugepages/hugepages-{size}kB/{name}_hugepages"] = "0"
    for cpu in node.cpus:
        files[f"cpu/cpu{cpu}/online"] = "1"
        for place in (f"cpu/cpu{cpu}", f"{folder}/cpu{cpu}"):
            files[f"{place}/topology/core_id"] = str(cpu)
            files[f"{place}/topology/physical_package_id"] = str(node.socket)
            files[f"{place}/topology/thread_siblings_list"] = str(cpu)
    return files


def meminfo(layout: Iterable[LaidNode]) -> str:
    """/proc/meminfo of this machine with the memory of the layout, all of it free."""
    total_kib = sum(node.memory_bytes for node in layout) // 1024
    lines = Path("/proc/meminfo").read_text().splitlines()
    replaced = ("MemTotal", "MemFree", "MemAvailable")
    kept = [line for line in lines if line.partition(":")[0] not in replaced]
    return "\n".join([*(f"{name}: {total_kib} kB" for name in replaced), *kept]) + "\n"
