"""Where everything of a machine is drawn: rooms side by side, boxes nested in them, GPUs on the ground floor.

All sizes are in the picture's own unit (a CSS pixel at full size). GPUs stand at the bottom of their rooms so
that NVLink can be drawn below them without crossing anything.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topoalloc.cli.picture.blocks import Block, Placed, Rect, flowed, framed, in_row, shifted, single, stacked
from topoalloc.topology.machine import Machine, Unknown
from topoalloc.topology.nvlink_shape import NvlinkShape, nvlink_shape
from topoalloc.topology.outline import Box, Room, devices_in, outline
from topoalloc.topology.spelling import nic_second_line

MARGIN = 40.0
TITLE_HEIGHT = 88.0
CHIP_WIDTH = 160.0
GPU_LINE = 16.0  # height of one line of facts on a GPU
NIC_LINE = 14.0
BARS_HEIGHT = 30.0  # the two bars of an occupancy
GAP = 12.0
BOX_PADDING = 10.0
BOX_HEADER = 26.0
ROOM_PADDING = 16.0
ROOM_GAP = 24.0
CARD_WIDTH_MIN, CARD_WIDTH_MAX, CARD_HEIGHT, CARD_GAP = 172.0, 260.0, 40.0, 8.0
ROOM_TITLE = 34.0
ROOM_WIDTH_MIN = CARD_WIDTH_MIN + 2 * ROOM_PADDING
ROW_WIDTH_MAX = 2000.0  # a wider row of rooms moves those without GPUs to a row of their own
SHELF_WIDTH_MIN = 1000.0
_NIC_COLUMNS = ((2, 1), (6, 2), (sys.maxsize, 4))  # up to so many NICs without GPUs: so many columns
BAR_DROP, BAR_HEIGHT, BAR_STEP = 46.0, 40.0, 52.0  # an NVSwitch: distance below the rooms, height, next one
ARC_DEPTH_FIRST, ARC_DEPTH_STEP = 58.0, 30.0
MESH_BAR_GPUS_MIN = 5  # a mesh of four GPUs is six arcs, clearer than a bar; one of eight would be 28


@dataclass(frozen=True, slots=True)
class ChipLines:
    """Which lines the chips have: a fact that is unknown for all GPUs gets no line on any of them."""

    model: bool
    address: bool
    nearest: bool
    bars: bool
    nic_second: bool

    @property
    def gpu_height(self) -> float:
        lines = 1 + self.model + self.address + self.nearest
        return 20 + GPU_LINE * lines + (BARS_HEIGHT if self.bars else 0)

    @property
    def nic_height(self) -> float:
        return 30 + (NIC_LINE if self.nic_second else 0)


@dataclass(frozen=True, slots=True)
class FloorPlan:
    """The placed machine. `band` is the strip for NVLink, of height 0 where there is none."""

    width: float
    rooms_bottom: float
    placed: tuple[Placed, ...]
    band: Rect
    shape: NvlinkShape
    lines: ChipLines
    cards_side_by_side: bool

    def chips(self) -> Mapping[str, Rect]:
        return {placed.thing: placed.rect for placed in self.placed if isinstance(placed.thing, str)}


def floor_plan(machine: Machine, with_bars: bool) -> FloorPlan:
    """Lay the machine out; `with_bars` leaves room on every GPU for what is in use."""
    lines = ChipLines(
        model=any(not isinstance(gpu.model, Unknown) for gpu in machine.gpus),
        address=any(not isinstance(gpu.bdf, Unknown) for gpu in machine.gpus),
        nearest=bool(machine.nics),
        bars=with_bars,
        nic_second=any(nic_second_line(nic) for nic in machine.nics),
    )
    rooms = outline(machine)
    contents = [_contents_block(room.children, lines) for room in rooms]
    side_by_side = all(_cards_fit(content) for content in contents)
    first, others = _split(rooms, contents)
    row = _room_row([_room_block(room, content, side_by_side) for room, content in first], ROOM_GAP)
    shape = nvlink_shape(machine, MESH_BAR_GPUS_MIN)
    band_height = _band_height(shape, [placed.thing for placed in row.placed if isinstance(placed.thing, str)])
    frames = [_room_block(room, content, side_by_side) for room, content in others]
    shelf = flowed(frames, max(row.width, SHELF_WIDTH_MIN), ROOM_GAP, _room_row)
    y_shelf = MARGIN + TITLE_HEIGHT + row.height + band_height + (ROOM_GAP if others and first else 0)
    width = max(row.width, shelf.width)
    row_x = MARGIN + (width - row.width) / 2
    placed = (
        *shifted(row, row_x, MARGIN + TITLE_HEIGHT),
        *shifted(shelf, MARGIN + (width - shelf.width) / 2, y_shelf),
    )
    return FloorPlan(
        width=width + 2 * MARGIN,
        rooms_bottom=y_shelf + shelf.height,
        placed=placed,
        band=Rect(row_x, MARGIN + TITLE_HEIGHT + row.height, row.width, band_height),
        shape=shape,
        lines=lines,
        cards_side_by_side=side_by_side,
    )


def _split(
    rooms: Sequence[Room], contents: Sequence[Block]
) -> tuple[list[tuple[Room, Block]], list[tuple[Room, Block]]]:
    """The rooms of the first row and those of the shelf below it."""
    pairs = list(zip(rooms, contents, strict=True))
    width = sum(max(content.width + 2 * ROOM_PADDING, ROOM_WIDTH_MIN) + ROOM_GAP for content in contents)
    if width <= ROW_WIDTH_MAX:
        return pairs, []
    with_gpu = [(room, block) for room, block in pairs if _has_gpu(room.children)]
    return with_gpu, [pair for pair in pairs if pair not in with_gpu]


def _has_gpu(children: Sequence[Box | str]) -> bool:
    return any(device.startswith("GPU") for device in devices_in(children))


def _cards_fit(content: Block) -> bool:
    return content.width >= 2 * CARD_WIDTH_MIN + CARD_GAP


def _room_block(room: Room, content: Block, cards_side_by_side: bool) -> Block:
    cards = 1 if cards_side_by_side or room.node is None else 2
    header = ROOM_TITLE + cards * (CARD_HEIGHT + CARD_GAP) + GAP - CARD_GAP
    return framed(room, content, ROOM_PADDING, header, (ROOM_WIDTH_MIN, 0))


def _room_row(rooms: Sequence[Block], gap: float) -> Block:
    """Rooms that begin and end on the same lines, their GPUs on one line too; NICs of rooms without GPUs stay up."""
    grounded = [room for room in rooms if _has_gpu_chip(room)]
    foot = max((room.foot for room in grounded), default=0.0)
    rise = max((room.height - foot if room not in grounded else room.height - room.foot for room in rooms), default=0.0)
    levelled = []
    for block in rooms:
        room, *inside = block.placed
        lift = rise - (block.height - block.foot) if block in grounded else 0.0
        moved = shifted(Block(0, 0, tuple(inside)), 0, lift)
        whole = Rect(0, 0, block.width, rise + foot)
        levelled.append(Block(block.width, rise + foot, (Placed(room.thing, whole), *moved), foot))
    return in_row(levelled, gap)


def _has_gpu_chip(block: Block) -> bool:
    return any(isinstance(placed.thing, str) and placed.thing.startswith("GPU") for placed in block.placed)


def _contents_block(children: Sequence[Box | str], lines: ChipLines, width_max: float = 0.0) -> Block:
    """GPUs and boxes with GPUs on the ground; NICs and boxes of NICs only on the floors above, as they fit.

    `width_max` is what NICs may fill where no GPU sets the width; 0 leaves it to their number.
    """
    ground = in_row([_block(child, lines) for child in children if _has_gpu((child,))], GAP)
    quiet = [child for child in children if not _has_gpu((child,))]
    if not quiet:
        return ground
    columns = next(columns for count, columns in _NIC_COLUMNS if len(quiet) <= count)
    blocks = [_block(child, lines, ground.width or width_max) for child in quiet]
    alone = columns * (max(block.width for block in blocks) + GAP) - GAP
    upper = flowed(blocks, ground.width or width_max or alone, GAP, in_row)
    return stacked([upper, ground], GAP) if ground.placed else upper


def _block(child: Box | str, lines: ChipLines, width_max: float = 0.0) -> Block:
    if isinstance(child, str):
        return single(child, CHIP_WIDTH, lines.gpu_height if child.startswith("GPU") else lines.nic_height)
    inner = _contents_block(child.children, lines, max(width_max - 2 * BOX_PADDING, CHIP_WIDTH) if width_max else 0.0)
    return framed(child, inner, BOX_PADDING, BOX_HEADER, (0, 0))


def _band_height(shape: NvlinkShape, drawn: Sequence[str]) -> float:
    depth = 0.0
    if shape.fabrics:
        depth = BAR_DROP + BAR_HEIGHT + BAR_STEP * (len(shape.fabrics) - 1)
    place = {gpu: position for position, gpu in enumerate(device for device in drawn if device.startswith("GPU"))}
    for link in shape.pairs:
        depth = max(depth, arc_depth(abs(place[link.a] - place[link.b])))
    return depth


def arc_depth(gpus_apart: int) -> float:
    """How far below its rooms the arc between two GPUs hangs, `gpus_apart` places from each other."""
    return ARC_DEPTH_FIRST + ARC_DEPTH_STEP * (gpus_apart - 1)
