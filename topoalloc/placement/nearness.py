"""Which GPUs and NICs are near each other: nested blocks in which every GPU is equally near to every NIC.

On a PCIe tree "below one switch", "below one host bridge" and "in one NUMA node" each cut the devices into blocks,
and every block lies inside one of the next level. Then the NICs of a container can be counted instead of matched: a
block with `a` seats at GPUs and `b` NICs pairs min(a, b) of them, at all levels at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from topoalloc.topology.machine import LinkClass

# A closeness is four counts in one integer, the most important first: NICs paired with a GPU below the same switch
# (PIX or PXB), below the same host bridge or nearer, in the same NUMA node or nearer, and one bridge away (PIX).
# Integers of this kind can be added, and compare like the tuple of their counts.
COUNT_BITS = 20  # a PCI domain has 65,536 functions, so no count comes near 2^20
LEVELS = (LinkClass.PXB, LinkClass.PHB, LinkClass.NODE, LinkClass.PIX)
CLOSENESS_BITS = COUNT_BITS * len(LEVELS)
_COUNT_MASK = (1 << COUNT_BITS) - 1
_SHIFTS = tuple(COUNT_BITS * place for place in reversed(range(len(LEVELS))))

# Tables over the GPUs of one part have at most 2^8 rows.
PART_GPUS_MAX = 8


@dataclass(frozen=True, slots=True)
class Block:
    """GPUs and NICs (bit masks of positions) of which each GPU is near each NIC.

    `weight` has a 1 in the count of every level the block stands for.
    """

    gpus: int
    nics: int
    weight: int


@dataclass(frozen=True, slots=True)
class NicClass:
    """NICs that no GPU can tell apart: they lie in the same blocks (indices)."""

    nics: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Blocks that share a small set of GPUs, or one wide block (`wide`) of which only the number of GPUs counts."""

    gpus: int
    blocks: tuple[int, ...]
    wide: bool


def counts_of(closeness: int) -> tuple[int, ...]:
    """The four counts of a closeness, in the order of LEVELS."""
    return tuple(closeness >> shift & _COUNT_MASK for shift in _SHIFTS)


def capped(closeness: int, count_max: int) -> int:
    """The closeness with every count at most `count_max`."""
    return sum(min(closeness >> shift & _COUNT_MASK, count_max) << shift for shift in _SHIFTS)


def nested_blocks(classes: Sequence[Sequence[LinkClass]]) -> tuple[Block, ...]:
    """The blocks of a machine from the class of every GPU (row) and NIC (column).

    Where a level does not cut the devices into blocks (contradictory or half-known cells), the devices it would join
    are taken as joined by the next nearer level only: what is doubtful counts as far.
    """
    weights: dict[tuple[int, int], int] = {}
    nearer: list[tuple[int, int]] = []
    for level in (LinkClass.PIX, LinkClass.PXB, LinkClass.PHB, LinkClass.NODE):
        rows = [sum(1 << nic for nic, cls in enumerate(row) if cls <= level) for row in classes]
        blocks: list[tuple[int, int]] = []
        for gpus, nics in _joined(rows):
            if all(rows[gpu] == nics for gpu in positions(gpus)):
                blocks.append((gpus, nics))
            else:
                blocks.extend(block for block in nearer if block[0] & gpus)
        for block in blocks:
            weights[block] = weights.get(block, 0) + (1 << _SHIFTS[LEVELS.index(level)])
        nearer = blocks
    return tuple(Block(gpus, nics, weight) for (gpus, nics), weight in sorted(weights.items()))


def nic_classes(blocks: tuple[Block, ...], nic_count: int) -> tuple[NicClass, ...]:
    """Every NIC in exactly one class, classes by their lowest NIC."""
    members: dict[tuple[int, ...], int] = {}
    for nic in range(nic_count):
        inside = tuple(index for index, block in enumerate(blocks) if block.nics >> nic & 1)
        members[inside] = members.get(inside, 0) | 1 << nic
    return tuple(NicClass(nics, inside) for inside, nics in members.items())


def parts_of(blocks: tuple[Block, ...], gpu_count: int) -> tuple[Part, ...]:
    """The blocks in few parts of few GPUs each, so that sums over blocks become one look-up for each part."""
    gpus_max = min(PART_GPUS_MAX, max(1, (gpu_count + 1) // 2))
    parts: list[tuple[int, list[int]]] = []
    wide: list[Part] = []
    order = sorted(range(len(blocks)), key=lambda index: -blocks[index].gpus.bit_count())
    for index in order:
        gpus = blocks[index].gpus
        if gpus.bit_count() > gpus_max:
            wide.append(Part(gpus, (index,), wide=True))
            continue
        slot = next((i for i, (mask, _) in enumerate(parts) if mask & gpus == gpus), None)
        if slot is None:
            slot = next((i for i, (mask, _) in enumerate(parts) if (mask | gpus).bit_count() <= gpus_max), None)
        if slot is None:
            parts.append((gpus, [index]))
        else:
            parts[slot] = (parts[slot][0] | gpus, [*parts[slot][1], index])
    return (*wide, *(Part(gpus, tuple(indices), wide=False) for gpus, indices in parts))


def block_sums(
    blocks: tuple[Block, ...], parts: tuple[Part, ...], gpu_sets: Sequence[int], seats: int, nics: int
) -> list[int]:
    """For each GPU set the closeness of the best pairing with these NICs, `seats` NICs at each GPU."""
    totals = [0] * len(gpu_sets)
    limits = [(block.nics & nics).bit_count() for block in blocks]
    for part in parts:
        mask = part.gpus
        if part.wide:
            block, limit = blocks[part.blocks[0]], limits[part.blocks[0]]
            totals = [
                total + block.weight * min(seats * (gpus & mask).bit_count(), limit)
                for total, gpus in zip(totals, gpu_sets, strict=True)
            ]
            continue
        inside = [gpus & mask for gpus in gpu_sets]
        rows = [(blocks[i].gpus, blocks[i].weight, limits[i]) for i in part.blocks if limits[i]]
        table = {
            gpus: sum([weight * min(seats * (gpus & mask).bit_count(), limit) for mask, weight, limit in rows])
            for gpus in set(inside)
        }
        totals = [total + table[gpus] for total, gpus in zip(totals, inside, strict=True)]
    return totals


def positions(mask: int) -> tuple[int, ...]:
    """The positions of the bits of a mask, ascending."""
    found: list[int] = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return tuple(found)


def mask_of(members: Iterable[int]) -> int:
    """The mask with these positions set."""
    mask = 0
    for position in members:
        mask |= 1 << position
    return mask


def _joined(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Connected groups (GPUs, NICs) of a relation given as one NIC mask for each GPU; lone devices are left out."""
    groups: list[tuple[int, int]] = []
    for gpu, row in enumerate(rows):
        if not row:
            continue
        gpus, nics = 1 << gpu, row
        apart: list[tuple[int, int]] = []
        for other in groups:
            if other[1] & nics:
                gpus, nics = gpus | other[0], nics | other[1]
            else:
                apart.append(other)
        groups = [*apart, (gpus, nics)]
    return groups
