"""Why a merge is refused, in words that name the resource, the nodes and what lacked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.admission.spelling import CORE, NIC, app, hints, pod, view
from topoalloc.admission.cpu_topology import CpuPlace, CpuTopology
from topoalloc.admission.cpus import CpuOptions, container_hints, start
from topoalloc.admission.explain import Explanation, Supply, cpu_supply, device_supply, explain, memory_supply
from topoalloc.admission.hints import Hint, ProviderAnswer, device_hints
from topoalloc.admission.memory import start as start_memory
from topoalloc.admission.numa_mask import masks_in_order
from topoalloc.admission.policy import NumaInfo, Options, Policy, merge

BE, RE, SN = Policy.BEST_EFFORT, Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE
TWO = NumaInfo((0, 1), {})


def told(policy: Policy, supplies: dict[str, Supply] | None = None, **resources: str | None) -> Explanation:
    names = {"core": CORE, "nic": NIC, "cpu": "cpu", "memory": "memory"}
    answer: ProviderAnswer = {names[name]: None if text is None else hints(text) for name, text in resources.items()}
    found = explain(policy, Options(), [("device manager", answer)], TWO, supplies)
    assert found is not None
    return found


def test_a_wide_need_beside_a_narrow_one_names_both_and_their_nodes() -> None:
    found = told(RE, core="{0,1}P", cpu="{0}P {0,1}n")

    assert found.sentence == f"restricted: {CORE} needs {{0,1}}, cpu would use {{0}}"
    assert {demand.resource for demand in found.conflict} == {CORE, "cpu"}
    assert "exactly the same NUMA nodes" in found.remedy


def test_an_impossible_resource_is_named_alone_with_what_lacks() -> None:
    supply = device_supply(view("A0-3@0 B0-3@1", allocated="A0 A1 B0"), 7)

    found = told(RE, {CORE: supply}, core="", nic="{0}P")

    assert found.sentence == f"restricted: no set of NUMA nodes has enough {CORE} free"
    assert found.remedy == f"2 more {CORE} would have to be free on the node"
    assert [demand.resource for demand in found.conflict] == [CORE]


def test_fragmentation_names_the_node_that_lacks_least() -> None:
    seen = view("A0-3@0 B0-3@1", allocated="A0 A1 B0")
    supply = device_supply(seen, 4)
    answer: ProviderAnswer = {CORE: device_hints(seen, 4, (0, 1))}

    found = explain(RE, Options(), [("device manager", answer)], TWO, {CORE: supply})

    assert found is not None
    assert found.sentence == f"restricted: {CORE} would use {{0,1}}, but the machine could serve it on {{1}}"
    assert found.remedy == f"1 more {CORE} would have to be free on {{1}}"


def test_more_than_one_node_has_is_said_under_single_numa_node() -> None:
    supply = device_supply(view("A0-3@0 B0-3@1"), 5)

    found = told(SN, {CORE: supply}, core="{0,1}P")

    assert found.sentence == f"single-numa-node: no NUMA node has 5 {CORE}"
    assert found.remedy == "ask for what one NUMA node has (at most 4)"


def test_what_no_node_has_is_said_even_when_the_whole_machine_lacks_it_now() -> None:
    supply = device_supply(view("A0-3@0 B0-3@1", allocated="A0 A1 B0 B1"), 5)

    found = told(SN, {CORE: supply}, core="")

    assert found.sentence == f"single-numa-node: no NUMA node has 5 {CORE}"


def test_two_that_are_free_on_different_nodes_meet_where_least_lacks() -> None:
    supplies = {
        CORE: device_supply(view("A0-1@0 B0-1@1", allocated="A0 A1"), 1),
        NIC: device_supply(view("N0@0 N1@1", allocated="N1"), 1),
    }

    found = told(SN, supplies, core="{1}P {0,1}n", nic="{0}P {0,1}n")

    assert found.sentence == f"single-numa-node: {NIC} needs {{0}}, {CORE} would use {{1}}"
    assert found.remedy == f"1 more {CORE} would have to be free on {{0}}"


def test_without_supplies_the_remedy_is_in_general_terms() -> None:
    assert told(SN, core="{1}P", nic="{0}P").remedy == f"{NIC} and {CORE} would have to be free on one NUMA node"
    assert told(RE, core="").remedy == f"more {CORE} would have to be free"
    assert told(SN, core="{0,1}P").remedy == "ask for what one NUMA node has"
    assert told(RE, core="{0,1}n").remedy == f"{CORE} free closer together"


def test_three_that_meet_only_in_pairs_are_named_together() -> None:
    three = NumaInfo((0, 1, 2), {})
    answer: ProviderAnswer = {"a": hints("{0}P {1}P"), "b": hints("{1}P {2}P"), "c": hints("{0}P {2}P")}

    found = explain(RE, Options(), [("device manager", answer)], three)

    assert found is not None
    assert [demand.resource for demand in found.conflict] == ["a", "b", "c"]


def test_resources_without_opinion_are_no_demands() -> None:
    found = told(RE, core="{0,1}n", nic=None)

    assert [demand.resource for demand in found.demands] == [CORE]


def test_many_sets_of_nodes_are_cut_short() -> None:
    eight = NumaInfo(tuple(range(8)), {})
    wide: ProviderAnswer = {"a": tuple(Hint(1 << node, True) for node in range(8)), "b": hints("{0,1}P")}

    found = explain(RE, Options(), [("device manager", wide)], eight)

    assert found is not None
    assert found.sentence == "restricted: b needs {0,1}, a would use {0} or {1} or {2} or {3} or 4 more sets"


def test_what_is_admitted_needs_no_explanation() -> None:
    assert explain(BE, Options(), [("device manager", {CORE: ()})], TWO) is None
    assert explain(RE, Options(), [("device manager", {CORE: hints("{0}P")})], TWO) is None


def test_supplies_of_cpus_and_memory_count_by_node_without_what_is_reserved() -> None:
    topology = CpuTopology.of({cpu: CpuPlace(cpu, cpu // 2, cpu // 2) for cpu in range(4)})
    manager, state = start(topology, 1, CpuOptions(), RE)
    memory = start_memory({0: {"memory": 8}, 1: {"memory": 6}}, {0: {"memory": 1}})

    assert cpu_supply(manager, state, 2) == Supply(2, {1: 2, 2: 2}, {1: 1, 2: 2})
    assert memory_supply(memory, "memory", 3) == Supply(3, {1: 7, 2: 6}, {1: 7, 2: 6})


def test_cpus_that_a_reservation_takes_away_are_named() -> None:
    topology = CpuTopology.of({cpu: CpuPlace(cpu, cpu // 2, cpu // 2) for cpu in range(4)})
    manager, state = start(topology, 1, CpuOptions(), RE)
    one = pod(app(cpu="2", memory="1"))
    answers = [
        ("device manager", {CORE: hints("{0}P")}),
        ("CPU manager", container_hints(manager, state, one, one.containers[0])),
    ]

    found = explain(RE, Options(), answers, TWO, {"cpu": cpu_supply(manager, state, 2)})

    assert found is not None
    assert found.sentence == f"restricted: {CORE} needs {{0}}, cpu would use {{1}}"
    assert [demand.provider for demand in found.conflict] == ["device manager", "CPU manager"]


lists = st.lists(st.builds(Hint, st.one_of(st.none(), st.integers(1, 7)), st.booleans()), max_size=4).map(tuple)


@given(st.dictionaries(st.sampled_from("abcde"), st.one_of(st.none(), lists)), st.sampled_from((RE, SN)))
def test_every_refusal_has_one_line_and_a_conflict_that_is_refused_by_itself(
    answer: dict[str, tuple[Hint, ...] | None], policy: Policy
) -> None:
    numa = NumaInfo((0, 1, 2), {})
    found = explain(policy, Options(), [("device manager", answer)], numa)

    assert (found is None) is merge(policy, Options(), [answer], numa).admit
    if found is not None:
        alone: ProviderAnswer = {demand.resource: demand.hints for demand in found.conflict}
        assert not merge(policy, Options(), [alone], numa).admit
        assert "\n" not in found.sentence + found.remedy


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_supply_lacks_what_the_request_is_above_what_is_free(count: int) -> None:
    supply = device_supply(view("A0-2@0 B@1", allocated="A0"), count)

    assert [supply.lacking_on(mask) for mask in masks_in_order((0, 1))] == [
        max(0, count - 2),
        max(0, count - 1),
        max(0, count - 3),
    ]
