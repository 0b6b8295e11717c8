"""CPUs and memory of the node as its status would show them; what is unknown is not checked, never guessed."""

from __future__ import annotations

from topoalloc.admission.pod import CPU, MEMORY, Pod, is_extended, pod_requests
from topoalloc.kubelet.simulated.settings import KubeletSettings
from topoalloc.topology.machine import Machine, Unknown

MILLI = 1000
UNCHECKED = 2**62  # more than any pod asks for: stands for "the source does not say how much there is"


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


def with_unchecked(allocatable: dict[str, int], pod: Pod) -> dict[str, int]:
    """Add what the pod asks for and the node's status does not name, so that the fit check passes over it."""
    asked = {name for name in (*pod_requests(pod), *pod.overhead) if not is_extended(name)}
    return {**dict.fromkeys(asked, UNCHECKED), **allocatable}
