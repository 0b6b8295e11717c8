"""The static memory manager: hints for memory and huge pages, and which NUMA nodes a container's memory comes from.

Semantics of pkg/kubelet/cm/memorymanager/policy_static.go (1.37). Sizes are bytes; a *kind* is `memory` or
`hugepages-<size>`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from topoalloc.admission.hints import Hint, ProviderAnswer
from topoalloc.admission.numa_mask import is_narrower, masks_in_order, nodes_of, width_then_value
from topoalloc.admission.pod import HUGE_PAGES_PREFIX, MEMORY, Container, Pod, Qos, qos
from topoalloc.admission.refusal import Refusal, unexpected
from topoalloc.errors import InputError
from topoalloc.topology.machine import Machine, Unknown


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """One kind of memory on one node. What is given out is `allocatable_bytes - free_bytes`."""

    allocatable_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryNode:
    """One NUMA node. `group` is the set of nodes (a mask) that the allocations living here span ("cells")."""

    tables: Mapping[str, MemoryTable]
    group: int
    assignments: int = 0

    @property
    def is_grouped(self) -> bool:
        return self.group.bit_count() > 1


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
    reservation: Mapping[str, int] | None = None,
) -> MemoryState:
    """The state of a freshly started kubelet.

    `totals`: bytes of each kind per node, `memory` with the node's huge pages included. `reserved` is
    `reservedMemory`; its sums must equal `reservation` (kubeReserved, systemReserved and evictionHard together)
    where that is given. Raises InputError where the kubelet would not start.
    """
    sums: dict[str, int] = {}
    for node, kinds in reserved.items():
        if node not in totals:
            raise InputError(f"reservedMemory names NUMA node {node}, which this machine does not have")
        for kind, size in kinds.items():
            sums[kind] = sums.get(kind, 0) + size
    if sums.get(MEMORY, 0) <= 0:
        raise InputError("the static memory policy needs reservedMemory with some memory in it")
    for kind in sorted(sums.keys() | (reservation or {}).keys()):
        wanted = sums.get(kind, 0) if reservation is None else reservation.get(kind, 0)
        if sums.get(kind, 0) != wanted:
            raise InputError(
                f"reservedMemory of type {kind} sums up to {sums.get(kind, 0)} bytes, but kubeReserved, "
                f"systemReserved and evictionHard make {wanted}: the kubelet demands that they are equal"
            )
    return MemoryState({node: _fresh_node(node, totals[node], reserved.get(node, {})) for node in sorted(totals)})


def _fresh_node(node: int, totals: Mapping[str, int], reserved: Mapping[str, int]) -> MemoryNode:
    huge_bytes = sum(size for kind, size in totals.items() if kind != MEMORY)
    tables: dict[str, MemoryTable] = {}
    for kind in (*totals, *(() if MEMORY in totals else (MEMORY,))):
        allocatable = totals.get(kind, 0) - reserved.get(kind, 0) - (huge_bytes if kind == MEMORY else 0)
        if allocatable < 0:
            raise InputError(f"NUMA node {node}: more {kind} is reserved than there is ({-allocatable} bytes too many)")
        tables[kind] = MemoryTable(allocatable, allocatable)
    return MemoryNode(tables, 1 << node)


def restored(
    allocatable: Mapping[int, Mapping[str, int]], blocks: Mapping[tuple[str, str], tuple[MemoryBlock, ...]]
) -> MemoryState:
    """The state of a kubelet that has given out these blocks: `allocatable` bytes of each kind per node.

    Blocks of a kind that one of their nodes does not have are left out. In which order they were given is not told,
    so those of the narrowest sets of nodes, which leave no choice, are taken first.
    """
    nodes = {
        node: MemoryNode({kind: MemoryTable(size, size) for kind, size in tables.items()}, 1 << node)
        for node, tables in sorted(allocatable.items())
    }
    kept = {
        owner: tuple(b for b in given if b.mask and all(b.kind in allocatable.get(n, ()) for n in nodes_of(b.mask)))
        for owner, given in sorted(blocks.items())
    }
    given_out = [block for given in kept.values() for block in given]
    for block in sorted(given_out, key=lambda block: (width_then_value(block.mask), block.kind, block.size_bytes)):
        _assign(nodes, block.kind, block.mask, block.size_bytes)
    return MemoryState(nodes, {owner: given for owner, given in kept.items() if given})


def totals_of(machine: Machine) -> dict[int, dict[str, int]]:
    """Memory per node of a machine; huge pages are not part of the model. Raises InputError where it is unknown."""
    totals: dict[int, dict[str, int]] = {}
    for node in machine.numa_nodes:
        if isinstance(node.memory_bytes, Unknown):
            raise InputError(
                f"the memory of NUMA node {node.id} is unknown ({node.memory_bytes.evidence}): the static memory "
                "manager needs a source that tells it, such as a sysfs dump or numactl -H"
            )
        totals[node.id] = {MEMORY: node.memory_bytes}
    return totals


def _is_memory(resource: str) -> bool:
    return resource == MEMORY or resource.startswith(HUGE_PAGES_PREFIX)


FRACTIONAL = "[memorymanager] failed to represent quantity as int64"


def _requests(container: Container) -> dict[str, int] | None:
    """Bytes of each kind; None when one is a fraction of a byte."""
    asked = {kind: quantity for kind, quantity in container.requests.items() if _is_memory(kind)}
    if not all(quantity.is_whole for quantity in asked.values()):
        return None
    return {kind: quantity.value for kind, quantity in asked.items()}


def _requests_of_pod(pod: Pod) -> dict[str, int] | None:
    """The pod at its worst moment; a kind that only init containers ask for is forgotten, as in the kubelet."""
    running: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.containers:
        asked = _requests(container)
        if asked is None:
            return None
        for kind, size in asked.items():
            if not container.init:
                running[kind] = running.get(kind, 0) + size
            elif container.restartable:
                sidecars[kind] = sidecars.get(kind, 0) + size
            else:
                peak[kind] = max(peak.get(kind, 0), sidecars.get(kind, 0) + size)
    return {kind: max(size + sidecars.get(kind, 0), peak.get(kind, 0)) for kind, size in running.items()}


def container_hints(state: MemoryState, pod: Pod, container: Container) -> ProviderAnswer:
    """The memory manager's answer in container scope. Empty ("no opinion") also when nothing fits."""
    if qos(pod) is not Qos.GUARANTEED or pod.has_pod_level_resources:
        return None
    requests = _requests(container)
    if not requests:
        return None
    blocks = state.blocks.get((pod.uid, container.name))
    if blocks is not None:
        return _regenerated(blocks, requests)
    return _answer(_generate(state, pod, requests), requests)


