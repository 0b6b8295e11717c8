"""The picture of `topoalloc show --as svg`."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given

from tests.cli.made_machines import ALL, cube_mesh, dgx, gpu, lone_vm, machine, node, pci_tree
from tests.cli.random_machines import machines
from tests.hash_seeds import outputs_of
from topoalloc.cli.picture.blocks import Placed, Rect
from topoalloc.cli.picture.floor_plan import floor_plan
from topoalloc.cli.picture.lettering import Face, text_width
from topoalloc.cli.picture.svg import svg_text
from topoalloc.cli.picture.svg_parts import GpuUse
from topoalloc.topology.machine import LinkClass, Machine
from topoalloc.topology.outline import Box, Room, devices_in

SVG = "{http://www.w3.org/2000/svg}"


def drawn(made: Machine, used: dict[str, GpuUse] | None = None) -> ET.Element:
    return ET.fromstring(svg_text(made, used))


def titles(root: ET.Element) -> list[str]:
    return [title.text or "" for title in root.iter(f"{SVG}title")]


def texts(root: ET.Element) -> list[str]:
    """What is written, without tooltips."""
    written = []
    for text in root.iter(f"{SVG}text"):
        spans = [span.text or "" for span in text.iter(f"{SVG}tspan")]
        own = "".join(part for part in (text.text, *(child.tail for child in text)) if part)
        written.append(" ".join(filter(None, (own, *spans))))
    return written


def inside(inner: Rect, outer: Rect) -> bool:
    slack = 0.01
    return (
        inner.x >= outer.x - slack
        and inner.y >= outer.y - slack
        and inner.right <= outer.right + slack
        and inner.bottom <= outer.bottom + slack
    )


def apart(one: Rect, other: Rect) -> bool:
    slack = 0.01
    return (
        one.right <= other.x + slack
        or other.right <= one.x + slack
        or one.bottom <= other.y + slack
        or other.bottom <= one.y + slack
    )


def text_extent(text: ET.Element) -> tuple[float, float]:
    """From where to where a text may reach, at the most."""
    width, x = 0.0, float(text.get("x", "0"))
    spans = list(text.iter(f"{SVG}tspan"))
    for part in spans or [text]:
        words = part.get("class", "").split()
        face = Face.MONO if "mono" in words else Face.BOLD if "bold" in words else Face.PLAIN
        own = (part.text or "") + "".join(child.tail or "" for child in part if child.tag == f"{SVG}title")
        width += text_width(own, float(part.get("font-size", "0")), face) + float(part.get("dx", "0"))
    anchor = text.get("text-anchor", "start")
    left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
    return left, left + width


@pytest.mark.parametrize("name", ALL)
def test_a_picture_is_well_formed_and_names_itself_for_those_who_cannot_see_it(name: str) -> None:
    root = drawn(ALL[name]())

    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == "t d"
    assert root.find(f"{SVG}title[@id='t']") is not None
    assert len(root.findtext(f"{SVG}desc[@id='d']", "")) > 20


@pytest.mark.parametrize("name", ALL)
def test_a_picture_brings_everything_with_it_and_runs_nothing(name: str) -> None:
    tags = {element.tag.removeprefix(SVG) for element in drawn(ALL[name]()).iter()}
    source = svg_text(ALL[name]()).replace("http://www.w3.org/2000/svg", "")

    assert tags <= {"svg", "title", "desc", "style", "g", "rect", "circle", "path", "text", "tspan"}
    assert not re.search(r"href|url\(|@import|@font-face|http", re.sub(r"<(title|desc|text|tspan).*?</\1>", "", source))


def test_a_picture_has_colours_for_dark_pages_and_names_no_colour_outside_its_style() -> None:
    text = svg_text(dgx())
    style = re.search(r"<style>.*?</style>", text, re.DOTALL)

    assert style is not None
    assert "prefers-color-scheme:dark" in style[0]
    assert not re.search(r"#[0-9a-f]{3,6}\b", text.replace(style[0], ""))


def test_every_class_of_an_element_has_a_style() -> None:
    everything = "".join(svg_text(make()) for make in ALL.values()) + svg_text(dgx(), {"GPU0": GpuUse(50, 0.5)})
    used = {word for words in re.findall(r'class="([^"]*)"', everything) for word in words.split()}
    styled = set(re.findall(r"\.([\w-]+)\{", everything))

    assert used <= styled


def test_the_same_machine_gives_the_same_bytes_in_every_process() -> None:
    code = (
        "from tests.cli.made_machines import ALL; from topoalloc.cli.picture.svg import svg_text; "
        "print(*(svg_text(make()) for make in ALL.values()))"
    )

    assert len(outputs_of("-c", code)) == 1


@pytest.mark.parametrize("name", ALL)
def test_no_text_leaves_the_picture(name: str) -> None:
    root = drawn(ALL[name]())
    width = float(root.get("width", "0"))

    assert all(left >= 0 and right <= width for left, right in map(text_extent, root.iter(f"{SVG}text")))


@pytest.mark.parametrize("name", ALL)
def test_no_text_of_a_chip_box_or_room_leaves_it(name: str) -> None:
    for group in drawn(ALL[name]()).iter(f"{SVG}g"):
        frame = group.find(f"{SVG}rect")
        if frame is None:
            continue
        x, width = float(frame.get("x", "0")), float(frame.get("width", "0"))
        for text in group.findall(f"{SVG}text"):
            left, right = text_extent(text)
            assert x <= left
            assert right <= x + width


def test_an_nvswitch_is_a_bar_that_every_gpu_runs_all_its_links_into() -> None:
    root = drawn(dgx())
    bundles = [path for path in root.iter(f"{SVG}path") if "every other GPU" in path.findtext(f"{SVG}title", "")]

    assert "NVSwitch · 12 NVLinks between any two of 8 GPUs" in texts(root)
    assert [path.get("d", "").count("M") for path in bundles] == [12] * 8


def test_a_hybrid_mesh_is_an_arc_per_pair_twice_as_thick_for_two_links() -> None:
    root = drawn(cube_mesh())
    widths = {
        path.findtext(f"{SVG}title", ""): float(path.get("stroke-width", "0"))
        for path in root.iter(f"{SVG}path")
        if " to GPU" in path.findtext(f"{SVG}title", "")
    }

    assert len(widths) == 16
    assert widths["GPU0 to GPU3: 2 NVLinks"] == 2 * widths["GPU0 to GPU1: 1 NVLink"]


def test_a_mesh_of_four_gpus_is_six_arcs_and_one_of_eight_a_bar() -> None:
    def mesh(gpus: int) -> Machine:
        made = [gpu(i, 0, vendor="1002") for i in range(gpus)]
        pairs = {(a.id, b.id): 1 for a, b in combinations(made, 2)}
        return machine([node(0, "0-3")], made, [], lambda a, b: LinkClass.PHB, pairs)

    assert sum("XGMI link" in title and " to " in title for title in titles(drawn(mesh(4)))) == 6
    assert "full mesh · 1 XGMI link between any two of 8 GPUs" in texts(drawn(mesh(8)))


def test_facts_that_no_gpu_has_take_no_line_on_any_of_them_and_are_told_below() -> None:
    written = texts(drawn(lone_vm()))

    assert "model unknown" not in written
    assert "Unknown: model, memory and bus id of GPU0 (the source does not tell)" in written


def test_a_fact_that_one_gpu_lacks_is_said_on_that_gpu() -> None:
    made = machine([node(0, "0-3")], [gpu(0, 0, model="NVIDIA L40S"), gpu(1, 0)], pcie=lambda a, b: LinkClass.PHB)

    assert texts(drawn(made)).count("model unknown") == 1


def test_a_room_of_unknown_node_is_dashed_and_says_why() -> None:
    root = drawn(pci_tree())
    dashed = [rect for rect in root.iter(f"{SVG}rect") if "dashed" in rect.get("class", "")]

    assert len(dashed) == 1
    assert any(title.startswith("NUMA unknown: numa_node is -1") for title in titles(root))


def test_what_is_in_use_is_drawn_to_scale_on_its_gpu() -> None:
    root = drawn(dgx(), {"GPU0": GpuUse(50, 0.25)})
    chip = next(group for group in root.iter(f"{SVG}g") if group.findtext(f"{SVG}title", "").startswith("GPU0"))
    widths = {rect.get("class"): float(rect.get("width", "0")) for rect in chip.findall(f"{SVG}rect")}

    assert widths["cores"] == pytest.approx(widths["groove"] / 2, abs=0.1)
    assert widths["memory"] == pytest.approx(widths["groove"] / 4, abs=0.1)
    assert "50 of 100 cores in use, 25% of memory in use" in chip.findtext(f"{SVG}title", "")


def test_a_gpu_of_which_nothing_is_in_use_has_empty_bars() -> None:
    chips = [group for group in drawn(dgx(), {}).iter(f"{SVG}g") if group.findtext(f"{SVG}title", "").startswith("GPU")]
    bars = [rect.get("class") for chip in chips for rect in chip.findall(f"{SVG}rect")]

    assert (bars.count("groove"), bars.count("cores"), bars.count("memory")) == (16, 0, 0)


def test_rooms_without_gpus_move_below_where_the_row_would_be_too_wide() -> None:
    nodes = [node(number, f"{number}") for number in range(12)]
    made = machine(nodes, [gpu(0, 3), gpu(1, 7)], pcie=lambda a, b: LinkClass.SYS)
    placed = floor_plan(made, False).placed
    rooms = {one.thing.node.id: one.rect for one in placed if isinstance(one.thing, Room) and one.thing.node}

    top = min(rect.y for rect in rooms.values())
    assert [number for number, rect in rooms.items() if rect.y == top] == [3, 7]


def test_gpus_of_all_rooms_stand_on_one_line() -> None:
    plan = floor_plan(pci_tree(), False)

    assert len({rect.bottom for device, rect in plan.chips().items() if device.startswith("GPU")}) == 1


def _check_plan(placed: tuple[Placed, ...], made: Machine) -> None:
    chips = {one.thing: one.rect for one in placed if isinstance(one.thing, str)}
    frames = [(one.thing, one.rect) for one in placed if isinstance(one.thing, Room | Box)]
    assert sorted(chips) == sorted([*(one.id for one in made.gpus), *(one.id for one in made.nics)])
    assert all(apart(one, other) for one, other in combinations(chips.values(), 2))
    rooms = [rect for thing, rect in frames if isinstance(thing, Room)]
    assert all(apart(one, other) for one, other in combinations(rooms, 2))
    for thing, rect in frames:
        assert all(inside(chips[device], rect) for device in devices_in(thing.children))


@given(machines())
def test_chips_lie_in_their_boxes_and_rooms_and_never_on_each_other(made: Machine) -> None:
    _check_plan(floor_plan(made, False).placed, made)


@given(machines())
def test_the_picture_of_any_machine_is_well_formed_and_keeps_its_texts_inside(made: Machine) -> None:
    text = svg_text(made)
    root = ET.fromstring(text)
    width = float(root.get("width", "0"))

    assert all(left >= 0 and right <= width for left, right in map(text_extent, root.iter(f"{SVG}text")))
    assert text == svg_text(replace(made))
