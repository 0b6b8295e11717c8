"""How NVLink is drawn: a bar that every GPU runs its links into, or an arc for each pair, as thick as its links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from topoalloc.cli.picture.blocks import Rect
from topoalloc.cli.picture.floor_plan import BAR_DROP, BAR_HEIGHT, BAR_STEP, FloorPlan, arc_depth
from topoalloc.cli.picture.svg_elements import group, lettering, number, path, rectangle
from topoalloc.topology.machine import Link
from topoalloc.topology.nvlink_shape import EvenFabric
from topoalloc.topology.spelling import links_words

_SHADES = ("s-few", "s-some", "s-many")
_STRAND_PITCH_MAX = 5.0  # distance of the strands of one GPU's bundle
_STRANDS_MAX = 48  # more could not be told apart on one GPU
_ANCHOR_PITCH_MAX = 22.0
_ANCHOR_INSET = 16.0


def shade(count: int, counts: Sequence[int]) -> str:
    """The colour of a link count: fewest pale, most dark, of those that occur in this picture."""
    rank = sorted(set(counts)).index(count)
    distinct = len(set(counts))
    return _SHADES[1] if distinct == 1 else _SHADES[round(rank * (len(_SHADES) - 1) / (distinct - 1))]


def stroke_width(count: int) -> float:
    """Thickness of `count` links; linear while single links can be told apart, then slower."""
    return 2.2 * count if count <= 4 else 8.8 + 0.5 * (count - 4)


def cables_svg(plan: FloorPlan, name: str) -> list[str]:
    """Everything between the GPUs; `name` is what the links are called."""
    chips = plan.chips()
    drawn = arcs_svg(plan.shape.pairs, chips, plan.band, name)
    for lane, fabric in enumerate(plan.shape.fabrics):
        drawn.extend(_bar_svg(fabric, chips, plan.band.y + BAR_DROP + lane * BAR_STEP, name))
    return drawn


def _bar_svg(fabric: EvenFabric, chips: Mapping[str, Rect], y: float, name: str) -> list[str]:
    feet = [chips[gpu] for gpu in fabric.gpus]
    left, right = min(foot.x for foot in feet), max(foot.right for foot in feet)
    strand_count = min(fabric.links_per_gpu, _STRANDS_MAX)
    drawn = []
    for gpu, foot in zip(fabric.gpus, feet, strict=True):
        pitch = min(_STRAND_PITCH_MAX, (foot.width - 2 * _ANCHOR_INSET) / strand_count)
        start = foot.x + foot.width / 2 - pitch * (strand_count - 1) / 2
        strands = "".join(
            f"M{number(start + pitch * strand)} {number(foot.bottom)}V{number(y + 1)}" for strand in range(strand_count)
        )
        tooltip = f"{gpu}: {links_words(fabric.count, name)} to every other GPU of this group"
        drawn.append(path(strands, "cable s-some", min(2.2, pitch * 0.45), tooltip))
    said = f"{links_words(fabric.count, name)} between any two of {len(fabric.gpus)} GPUs"
    words = f"NVSwitch · {said}" if fabric.switched else f"full mesh · {said}"
    bar = rectangle(left, y, right - left, BAR_HEIGHT, "fabric", 10)
    bar += lettering((left + right) / 2, y + 25, words, 14, right - left - 24, "bright bold", "middle")
    return [*drawn, group(bar, words)]


def arcs_svg(pairs: Sequence[Link], chips: Mapping[str, Rect], band: Rect, name: str) -> list[str]:
    """One arc per linked pair, the widest spans first so that short ones lie on top."""
    order = {gpu: position for position, gpu in enumerate(sorted(_gpus(chips), key=lambda gpu: chips[gpu].x))}
    counts = [link.nvlinks for link in pairs if isinstance(link.nvlinks, int)]
    anchors = _anchors(pairs, chips, order)
    drawn = []
    for link in sorted(pairs, key=lambda link: (-abs(order[link.a] - order[link.b]), order[link.a], order[link.b])):
        assert isinstance(link.nvlinks, int)
        x1, x2 = anchors[link.a, link.b], anchors[link.b, link.a]
        deep = band.y + arc_depth(abs(order[link.a] - order[link.b])) * 4 / 3 - 16
        data = (
            f"M{number(x1)} {number(chips[link.a].bottom)}V{number(band.y)}"
            f"C{number(x1)} {number(deep)} {number(x2)} {number(deep)} {number(x2)} {number(band.y)}"
            f"V{number(chips[link.b].bottom)}"
        )
        tooltip = f"{link.a} to {link.b}: {links_words(link.nvlinks, name)}"
        drawn.append(path(data, f"cable {shade(link.nvlinks, counts)}", stroke_width(link.nvlinks), tooltip))
    return drawn


def _gpus(chips: Mapping[str, Rect]) -> list[str]:
    return [device for device in chips if device.startswith("GPU")]


def _anchors(
    pairs: Sequence[Link], chips: Mapping[str, Rect], order: Mapping[str, int]
) -> dict[tuple[str, str], float]:
    """Where on its GPU's edge each arc ends, so that arcs of one GPU do not cross each other.

    Left-going arcs end left of right-going ones; of those that go the same way, the longest end in the middle.
    """
    ends: dict[str, list[str]] = {}
    for link in pairs:
        ends.setdefault(link.a, []).append(link.b)
        ends.setdefault(link.b, []).append(link.a)
    places: dict[tuple[str, str], float] = {}
    for gpu, others in ends.items():
        here = order[gpu]
        left = sorted((other for other in others if order[other] < here), key=lambda other: -order[other])
        right = sorted((other for other in others if order[other] > here), key=lambda other: -order[other])
        foot = chips[gpu]
        pitch = min(_ANCHOR_PITCH_MAX, (foot.width - 2 * _ANCHOR_INSET) / len(others))
        start = foot.x + foot.width / 2 - pitch * (len(others) - 1) / 2
        for position, other in enumerate((*left, *right)):
            places[gpu, other] = start + pitch * position
    return places
