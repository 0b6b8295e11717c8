"""`distribute-cpus-across-numa`: equal parts from as few NUMA nodes as possible, instead of filling them up.

Semantics of takeByTopologyNUMADistributed in pkg/kubelet/cm/cpumanager/cpu_assignment.go (1.37). Two of its
faults decide outcomes and are reproduced: combinations that are overwritten after they were chosen, and
a remainder that nobody can take (the kubelet loops for ever; here that is an answer).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from topoalloc.admission.cpu_take import NotTaken, Taking, not_enough, take_packed
from topoalloc.admission.cpu_topology import CpuTopology
from topoalloc.topology.cpus import CpuSet

HANGS = NotTaken(
    "the kubelet never returns: distribute-cpus-across-numa cannot place the remaining CPUs of the request"
)


def take_distributed(
    topology: CpuTopology, available: CpuSet, count: int, *, group_size: int = 1, align_by_socket: bool = False
) -> CpuSet | NotTaken:
    """Take `count` CPUs in groups of `group_size` (the threads of a core with full-pcpus-only, else 1)."""
    if count % group_size:
        return take_packed(topology, available, count)
    taking = Taking(topology, available, count)
    if taking.is_satisfied():
        return taking.taken
    if count > len(available):
        return not_enough(count, available)
    search = _Search(topology, taking, count, group_size, align_by_socket)
    for width in search.widths():
        best = search.best_of_width(width)
        if isinstance(best, NotTaken):
            return best
        if best is not None:
            return search.take(best)
    return take_packed(topology, available, count)


@dataclass(slots=True)
class _Slice:
    """A Go slice: a length and an array that others may share.

    The kubelet keeps the best combination as such a slice and goes on enumerating. An append within the
    capacity (1, 2, 4, 8 ...) writes into the shared array, so that the 4th, and the 6th to 8th, element of a
    kept combination are those of its last sibling.
    """

    array: list[int | None]
    length: int

    def appended(self, item: int) -> _Slice:
        array = self.array
        if self.length == len(array):
            array = [*array, *[None] * max(1, len(array))]
        array[self.length] = item
        return _Slice(array, self.length + 1)

    def items(self) -> list[int]:
        """The elements as they are now."""
        return [item for item in self.array[: self.length] if item is not None]


EMPTY_SLICE = _Slice([], 0)


def _combinations(items: Sequence[int], size: int) -> Iterator[_Slice]:
    """All combinations in lexicographic order of positions, with the sharing described at `_Slice`."""

    def extended(size: int, start: int, chosen: _Slice) -> Iterator[_Slice]:
        if size == 0:
            yield chosen
            return
        for position in range(start, len(items) - size + 1):
            yield from extended(size - 1, position + 1, chosen.appended(items[position]))

    if size >= 1:
        yield from extended(size, 0, _Slice([], 0))


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One combination of NUMA nodes, the part of it that takes the remainder, and how even it leaves the rest."""

    nodes: _Slice
    remainder_nodes: _Slice
    balance: float
    in_one_socket: bool


