"""Tables over all subsets of up to 16 GPUs, built once for a board: what every set is worth, chosen or left over.

A set is a bit mask of positions and the index into every table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

# 2^16 rows take half a second and a few MiB to build; every further GPU doubles both.
SUBSET_TABLE_GPUS_MAX = 16

# Sizes of the sets that what is left over is judged by: those that jobs ask for.
LEFTOVER_SIZES = (2, 4, 8)
LEFTOVER_SCALE = 1_000_000


@dataclass(frozen=True, slots=True)
class SubsetTables:
    """`bandwidth`: GB/s summed over the pairs of a set; `locality`: points likewise.

    `leftover_bandwidth`, `leftover_locality`: what a set left over can still offer (see `leftover`).
    `best_first[k]`: sets of k GPUs by falling bandwidth, then falling locality, then rising mask.
    `last_of_bandwidth[k]`, `last_of_both[k]`: where the run of sets of k with equal bandwidth (and locality) ends.
    `bandwidth_left_flat[k]`, `locality_left_flat[k]`: whether all sets of k are worth the same when left over.
    """

    bandwidth: tuple[int, ...]
    locality: tuple[int, ...]
    leftover_bandwidth: tuple[int, ...]
    leftover_locality: tuple[int, ...]
    best_first: tuple[tuple[int, ...], ...]
    last_of_bandwidth: tuple[dict[int, int], ...]
    last_of_both: tuple[dict[tuple[int, int], int], ...]
    bandwidth_left_flat: tuple[bool, ...]
    locality_left_flat: tuple[bool, ...]


def subset_tables(bandwidth: Sequence[Sequence[int]], locality: Sequence[Sequence[int]]) -> SubsetTables:
    """The tables of a board with these pair values (symmetric, up to SUBSET_TABLE_GPUS_MAX rows)."""
    count = len(bandwidth)
    assert count <= SUBSET_TABLE_GPUS_MAX
    speeds, points = pair_sums(bandwidth), pair_sums(locality)
    by_size: list[list[int]] = [[] for _ in range(count + 1)]
    for mask in range(1 << count):
        by_size[mask.bit_count()].append(mask)
    best_first = tuple(tuple(sorted(masks, key=lambda mask: (-speeds[mask], -points[mask], mask))) for masks in by_size)
    left_speeds, left_points = leftover(speeds, count), leftover(points, count)
    return SubsetTables(
        bandwidth=speeds,
        locality=points,
        leftover_bandwidth=left_speeds,
        leftover_locality=left_points,
        best_first=best_first,
        last_of_bandwidth=tuple({speeds[mask]: end for end, mask in enumerate(masks, 1)} for masks in best_first),
        last_of_both=tuple(
            {(speeds[mask], points[mask]): end for end, mask in enumerate(masks, 1)} for masks in best_first
        ),
        bandwidth_left_flat=tuple(len({left_speeds[mask] for mask in masks}) == 1 for masks in by_size),
        locality_left_flat=tuple(len({left_points[mask] for mask in masks}) == 1 for masks in by_size),
    )


def pair_sums(pairs: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """For every set the sum of its pairs' values, by doubling: sets without GPU i, then the same with it."""
    sums = [0]
    for high, row in enumerate(pairs):
        to_high = [0]
        for value in row[:high]:
            to_high += [value + other for other in to_high]
        sums += [inner + outer for inner, outer in zip(sums, to_high, strict=True)]
    return _interned(sums)


def leftover(sums: tuple[int, ...], count: int) -> tuple[int, ...]:
    """For every set: its best cut into disjoint 2-, 4- and 8-sets, each in millionths of the empty board's, summed.

    GPUs that do not fill another set are left out of the cut. Sizes the board does not reach count nothing.
    """
    totals = [0] * len(sums)
    for size in LEFTOVER_SIZES:
        if size > count:
            break
        cuts = best_cuts(sums, count, size)
        if cuts[-1]:
            totals = [total + LEFTOVER_SCALE * cut // cuts[-1] for total, cut in zip(totals, cuts, strict=True)]
    return _interned(totals)


def best_cuts(sums: tuple[int, ...], count: int, size: int) -> list[int]:
    """For every set the greatest sum over as many disjoint `size`-sets as fit into it."""
    best = [0] * (1 << count)
    for mask in range(1 << count):
        members = mask.bit_count()
        if members < size:
            continue
        if members == size:
            best[mask] = sums[mask]
        elif members % size:
            best[mask] = max([best[mask ^ bit] for bit in _bits(mask)])
        else:
            low = mask & -mask
            rest = mask ^ low
            best[mask] = max([sums[low | mates] + best[rest ^ mates] for mates in subsets_of(rest, size - 1)])
    return best


def subsets_of(mask: int, size: int) -> Iterator[int]:
    """Every subset of `size` members."""
    return map(sum, combinations(_bits(mask), size))


def _bits(mask: int) -> list[int]:
    bits: list[int] = []
    while mask:
        low = mask & -mask
        bits.append(low)
        mask ^= low
    return bits


def _interned(values: list[int]) -> tuple[int, ...]:
    """The values with equal integers shared: the tables hold few different ones."""
    seen: dict[int, int] = {}
    return tuple([seen.setdefault(value, value) for value in values])
