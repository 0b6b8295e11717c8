"""What sets of GPUs are worth by themselves and what they can still offer when they are what is left over.

Up to 16 GPUs these are look-ups. Beyond, sums over pairs are made here, and what is left over is judged by the sum over
all its pairs instead of by its best cut into sets.
"""

from __future__ import annotations

from collections.abc import Sequence

from topoalloc.placement.board import Board, Matrix
from topoalloc.placement.nearness import positions


def set_bandwidths(board: Board, sets: Sequence[int]) -> list[int]:
    """GB/s summed over the pairs of each set."""
    if board.tables is None:
        return [_pair_sum(board.bandwidth, gpus) for gpus in sets]
    table = board.tables.bandwidth
    return [table[gpus] for gpus in sets]


def set_localities(board: Board, sets: Sequence[int]) -> list[int]:
    """PCIe and NUMA points summed over the pairs of each set."""
    if board.tables is None:
        return [_pair_sum(board.locality, gpus) for gpus in sets]
    table = board.tables.locality
    return [table[gpus] for gpus in sets]


def left_bandwidths(board: Board, rests: Sequence[int]) -> list[int]:
    """How good 2-, 4- and 8-sets each rest can still form."""
    if board.tables is None:
        return [_pair_sum(board.bandwidth, gpus) for gpus in rests]
    table = board.tables.leftover_bandwidth
    return [table[gpus] for gpus in rests]


def left_localities(board: Board, rests: Sequence[int]) -> list[int]:
    """The same in points."""
    if board.tables is None:
        return [_pair_sum(board.locality, gpus) for gpus in rests]
    table = board.tables.leftover_locality
    return [table[gpus] for gpus in rests]


def left_bandwidth_flat(board: Board, size: int) -> bool:
    """Whether all rests of this size are known to be worth the same in bandwidth."""
    return board.tables is not None and board.tables.bandwidth_left_flat[size]


def left_locality_flat(board: Board, size: int) -> bool:
    """The same in points."""
    return board.tables is not None and board.tables.locality_left_flat[size]


def _pair_sum(pairs: Matrix, gpus: int) -> int:
    members = positions(gpus)
    total = 0
    for place, gpu in enumerate(members):
        row = pairs[gpu]
        for other in members[:place]:
            total += row[other]
    return total
