"""Hints of the device manager: the rules one by one, upstream's tables, and a device-by-device oracle."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.admission.spelling import spelt, view
from topoalloc.admission.hints import DeviceView, Hint, HintNodes, device_hints

ALL = HintNodes.ALL


@pytest.mark.parametrize(
    ("devices", "busy", "reusable", "request_", "new", "old"),
    [
        ("A B@1", "", "", 1, "{1}P", "{1}P {0,1}n"),
        ("A@0 B@1", "", "", 1, "{0}P {1}P {0,1}n", None),
        ("A@0 B@1", "", "", 2, "{0,1}P", None),
        ("A@0 C@0 B@1 D@1", "", "", 2, "{0}P {1}P {0,1}n", None),
        ("A@0 C@0 B@1 D@1", "A B", "", 2, "{0,1}n", None),
        ("A@0 C@0 B@1 D@1", "", "", 6, "", None),
        ("A@0 C@0 B@1 D@1", "A", "A", 1, "{0}P {0,1}n", None),
        ("A@0 C@0 B@1 D@1", "A B", "A B", 1, "{0,1}n", None),
        ("S0-3@0 T0-3@1", "", "", 5, "{0,1}P", None),
    ],
)
def test_two_node_tables_with_and_without_nodes_that_host_no_device(
    devices: str, busy: str, reusable: str, request_: int, new: str, old: str | None
) -> None:
    seen = view(devices, allocated=busy)
    kept = frozenset(reusable.split())

    assert spelt(device_hints(seen, request_, (0, 1), reusable=kept)) == new
    assert spelt(device_hints(seen, request_, (0, 1), reusable=kept, hint_nodes=ALL)) == (new if old is None else old)


def test_nodes_between_those_with_devices_count_only_in_the_old_enumeration() -> None:
    seen = view("A0-1@0 B0-1@2")

    assert spelt(device_hints(seen, 3, (0, 1, 2, 3))) == "{0,2}P"
    assert spelt(device_hints(seen, 3, (0, 1, 2, 3), hint_nodes=ALL)) == "{0,2}P {0,1,2}n {0,2,3}n {0,1,2,3}n"


@pytest.mark.parametrize("devices", ["A B", "A@ B@", "A B@"])
def test_a_resource_without_any_node_has_no_opinion(devices: str) -> None:
    assert device_hints(view(devices), 1, (0, 1)) is None


def test_preferred_follows_the_hardware_and_not_what_is_free() -> None:
    assert spelt(device_hints(view("A0-3@0 B0-3@1", allocated="A0-1 B0-1"), 4, (0, 1))) == "{0,1}n"


def test_unhealthy_devices_still_count_for_the_narrowest_width() -> None:
    assert spelt(device_hints(view("A@0 B@0 C@1", unhealthy="B"), 2, (0, 1))) == "{0,1}n"


def test_a_device_on_two_nodes_is_preferred_on_either() -> None:
    assert spelt(device_hints(view("A@0,1"), 1, (0, 1))) == "{0}P {1}P {0,1}n"


def test_devices_without_a_node_are_unreachable_beside_devices_with_one() -> None:
    assert device_hints(view("A B@1"), 2, (0, 1)) == ()


def test_a_request_of_nothing_still_has_hints() -> None:
    assert spelt(device_hints(view("A@0 B@1"), 0, (0, 1))) == "{0}P {1}P {0,1}n"


def test_a_node_that_the_kubelet_does_not_know_is_dropped() -> None:
    assert spelt(device_hints(view("A@0 B@7"), 1, (0, 1))) == "{0}P"


def test_with_no_known_node_all_nodes_are_enumerated_and_none_suffices() -> None:
    assert device_hints(view("A@7"), 1, (0, 1)) == ()


def test_minus_one_as_a_node_makes_the_resource_unsatisfiable() -> None:
    assert device_hints(view("A@-1"), 1, (0, 1)) == ()


def test_recorded_devices_give_their_own_hints_again() -> None:
    found = device_hints(view("A@0 B@0 C@1", allocated="C"), 1, (0, 1), recorded=frozenset({"C"}))

    assert spelt(found) == "{1}P {0,1}n"


def test_recorded_devices_of_another_number_cannot_be_satisfied() -> None:
    assert device_hints(view("A@0 B@0", allocated="A"), 2, (0,), recorded=frozenset({"A"})) == ()


def test_a_reusable_device_without_topology_neither_blocks_nor_counts() -> None:
    seen = view("A B@0 C@1", allocated="A")

    assert spelt(device_hints(seen, 1, (0, 1), reusable=frozenset({"A"}))) == "{0}P {1}P {0,1}n"
    assert device_hints(seen, 3, (0, 1), reusable=frozenset({"A"})) == ()


def test_a_reusable_device_with_an_empty_topology_rules_every_mask_out() -> None:
    assert device_hints(view("A@ B@0", allocated="A"), 1, (0,), reusable=frozenset({"A"})) == ()


NODES = (0, 1, 3)
places = st.one_of(st.none(), st.lists(st.sampled_from((*NODES, 9)), unique=True, max_size=2).map(tuple))


@st.composite
def views(draw: st.DrawFn) -> tuple[DeviceView, frozenset[str]]:
    nodes = {f"d{i}": draw(places) for i in range(draw(st.integers(0, 6)))}
    ids = sorted(nodes)
    some = st.frozensets(st.sampled_from(ids)) if ids else st.just(frozenset[str]())
    reusable = draw(some)
    return DeviceView(nodes, draw(some), draw(some) | reusable), reusable


def by_the_book(view: DeviceView, request: int, nodes: Sequence[int], reusable: frozenset[str]) -> str | None:
    """Every mask, every device, as the rules read."""
    if not any(view.nodes.values()):
        return None
    if len(view.free | reusable) < request:
        return ""
    found: list[tuple[set[int], int]] = []
    width_min = len(nodes)
    for size in range(1, len(nodes) + 1):
        for chosen in map(set, combinations(nodes, size)):
            if sum(bool(chosen & set(places or ())) for places in view.nodes.values()) >= request:
                width_min = min(width_min, size)
            told = [view.nodes[device] for device in reusable if view.nodes[device] is not None]
            free = sum(bool(chosen & set(view.nodes[device] or ())) for device in view.free)
            if all(chosen & set(places or ()) for places in told) and len(told) + free >= request:
                found.append((chosen, size))
    return spelt(Hint(sum(1 << node for node in chosen), size == width_min) for chosen, size in found)


@given(views(), st.integers(0, 6))
def test_hints_over_all_nodes_equal_those_counted_device_by_device(
    case: tuple[DeviceView, frozenset[str]], request_: int
) -> None:
    seen, reusable = case

    found = device_hints(seen, request_, NODES, reusable=reusable, hint_nodes=ALL)

    assert spelt(found) == by_the_book(seen, request_, NODES, reusable)


@given(views(), st.integers(1, 6))
def test_leaving_out_nodes_without_devices_only_drops_hints(
    case: tuple[DeviceView, frozenset[str]], request_: int
) -> None:
    seen, reusable = case

    new = device_hints(seen, request_, NODES, reusable=reusable)
    old = device_hints(seen, request_, NODES, reusable=reusable, hint_nodes=ALL)

    assert (new is None) == (old is None)
    assert set(new or ()) <= set(old or ())
