"""Whole GPUs beyond 16: GPUs that nothing tells apart are taken by number; where even that is too much, greedily."""

from __future__ import annotations

from dataclasses import replace

from topoalloc.placement.ask import Ask
from topoalloc.placement.board import Board
from topoalloc.placement.leftover import set_bandwidths
from topoalloc.placement.nearness import positions
from topoalloc.placement.nics import Found
from topoalloc.placement.twins import set_count, sets_but_for_twins, twin_classes
from topoalloc.placement.whole import best_of_fastest, keep_best

# Sets that differ by more than twins are all looked at up to this many (some 30 us each); beyond, one set is grown
# from each class of twins and the best of those is taken.
SETS_MAX = 1024


def best_large(board: Board, ask: Ask) -> Found:
    """The best `ask.size` GPUs found and their NICs; `complete` if every set that differs was looked at."""
    missing = ask.size - ask.fixed.bit_count()
    classes = twin_classes(board, ask)
    if set_count(classes, missing) <= SETS_MAX:
        sets = [gpus for gpus in sets_but_for_twins(classes, missing, ask.fixed) if ask.enough_memory(gpus)]
        complete = True
    else:
        sets = sorted({_grown(board, ask, seed[0]) for seed in classes})
        complete = False
    fastest = keep_best(sets, set_bandwidths(board, sets))
    found = best_of_fastest(board, ask, fastest)
    return found if complete else replace(found, complete=False)


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
