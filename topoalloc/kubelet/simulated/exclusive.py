"""The CPU and memory managers of one node: their state and when it changes; what they choose is in `admission`."""

from __future__ import annotations

from topoalloc.admission import cpus, memory
from topoalloc.admission.cpu_topology import cpu_topology
from topoalloc.admission.cpus import CpuManager, CpuState
from topoalloc.admission.explain import Supply, cpu_supply, memory_supply
from topoalloc.admission.hints import Hint, ProviderAnswer
from topoalloc.admission.memory import MemoryBlock, MemoryState
from topoalloc.admission.pod import CPU, HUGE_PAGES_PREFIX, MEMORY, Container, Pod, Resources
from topoalloc.admission.refusal import Refusal
from topoalloc.errors import InputError
from topoalloc.kubelet.simulated.settings import KubeletSettings
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Machine

CPU_MANAGER = "CPU manager"
MEMORY_MANAGER = "memory manager"


class ExclusiveResources:
    """CPUs and memory that containers have to themselves. Both managers' state outlives a kubelet restart.

    Values are replaced whole, so that readers in other threads see one or the other.
    """

    def __init__(self, machine: Machine, settings: KubeletSettings) -> None:
        """Raises InputError where the machine's CPUs or memory are unknown, or the kubelet would not start."""
        self._cpu: tuple[CpuManager, CpuState] | None = None
        self._memory: MemoryState | None = None
        if settings.cpu is not None:
            topology = cpu_topology(machine)
            self._cpu = cpus.start(topology, settings.cpu.reserved, settings.cpu.options, settings.policy)
        if settings.memory is not None:
            totals = memory.totals_of(machine)
            on_first = {min(totals, default=0): {MEMORY: settings.reserved_memory_bytes}}
            self._memory = memory.start(totals, settings.memory.reserved_bytes or on_first)

    def hints(self, pod: Pod, container: Container | None) -> tuple[tuple[str, ProviderAnswer], ...]:
        """Each manager's name and answer, in the kubelet's order; no container: pod scope."""
        self._refuse_huge_pages(pod)
        answers: list[tuple[str, ProviderAnswer]] = []
        if self._cpu is not None:
            manager, state = self._cpu
            answer = (
                cpus.pod_hints(manager, state, pod)
                if container is None
                else cpus.container_hints(manager, state, pod, container)
            )
            answers.append((CPU_MANAGER, answer))
        if self._memory is not None:
            answer = (
                memory.pod_hints(self._memory, pod)
                if container is None
                else memory.container_hints(self._memory, pod, container)
            )
            answers.append((MEMORY_MANAGER, answer))
        return tuple(answers)

    def allocate(self, pod: Pod, container: Container, affinity: Hint) -> Refusal | None:
        """CPUs, then memory, for one container."""
        self._refuse_huge_pages(pod)
        if self._cpu is not None:
            manager, state = self._cpu
            after = cpus.allocate(manager, state, pod, container, affinity.mask)
            if isinstance(after, Refusal):
                return after
            self._cpu = manager, after
        if self._memory is not None:
            left = memory.allocate(self._memory, pod, container, affinity)
            if isinstance(left, Refusal):
                return left
            self._memory = left
        return None

    def collect(self, active_pods: frozenset[str]) -> None:
        """Take back what containers of pods hold that are no longer active (removeStaleState)."""
        if self._cpu is not None:
            manager, state = self._cpu
            self._cpu = manager, cpus.collect(state, active_pods)
        if self._memory is not None:
            self._memory = memory.collect(self._memory, active_pods)

    def containers_started(self, pod: Pod) -> None:
        """The pod runs: its ordinary init containers have ended and their share is free for others."""
        for container in pod.containers:
            if container.init and not container.restartable:
                self._release(pod.uid, container.name)

    def cpus_of(self, pod_uid: str, container: str) -> CpuSet:
        """The CPUs a container has to itself; empty where it shares."""
        return CpuSet() if self._cpu is None else self._cpu[1].assigned.get((pod_uid, container), CpuSet())

    def memory_of(self, pod_uid: str, container: str) -> tuple[MemoryBlock, ...]:
        return () if self._memory is None else self._memory.blocks.get((pod_uid, container), ())

    def allocatable_cpus(self) -> CpuSet:
        """CPUs that can be given out; empty without the static policy."""
        if self._cpu is None:
            return CpuSet()
        manager, _ = self._cpu
        return manager.topology.cpus - manager.reserved

    def allocatable_memory(self) -> tuple[MemoryBlock, ...]:
        if self._memory is None:
            return ()
        return tuple(
            MemoryBlock(kind, 1 << node, table.allocatable_bytes)
            for node, memory_node in self._memory.nodes.items()
            for kind, table in memory_node.tables.items()
        )

    def supplies(self, requests: Resources) -> dict[str, Supply]:
        """How much of each requested resource the nodes have, of those that are managed here."""
        supplies: dict[str, Supply] = {}
        for resource, quantity in requests.items():
            if resource == CPU and self._cpu is not None:
                supplies[resource] = cpu_supply(*self._cpu, quantity.value)
            elif self._memory is not None and (resource == MEMORY or resource.startswith(HUGE_PAGES_PREFIX)):
                supplies[resource] = memory_supply(self._memory, resource, quantity.value)
        return supplies

    def _refuse_huge_pages(self, pod: Pod) -> None:
        """No source tells how many huge pages a machine has, and of a size it lacks the kubelet crashes."""
        reason = None if self._memory is None else memory.crash_reason(self._memory, pod)
        if reason is not None:
            raise InputError(
                f"pod {pod.namespace}/{pod.name} asks for huge pages, whose number is unknown, under "
                f"memoryManagerPolicy Static ({reason}): leave out the one or the other"
            )

    def _release(self, pod_uid: str, container: str) -> None:
        if self._cpu is not None:
            manager, state = self._cpu
            self._cpu = manager, cpus.removed(state, pod_uid, container)
        if self._memory is not None:
            self._memory = memory.removed(self._memory, pod_uid, container)
