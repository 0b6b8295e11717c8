"""Which NICs go with a set of GPUs: the nearest ones, and of those the ones that other free GPUs need least.

One NIC after the other is taken where it gains most. With nested blocks both measures are sums of concave functions of
how many NICs each block gives, and for such sums (laminar, hence M-natural-concave) taking the best single step each
time ends at the best set (Murota, Discrete Convex Analysis, 2003).
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nlargest

from topoalloc.placement.ask import Ask, PoolAsk, groups_of
from topoalloc.placement.board import Board
from topoalloc.placement.leftover import left_localities
from topoalloc.placement.nearness import CLOSENESS_BITS, capped, evenly, excess, mask_union

# Trying a set of GPUs means choosing its NICs, some 20 us each. Bounds are nearly always met at the first few sets.
TRIALS_MAX = 128

# Below any sum of changes to a value.
_NOTHING_FREE = -(1 << 4 * CLOSENESS_BITS)

# What a set of GPUs can reach at best, the higher the better: NIC closeness, the terms after it, closeness left for the
# GPUs that stay free, leftover locality, the lowest mask.
Hope = tuple[int, tuple[int, ...], int, int, int]


@dataclass(frozen=True, slots=True)
class Picked:
    """NICs of each pool (masks), how close they are to their GPUs, and how close free NICs stay to free GPUs."""

    nics: tuple[int, ...]
    near: int
    spare: int


@dataclass(frozen=True, slots=True)
class Found:
    """The set chosen with its NICs, and whether nothing better exists (else a search limit was reached)."""

    gpus: int
    picked: Picked
    complete: bool


def seats_of(count: int, size: int) -> int:
    """How many of `count` NICs belong to each of `size` GPUs: as evenly as can be."""
    return -(-count // size) if size else 0


def closeness_bounds(board: Board, ask: Ask, gpu_sets: list[int]) -> list[int]:
    """What no choice of NICs can exceed for each set; reached where no pool is partly fixed or entangled."""
    totals = [0] * len(gpu_sets)
    for pool in ask.pools:
        near = _closeness_bound(board, ask, pool, gpu_sets)
        totals = [total + value for total, value in zip(totals, near, strict=True)] if any(totals) else near
    return totals


def _closeness_bound(board: Board, ask: Ask, pool: PoolAsk, gpu_sets: list[int]) -> list[int]:
    sums = board.pairings.closenesses(gpu_sets, seats_of(pool.count, ask.size), pool.reach)
    if pool.count % ask.size == 0:
        return sums
    most = evenly(pool.count)
    caps = {value: capped(value, most) for value in set(sums)}
    return [caps[value] for value in sums]


def spare_bounds(board: Board, ask: Ask, gpu_sets: list[int], near: list[int]) -> list[int]:
    """What no choice of NICs can exceed in closeness of the NICs that stay free to the GPUs that do, one for each.

    `near`: the closeness bounds of the sets.
    """
    rests = [ask.idle & ~gpus for gpus in gpu_sets]
    if not ask.pools:
        return board.pairings.closenesses(rests, 1, ask.nics_idle)
    totals = [0] * len(rests)
    for pool in ask.pools:
        sums = board.pairings.closenesses(rests, 1, pool.free & ~pool.fixed)
        if pool.fixed or ask.entangled:
            totals = [total + value for total, value in zip(totals, sums, strict=True)]
            continue
        # The nearest NICs must come from their blocks, and only so many of those are not missed by the GPUs that stay.
        near = near if len(ask.pools) == 1 else _closeness_bound(board, ask, pool, gpu_sets)
        unmissed = board.pairings.unmissed(gpu_sets, seats_of(pool.count, ask.size), pool.free, ask.idle)
        pairs = list(zip(near, unmissed, strict=True))
        losses = {pair: excess(*pair) for pair in set(pairs)}
        totals = [total + value - losses[pair] for total, value, pair in zip(totals, sums, pairs, strict=True)]
    return totals


def spare_ceiling(board: Board, ask: Ask, closest: int) -> int:
    """What no set with this closeness can exceed in closeness left."""
    left_over = ask.idle.bit_count() - ask.size
    if not ask.pools:
        every = board.pairings.closeness(ask.idle, 1, ask.nics_idle)
        return capped(every, evenly(min(left_over, ask.nics_idle.bit_count())))
    total = 0
    for pool in ask.pools:
        every = board.pairings.closeness(ask.idle, 1, pool.free)
        if len(ask.pools) == 1 and seats_of(pool.count, ask.size) == 1 and not pool.fixed:
            # A NIC and a GPU that are paired now cannot be paired later.
            every -= closest
        total += capped(every, evenly(min(left_over, pool.free.bit_count() - pool.count)))
    return total


def settle(board: Board, ask: Ask, sets: list[int], near: list[int], middle: list[tuple[int, ...]]) -> Found:
    """The best of these sets of GPUs together with its NICs.

    `near` are each set's closeness bounds, `middle` its terms between NIC closeness and the closeness left, the higher
    the better. Sets are tried from the most promising on, until none can be better than the best one tried.
    """
    if len(sets) == 1:
        return Found(sets[0], pick_nics(board, ask, sets[0]), complete=True)
    spare = spare_bounds(board, ask, sets, near)
    lasts = left_localities(board, [ask.idle & ~gpus for gpus in sets])
    masks = [-gpus for gpus in sets]
    hopes: list[Hope] = list(zip(near, middle, spare, lasts, masks, strict=True))
    hope = max(hopes)
    best, picked = _tried(board, ask, hope)
    if best == hope:
        return Found(-best[-1], picked, complete=True)
    hopes = nlargest(TRIALS_MAX + 1, hopes)
    for hope in hopes[1:TRIALS_MAX]:
        if hope <= best:
            break
        reached, other = _tried(board, ask, hope)
        if reached > best:
            best, picked = reached, other
    return Found(-best[-1], picked, complete=len(hopes) <= TRIALS_MAX or hopes[-1] <= best)


def _tried(board: Board, ask: Ask, hope: Hope) -> tuple[Hope, Picked]:
    """What a set really reaches, and with which NICs."""
    _, middle, _, last, negative = hope
    picked = pick_nics(board, ask, -negative)
    return (picked.near, middle, picked.spare, last, negative), picked


def pick_nics(board: Board, ask: Ask, gpus: int) -> Picked:
    """The NICs of every pool for this set of GPUs; `ask` is known to be satisfiable."""
    rest = ask.idle & ~gpus
    if ask.entangled:
        return _in_turns(board, ask, gpus, rest)
    if not ask.pools:
        return Picked((), 0, board.pairings.closeness(rest, 1, ask.nics_idle))
    picks: list[int] = []
    near = spare = 0
    for pool in ask.pools:
        taken, gain, loss = _taken(board, pool, seats_of(pool.count, ask.size), gpus, rest)
        picks.append(taken)
        near += gain
        spare += board.pairings.closeness(rest, 1, pool.free & ~pool.fixed) - loss
    return Picked(tuple(picks), near, spare)


def _in_turns(board: Board, ask: Ask, gpus: int, rest: int) -> Picked:
    """Pools that share NICs take turns in their order, each leaving enough for the later ones."""
    picks: list[int] = []
    near = 0
    for number, pool in enumerate(ask.pools):
        gone, taken = mask_union(picks), pool.fixed
        seats = seats_of(pool.count, ask.size)
        while taken.bit_count() < pool.count:
            free = pool.free & ~gone & ~_reserved(ask.pools[number + 1 :], gone | taken)
            step = PoolAsk(taken.bit_count() + 1, free | taken, taken)
            taken, _, _ = _taken(board, step, seats, gpus, rest)
        picks.append(taken)
        near += board.pairings.closeness(gpus, seats, taken)
    gone = mask_union(picks)
    spare = sum(board.pairings.closeness(rest, 1, pool.free & ~gone) for pool in ask.pools)
    return Picked(tuple(picks), near, spare)


def _reserved(pools: tuple[PoolAsk, ...], taken: int) -> int:
    """NICs that these pools cannot spare: the union of every group of pools that has just as many as it needs."""
    tight = 0
    for group in groups_of(pools):
        union = mask_union(pool.free & ~taken | pool.fixed for pool in group)
        if union.bit_count() <= sum(pool.count for pool in group):
            tight |= union
    return tight


def _taken(board: Board, pool: PoolAsk, seats: int, gpus: int, rest: int) -> tuple[int, int, int]:
    """The fixed NICs and the best further ones of one pool; their closeness; what the free GPUs lose by the latter."""
    taken = pool.fixed
    near = board.pairings.closeness(gpus, seats, taken) if taken else 0
    missing = pool.count - taken.bit_count()
    if not missing:
        return taken, near, 0
    free = pool.free & ~taken
    if missing == free.bit_count():
        every = board.pairings.closeness(gpus, seats, pool.free)
        return pool.free, every, board.pairings.closeness(rest, 1, free)
    # Seats still empty and NICs that no free GPU would miss, in each block, and what one more NIC of it is worth.
    empty = [seats * (block.gpus & gpus).bit_count() - (block.nics & taken).bit_count() for block in board.blocks]
    surplus = [(block.nics & free).bit_count() - (block.gpus & rest).bit_count() for block in board.blocks]
    worth = [
        (block.weight << CLOSENESS_BITS if seats_left > 0 else 0) - (block.weight if unmissed <= 0 else 0)
        for block, seats_left, unmissed in zip(board.blocks, empty, surplus, strict=True)
    ]
    values = [
        sum([worth[index] for index in nics.blocks]) if nics.nics & free else _NOTHING_FREE
        for nics in board.nic_classes
    ]
    total = 0
    for _ in range(missing):
        best = max(values)
        # Of equally good classes the one with the lowest free NIC.
        low, chosen = min(
            [
                (nics & -nics, number)
                for number, value in enumerate(values)
                if value == best and (nics := board.nic_classes[number].nics & free)
            ]
        )
        total += best
        free ^= low
        taken |= low
        _one_less(board, chosen, empty, surplus, values)
        if not board.nic_classes[chosen].nics & free:
            values[chosen] = _NOTHING_FREE
    gain = -(-total >> CLOSENESS_BITS)
    return taken, near + gain, (gain << CLOSENESS_BITS) - total


def _one_less(board: Board, chosen: int, empty: list[int], surplus: list[int], values: list[int]) -> None:
    """Count one NIC of a class as taken, in all lists: a block whose last seat or last unmissed NIC this was makes a
    further NIC of it worth less."""
    for index in board.nic_classes[chosen].blocks:
        empty[index] -= 1
        surplus[index] -= 1
        if empty[index] and surplus[index]:
            continue
        weight = board.blocks[index].weight
        change = -(weight << CLOSENESS_BITS) if not empty[index] else 0
        change -= weight if not surplus[index] else 0
        for number in board.classes_of_block[index]:
            values[number] += change
