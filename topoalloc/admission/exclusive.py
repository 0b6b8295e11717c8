"""CPUs and memory that containers have to themselves: both managers of one node as one value.

What each of them chooses is in `cpus` and `memory`; here is who is asked, and in which order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from topoalloc.admission import cpus, memory
from topoalloc.admission.cpus import CpuManager, CpuState
from topoalloc.admission.explain import Supply, cpu_supply, memory_supply
from topoalloc.admission.hints import Hint, ProviderAnswer
from topoalloc.admission.memory import MemoryState
from topoalloc.admission.pod import CPU, HUGE_PAGES_PREFIX, MEMORY, Container, Pod, Resources
from topoalloc.admission.refusal import Refusal

CPU_MANAGER = "CPU manager"
MEMORY_MANAGER = "memory manager"


@dataclass(frozen=True, slots=True)
class Exclusive:
    """The static CPU manager and the Static memory manager; None where that policy is `none`."""

    cpu: tuple[CpuManager, CpuState] | None = None
    memory: MemoryState | None = None

    def hints(self, pod: Pod, container: Container | None) -> tuple[tuple[str, ProviderAnswer], ...]:
        """Each manager's name and answer, in the kubelet's order; no container: pod scope."""
        answers: list[tuple[str, ProviderAnswer]] = []
        if self.cpu is not None:
            manager, state = self.cpu
            answer = (
                cpus.pod_hints(manager, state, pod)
                if container is None
                else cpus.container_hints(manager, state, pod, container)
            )
            answers.append((CPU_MANAGER, answer))
        if self.memory is not None:
            answer = (
                memory.pod_hints(self.memory, pod)
                if container is None
                else memory.container_hints(self.memory, pod, container)
            )
            answers.append((MEMORY_MANAGER, answer))
        return tuple(answers)

    def allocated(self, pod: Pod, container: Container, affinity: Hint) -> tuple[Exclusive, Refusal | None]:
        """CPUs, then memory, for one container. CPUs that were taken before the memory was refused stay taken."""
        after = self
        if self.cpu is not None:
            manager, state = self.cpu
            taken = cpus.allocate(manager, state, pod, container, affinity.mask)
            if isinstance(taken, Refusal):
                return after, taken
            after = replace(after, cpu=(manager, taken))
        if self.memory is not None:
            left = memory.allocate(self.memory, pod, container, affinity)
            if isinstance(left, Refusal):
                return after, left
            after = replace(after, memory=left)
        return after, None

    def collected(self, active_pods: frozenset[str]) -> Exclusive:
        """Without what containers of pods hold that are no longer active (removeStaleState)."""
        return Exclusive(
            cpu=None if self.cpu is None else (self.cpu[0], cpus.collect(self.cpu[1], active_pods)),
            memory=None if self.memory is None else memory.collect(self.memory, active_pods),
        )

    def init_ended(self, pod_uid: str, container: str) -> Exclusive:
        """An ordinary init container has ended and the next one started: its memory is free, its CPUs are not.

        The memory manager takes it back then (memory_manager.go, AddContainer); the CPU manager keeps the CPUs until
        the pod is no longer active (cpu_manager.go, where only removeStaleState takes any back).
        """
        memory_after = None if self.memory is None else memory.removed(self.memory, pod_uid, container)
        return replace(self, memory=memory_after)

    def crash_reason(self, pod: Pod) -> str | None:
        """Why a kubelet with these managers would crash over the pod, or None."""
        return None if self.memory is None else memory.crash_reason(self.memory, pod)

    def supplies(self, requests: Resources) -> dict[str, Supply]:
        """How much of each requested resource the nodes have, of those that are managed here."""
        supplies: dict[str, Supply] = {}
        for resource, quantity in requests.items():
            if resource == CPU and self.cpu is not None:
                supplies[resource] = cpu_supply(*self.cpu, quantity.value)
            elif self.memory is not None and (resource == MEMORY or resource.startswith(HUGE_PAGES_PREFIX)):
                supplies[resource] = memory_supply(self.memory, resource, quantity.value)
        return supplies