def pod_hints(state: MemoryState, pod: Pod) -> ProviderAnswer:
    """The memory manager's answer in pod scope."""
    if qos(pod) is not Qos.GUARANTEED or pod.has_pod_level_resources:
        return None
    requests = _requests_of_pod(pod)
    if not requests:
        return None
    for container in pod.containers:
        blocks = state.blocks.get((pod.uid, container.name))
        if blocks is not None:
            # The first container's blocks are compared with the whole pod's request: mostly "no opinion".
            return _regenerated(blocks, requests)
    return _answer(_generate(state, pod, requests), requests)


def _answer(hints: tuple[Hint, ...], requests: Mapping[str, int]) -> ProviderAnswer:
    """The same list for every kind. Nowhere to go is an empty map, which reads as "no opinion" (k/k #128708)."""
    return dict.fromkeys(requests, hints) if hints else {}


def _regenerated(blocks: tuple[MemoryBlock, ...], requests: Mapping[str, int]) -> ProviderAnswer:
    if {block.kind: block.size_bytes for block in blocks} != dict(requests) or len(blocks) != len(requests):
        return None
    return {block.kind: (Hint(block.mask, True),) for block in blocks}


def _generate(state: MemoryState, pod: Pod, requests: Mapping[str, int]) -> tuple[Hint, ...]:
    width_min = len(state.nodes)
    masks: list[int] = []
    for mask in masks_in_order(state.nodes):
        nodes = [state.nodes[node] for node in nodes_of(mask)]
        if not all(_allocatable(nodes, kind) >= size for kind, size in requests.items()):
            continue
        # From here on the hardware could do it: this width is what "preferred" means.
        width_min = min(width_min, mask.bit_count())
        if _breaks_a_group(mask, nodes):
            continue
        if all(_free(nodes, kind) + _reusable(state, pod, mask, kind) >= size for kind, size in requests.items()):
            masks.append(mask)
    return tuple(Hint(mask, mask.bit_count() == width_min) for mask in masks)