class _Search:
    """The search for the combination that leaves all NUMA nodes as evenly used as possible."""

    __slots__ = ("align_by_socket", "count", "group_size", "nodes", "taking", "topology")

    def __init__(
        self, topology: CpuTopology, taking: Taking, count: int, group_size: int, align_by_socket: bool
    ) -> None:
        self.topology = topology
        self.taking = taking
        self.count = count
        self.group_size = group_size
        self.align_by_socket = align_by_socket
        self.nodes = taking.numa_nodes_in_order()

    def widths(self) -> range:
        """How many NUMA nodes to try: from what an empty machine would need to one group on each."""
        groups_all = (len(self.topology.cpus) - 1) // self.group_size + 1
        groups_per_node = (groups_all - 1) // len(self.topology.by_numa_node) + 1
        groups_needed = (self.count - 1) // self.group_size + 1
        nodes_with_free = sum(1 for node in self.topology.by_numa_node if self._free(node))
        return range((groups_needed - 1) // groups_per_node + 1, min(groups_needed, nodes_with_free) + 1)

    def best_of_width(self, width: int) -> _Candidate | NotTaken | None:
        best: _Candidate | None = None
        for nodes in _combinations(self.nodes, width):
            if best is not None and best.balance == 0 and (not self.align_by_socket or best.in_one_socket):
                break
            candidate = self._candidate(nodes)
            if isinstance(candidate, NotTaken):
                return candidate
            if candidate is not None and self._is_better(candidate, best):
                best = candidate
        return best

    def take(self, best: _Candidate) -> CpuSet | NotTaken:
        taking = self.taking
        nodes, remainder_nodes = best.nodes.items(), best.remainder_nodes.items()
        part = min([self._even_part(len(nodes)), *(self._whole_groups(node) for node in nodes)])
        for node in nodes:
            self._take_from(node, part)
        remainder = self.count - part * len(nodes)
        while remainder > 0:
            before = remainder
            for node in remainder_nodes:
                if remainder == 0:
                    break
                if self._free(node) >= self.group_size:
                    self._take_from(node, self.group_size)
                    remainder -= self.group_size
            if remainder == before:
                return HANGS
        if taking.needed > 0:
            return NotTaken(f"accounting error, not enough CPUs allocated, remaining: {taking.needed}")
        if taking.needed < 0:
            return NotTaken(f"accounting error, too many CPUs allocated, remaining: {taking.needed}")
        return taking.taken

    def _take_from(self, node: int, count: int) -> None:
        taken = take_packed(self.topology, self.taking.free_of_node(node), count)
        # An error is dropped here as in the kubelet: the accounting check at the end reports it.
        self.taking.take(CpuSet() if isinstance(taken, NotTaken) else taken)

    def _free(self, node: int) -> int:
        return len(self.taking.free_of_node(node))

    def _whole_groups(self, node: int) -> int:
        return self._free(node) // self.group_size * self.group_size

    def _even_part(self, width: int) -> int:
        return self.count // width // self.group_size * self.group_size

    def _candidate(self, nodes: _Slice) -> _Candidate | NotTaken | None:
        combo = nodes.items()
        # A node whose CPUs are in several sockets can stand twice in a combination; the kubelet counts it twice
        # everywhere but here.
        if sum(self._free(node) for node in set(combo)) < self.count:
            return None
        if sum(self._whole_groups(node) for node in combo) < self.count:
            return None
        part = self._even_part(len(combo))
        if self.align_by_socket:
            part = min([part, *(self._whole_groups(node) for node in combo)])
        if any(self._free(node) < part for node in combo):
            return None
        left = {node: self._free(node) for node in self.nodes}
        for node in combo:
            left[node] -= part
        remainder = self.count - part * len(combo)
        in_one_socket = self.align_by_socket and len(self.topology.sockets_of_nodes(combo)) <= 1
        if remainder == 0:
            return _Candidate(nodes, EMPTY_SLICE, _deviation(list(left.values())), in_one_socket)
        spread = self._best_remainder(combo, left, remainder)
        if isinstance(spread, NotTaken):
            return spread
        return _Candidate(nodes, spread[1], spread[0], in_one_socket)

    def _best_remainder(
        self, combo: Sequence[int], left: dict[int, int], remainder: int
    ) -> tuple[float, _Slice] | NotTaken:
        """Over which of the nodes to spread the remainder: as many as possible, the most even outcome."""
        best = (math.inf, EMPTY_SLICE)
        able = [node for node in combo if left[node] >= self.group_size]
        for width in range(len(able), 0, -1):
            for nodes in _combinations(able, width):
                subset = nodes.items()
                if sum(left[node] for node in subset) < remainder:
                    continue
                balance = self._balance_after(subset, left, remainder)
                if balance is None:
                    return HANGS
                if balance < best[0]:
                    best = (balance, nodes)
        return best

    def _balance_after(self, subset: Sequence[int], left: dict[int, int], remainder: int) -> float | None:
        """Deviation once the remainder is taken group by group; None when it cannot be."""
        left = dict(left)
        while remainder > 0:
            before = remainder
            for node in subset:
                if remainder == 0:
                    break
                if left[node] >= self.group_size:
                    left[node] -= self.group_size
                    remainder -= self.group_size
            if remainder == before:
                return None
        return _deviation(list(left.values()))

    def _is_better(self, candidate: _Candidate, best: _Candidate | None) -> bool:
        best_in_one_socket = best is not None and best.in_one_socket
        if self.align_by_socket and candidate.in_one_socket != best_in_one_socket:
            return candidate.in_one_socket
        return candidate.balance < (math.inf if best is None else best.balance)


def _deviation(values: Sequence[int]) -> float:
    """Standard deviation, it and the mean in it rounded to thousandths."""
    mean = _rounded(sum(values) / len(values))
    return _rounded(math.sqrt(sum((value - mean) ** 2 for value in values) / len(values)))


def _rounded(value: float) -> float:
    """To thousandths, halves away from zero as Go rounds; Python's round() rounds them to even."""
    scaled = value * 1000
    whole = math.trunc(scaled)
    return (whole + 1 if scaled - whole >= 0.5 else whole) / 1000
