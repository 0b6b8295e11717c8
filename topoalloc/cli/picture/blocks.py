"""Rectangles that hold rectangles: the few ways in which a picture is put together, as values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from topoalloc.topology.outline import Box, Room


@dataclass(frozen=True, slots=True)
class Rect:
    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height


@dataclass(frozen=True, slots=True)
class Placed:
    """A thing (a room, a box, or a device by its id) and where it is drawn."""

    thing: Room | Box | str
    rect: Rect


@dataclass(frozen=True, slots=True)
class Block:
    """Placed things inside an area whose top left corner is the origin; outer things come before inner ones.

    `foot` is how high the GPUs in it stand above its lower edge.
    """

    width: float
    height: float
    placed: tuple[Placed, ...] = ()
    foot: float = 0.0


def shifted(block: Block, dx: float, dy: float) -> tuple[Placed, ...]:
    return tuple(
        replace(placed, rect=replace(placed.rect, x=placed.rect.x + dx, y=placed.rect.y + dy))
        for placed in block.placed
    )


def single(thing: str, width: float, height: float) -> Block:
    return Block(width, height, (Placed(thing, Rect(0, 0, width, height)),))


def in_row(blocks: Sequence[Block], gap: float) -> Block:
    """Side by side, with the GPUs of all blocks standing on one line."""
    foot = max((block.foot for block in blocks), default=0.0)
    rise = max((block.height - block.foot for block in blocks), default=0.0)
    placed: list[Placed] = []
    x = 0.0
    for block in blocks:
        placed.extend(shifted(block, x, rise - (block.height - block.foot)))
        x += block.width + gap
    return Block(max(x - gap, 0.0), rise + foot, tuple(placed), foot)


def stacked(blocks: Sequence[Block], gap: float) -> Block:
    """One above the other, centred."""
    width = max((block.width for block in blocks), default=0.0)
    placed: list[Placed] = []
    y = 0.0
    for block in blocks:
        placed.extend(shifted(block, (width - block.width) / 2, y))
        y += block.height + gap
    return Block(width, max(y - gap, 0.0), tuple(placed), blocks[-1].foot if blocks else 0.0)


Join = Callable[[Sequence[Block], float], Block]


def flowed(blocks: Sequence[Block], width_max: float, gap: float, join: Join) -> Block:
    """In rows, each made by `join`, no wider than `width_max` (but at least one block each), the way words flow.

    The rows are then made as even as their number allows: five blocks flow as 3 and 2, not as 4 and 1.
    """
    rows = _rows(blocks, width_max, gap)
    widest = max((block.width for block in blocks), default=0.0)
    per_row = -(-len(blocks) // max(len(rows), 1))
    even = _rows(blocks, min(width_max, per_row * (widest + gap) - gap), gap)
    return stacked([join(row, gap) for row in (even if len(even) == len(rows) else rows)], gap)


def _rows(blocks: Sequence[Block], width_max: float, gap: float) -> list[list[Block]]:
    rows: list[list[Block]] = []
    used = 0.0
    for block in blocks:
        if rows and used + gap + block.width <= width_max:
            rows[-1].append(block)
            used += gap + block.width
        else:
            rows.append([block])
            used = block.width
    return rows


def framed(thing: Room | Box, inner: Block, padding: float, header: float, size_min: tuple[float, float]) -> Block:
    """`inner` at the bottom of a frame of its own, below a header; the frame is at least `size_min`."""
    width = max(inner.width + 2 * padding, size_min[0])
    content = inner.height + padding if inner.placed else 0.0
    height = max(header + content, size_min[1])
    dx, dy = (width - inner.width) / 2, height - padding - inner.height
    return Block(
        width, height, (Placed(thing, Rect(0, 0, width, height)), *shifted(inner, dx, dy)), inner.foot + padding
    )