def _breaks_a_group(mask: int, nodes: Iterable[MemoryNode]) -> bool:
    """A node serves allocations of one node or of one group, never both."""
    if mask.bit_count() == 1:
        return any(node.is_grouped for node in nodes)
    return _mixes_groups(mask, nodes)


def _mixes_groups(mask: int, nodes: Iterable[MemoryNode]) -> bool:
    """Of several nodes: one is in use, by itself or in another group."""
    return mask.bit_count() > 1 and any(node.assignments > 0 and node.group != mask for node in nodes)


def _free(nodes: Iterable[MemoryNode], kind: str) -> int:
    return sum(node.tables[kind].free_bytes for node in nodes if kind in node.tables)


def _allocatable(nodes: Iterable[MemoryNode], kind: str) -> int:
    return sum(node.tables[kind].allocatable_bytes for node in nodes if kind in node.tables)


def _reusable(state: MemoryState, pod: Pod, mask: int, kind: str) -> int:
    """What finished init containers of the pod left on exactly these nodes."""
    return state.reusable.get((mask, kind), 0) if state.reuse_pod == pod.uid else 0


def crash_reason(state: MemoryState, pod: Pod) -> str | None:
    """A huge page size that some NUMA node does not list makes the kubelet crash (a nil pointer in
    calculateHints); None when the pod is harmless. To be asked before hints and allocation."""
    if qos(pod) is not Qos.GUARANTEED or pod.has_pod_level_resources:
        return None
    for container in pod.containers:
        for kind in sorted(_requests(container) or {}):
            lacking = [node for node, memory in state.nodes.items() if kind not in memory.tables]
            if lacking:
                return f"the kubelet crashes: NUMA node {lacking[0]} lists no {kind}, which {container.name} asks for"
    return None


def allocate(state: MemoryState, pod: Pod, container: Container, affinity: Hint) -> MemoryState | Refusal:
    """Take the container's memory from the stored affinity, widened where that does not suffice."""
    if qos(pod) is not Qos.GUARANTEED or pod.has_pod_level_resources:
        return state
    requests = _requests(container)
    if requests is None:
        return unexpected(FRACTIONAL)
    if not requests:
        return state
    present = state.blocks.get((pod.uid, container.name))
    if present is not None:
        return _with_reuse(state, pod, container, present)
    chosen = _chosen_mask(state, pod, requests, affinity)
    if isinstance(chosen, str):
        return unexpected(chosen)
    blocks = tuple(MemoryBlock(kind, chosen, size) for kind, size in requests.items())
    nodes = dict(state.nodes)
    for block in blocks:
        missing = max(0, block.size_bytes - _reusable(state, pod, chosen, block.kind))
        _assign(nodes, block.kind, chosen, missing)
    given = replace(state, nodes=nodes, blocks={**state.blocks, (pod.uid, container.name): blocks})
    return _shrink_init_blocks(_with_reuse(given, pod, container, blocks), pod, container, blocks)


def _chosen_mask(state: MemoryState, pod: Pod, requests: Mapping[str, int], affinity: Hint) -> int | str:
    """The mask to take from, or the kubelet's error text."""
    mask, preferred = affinity.mask, affinity.preferred
    if mask is None:
        best = _best(_generate(state, pod, requests))
        if best is None:
            lacking = "no NUMA nodes with enough memory is available"
            return f"[memorymanager] failed to get the default NUMA affinity, {lacking}"
        if preferred and not best.preferred:
            return "[memorymanager] failed to find the default preferred hint"
        assert best.mask is not None
        mask, preferred = best.mask, best.preferred
    nodes = [state.nodes[node] for node in nodes_of(mask)]
    if not all(_free(nodes, kind) >= size for kind, size in requests.items()):
        wider = _best(tuple(h for h in _generate(state, pod, requests) if h.mask is not None and h.mask & mask == mask))
        if wider is None:
            return "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
        if preferred and not wider.preferred:
            return "[memorymanager] failed to find the extended preferred hint"
        assert wider.mask is not None
        mask = wider.mask
    if _mixes_groups(mask, [state.nodes[node] for node in nodes_of(mask)]):
        return "[memorymanager] preferred hint violates NUMA node allocation"
    return mask


