"""GPUs that nothing tells apart: of twins it matters only how many are taken, so the lowest are."""

from __future__ import annotations

from topoalloc.placement.ask import Ask
from topoalloc.placement.board import Board
from topoalloc.placement.nearness import positions


def twin_classes(board: Board, ask: Ask) -> list[tuple[int, ...]]:
    """The GPUs that are free to choose in classes of twins, each lowest first."""
    classes: list[tuple[int, ...]] = []
    for twins in board.twins:
        by_memory: dict[int, list[int]] = {}
        for gpu in positions(twins & ask.usable & ~ask.fixed):
            by_memory.setdefault(ask.memory[gpu] if ask.memory else 0, []).append(gpu)
        classes.extend(tuple(members) for members in by_memory.values())
    return classes


def set_count(classes: list[tuple[int, ...]], size: int) -> int:
    """How many sets of `size` differ by more than twins."""
    ways = [1] + [0] * size
    for members in classes:
        ways = [sum(ways[max(0, total - len(members)) : total + 1]) for total in range(size + 1)]
    return ways[size]


def sets_but_for_twins(classes: list[tuple[int, ...]], size: int, fixed: int) -> list[int]:
    """Every set of the fixed GPUs and `size` others that takes the lowest of each class; `set_count` many."""
    partial = {size: [fixed]}  # by how many are missing
    still = sum(map(len, classes))
    for members in classes:
        still -= len(members)
        prefixes = [0]
        for gpu in members:
            prefixes.append(prefixes[-1] | 1 << gpu)
        longer: dict[int, list[int]] = {}
        for missing, sets in partial.items():
            for taken in range(max(0, missing - still), min(len(members), missing) + 1):
                prefix = prefixes[taken]
                longer.setdefault(missing - taken, []).extend([gpus | prefix for gpus in sets])
        partial = longer
    return partial.get(0, [])
