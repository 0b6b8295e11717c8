"""What rooms, boxes, GPUs and NICs look like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from topoalloc.cli.picture.blocks import Rect
from topoalloc.cli.picture.floor_plan import (
    BARS_HEIGHT,
    CARD_GAP,
    CARD_HEIGHT,
    CARD_WIDTH_MAX,
    GPU_LINE,
    NIC_LINE,
    ROOM_PADDING,
    ROOM_TITLE,
    ChipLines,
)
from topoalloc.cli.picture.lettering import Face, first_fitting, text_width
from topoalloc.cli.picture.svg_elements import circle, group, lettering, number, path, rectangle, two_tone
from topoalloc.sharing.settings import CORES_PER_GPU
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Gpu, LinkClass, NearestNics, Nic, Unknown
from topoalloc.topology.outline import Box, BoxKind, Room
from topoalloc.topology.spelling import (
    cpu_count_words,
    id_list,
    memory_words,
    model_words,
    nic_names,
    nic_second_line,
    node_memory_words,
)
from topoalloc.wording import plural


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What is in use of one GPU: `cores` of 100, and the fraction of its memory (None: not known)."""

    cores: int
    memory_fraction: float | None


_CLASS_DOT = {
    LinkClass.PIX: "c-pix",
    LinkClass.PXB: "c-pxb",
    LinkClass.PHB: "c-phb",
    LinkClass.NODE: "c-node",
    LinkClass.SYS: "c-sys",
}
_INSET = 12.0


def class_dot(pcie: LinkClass | None) -> str:
    return "c-unknown" if pcie is None else _CLASS_DOT[pcie]


def room_svg(room: Room, rect: Rect, side_by_side: bool) -> str:
    """The room, its name, and its CPUs and memory as two cards."""
    classes = "room s-room" if room.node else "stray s-stray dashed"
    name = f"NUMA node {room.node.id}" if room.node else "NUMA unknown"
    left, width = rect.x + ROOM_PADDING, rect.width - 2 * ROOM_PADDING
    parts = [
        rectangle(rect.x, rect.y, rect.width, rect.height, classes, 14),
        two_tone(left, rect.y + 25, (name, room.reason), (15, 11), width, "muted"),
    ]
    cards = Rect(left, rect.y + ROOM_TITLE + 2, width, CARD_HEIGHT)
    parts.append(_cards(room, cards, side_by_side))
    cpus = f"CPUs {room.cpus}" if isinstance(room.cpus, CpuSet) else f"CPUs unknown: {room.cpus.evidence}"
    memory = f"; {node_memory_words(room.node)}" if room.node else f": {room.reason}"
    return group("".join(parts), f"{name}{memory}; {cpus}")


def _cards(room: Room, area: Rect, side_by_side: bool) -> str:
    width = min((area.width - CARD_GAP) / 2, CARD_WIDTH_MAX) if side_by_side else area.width
    first = Rect(area.x, area.y, width, CARD_HEIGHT)
    second = (
        Rect(area.x + width + CARD_GAP, area.y, width, CARD_HEIGHT)
        if side_by_side
        else Rect(area.x, area.y + CARD_HEIGHT + CARD_GAP, width, CARD_HEIGHT)
    )
    listed = str(room.cpus) if isinstance(room.cpus, CpuSet) else ""
    cpus = _tray(first, cpu_count_words(room.cpus), listed, _cpu_glyph(first.x + 10, first.y + 11))
    if room.node is None:
        return cpus
    said = node_memory_words(room.node)
    main, below = (said, "") if isinstance(room.node.memory_bytes, Unknown) else (said, "memory")
    return cpus + _tray(second, main, "" if said == "no memory" else below, _memory_glyph(second.x + 9, second.y + 12))


def _tray(rect: Rect, main: str, below: str, glyph: str) -> str:
    x, width = rect.x + 38, rect.width - 46
    faint = not below
    parts = [rectangle(rect.x, rect.y, rect.width, rect.height, "tray s-tray", 8), glyph]
    parts.append(lettering(x, rect.y + (25 if faint else 17), main, 12, width, "muted" if faint else "ink bold"))
    if below:
        parts.append(lettering(x, rect.y + 31, below, 10, width, "muted mono" if below[0].isdigit() else "muted"))
    return "".join(parts)


def _cpu_glyph(x: float, y: float) -> str:
    pins = "".join(
        f"M{number(x + offset)} {number(y - 3)}v24M{number(x - 3)} {number(y + offset)}h24" for offset in (4, 9, 14)
    )
    body = rectangle(x, y, 18, 18, "tray s-glyph", 3) + rectangle(x + 5, y + 5, 8, 8, "glyph", 1.5)
    return path(pins, "cable s-glyph", 1.4) + body


def _memory_glyph(x: float, y: float) -> str:
    board = rectangle(x, y, 21, 13, "tray s-glyph", 2)
    dies = "".join(rectangle(x + 3 + 6 * i, y + 3, 4, 6, "glyph") for i in range(3))
    return board + dies + path(f"M{number(x + 3)} {number(y + 16)}h15", "cable s-glyph", 1.4)


