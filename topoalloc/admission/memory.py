"""The static memory manager: hints for memory and huge pages, and which NUMA nodes a container's memory comes from.

Semantics of pkg/kubelet/cm/memorymanager/policy_static.go (1.37). Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from topoalloc.admission.hints import Hint, ProviderAnswer
from topoalloc.admission.pod import Container, Pod
from topoalloc.admission.refusal import Refusal
from topoalloc.topology.machine import Machine


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """One kind of memory on one node. Free = allocatable - assigned."""

    allocatable_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryNode:
    """One NUMA node. `group` is the set of nodes (a mask) that the allocations living here span ("cells")."""

    tables: Mapping[str, MemoryTable]
    group: int
    assignments: int = 0


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """What one container has of one kind; init containers' blocks shrink when later containers reuse them."""

    kind: str
    mask: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryState:
    """`blocks` is keyed by (pod uid, container name); `reusable` by (mask, kind), of the pod `reuse_pod`."""

    nodes: Mapping[int, MemoryNode]
    blocks: Mapping[tuple[str, str], tuple[MemoryBlock, ...]] = field(default_factory=dict)
    reuse_pod: str = ""
    reusable: Mapping[tuple[int, str], int] = field(default_factory=dict)


def start(
    totals: Mapping[int, Mapping[str, int]],
    reserved: Mapping[int, Mapping[str, int]],
) -> MemoryState:
    """The state of a freshly started kubelet: bytes of each kind per node (`memory` with huge pages included),
    less `reservedMemory`. Raises InputError where the kubelet would not start."""
    raise NotImplementedError


def totals_of(machine: Machine) -> dict[int, dict[str, int]]:
    """Memory per node of a machine. Raises InputError where a node's memory is unknown."""
    raise NotImplementedError


def container_hints(state: MemoryState, pod: Pod, container: Container) -> ProviderAnswer:
    """The memory manager's answer in container scope. Empty ("no opinion") also when nothing fits."""
    raise NotImplementedError


def pod_hints(state: MemoryState, pod: Pod) -> ProviderAnswer:
    """The memory manager's answer in pod scope."""
    raise NotImplementedError


def allocate(state: MemoryState, pod: Pod, container: Container, affinity: Hint) -> MemoryState | Refusal:
    """Take the container's memory from the stored affinity, widened where that does not suffice."""
    raise NotImplementedError


def removed(state: MemoryState, pod_uid: str, container: str) -> MemoryState:
    """The container is gone: its memory is free again and groups dissolve."""
    raise NotImplementedError