def _best(hints: Iterable[Hint]) -> Hint | None:
    """A preferred hint before others, then the narrowest."""
    best: Hint | None = None
    for hint in hints:
        if best is None or (hint.preferred and not best.preferred):
            best = hint
            continue
        assert hint.mask is not None
        assert best.mask is not None
        if hint.preferred == best.preferred and is_narrower(hint.mask, best.mask):
            best = hint
    return best


def _assign(nodes: dict[int, MemoryNode], kind: str, mask: int, size: int) -> None:
    """Take `size` from the nodes of the mask, lowest id first; all of them are one group from now on."""
    for node in nodes_of(mask):
        memory = nodes[node]
        table = memory.tables[kind]
        taken = min(size, table.free_bytes)
        size -= taken
        tables = {**memory.tables, kind: replace(table, free_bytes=table.free_bytes - taken)}
        nodes[node] = MemoryNode(tables, mask, memory.assignments + 1)


def _release(nodes: dict[int, MemoryNode], block: MemoryBlock) -> None:
    """Give `block` back to its nodes, lowest id first, up to what each has given out."""
    size = block.size_bytes
    for node in nodes_of(block.mask):
        memory = nodes[node]
        table = memory.tables[block.kind]
        freed = min(size, table.allocatable_bytes - table.free_bytes)
        size -= freed
        tables = {**memory.tables, block.kind: replace(table, free_bytes=table.free_bytes + freed)}
        assignments = memory.assignments - 1
        nodes[node] = MemoryNode(tables, memory.group if assignments else 1 << node, assignments)


def _with_reuse(state: MemoryState, pod: Pod, container: Container, blocks: tuple[MemoryBlock, ...]) -> MemoryState:
    """Ordinary init containers leave their memory to the containers after them; others use that up."""
    reusable = dict(state.reusable) if state.reuse_pod == pod.uid else {}
    leaves = container.init and not container.restartable
    for block in blocks:
        before = reusable.get((block.mask, block.kind), 0)
        after = max(before, block.size_bytes) if leaves else max(0, before - block.size_bytes)
        reusable[block.mask, block.kind] = after
    return replace(state, reuse_pod=pod.uid, reusable=reusable)


def _shrink_init_blocks(
    state: MemoryState, pod: Pod, container: Container, blocks: tuple[MemoryBlock, ...]
) -> MemoryState:
    """Memory that was reused moves from the init containers' blocks to the new one, so that the sum is right."""
    table = dict(state.blocks)
    for block in blocks:
        size = block.size_bytes
        for earlier in pod.containers:
            owner = (pod.uid, earlier.name)
            if earlier.name == container.name or not earlier.init or size == 0:
                break
            if earlier.restartable or owner not in table:
                continue
            shrunk: list[MemoryBlock] = []
            for old in table[owner]:
                moved = min(size, old.size_bytes) if (old.kind, old.mask) == (block.kind, block.mask) else 0
                size -= moved
                shrunk.append(replace(old, size_bytes=old.size_bytes - moved))
            table[owner] = tuple(shrunk)
    return replace(state, blocks=table)


def removed(state: MemoryState, pod_uid: str, container: str) -> MemoryState:
    """The container is gone: its memory is free again and groups without assignments dissolve.

    The kubelet does this also to an init container as soon as the next container starts.
    """
    owner = (pod_uid, container)
    nodes = dict(state.nodes)
    for block in state.blocks.get(owner, ()):
        _release(nodes, block)
    return replace(state, nodes=nodes, blocks={key: kept for key, kept in state.blocks.items() if key != owner})


def collect(state: MemoryState, active_pods: frozenset[str]) -> MemoryState:
    """Free the memory of pods that are no longer active; the kubelet does so before every hint and allocation."""
    for pod_uid, container in sorted(state.blocks):
        if pod_uid not in active_pods:
            state = removed(state, pod_uid, container)
    return state
