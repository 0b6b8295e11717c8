"""Whole GPUs beyond 16: GPUs that nothing tells apart are taken by number; where even that is too much, greedily."""

from __future__ import annotations

from dataclasses import replace

from topoalloc.placement.ask import Ask
from topoalloc.placement.board import Board
from topoalloc.placement.leftover import set_bandwidths
from topoalloc.placement.nearness import positions
from topoalloc.placement.nics import Found
from topoalloc.placement.whole import best_of_fastest, keep_best

# Sets that differ by more than twins are all looked at up to this many (some 30 us each); beyond, one set is grown
# from each class of twins and the best of those is taken.
SETS_MAX = 1024


def best_large(board: Board, ask: Ask) -> Found:
    """The best `ask.size` GPUs found and their NICs; `complete` if every set that differs was looked at."""
    missing = ask.size - ask.fixed.bit_count()
    classes = _twins(board, ask)
    if set_count(classes, missing) <= SETS_MAX:
        sets = [gpus for gpus in _all_sets(classes, missing, ask.fixed) if ask.enough_memory(gpus)]
        complete = True
    else:
        sets = sorted({_grown(board, ask, seed[0]) for seed in classes})
        complete = False
    fastest = keep_best(sets, set_bandwidths(board, sets))
    found = best_of_fastest(board, ask, fastest)
    return found if complete else replace(found, complete=False)


def set_count(classes: list[tuple[int, ...]], size: int) -> int:
    """How many sets of `size` differ by more than twins, counting no further than it matters."""
    ways = [1] + [0] * size
    for members in classes:
        ways = [sum(ways[max(0, total - len(members)) : total + 1]) for total in range(size + 1)]
    return ways[size]


def _twins(board: Board, ask: Ask) -> list[tuple[int, ...]]:
    """The free choices in classes of twins, each lowest first."""
    classes: list[tuple[int, ...]] = []
    for twins in board.twins:
        by_memory: dict[int, list[int]] = {}
        for gpu in positions(twins & ask.usable & ~ask.fixed):
            by_memory.setdefault(ask.memory[gpu] if ask.memory else 0, []).append(gpu)
        classes.extend(tuple(members) for members in by_memory.values())
    return classes


def _all_sets(classes: list[tuple[int, ...]], size: int, fixed: int) -> list[int]:
    """Every set that takes the lowest so many of each class; bounded by SETS_MAX."""
    partial = [(fixed, size)]
    still = sum(map(len, classes))
    for members in classes:
        still -= len(members)
        longer: list[tuple[int, int]] = []
        for gpus, missing in partial:
            prefix = gpus
            for taken in range(min(len(members), missing) + 1):
                prefix |= 1 << members[taken - 1] if taken else 0
                if missing - taken <= still:
                    longer.append((prefix, missing - taken))
        partial = longer
    return [gpus for gpus, _ in partial]


def _grown(board: Board, ask: Ask, seed: int) -> int:
    """A set grown from one GPU, each time by the GPU with most bandwidth, then locality, to those taken."""
    taken = ask.fixed
    gains = dict.fromkeys(positions(ask.usable & ~taken), (0, 0))
    for gpu in positions(taken):
        gains = _joined(board, gains, gpu)
    following = seed
    for left in range(ask.size - taken.bit_count() - 1, -1, -1):
        if not _reaches(ask, taken | 1 << following, gains, left):
            following = max(gains, key=lambda gpu: (ask.memory[gpu], gains[gpu], -gpu))
        taken |= 1 << following
        gains.pop(following)
        gains = _joined(board, gains, following)
        if left:
            able = [gpu for gpu in gains if _reaches(ask, taken | 1 << gpu, gains, left - 1)]
            following = max(able or gains, key=lambda gpu: (gains[gpu], -gpu))
    return taken


def _joined(board: Board, gains: dict[int, tuple[int, int]], gpu: int) -> dict[int, tuple[int, int]]:
    speeds, points = board.bandwidth[gpu], board.locality[gpu]
    return {other: (speed + speeds[other], near + points[other]) for other, (speed, near) in gains.items()}


def _reaches(ask: Ask, taken: int, gains: dict[int, tuple[int, int]], left: int) -> bool:
    """Whether the memory asked can still be had with `left` more GPUs."""
    if not ask.memory:
        return True
    units = ask.memory
    others = sorted((units[gpu] for gpu in gains if not taken >> gpu & 1), reverse=True)
    return sum(units[gpu] for gpu in positions(taken)) + sum(others[:left]) >= ask.memory_units
