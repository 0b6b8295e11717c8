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
COUNT_BITS = 20  # one of them a guard; a PCI domain has 65,536 functions, so no count comes near 2^19
LEVELS = (LinkClass.PXB, LinkClass.PHB, LinkClass.NODE, LinkClass.PIX)
CLOSENESS_BITS = COUNT_BITS * len(LEVELS)
_COUNT_MASK = (1 << COUNT_BITS) - 1
_SHIFTS = tuple(COUNT_BITS * place for place in reversed(range(len(LEVELS))))
_ONES = sum(1 << shift for shift in _SHIFTS)
_GUARDS = _ONES << COUNT_BITS - 1

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
    """Blocks that share a small set of GPUs, or one wide block (`wide`) of which only the number of GPUs counts.

    `gpus` and `nics` are the unions of its blocks'.
    """

    gpus: int
    nics: int
    blocks: tuple[Block, ...]
    wide: bool


def counts_of(closeness: int) -> tuple[int, ...]:
    """The four counts of a closeness, in the order of LEVELS."""
    return tuple([closeness >> shift & _COUNT_MASK for shift in _SHIFTS])


def evenly(count: int) -> int:
    """The closeness with this count at every level."""
    return count * _ONES


def capped(closeness: int, most: int) -> int:
    """The closeness with no count above that of `most`."""
    return closeness - excess(closeness, most)


def excess(closeness: int, less: int) -> int:
    """By how much each count exceeds that of `less`, as a closeness."""
    # A guard bit above each count survives the subtraction exactly where nothing has to be borrowed.
    difference = (closeness | _GUARDS) - less
    exceeding = difference & _GUARDS
    return difference & (exceeding - (exceeding >> COUNT_BITS - 1))


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
    wide = [block for block in blocks if block.gpus.bit_count() > gpus_max]
    groups: list[list[Block]] = []
    for block in sorted(blocks, key=lambda block: -block.gpus.bit_count()):
        if block in wide:
            continue
        unions = [mask_union(other.gpus for other in group) for group in groups]
        inside = [slot for slot, gpus in enumerate(unions) if block.gpus & ~gpus == 0]
        beside = [slot for slot, gpus in enumerate(unions) if (block.gpus | gpus).bit_count() <= gpus_max]
        if inside or beside:
            groups[(inside or beside)[0]].append(block)
        else:
            groups.append([block])
    return (*(_part([block], wide=True) for block in wide), *(_part(group, wide=False) for group in groups))


def _part(blocks: list[Block], *, wide: bool) -> Part:
    gpus, nics = mask_union(block.gpus for block in blocks), mask_union(block.nics for block in blocks)
    return Part(gpus, nics, tuple(blocks), wide)


# Positions are asked for at every choice; up to 8 GPUs they are looked up.
_POSITIONS_OF_BYTE = tuple(tuple(bit for bit in range(8) if byte >> bit & 1) for byte in range(256))


def positions(mask: int) -> tuple[int, ...]:
    """The positions of the bits of a mask, ascending."""
    if mask < len(_POSITIONS_OF_BYTE):
        return _POSITIONS_OF_BYTE[mask]
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


def mask_union(masks: Iterable[int]) -> int:
    """The union of masks."""
    union = 0
    for mask in masks:
        union |= mask
    return union


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
