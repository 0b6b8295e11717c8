"""CPUs and memory of the node as its status would show them; what is unknown is not checked, never guessed."""

from __future__ import annotations

from topoalloc.admission.pod import CPU, MEMORY, Pod, is_extended, pod_requests
from topoalloc.kubelet.simulated.settings import KubeletSettings
from topoalloc.topology.machine import Machine, Unknown

MILLI = 1000
_UNTOLD = Unknown("no source tells how much of it the node has")


def node_allocatable(machine: Machine, settings: KubeletSettings) -> dict[str, int]:
    """Allocatable `cpu` in thousandths and `memory` in bytes, each only where every NUMA node tells it."""
    allocatable: dict[str, int] = {}
    cpus = [node.cpus for node in machine.numa_nodes]
    known_cpus = [node_cpus for node_cpus in cpus if not isinstance(node_cpus, Unknown)]
    if cpus and len(known_cpus) == len(cpus):
        total_milli = sum(len(node_cpus) for node_cpus in known_cpus) * MILLI
        allocatable[CPU] = max(total_milli - settings.reserved_cpu_milli, 0)
    sizes = [node.memory_bytes for node in machine.numa_nodes]
    known_sizes = [size for size in sizes if not isinstance(size, Unknown)]
    if sizes and len(known_sizes) == len(sizes):
        allocatable[MEMORY] = max(sum(known_sizes) - settings.reserved_memory_bytes, 0)
    return allocatable


def with_unknown(allocatable: dict[str, int], pod: Pod) -> dict[str, int | Unknown]:
    """Add what the pod asks for and no source tells of the node, as unknown; the fit check passes over it."""
    asked = {name for name in (*pod_requests(pod), *pod.overhead) if not is_extended(name)}
    return {**dict.fromkeys(asked, _UNTOLD), **allocatable}
