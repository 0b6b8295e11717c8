"""A machine as a picture: NUMA nodes as rooms, PCIe as boxes in them, NVLink below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from topoalloc.cli.picture.floor_plan import MARGIN, FloorPlan, floor_plan
from topoalloc.cli.picture.lettering import text_width
from topoalloc.cli.picture.svg_cables import cables_svg, shade, stroke_width
from topoalloc.cli.picture.svg_elements import lettering, number, path, rectangle, style_sheet, xml_text
from topoalloc.cli.picture.svg_parts import GpuUse, box_svg, chips_svg, room_svg
from topoalloc.cli.picture.unknowns import Gap, gap_words, gaps
from topoalloc.topology.links import nearest_nics
from topoalloc.topology.machine import Machine, Unknown
from topoalloc.topology.outline import Box, Room, devices_by_id
from topoalloc.topology.spelling import fabric_name, headline, id_list, links_words, subtitle

_WIDTH_MIN = 760.0
_LEGEND_LINE = 26.0
_NOTES_MAX = 6  # lines of what is unknown; the rest is counted, and the JSON has it all
_KEYS = (
    ("pix s-pix", "PIX: one PCIe switch or card"),
    ("pxb s-pxb", "PXB: several bridges, one switch tree"),
    ("bridge s-bridge", "PHB: one host bridge"),
    ("room s-room", "NODE: one NUMA node"),
    ("page s-stray", "SYS: between NUMA nodes"),
)


def svg_text(machine: Machine, used: Mapping[str, GpuUse] | None = None) -> str:
    """The whole picture; with `used` (by GPU id) each GPU also shows what of it is in use."""
    plan = floor_plan(machine, with_bars=used is not None)
    width = max(plan.width, _WIDTH_MIN)
    shift = (width - plan.width) / 2
    devices = devices_by_id(machine)
    name = fabric_name(machine.gpus)
    drawing = [
        *(
            room_svg(placed.thing, placed.rect, plan.cards_side_by_side)
            for placed in plan.placed
            if isinstance(placed.thing, Room)
        ),
        *(box_svg(placed.thing, placed.rect) for placed in plan.placed if isinstance(placed.thing, Box)),
        *cables_svg(plan, name),
        *chips_svg(devices, plan.chips(), plan.lines, nearest_nics(machine), used),
    ]
    legend, bottom = _legend(plan, name, width, plan.rooms_bottom + 26, used is not None)
    notes, bottom = _notes(gaps(machine), width, bottom)
    height = bottom + MARGIN - 10
    size = number(width), number(height)
    title = headline(machine)
    head = lettering(MARGIN, MARGIN + 24, title, 26, width - 2 * MARGIN, "ink bold")
    head += lettering(MARGIN, MARGIN + 50, subtitle(machine), 13.5, width - 2 * MARGIN, "muted")
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}"',
            f' height="{size[1]}" role="img" aria-labelledby="t d">',
            f'<title id="t">{xml_text(title)}</title>',
            f'<desc id="d">{xml_text(description(machine))}</desc>',
            style_sheet(),
            rectangle(0, 0, width, height, "page"),
            head,
            f'<g transform="translate({number(shift)} 0)">',
            *drawing,
            "</g>",
            *legend,
            *notes,
            "</svg>",
            "",
        )
    )


def description(machine: Machine) -> str:
    """The picture in words, for those who hear it."""
    sentences = [f"{headline(machine)}; {subtitle(machine)}."]
    nearest = nearest_nics(machine)
    for gpu in machine.gpus:
        where = "on an unknown NUMA node" if isinstance(gpu.numa_node, Unknown) else f"on NUMA node {gpu.numa_node}"
        near = nearest.get(gpu.id)
        sentences.append(f"{gpu.id} {where}" + (f", nearest {id_list(near.nics)} ({near.pcie.name})." if near else "."))
    return " ".join(sentences)


def _legend(plan: FloorPlan, name: str, width: float, top: float, with_bars: bool) -> tuple[list[str], float]:
    """Boxes, link weights and bars, each with its meaning, flowing in lines; and where the legend ends."""
    entries = [(f"{key}", label) for key, label in _KEYS]
    counts = sorted({link.nvlinks for link in plan.shape.pairs if isinstance(link.nvlinks, int)})
    entries += [(f"cable {shade(count, counts)} {count}", links_words(count, name)) for count in counts]
    if with_bars:
        entries += [("cores", "cores in use"), ("memory", "memory in use")]
    drawn, x, y = [], MARGIN, top
    for classes, label in entries:
        need = 34 + text_width(label, 12) + 12
        if x > MARGIN and x + need > width - MARGIN:
            x, y = MARGIN, y + _LEGEND_LINE
        drawn.append(_key(classes, x, y))
        drawn.append(lettering(x + 34, y + 12.5, label, 12, need - 34, "muted"))
        x += need
    return drawn, y + _LEGEND_LINE


def _key(classes: str, x: float, y: float) -> str:
    if classes.startswith("cable"):
        words, count = classes.rsplit(" ", 1)
        return path(f"M{number(x + 2)} {number(y + 8)}h20", words, stroke_width(int(count)))
    if classes in ("cores", "memory"):
        return rectangle(x, y + 5, 24, 7, classes, 3.5)
    return rectangle(x, y, 24, 16, classes, 4)


def _notes(unknown: Sequence[Gap], width: float, top: float) -> tuple[list[str], float]:
    lines = [gap_words(gap) for gap in unknown]
    if len(lines) > _NOTES_MAX:
        lines = [*lines[: _NOTES_MAX - 1], f"and {len(lines) - _NOTES_MAX + 1} more"]
    drawn, y = [], top + 8
    for line in lines:
        y += 18
        drawn.append(lettering(MARGIN, y, f"Unknown: {line}", 11.5, width - 2 * MARGIN, "muted"))
    return drawn, y + 8
