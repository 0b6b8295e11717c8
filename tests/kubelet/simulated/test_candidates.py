"""Which devices the plugin is asked about, and what becomes of its answer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.kubelet.simulated.toy_plugin import Asked, device
from tests.kubelet.simulated.world import (
    BEST_EFFORT,
    CORE,
    NIC,
    NONE,
    RESTRICTED,
    SINGLE,
    World,
    container,
    given,
    node_of,
    on_two_nodes,
    pod,
    until,
)
from topoalloc.kubelet.simulated.settings import KubeletSettings
from topoalloc.pb import deviceplugin_v1beta1_pb2 as wire


def all_of(*nodes: int, count: int = 10) -> frozenset[str]:
    return frozenset(f"core-{node}-{number}" for node in nodes for number in range(count))


def test_under_single_numa_node_the_candidates_are_the_free_devices_of_one_node(world: World) -> None:
    kubelet, plugin = world.kubelet(SINGLE), world.plugin()
    world.served(kubelet, plugin)
    kubelet.admit(pod("a", core=3))
    kubelet.admit(pod("b", core=2))
    assert plugin.asked == [
        Asked(all_of(0), frozenset(), 3),
        Asked(all_of(0) - plugin.allocated[0], frozenset(), 2),
    ]


def test_without_a_policy_all_free_devices_are_candidates(world: World) -> None:
    kubelet, plugin = world.kubelet(NONE), world.plugin()
    world.served(kubelet, plugin)
    kubelet.admit(pod("a", core=3))
    assert plugin.asked == [Asked(all_of(0, 1), frozenset(), 3)]


def test_without_topology_the_plugin_is_asked_even_for_all_of_all(world: World) -> None:
    kubelet, plugin = world.kubelet(SINGLE), world.plugin(devices=[device(f"core-x-{n}") for n in range(4)])
    world.served(kubelet, plugin)
    kubelet.admit(pod("a", core=4))
    assert [(len(asked.available), asked.size) for asked in plugin.asked] == [(4, 4)]


def test_with_topology_the_plugin_is_not_asked_when_the_node_is_exactly_full(world: World) -> None:
    kubelet, plugin = world.kubelet(SINGLE), world.plugin()
    world.served(kubelet, plugin)
    admission = kubelet.admit(pod("a", core=10))
    assert plugin.asked == []
    assert given(admission) == all_of(0)


def test_best_effort_passes_the_aligned_devices_as_must_include_when_they_do_not_suffice(world: World) -> None:
    two_and_ten = [device(f"core-0-{number}", 0) for number in range(2)] + on_two_nodes("core")[10:]
    kubelet, plugin = world.kubelet(BEST_EFFORT), world.plugin(devices=two_and_ten)
    # The NIC pulls the merged hint to node 0, where only two of the four devices are.
    world.served(kubelet, plugin, world.plugin(NIC, devices=[device("nic-0-0", 0)]))
    kubelet.admit(pod("a", core=4, nic=1))
    aligned = all_of(0, count=2)
    assert plugin.asked == [Asked(aligned | all_of(1), aligned, 4)]


BAD_ANSWERS: dict[str, Sequence[str] | None] = {
    "no container response": None,
    "empty": [],
    "too short": ["core-0-1"],
    "bogus": ["x", "y", "z", "u"],
    "outside": [f"core-1-{number}" for number in range(4)],
    "duplicates": ["core-0-1"] * 4,
    "too long": [f"core-0-{number}" for number in range(8)],
}


@pytest.mark.parametrize("answer", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_a_bad_preference_is_silently_completed_from_the_candidates(world: World, answer: Sequence[str] | None) -> None:
    kubelet, plugin = world.kubelet(SINGLE), world.plugin()
    plugin.prefer = lambda asked: answer
    world.served(kubelet, plugin)
    admission = kubelet.admit(pod("a", core=4))
    assert admission.admitted
    assert len(given(admission)) == 4
    assert node_of(given(admission)) == {"0"}
    wanted = frozenset(answer or ()) & all_of(0)
    assert given(admission) <= wanted or wanted <= given(admission)


def test_an_omitted_must_include_is_added_anyway(world: World) -> None:
    kubelet, plugin = world.kubelet(SINGLE), world.plugin()
    plugin.prefer = lambda asked: sorted(asked.available - asked.must)[: asked.size]
    world.served(kubelet, plugin)
    admission = kubelet.admit(
        pod("a", container("i", init=True, core=2), container("main", core=6)),
    )
    assert given(admission, container_name="i") < given(admission)
    assert len(given(admission)) == 6


def test_a_plugin_without_the_option_is_never_asked(world: World) -> None:
    kubelet, plugin = world.kubelet(NONE), world.plugin()
    plugin.prefers = False
    world.served(kubelet, plugin)
    assert len(given(kubelet.admit(pod("a", core=4)))) == 4
    assert plugin.asked == []


def test_an_empty_topology_counts_as_none(world: World) -> None:
    kubelet = world.kubelet(SINGLE)
    plugin = world.plugin(devices=[device(f"core-x-{number}", empty_topology=True) for number in range(4)])
    world.served(kubelet, plugin)
    assert kubelet.admit(pod("a", core=2)).admitted
    assert [len(asked.available) for asked in plugin.asked] == [4]


def test_devices_on_both_nodes_are_all_aligned_whatever_node_is_chosen(world: World) -> None:
    kubelet = world.kubelet(SINGLE)
    plugin = world.plugin(devices=[device(f"core-x-{number}", 0, 1) for number in range(10)])
    world.served(kubelet, plugin)
    assert kubelet.admit(pod("a", core=3)).admitted
    assert [len(asked.available) for asked in plugin.asked] == [10]


def half_without_nodes() -> list[wire.Device]:
    return [device(f"core-0-{number}", 0) for number in range(5)] + [device(f"core-x-{number}") for number in range(5)]


def test_of_a_mixed_resource_only_devices_with_a_node_are_candidates(world: World) -> None:
    kubelet, plugin = world.kubelet(SINGLE), world.plugin(devices=half_without_nodes())
    world.served(kubelet, plugin)
    kubelet.admit(pod("a", core=2))
    assert [asked.available for asked in plugin.asked] == [all_of(0, count=5)]


@pytest.mark.parametrize(("settings", "admitted"), [(SINGLE, False), (BEST_EFFORT, True)])
def test_a_request_beyond_the_devices_with_a_node_is_refused_or_asked_with_those_as_must_include(
    world: World, settings: KubeletSettings, admitted: bool
) -> None:
    kubelet, plugin = world.kubelet(settings), world.plugin(devices=half_without_nodes())
    world.served(kubelet, plugin)
    assert kubelet.admit(pod("a", core=7)).admitted is admitted
    assert [asked.must for asked in plugin.asked] == ([all_of(0, count=5)] if admitted else [])


@pytest.mark.parametrize(("settings", "admitted"), [(RESTRICTED, False), (SINGLE, False), (BEST_EFFORT, True)])
def test_four_of_three_and_three_free(world: World, settings: KubeletSettings, admitted: bool) -> None:
    kubelet, plugin = world.kubelet(settings), world.plugin(devices=on_two_nodes("core", 4))
    world.served(kubelet, plugin)
    full = kubelet.admit(pod("full", core=4))  # node 0, so that the next pod goes to node 1
    on_one = kubelet.admit(pod("on-one", core=1))
    kubelet.finish(full.pod.uid)
    on_zero = kubelet.admit(pod("on-zero", core=1))
    held = given(on_one) | given(on_zero)
    assert node_of(held) == {"0", "1"}
    plugin.asked.clear()
    assert kubelet.admit(pod("a", core=4)).admitted is admitted
    assert [asked.available for asked in plugin.asked] == ([all_of(0, 1, count=4) - held] if admitted else [])


def test_an_unhealthy_device_is_no_candidate_and_the_healthy_rest_needs_no_question(world: World) -> None:
    kubelet, plugin = world.kubelet(SINGLE), world.plugin()
    world.served(kubelet, plugin)
    plugin.send([device("core-0-0", 0, healthy=False), *plugin.devices[1:10]])
    until(kubelet, lambda: len(kubelet.devices.tables.listed[CORE].nodes) == 10)
    admission = kubelet.admit(pod("a", core=9))
    assert given(admission) == all_of(0) - {"core-0-0"}
    assert plugin.asked == []
