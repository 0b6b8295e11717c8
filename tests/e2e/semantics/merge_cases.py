"""Hypothesis strategies for the topology manager's merge: nodes, distances, options, and providers' hints."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from topoalloc.admission.numa_mask import mask_of, masks_in_order
from topoalloc.admission.policy import MAX_ALLOWABLE, PREFER_CLOSEST

Json = Any
NODES_MAX = 8
DISTANCES = st.sampled_from((10, 11, 12, 13, 20, 21, 30, 31, 254))
# Upstream tries every combination of one hint per list; this is two resources on all of eight nodes.
COMBINATIONS_MAX = 255 * 255
# Words that Go and Python could read differently; most of them are refused by both.
BOOL_WORDS = ("true", "false", "T", "0", "1", "yes", "", " true", "tRUE")
NUMBER_WORDS = ("8", "9", "16", "+9", "09", "7", "-1", "1e1", "", " 9", "9 ", "9\n", "1_0", "٩", "9.0", "0x9", "9" * 20)


def rarely(one_in: int) -> st.SearchStrategy[bool]:
    """True once in so many draws, and never in the simplest case."""
    return st.integers(1, one_in).map(lambda drawn: drawn == one_in)


@st.composite
def node_ids(draw: st.DrawFn, most: int = NODES_MAX) -> list[int]:
    """Numbered from 0, or with holes, up to the last id that fits the kubelet's mask."""
    count = draw(st.integers(1, most))
    highest = draw(st.sampled_from((0, 10, 63)))
    if highest == 0:
        return list(range(count))
    return sorted(draw(st.sets(st.integers(0, highest), min_size=count, max_size=count)))


@st.composite
def options(draw: st.DrawFn) -> dict[str, str]:
    """The two options, mostly in words that the kubelet takes."""
    given: dict[str, str] = {}
    if draw(st.booleans()):
        given[PREFER_CLOSEST] = draw(st.sampled_from(BOOL_WORDS)) if draw(rarely(20)) else "true"
    if draw(rarely(20)):
        given[MAX_ALLOWABLE] = draw(st.sampled_from(NUMBER_WORDS))
    elif draw(rarely(3)):
        given[MAX_ALLOWABLE] = str(draw(st.integers(8, 16)))
    if draw(rarely(60)):
        given["prefer-furthest-numa-nodes"] = "true"
    return given


@st.composite
def distances(draw: st.DrawFn, nodes: list[int]) -> dict[int, list[int]]:
    """A row per node. The kernel's rows hold online nodes only, so with holes they can be shorter than the ids."""
    if draw(rarely(20)):
        return {}
    width = len(nodes) if draw(rarely(20)) else max(nodes) + 1
    return {node: draw(st.lists(DISTANCES, min_size=width, max_size=width)) for node in nodes}


@st.composite
def made_up_hints(draw: st.DrawFn, nodes: list[int]) -> Json:
    """Anything a provider could say, masks of nodes that do not exist included."""
    masks: st.SearchStrategy[int | None] = st.sets(st.sampled_from(nodes), min_size=1).map(mask_of)
    if draw(rarely(4)):
        masks = st.one_of(masks, st.none())
    if draw(rarely(6)):
        masks = st.one_of(masks, st.sets(st.integers(0, 63), max_size=4).map(mask_of))
    preferred = st.just(draw(st.booleans())) if draw(rarely(4)) else st.booleans()
    hint = st.fixed_dictionaries({"mask": masks, "preferred": preferred})
    return draw(st.one_of(st.none(), st.lists(hint, max_size=draw(st.sampled_from((3, 6, 10))))))


@st.composite
def supplied_hints(draw: st.DrawFn, nodes: list[int]) -> Json:
    """What a manager says that has so much on each of some nodes, a part of it taken."""
    hosts = sorted(draw(st.sets(st.sampled_from(nodes), min_size=1)))
    total = {node: draw(st.integers(1, 4)) for node in hosts}
    free = {node: draw(st.integers(0, total[node])) if draw(st.booleans()) else total[node] for node in hosts}
    wanted = draw(st.integers(1, sum(total.values()) if draw(rarely(4)) else 4))
    width, fitting = len(hosts), []
    for mask in masks_in_order(hosts):
        inside = [node for node in hosts if mask >> node & 1]
        if sum(total[node] for node in inside) >= wanted:
            width = min(width, len(inside))
        if sum(free[node] for node in inside) >= wanted:
            fitting.append(mask)
    return [{"mask": mask, "preferred": mask.bit_count() == width} for mask in fitting]


def bounded(answers: list[Json]) -> list[Json]:
    """The answers without the resources, from some on, whose hints are too many to combine with the others'."""
    combinations = 1
    kept: list[Json] = []
    for answer in answers:
        if answer is None:
            kept.append(None)
            continue
        kept.append({})
        for resource, hints in answer.items():
            more = max(1, len(hints or ()))
            if combinations * more <= COMBINATIONS_MAX:
                combinations *= more
                kept[-1][resource] = hints
    return kept


@st.composite
def merges(draw: st.DrawFn) -> Json:
    """A question of op merge without its policy."""
    nodes = draw(node_ids(NODES_MAX + 2 if draw(rarely(20)) else NODES_MAX))
    hints = made_up_hints(nodes) if draw(rarely(3)) else supplied_hints(nodes)
    one_answer = st.dictionaries(st.sampled_from("abcd"), hints, min_size=1, max_size=3)
    no_opinion = st.sampled_from((None, {}))
    answers = draw(st.lists(st.one_of(one_answer, one_answer, one_answer, no_opinion), max_size=4))
    return {
        "op": "merge",
        "nodes": nodes,
        "distances": draw(distances(nodes)),
        "options": draw(options()),
        "answers": bounded(answers),
    }