def box_svg(box: Box, rect: Rect) -> str:
    """A host bridge, switch or card around what hangs below it."""
    classes = {
        BoxKind.HOST_BRIDGE: "bridge s-bridge",
        BoxKind.SWITCH: "pix s-pix" if box.pcie == LinkClass.PIX else "pxb s-pxb",
        BoxKind.CARD: "card s-card",
        BoxKind.CARD_OR_SWITCH: "card s-card",
    }[box.kind]
    label = f"{box.kind.value} {box.address}" if box.address else box.kind.value
    shorter = (label, label.removeprefix("PCIe "), box.address or "")
    inside = rectangle(rect.x, rect.y, rect.width, rect.height, classes, 10)
    mark = box.pcie.name if box.pcie is not None else ""
    used = text_width(mark, 10, Face.BOLD) + 8
    inside += lettering(
        rect.x + 11,
        rect.y + 17,
        first_fitting(shorter, rect.width - 22 - used, 10.5),
        10.5,
        rect.width - 22 - used,
        "muted",
    )
    inside += lettering(rect.right - 11, rect.y + 17, mark, 10, used, f"{class_dot(box.pcie)} bold", "end")
    tooltip = label if box.address else f"{label}, address unknown"
    return group(inside, f"{tooltip} ({box.pcie.name})" if box.pcie is not None else tooltip)


def gpu_svg(gpu: Gpu, rect: Rect, lines: ChipLines, nearest: NearestNics | None, use: GpuUse | None) -> str:
    """One GPU: name and memory, then the lines that this picture has."""
    left, width = rect.x + _INSET, rect.width - 2 * _INSET
    y = rect.y + 22
    parts = [rectangle(rect.x, rect.y, rect.width, rect.height, "gpu", 9)]
    parts.append(lettering(left, y, gpu.id, 14, width, "bright bold"))
    if not isinstance(gpu.memory_bytes, Unknown):
        room = width - text_width(gpu.id, 14, Face.BOLD) - 6
        parts.append(lettering(rect.right - _INSET, y, memory_words(gpu.memory_bytes), 12, room, "bright", "end"))
    if lines.model:
        y += GPU_LINE
        parts.append(lettering(left, y, model_words(gpu.model), 11, width, "pale"))
    if lines.address:
        y += GPU_LINE
        address = "bus id unknown" if isinstance(gpu.bdf, Unknown) else str(gpu.bdf)
        parts.append(lettering(left, y, address, 10.5, width, "pale mono"))
    if lines.nearest:
        y += GPU_LINE
        parts.append(circle(left + 4, y - 4, 4, class_dot(nearest.pcie if nearest else None)))
        words = f"{nearest.pcie.name} {id_list(nearest.nics)}" if nearest else "nearest NIC unknown"
        parts.append(lettering(left + 14, y, words, 11, width - 14, "pale"))
    if use is not None:
        parts.append(_use_bars(left, rect.bottom - BARS_HEIGHT, width, use))
    return group("".join(parts), _gpu_tooltip(gpu, nearest, use))


def _use_bars(x: float, y: float, width: float, use: GpuUse) -> str:
    """Two grooves, filled from the left: cores above, memory below."""
    fractions = (("cores", use.cores / CORES_PER_GPU), ("memory", use.memory_fraction))
    drawn = []
    for row, (name, fraction) in enumerate(fractions):
        drawn.append(rectangle(x, y + 11 * row, width, 7, "groove", 3.5))
        filled = min(max(fraction or 0.0, 0.0), 1.0) * width
        if filled > 0:
            drawn.append(rectangle(x, y + 11 * row, max(filled, 7.0), 7, name, 3.5))
    return "".join(drawn)


def _gpu_tooltip(gpu: Gpu, nearest: NearestNics | None, use: GpuUse | None) -> str:
    facts = [gpu.id, model_words(gpu.model), memory_words(gpu.memory_bytes)]
    facts.append("bus id unknown" if isinstance(gpu.bdf, Unknown) else str(gpu.bdf))
    if isinstance(gpu.cpus, CpuSet):
        facts.append(f"CPUs {gpu.cpus}")
    if nearest:
        facts.append(f"nearest {id_list(nearest.nics)} ({nearest.pcie.name})")
    if gpu.mig:
        facts.append(plural(len(gpu.mig), "MIG device"))
    if use is not None:
        facts.append(f"{use.cores} of {CORES_PER_GPU} cores in use")
        if use.memory_fraction is not None:
            facts.append(f"{use.memory_fraction:.0%} of memory in use")
    return ", ".join(facts)


def nic_svg(nic: Nic, rect: Rect) -> str:
    """One NIC port: its id and name, then what else is known."""
    left, width = rect.x + _INSET, rect.width - 2 * _INSET
    below = nic_second_line(nic)
    y = rect.y + 19
    parts = [rectangle(rect.x, rect.y, rect.width, rect.height, "nic s-nic", 8)]
    names = nic_names(nic)
    parts.append(two_tone(left, y, (nic.id, names[0] if names else ""), (12, 11.5), width, "ink"))
    if below:
        parts.append(lettering(left, y + NIC_LINE, below, 10, width, "muted"))
    return group("".join(parts), ", ".join(filter(None, (nic.id, *names, below))))


def chips_svg(
    devices: Mapping[str, Gpu | Nic],
    chips: Mapping[str, Rect],
    lines: ChipLines,
    nearest: Mapping[str, NearestNics],
    used: Mapping[str, GpuUse] | None,
) -> list[str]:
    """Every device, in the order of `chips`."""
    drawn = []
    for device_id, rect in chips.items():
        device = devices[device_id]
        if isinstance(device, Gpu):
            use = None if used is None else used.get(device_id, GpuUse(0, 0.0))
            drawn.append(gpu_svg(device, rect, lines, nearest.get(device_id), use))
        else:
            drawn.append(nic_svg(device, rect))
    return drawn
