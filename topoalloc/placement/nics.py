"""Which NICs go with a set of GPUs: the nearest ones, and of those the ones that other free GPUs need least.

One NIC after the other is taken where it gains most. With nested blocks both measures are sums of concave functions of
how many NICs each block gives, and for such sums (laminar, hence M-natural-concave) taking the best single step each
time ends at the best set (Murota, Discrete Convex Analysis, 2003).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nlargest
from itertools import chain, combinations

from topoalloc.placement.ask import Ask, PoolAsk
from topoalloc.placement.board import Board
from topoalloc.placement.leftover import left_localities
from topoalloc.placement.nearness import CLOSENESS_BITS, block_sums, capped

# Trying a set of GPUs means choosing its NICs, some 20 us each. Bounds are nearly always met at the first few sets.
TRIALS_MAX = 128


# What a set of GPUs can reach at best, the higher the better: the terms before NIC closeness, NIC closeness, the terms
# after it, closeness left for the GPUs that stay free, leftover locality, the lowest mask.
Hope = tuple[tuple[int, ...], int, tuple[int, ...], int, int, int]


@dataclass(frozen=True, slots=True)
class Found:
    """The set chosen, the NICs of each pool (masks), and whether the search saw everything it had to."""

    gpus: int
    nics: tuple[int, ...]
    complete: bool


def seats_of(count: int, gpus: int) -> int:
    """How many of `count` NICs belong to each GPU of a set: as evenly as can be."""
    size = gpus.bit_count()
    return -(-count // size) if size else 0


def closeness(board: Board, count: int, gpus: int, nics: int) -> int:
    """The closeness of these NICs to these GPUs; `count` NICs are shared out over the GPUs."""
    return sum_of(board, gpus, seats_of(count, gpus), nics)


def spare(board: Board, rest: int, nics: int) -> int:
    """How close NICs that stay free are to GPUs that stay free, one for each GPU."""
    return sum_of(board, rest, 1, nics)


def sum_of(board: Board, gpus: int, seats: int, nics: int) -> int:
    """The closeness of the best pairing of these NICs with these GPUs, `seats` at each GPU."""
    total = 0
    for block in board.blocks:
        total += block.weight * min(seats * (block.gpus & gpus).bit_count(), (block.nics & nics).bit_count())
    return total


def closeness_bounds(board: Board, pools: tuple[PoolAsk, ...], gpu_sets: list[int]) -> list[int]:
    """What no choice of NICs can exceed for each set; reached where no pool is partly fixed or entangled.

    All sets have the same number of GPUs.
    """
    totals = [0] * len(gpu_sets)
    for pool in pools:
        seats = seats_of(pool.count, gpu_sets[0])
        sums = block_sums(board.blocks, board.parts, gpu_sets, seats, pool.reach)
        caps = {value: capped(value, pool.count) for value in set(sums)}
        totals = [total + caps[value] for total, value in zip(totals, sums, strict=True)]
    return totals


def spare_bounds(board: Board, ask: Ask, rests: list[int]) -> list[int]:
    """What no choice of NICs can exceed in closeness left for the GPUs that stay free."""
    if not ask.pools:
        return block_sums(board.blocks, board.parts, rests, 1, ask.nics_idle) if ask.nics_idle else [0] * len(rests)
    totals = [0] * len(rests)
    for pool in ask.pools:
        left = pool.free & ~pool.fixed
        sums = block_sums(board.blocks, board.parts, rests, 1, left)
        totals = [total + value for total, value in zip(totals, sums, strict=True)]
    return totals


def pick_nics(board: Board, ask: Ask, gpus: int) -> tuple[int, ...]:
    """The NICs of every pool for this set of GPUs; `ask` is known to be satisfiable.

    Pools that share NICs take turns in their order, each leaving enough for the later ones.
    """
    rest = ask.idle & ~gpus
    if not ask.entangled:
        return tuple(_picked(board, pool, seats_of(pool.count, gpus), gpus, rest) for pool in ask.pools)
    picks: list[int] = []
    for number, pool in enumerate(ask.pools):
        gone, taken = mask_union(picks), pool.fixed
        while taken.bit_count() < pool.count:
            free = pool.free & ~gone & ~reserved(ask.pools[number + 1 :], gone | taken)
            step = PoolAsk(taken.bit_count() + 1, free | taken, taken)
            taken = _picked(board, step, seats_of(pool.count, gpus), gpus, rest)
        picks.append(taken)
    return tuple(picks)


def _picked(board: Board, pool: PoolAsk, seats: int, gpus: int, rest: int) -> int:
    """The fixed NICs and the best further ones of one pool."""
    taken = pool.fixed
    missing = pool.count - taken.bit_count()
    if not missing:
        return taken
    blocks = board.blocks
    room = [seats * (block.gpus & gpus).bit_count() - (block.nics & taken).bit_count() for block in blocks]
    surplus = [(block.nics & pool.free & ~taken).bit_count() - (block.gpus & rest).bit_count() for block in blocks]
    for _ in range(missing):
        best: int | None = None
        best_blocks: tuple[int, ...] = ()
        lowest = 0
        for nic_class in board.nic_classes:
            free = nic_class.nics & pool.free & ~taken
            if not free:
                continue
            value = 0
            for index in nic_class.blocks:
                weight = blocks[index].weight
                value += weight << CLOSENESS_BITS if room[index] > 0 else 0
                value -= weight if surplus[index] <= 0 else 0
            nic = free & -free
            if best is None or value > best or (value == best and nic < lowest):
                best, best_blocks, lowest = value, nic_class.blocks, nic
        assert best is not None, "more NICs asked than free"
        taken |= lowest
        for index in best_blocks:
            room[index] -= 1
            surplus[index] -= 1
    return taken


def settle(
    board: Board, ask: Ask, sets: list[int], before: list[tuple[int, ...]], middle: list[tuple[int, ...]]
) -> Found:
    """The best of these sets of GPUs together with its NICs.

    `before` and `middle` are each set's terms before NIC closeness and between it and the closeness left, the higher
    the better. Sets are tried from the most promising on, until none can be better than the best one tried.
    """
    near = closeness_bounds(board, ask.pools, sets)
    rests = [ask.idle & ~gpus for gpus in sets]
    left = spare_bounds(board, ask, rests)
    lasts = left_localities(board, rests)
    masks = [-gpus for gpus in sets]
    hopes: list[Hope] = list(zip(before, near, middle, left, lasts, masks, strict=True))
    hope = max(hopes)
    best, nics = _tried(board, ask, hope)
    if best == hope:
        return Found(-best[-1], nics, complete=True)
    hopes = nlargest(TRIALS_MAX + 1, hopes)
    for hope in hopes[1:TRIALS_MAX]:
        if hope <= best:
            break
        key, picks = _tried(board, ask, hope)
        if key > best:
            best, nics = key, picks
    return Found(-best[-1], nics, complete=len(hopes) <= TRIALS_MAX or hopes[-1] <= best)


def _tried(board: Board, ask: Ask, hope: Hope) -> tuple[Hope, tuple[int, ...]]:
    """What a set really reaches, and with which NICs."""
    before, _, middle, _, last, negative = hope
    nics = pick_nics(board, ask, -negative)
    near, left = worth(board, ask, -negative, nics)
    return (before, near, middle, left, last, negative), nics


def worth(board: Board, ask: Ask, gpus: int, nics: tuple[int, ...]) -> tuple[int, int]:
    """Closeness of the NICs to their GPUs, and of the NICs that stay free to the GPUs that stay free."""
    rest = ask.idle & ~gpus
    if not ask.pools:
        return 0, spare(board, rest, ask.nics_idle)
    gone = mask_union(nics)
    near = sum([closeness(board, pool.count, gpus, taken) for pool, taken in zip(ask.pools, nics, strict=True)])
    left = sum([spare(board, rest, pool.free & ~gone) for pool in ask.pools])
    return near, left


def reserved(pools: tuple[PoolAsk, ...], taken: int) -> int:
    """NICs that these pools cannot spare: the union of every group of pools that has just as many as it needs."""
    tight = 0
    for group in groups_of(pools):
        union = mask_union(pool.free & ~taken | pool.fixed for pool in group)
        if union.bit_count() <= sum(pool.count for pool in group):
            tight |= union
    return tight


def groups_of(pools: tuple[PoolAsk, ...]) -> chain[tuple[PoolAsk, ...]]:
    """Every non-empty group of pools; their number is bounded where asks are judged."""
    return chain.from_iterable(combinations(pools, size) for size in range(1, len(pools) + 1))


def mask_union(masks: Iterable[int]) -> int:
    """The union of masks."""
    union = 0
    for mask in masks:
        union |= mask
    return union
