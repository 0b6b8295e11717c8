"""Whole GPUs: of the sets that a search found fastest, the one that the further terms prefer.

On a board with tables every set is looked at, best first, so the answer is the best there is.
"""

from __future__ import annotations

from math import comb

from topoalloc.placement.ask import Ask
from topoalloc.placement.board import Board
from topoalloc.placement.leftover import left_bandwidths, left_localities, set_localities
from topoalloc.placement.nics import Found, closeness_bounds, settle, spare_bounds
from topoalloc.placement.subsets import SubsetTables, subsets_of

# Sets that tie on bandwidth and whose NICs can only be known by trying. More occur only on 16 equal GPUs with NICs
# that are fixed in part; then those with the best locality are looked at.
TIES_MAX = 2048


def best_whole(board: Board, tables: SubsetTables, ask: Ask) -> Found:
    """The best `ask.size` GPUs and their NICs; `ask` is known to be satisfiable."""
    rest_size = ask.idle.bit_count() - ask.size
    flat = tables.bandwidth_left_flat[rest_size]
    sets = _fastest(tables, ask, whole_run=bool(ask.pools) or not flat)
    return best_of_fastest(board, ask, sets)


def best_of_fastest(board: Board, ask: Ask, sets: list[int]) -> Found:
    """The best of sets that tie on bandwidth, given in falling order of locality where they are many."""
    idle = ask.idle
    if ask.pools and (ask.partly_fixed or ask.entangled):
        return _tried_all(board, ask, sets)
    if ask.pools and len(sets) > 1:
        sets = keep_best(sets, closeness_bounds(board, ask.pools, sets))
    if len(sets) > 1:
        sets = keep_best(sets, left_bandwidths(board, [idle ^ gpus for gpus in sets]))
    if len(sets) > 1:
        sets = keep_best(sets, set_localities(board, sets))
    if ask.pools:
        nothing: list[tuple[int, ...]] = [()] * len(sets)
        return settle(board, ask, sets, nothing, nothing)
    if ask.nics_idle and len(sets) > 1:
        sets = keep_best(sets, spare_bounds(board, ask, [idle ^ gpus for gpus in sets]))
    if len(sets) > 1:
        sets = keep_best(sets, left_localities(board, [idle ^ gpus for gpus in sets]))
    return Found(min(sets), (), complete=True)


def keep_best(sets: list[int], values: list[int]) -> list[int]:
    """The sets with the greatest value."""
    best = max(values)
    return [gpus for gpus, value in zip(sets, values, strict=True) if value == best]


def _tried_all(board: Board, ask: Ask, sets: list[int]) -> Found:
    """Where bounds on NIC closeness are not always met, no set may be dropped before its NICs are known."""
    tried = sets[:TIES_MAX]
    left = left_bandwidths(board, [ask.idle ^ gpus for gpus in tried])
    middle: list[tuple[int, ...]] = list(zip(left, set_localities(board, tried), strict=True))
    found = settle(board, ask, tried, [()] * len(tried), middle)
    return Found(found.gpus, found.nics, found.complete and len(sets) <= TIES_MAX)


def _fastest(tables: SubsetTables, ask: Ask, *, whole_run: bool) -> list[int]:
    """The sets with the greatest bandwidth; unless `whole_run`, of these only the ones with the best locality."""
    pool = ask.usable & ~ask.fixed
    missing = ask.size - ask.fixed.bit_count()
    order = tables.best_first[ask.size]
    speeds = tables.bandwidth
    # With few sets possible most of the list is other sets: a possible one comes every len(order)/count places.
    if comb(pool.bit_count(), missing) ** 2 <= len(order):
        few = [ask.fixed | extra for extra in subsets_of(pool, missing)]
        few = [gpus for gpus in few if ask.enough_memory(gpus)] if ask.memory else few
        return keep_best(few, [speeds[gpus] for gpus in few])
    # Outside the pool a set must hold exactly the fixed GPUs.
    decided, fixed, memory = ~pool, ask.fixed, ask.memory
    start = next(
        place for place, gpus in enumerate(order) if gpus & decided == fixed and (not memory or ask.enough_memory(gpus))
    )
    first = order[start]
    if whole_run:
        end = tables.last_of_bandwidth[ask.size][speeds[first]]
    else:
        end = tables.last_of_both[ask.size][speeds[first], tables.locality[first]]
    ties = [gpus for gpus in order[start:end] if gpus & decided == fixed]
    return [gpus for gpus in ties if ask.enough_memory(gpus)] if ask.memory else ties
