"""The best answer by trying every one, straight from the order of terms in docs/PLACEMENT.md.

Written apart from the search: it reads the machine itself, matches NICs to GPUs one by one and cuts leftovers by plain
recursion. It shares no code with `topoalloc.placement` but the data classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations, product

from topoalloc.placement.offer import Offer, Want
from topoalloc.topology.machine import Gpu, LinkClass, Machine, Nic, Unknown

Set = frozenset[int]
Counts = tuple[int, int, int, int]
NOTHING: Counts = (0, 0, 0, 0)

SPEED = {LinkClass.PIX: 13, LinkClass.PXB: 12, LinkClass.PHB: 11, LinkClass.NODE: 10, LinkClass.SYS: 9}
POINTS = {LinkClass.PIX: 50, LinkClass.PXB: 40, LinkClass.PHB: 30, LinkClass.NODE: 20, LinkClass.SYS: 10}


@dataclass(frozen=True)
class Verdict:
    """The best answer and its key: all terms, the higher the better."""

    gpus: tuple[int, ...]
    nics: tuple[tuple[int, ...], ...]
    key: tuple[object, ...]


class Oracle:
    """All questions about one machine; answers to sub-questions are kept."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.links = machine.links_by_pair()
        self.count = len(machine.gpus)
        self.far = max(
            (d for n in machine.numa_nodes if isinstance(n.distances, tuple) for d in n.distances), default=0
        )
        self.bandwidth_of = cache(self._bandwidth_of)
        self.locality_of = cache(self._locality_of)
        self.near = cache(self._near)
        self.cut = cache(self._cut)
        self.matched = cache(self._matched)
        self.pair = {
            (i, j): (self._speed(i, j), self._points(i, j))
            for i in range(self.count)
            for j in range(self.count)
            if i != j
        }

    # What pairs are worth

    def _class(self, a: Gpu, b: Gpu | Nic) -> LinkClass:
        pcie = self.links[a.id, b.id].pcie
        if not isinstance(pcie, Unknown):
            return pcie
        bound = LinkClass.NODE if self._same_node(a, b) else LinkClass.SYS
        if isinstance(b, Gpu):
            for third in self.machine.nics:
                bound = min(bound, max(LinkClass.PXB, self._class(a, third), self._class(b, third)))
        return bound

    @staticmethod
    def _same_node(a: Gpu, b: Gpu | Nic) -> bool:
        if not isinstance(a.numa_node, Unknown) or not isinstance(b.numa_node, Unknown):
            return a.numa_node == b.numa_node
        if isinstance(b, Nic) or isinstance(a.cpus, Unknown) or isinstance(b.cpus, Unknown):
            return False
        return bool(a.cpus) and a.cpus == b.cpus

    def _speed(self, i: int, j: int) -> int:
        a, b = self.machine.gpus[i], self.machine.gpus[j]
        links = self.links[a.id, b.id].nvlinks
        pcie = SPEED[self._class(a, b)]
        return pcie if isinstance(links, Unknown) else max(links * min(_link_speed(a), _link_speed(b)), pcie)

    def _points(self, i: int, j: int) -> int:
        a, b = self.machine.gpus[i], self.machine.gpus[j]
        points = POINTS[self._class(a, b)]
        if self._same_node(a, b):
            return points + 1000
        return points + (500 if self._distance(a, b) < self.far else 0)

    def _distance(self, a: Gpu, b: Gpu) -> int:
        order = [node.id for node in self.machine.numa_nodes]
        if isinstance(a.numa_node, Unknown) or isinstance(b.numa_node, Unknown):
            return self.far
        row = self.machine.numa_nodes[order.index(a.numa_node)].distances
        return self.far if isinstance(row, Unknown) else row[order.index(b.numa_node)]

    # What sets are worth

    def _bandwidth_of(self, gpus: Set) -> int:
        return sum(self.pair[pair][0] for pair in combinations(sorted(gpus), 2))

    def _locality_of(self, gpus: Set) -> int:
        return sum(self.pair[pair][1] for pair in combinations(sorted(gpus), 2))

    def leftover(self, gpus: Set, which: int) -> int:
        """Millionths of the empty board's 2-, 4- and 8-sets; beyond 16 GPUs the sum over all pairs."""
        if self.count > 16:
            return self.bandwidth_of(gpus) if which == 0 else self.locality_of(gpus)
        every = frozenset(range(self.count))
        return sum(
            1_000_000 * self.cut(gpus, size, which) // self.cut(every, size, which)
            for size in (2, 4, 8)
            if size <= self.count
        )

    def _cut(self, gpus: Set, size: int, which: int) -> int:
        """The best cut into as many disjoint sets of `size` as there is room for."""
        if len(gpus) < size:
            return 0
        worth = self.bandwidth_of if which == 0 else self.locality_of
        first, *others = sorted(gpus)
        best = max(
            worth(frozenset((first, *mates))) + self.cut(gpus - {first, *mates}, size, which)
            for mates in combinations(others, size - 1)
        )
        if len(gpus) % size:
            best = max(best, self.cut(gpus - {first}, size, which))
        return best

    # NICs

    def _near(self, gpu: int, nic: int) -> Counts:
        distance = self._class(self.machine.gpus[gpu], self.machine.nics[nic])
        levels = (LinkClass.PXB, LinkClass.PHB, LinkClass.NODE, LinkClass.PIX)
        pxb, phb, node, pix = (int(distance <= level) for level in levels)
        return pxb, phb, node, pix

    def _matched(self, seats: tuple[tuple[int, int], ...], nics: tuple[int, ...]) -> Counts:
        """The best way to seat NICs at GPUs; `seats` are (GPU, free seats); a NIC may stay without a seat."""
        if not nics:
            return NOTHING
        nic, *others = nics
        best = self.matched(seats, tuple(others))
        for place, (gpu, free) in enumerate(seats):
            if free and any(self.near(gpu, nic)):
                taken = (*seats[:place], (gpu, free - 1), *seats[place + 1 :])
                best = max(best, _sum(self.near(gpu, nic), self.matched(taken, tuple(others))))
        return best

    def closeness(self, gpus: Set, nics: tuple[int, ...]) -> Counts:
        if not gpus:
            return NOTHING
        seats = -(-len(nics) // len(gpus))
        return self.matched(tuple((gpu, seats) for gpu in sorted(gpus)), nics)

    def spare(self, gpus: Set, nics: Set) -> Counts:
        return self.matched(tuple((gpu, 1) for gpu in sorted(gpus)), tuple(sorted(nics)))

    # Answers

    def best(self, want: Want, offer: Offer) -> Verdict | None:
        """The best answer, None if there is none."""
        sets = [gpus for gpus in self._gpu_sets(want, offer) if self._allowed(gpus, want, offer)]
        if want.cores >= 100 and sets:
            fastest = max(map(self.bandwidth_of, sets))
            sets = [gpus for gpus in sets if self.bandwidth_of(gpus) == fastest]
        picks = list(_nic_sets(want, offer))
        if not sets or not picks:
            return None
        answers = [(gpus, nics) for gpus in sets for nics in picks]
        near = {answer: self._near_all(*answer) for answer in answers}
        closest = max(near.values())
        answers = [answer for answer in answers if near[answer] == closest]
        middle = {answer: self._middle(want, offer, answer[0]) for answer in answers}
        most = max(middle.values())
        answers = [answer for answer in answers if middle[answer] == most]
        keys = {answer: self._end(want, offer, *answer) for answer in answers}
        gpus, nics = max(answers, key=lambda answer: keys[answer])
        speed = (self.bandwidth_of(gpus),) if want.cores >= 100 else ()
        return Verdict(tuple(sorted(gpus)), nics, (*speed, closest, *most, *keys[gpus, nics][:2]))

    def _gpu_sets(self, want: Want, offer: Offer) -> Iterator[Set]:
        size = want.cores // 100 or int(want.cores > 0 or want.memory_units > 0)
        return map(frozenset, combinations(range(self.count), size))

    @staticmethod
    def _allowed(gpus: Set, want: Want, offer: Offer) -> bool:
        if not offer.gpus_fixed <= gpus or gpus & offer.gpus_closed:
            return False
        chosen = [offer.gpus[gpu] for gpu in gpus]
        memory = sum(gpu.memory_units_free or 0 for gpu in chosen)
        if want.cores >= 100:
            return all(gpu.whole_free for gpu in chosen) and memory >= want.memory_units
        return all(gpu.cores_free >= want.cores for gpu in chosen) and memory >= want.memory_units

    def _near_all(self, gpus: Set, nics: tuple[tuple[int, ...], ...]) -> Counts:
        return _sum(*(self.closeness(gpus, pool) for pool in nics))

    @staticmethod
    def _idle(offer: Offer) -> Set:
        whole = frozenset(position for position, gpu in enumerate(offer.gpus) if gpu.whole_free)
        return whole | (offer.gpus_idle or frozenset())

    def _middle(self, want: Want, offer: Offer, gpus: Set) -> tuple[int, ...]:
        left = self.leftover(self._idle(offer) - gpus, 0)
        if want.cores >= 100:
            return left, self.locality_of(gpus)
        if not gpus:
            return ()
        (gpu,) = gpus
        here = offer.gpus[gpu]
        room = here.cores_free - want.cores
        if here.memory_units_free is not None:
            whole = here.memory_units or max(other.memory_units_free or 0 for other in offer.gpus)
            room += (here.memory_units_free - want.memory_units) * 100 // max(1, whole)
        return -int(here.whole_free), -room, left

    def _end(
        self, want: Want, offer: Offer, gpus: Set, nics: tuple[tuple[int, ...], ...]
    ) -> tuple[Counts, int, int, tuple[int, ...]]:
        rest = self._idle(offer) - gpus
        gone = {nic for pool in nics for nic in pool}
        if want.nics:
            pools = [(free | fixed) - gone for free, fixed in zip(offer.nics_free, offer.nics_fixed, strict=True)]
        else:
            pools = [offer.nics_idle or frozenset[int]()]
        spare = _sum(*(self.spare(rest, pool) for pool in pools))
        lowest = tuple(-sum(1 << nic for nic in pool) for pool in nics)
        return spare, self.leftover(rest, 1), -sum(1 << gpu for gpu in gpus), lowest


@lru_cache(maxsize=64)
def oracle_for(machine: Machine) -> Oracle:
    """The oracle of a machine, kept with all it has worked out."""
    return Oracle(machine)


def _link_speed(gpu: Gpu) -> int:
    if gpu.vendor == "1002":
        return 50
    if isinstance(gpu.model, Unknown) or "P100" in gpu.model:
        return 20
    return 50 if any(name in gpu.model for name in ("B100", "B200", "B300")) else 25


def _nic_sets(want: Want, offer: Offer) -> Iterator[tuple[tuple[int, ...], ...]]:
    pools = [
        [
            pick
            for pick in combinations(sorted(free | fixed), count)
            if fixed <= set(pick) and not any(set(pick) & other for o, other in enumerate(offer.nics_fixed) if o != own)
        ]
        for own, (count, free, fixed) in enumerate(zip(want.nics, offer.nics_free, offer.nics_fixed, strict=True))
    ]
    for picks in product(*pools):
        taken = [nic for pick in picks for nic in pick]
        if len(set(taken)) == len(taken):
            yield picks


def _sum(*counts: Counts) -> Counts:
    a, b, c, d = (sum(column) for column in zip(NOTHING, *counts, strict=True))
    return a, b, c, d
