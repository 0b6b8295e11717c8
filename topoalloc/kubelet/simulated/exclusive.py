"""The CPU and memory managers of one node: their state and when it changes; what they choose is in `admission`."""

from __future__ import annotations

from dataclasses import replace

from topoalloc.admission import cpus, memory
from topoalloc.admission.cpu_topology import cpu_topology
from topoalloc.admission.exclusive import Exclusive
from topoalloc.admission.hints import Hint, ProviderAnswer
from topoalloc.admission.memory import MemoryBlock
from topoalloc.admission.pod import MEMORY, Container, Pod
from topoalloc.admission.refusal import Refusal
from topoalloc.errors import InputError
from topoalloc.kubelet.simulated.settings import KubeletSettings
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Machine


class ExclusiveResources:
    """CPUs and memory that containers have to themselves. Both managers' state outlives a kubelet restart.

    Values are replaced whole, so that readers in other threads see one or the other.
    """

    def __init__(self, machine: Machine, settings: KubeletSettings) -> None:
        """Raises InputError where the machine's CPUs or memory are unknown, or the kubelet would not start."""
        self._now = Exclusive()
        if settings.cpu is not None:
            topology = cpu_topology(machine)
            started = cpus.start(topology, settings.cpu.reserved, settings.cpu.options, settings.policy)
            self._now = replace(self._now, cpu=started)
        if settings.memory is not None:
            totals = memory.totals_of(machine)
            on_first = {min(totals, default=0): {MEMORY: settings.reserved_memory_bytes}}
            self._now = replace(self._now, memory=memory.start(totals, settings.memory.reserved_bytes or on_first))

    @property
    def now(self) -> Exclusive:
        """Both managers as they are now (an immutable value)."""
        return self._now

    def hints(self, pod: Pod, container: Container | None) -> tuple[tuple[str, ProviderAnswer], ...]:
        """Each manager's name and answer, in the kubelet's order; no container: pod scope."""
        self._refuse_huge_pages(pod)
        return self._now.hints(pod, container)

    def allocate(self, pod: Pod, container: Container, affinity: Hint) -> Refusal | None:
        """CPUs, then memory, for one container."""
        self._refuse_huge_pages(pod)
        self._now, refusal = self._now.allocated(pod, container, affinity)
        return refusal

    def collect(self, active_pods: frozenset[str]) -> None:
        """Take back what containers of pods hold that are no longer active."""
        self._now = self._now.collected(active_pods)

    def containers_started(self, pod: Pod) -> None:
        """The pod runs, so its ordinary init containers have ended."""
        for container in pod.containers:
            if container.init and not container.restartable:
                self._now = self._now.init_ended(pod.uid, container.name)

    def cpus_of(self, pod_uid: str, container: str) -> CpuSet:
        """The CPUs a container has to itself; empty where it shares."""
        cpu = self._now.cpu
        return CpuSet() if cpu is None else cpu[1].assigned.get((pod_uid, container), CpuSet())

    def memory_of(self, pod_uid: str, container: str) -> tuple[MemoryBlock, ...]:
        state = self._now.memory
        return () if state is None else state.blocks.get((pod_uid, container), ())

    def allocatable_cpus(self) -> CpuSet:
        """CPUs that can be given out; empty without the static policy."""
        if self._now.cpu is None:
            return CpuSet()
        manager, _ = self._now.cpu
        return manager.topology.cpus - manager.reserved

    def allocatable_memory(self) -> tuple[MemoryBlock, ...]:
        state = self._now.memory
        if state is None:
            return ()
        return tuple(
            MemoryBlock(kind, 1 << node, table.allocatable_bytes)
            for node, memory_node in state.nodes.items()
            for kind, table in memory_node.tables.items()
        )

    def _refuse_huge_pages(self, pod: Pod) -> None:
        """No source tells how many huge pages a machine has, and of a size it lacks the kubelet crashes."""
        reason = self._now.crash_reason(pod)
        if reason is not None:
            raise InputError(
                f"pod {pod.namespace}/{pod.name} asks for huge pages, whose number is unknown, under "
                f"memoryManagerPolicy Static ({reason}): leave out the one or the other"
            )
