"""Whole GPUs: of the sets that a search found fastest, the one that the further terms prefer.

On a board with tables every set is looked at, best first, so the answer is the best there is.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import nlargest
from math import comb

from topoalloc.placement.ask import Ask
from topoalloc.placement.board import Board
from topoalloc.placement.leftover import (
    left_bandwidth_flat,
    left_bandwidths,
    left_localities,
    left_locality_flat,
    set_localities,
)
from topoalloc.placement.nics import Found, closeness_bounds, pick_nics, settle, spare_bounds, spare_ceiling
from topoalloc.placement.subsets import SubsetTables, subsets_of
from topoalloc.placement.twins import set_count, sets_but_for_twins, twin_classes

# Sets that tie on bandwidth and whose NICs can only be known by trying. More occur only on 16 equal GPUs with NICs
# that are fixed in part; then those with the best locality are looked at.
TIES_MAX = 2048

# Above this many sets it is worth asking whether GPUs are twins, which makes several sets one.
SETS_USUAL = 2048
TWIN_GAIN = 4

# Where more sets than this tie, GPUs are alike, and the first set is often as good as any can be.
TIES_USUAL = 64


def best_whole(board: Board, tables: SubsetTables, ask: Ask) -> Found:
    """The best `ask.size` GPUs and their NICs; `ask` is known to be satisfiable."""
    left_over = ask.idle.bit_count() - ask.size
    by_locality = not ask.pools and tables.bandwidth_left_flat[left_over]
    return best_of_fastest(board, ask, _fastest(board, tables, ask, by_locality=by_locality))


def best_of_fastest(board: Board, ask: Ask, sets: list[int]) -> Found:
    """The best of sets that tie on bandwidth."""
    idle, left_over = ask.idle, ask.idle.bit_count() - ask.size
    if ask.partly_fixed or ask.entangled:
        return _tried_all(board, ask, sets)
    closest = 0
    if ask.pools and len(sets) > 1:
        near = closeness_bounds(board, ask, sets)
        closest = max(near)
        sets = [gpus for gpus, value in zip(sets, near, strict=True) if value == closest]
    if len(sets) > 1 and not left_bandwidth_flat(board, left_over):
        sets = keep_best(sets, left_bandwidths(board, [idle ^ gpus for gpus in sets]))
    if len(sets) > 1:
        sets = keep_best(sets, set_localities(board, sets))
    if len(sets) > TIES_USUAL and left_locality_flat(board, left_over):
        lowest = min(sets)
        picked = pick_nics(board, ask, lowest)
        if picked.spare == spare_ceiling(board, ask, closest):
            return Found(lowest, picked, complete=True)
    if ask.pools:
        return settle(board, ask, sets, [closest] * len(sets), [()] * len(sets))
    if ask.nics_idle and len(sets) > 1:
        sets = keep_best(sets, spare_bounds(board, ask, sets, []))
    if len(sets) > 1:
        sets = keep_best(sets, left_localities(board, [idle ^ gpus for gpus in sets]))
    lowest = min(sets)
    return Found(lowest, pick_nics(board, ask, lowest), complete=True)


def keep_best(sets: list[int], values: list[int]) -> list[int]:
    """The sets with the greatest value."""
    best = max(values)
    return [gpus for gpus, value in zip(sets, values, strict=True) if value == best]


def _tried_all(board: Board, ask: Ask, sets: list[int]) -> Found:
    """Where bounds on NIC closeness are not always met, no set may be dropped before its NICs are known."""
    ranked = zip(set_localities(board, sets), (-gpus for gpus in sets), strict=True)
    tried = [-negative for _, negative in nlargest(TIES_MAX, ranked)]
    left = left_bandwidths(board, [ask.idle ^ gpus for gpus in tried])
    middle: list[tuple[int, ...]] = list(zip(left, set_localities(board, tried), strict=True))
    found = settle(board, ask, tried, closeness_bounds(board, ask, tried), middle)
    return found if len(sets) <= TIES_MAX else replace(found, complete=False)


def _fastest(board: Board, tables: SubsetTables, ask: Ask, *, by_locality: bool) -> list[int]:
    """The sets with the greatest bandwidth; `by_locality`: of these only the ones with the best locality."""
    pool = ask.usable & ~ask.fixed
    missing = ask.size - ask.fixed.bit_count()
    order = tables.best_first[ask.size]
    speeds = tables.bandwidth
    possible = comb(pool.bit_count(), missing)
    # With few sets possible most of the list is other sets: a possible one comes every len(order)/possible places.
    if possible**2 <= len(order):
        few = [ask.fixed | extra for extra in subsets_of(pool, missing)]
        few = [gpus for gpus in few if ask.enough_memory(gpus)] if ask.memory else few
        return keep_best(few, [speeds[gpus] for gpus in few])
    if possible > SETS_USUAL and not by_locality:
        classes = twin_classes(board, ask)
        if set_count(classes, missing) * TWIN_GAIN <= possible:
            few = [gpus for gpus in sets_but_for_twins(classes, missing, ask.fixed) if ask.enough_memory(gpus)]
            return keep_best(few, [speeds[gpus] for gpus in few])
    # Outside the pool a set must hold exactly the fixed GPUs.
    decided, fixed, memory = ~pool, ask.fixed, ask.memory
    start = next(
        place for place, gpus in enumerate(order) if gpus & decided == fixed and (not memory or ask.enough_memory(gpus))
    )
    first = order[start]
    if by_locality:
        end = tables.last_of_both[ask.size][speeds[first], tables.locality[first]]
    else:
        end = tables.last_of_bandwidth[ask.size][speeds[first]]
    ties = [gpus for gpus in order[start:end] if gpus & decided == fixed]
    return [gpus for gpus in ties if ask.enough_memory(gpus)] if ask.memory else ties
