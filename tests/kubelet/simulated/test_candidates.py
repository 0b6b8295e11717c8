"""Which devices the plugin is asked about, and what becomes of its answer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.kubelet.simulated.toy_plugin import Asked, device
from tests.kubelet.simulated.world import (
    BEST_EFFORT,
    NIC,
    NONE,
    SINGLE,
    World,
    container,
    given,
    node_of,
    on_two_nodes,
    pod,
)


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
