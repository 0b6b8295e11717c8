"""The static memory manager: hints by table, groups, reserved memory, reuse, refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import handmade
from tests.admission.spelling import app, init, mask, pod, spelt
from topoalloc.admission.hints import Hint, ProviderAnswer
from topoalloc.admission.memory import (
    MemoryState,
    allocate,
    collect,
    container_hints,
    crash_reason,
    pod_hints,
    removed,
    start,
    totals_of,
)
from topoalloc.admission.numa_mask import text_of
from topoalloc.admission.pod import Container, Pod, checked_container
from topoalloc.admission.refusal import Refusal
from topoalloc.errors import InputError

GI = 1 << 30
NO_AFFINITY = Hint(None, False)


def two_nodes(first: int = 120, second: int = 124) -> MemoryState:
    """So many GiB allocatable; one more is reserved on each."""
    totals = {0: {"memory": (first + 1) * GI}, 1: {"memory": (second + 1) * GI}}
    return start(totals, {0: {"memory": GI}, 1: {"memory": GI}})


def wanting(gib: int, name: str = "app") -> Container:
    return app(name, cpu="1", memory=f"{gib}Gi")


def memory_hints(answer: ProviderAnswer) -> str | None:
    return None if answer is None else (spelt(answer["memory"]) if answer else "empty map")


def hints_for(state: MemoryState, gib: int) -> str | None:
    one = pod(wanting(gib), uid="new")
    return memory_hints(container_hints(state, one, one.containers[0]))


def taken(state: MemoryState, gib: int, affinity: str | None, uid: str = "before") -> MemoryState:
    one = pod(wanting(gib), uid=uid)
    hint = NO_AFFINITY if affinity is None else Hint(mask(affinity), True)
    after = allocate(state, one, one.containers[0], hint)
    assert isinstance(after, MemoryState), after
    return after


def refused(state: MemoryState, gib: int, hint: Hint) -> str:
    one = pod(wanting(gib), uid="new")
    after = allocate(state, one, one.containers[0], hint)
    assert isinstance(after, Refusal)
    return after.message


def free_gib(state: MemoryState) -> list[int]:
    return [node.tables["memory"].free_bytes // GI for node in state.nodes.values()]


def groups(state: MemoryState) -> list[str]:
    return [text_of(node.group) for node in state.nodes.values()]


@pytest.mark.parametrize(
    ("gib", "found"),
    [(16, "{0}P {1}P {0,1}n"), (122, "{1}P {0,1}n"), (200, "{0,1}P"), (300, "empty map")],
)
def test_hints_of_an_unused_machine(gib: int, found: str) -> None:
    assert hints_for(two_nodes(), gib) == found


@pytest.mark.parametrize(("gib", "found"), [(16, "{0}P {1}P"), (64, "{1}P"), (122, "{1}P"), (150, "empty map")])
def test_a_node_used_by_itself_joins_no_group(gib: int, found: str) -> None:
    assert hints_for(taken(two_nodes(), 100, "{0}"), gib) == found


def test_grouped_nodes_serve_only_their_group() -> None:
    assert hints_for(taken(two_nodes(), 200, "{0,1}"), 16) == "{0,1}n"


def test_a_group_of_three_nodes_excludes_its_subsets() -> None:
    totals = {node: {"memory": 11 * GI} for node in range(3)}
    state = taken(start(totals, {0: {"memory": GI}}), 15, "{0,1}")

    assert hints_for(state, 12) == "{0,1}n" if free_gib(state)[1] > 12 else "empty map"
    assert hints_for(state, 5) == "{2}P {0,1}n"


def test_preferred_follows_allocatable_and_not_free_memory() -> None:
    state = taken(taken(two_nodes(), 100, "{0}"), 100, "{1}", uid="other")

    assert hints_for(state, 100) == "empty map"
    assert hints_for(state, 24) == "{1}P"


def test_a_pod_that_is_not_guaranteed_has_no_opinion_and_takes_nothing() -> None:
    state = two_nodes()
    one = pod(checked_container("app", {"memory": "1Gi"}, {"memory": "2Gi"}))

    assert container_hints(state, one, one.containers[0]) is None
    assert pod_hints(state, one) is None
    assert allocate(state, one, one.containers[0], NO_AFFINITY) is state


def test_pod_level_resources_silence_the_memory_manager() -> None:
    inner = wanting(1)
    one = Pod("p", "d", "p", (inner,), requests=inner.requests, limits=inner.limits)

    assert container_hints(two_nodes(), one, inner) is None
    assert pod_hints(two_nodes(), one) is None


def test_given_memory_gives_exactly_its_own_mask_again() -> None:
    state = taken(two_nodes(), 16, "{1}", uid="new")

    assert hints_for(state, 16) == "{1}P"
    assert hints_for(state, 17) is None


def test_pod_hints_forget_what_only_init_containers_ask_for() -> None:
    pages = {0: {"memory": 11 * GI, "hugepages-2Mi": GI}, 1: {"memory": 11 * GI, "hugepages-2Mi": GI}}
    state = start(pages, {0: {"memory": GI}})
    one = pod(init(cpu="1", memory="1Gi", huge="1Gi"), wanting(2))

    assert set(pod_hints(state, one) or {}) == {"memory"}


def test_pod_hints_take_the_larger_of_init_and_running_containers() -> None:
    one = pod(init(cpu="1", memory="121Gi"), wanting(1))

    assert memory_hints(pod_hints(two_nodes(), one)) == "{1}P {0,1}n"


def test_memory_is_taken_from_the_lowest_node_of_the_mask_first() -> None:
    state = taken(two_nodes(), 130, "{0,1}")

    assert free_gib(state) == [0, 114]
    assert groups(state) == ["{0,1}", "{0,1}"]


def test_without_affinity_the_narrowest_preferred_nodes_are_used() -> None:
    assert free_gib(taken(two_nodes(), 16, None)) == [104, 124]


def test_an_affinity_that_is_too_small_is_widened() -> None:
    assert free_gib(taken(two_nodes(), 130, "{0}")) == [0, 114]


def test_a_preferred_affinity_is_not_widened_to_a_hint_that_is_not() -> None:
    totals = {node: {"memory": (size + 1) * GI} for node, size in enumerate((10, 4, 4))}
    state = start(totals, {node: {"memory": GI} for node in range(3)})

    assert "failed to find the extended preferred hint" in refused(state, 9, Hint(mask("{1}"), True))


def test_what_fits_nowhere_fails_in_allocation() -> None:
    assert "failed to get the default NUMA affinity, no NUMA nodes with enough memory" in refused(
        two_nodes(), 300, NO_AFFINITY
    )
    assert "failed to find NUMA nodes to extend" in refused(two_nodes(), 300, Hint(mask("{0,1}"), True))


def test_an_affinity_that_mixes_groups_fails_in_allocation() -> None:
    state = taken(two_nodes(), 1, "{0}")

    assert "preferred hint violates NUMA node allocation" in refused(state, 2, Hint(mask("{0,1}"), True))


def test_a_default_that_is_not_preferred_fails_under_single_numa_node() -> None:
    state = taken(two_nodes(), 200, "{0,1}")

    assert "failed to find the default preferred hint" in refused(state, 16, Hint(None, True))


def test_a_fraction_of_a_byte_fails_in_allocation_and_has_no_opinion() -> None:
    odd = app(cpu="1", memory="1500m")
    one = pod(odd)

    assert container_hints(two_nodes(), one, odd) is None
    after = allocate(two_nodes(), one, odd, NO_AFFINITY)
    assert isinstance(after, Refusal)
    assert "failed to represent quantity as int64" in after.message


def test_memory_of_init_containers_is_reused_on_the_same_nodes_only() -> None:
    whole = pod(init("i", cpu="1", memory="10Gi"), wanting(8, "a"), wanting(8, "b"), uid="p")
    state = two_nodes()
    for container, nodes in zip(whole.containers, ("{0}", "{1}", "{0}"), strict=True):
        after = allocate(state, whole, container, Hint(mask(nodes), True))
        assert isinstance(after, MemoryState)
        state = after

    assert free_gib(state) == [110, 116]
    assert [block.size_bytes // GI for block in state.blocks["p", "i"]] == [2]


def test_removed_memory_is_free_again_and_groups_dissolve() -> None:
    fresh = two_nodes()
    state = taken(fresh, 130, "{0,1}")

    assert removed(state, "before", "app").nodes == fresh.nodes
    assert removed(state, "before", "unknown").nodes == state.nodes
    assert collect(state, frozenset({"before"})) == state
    assert collect(state, frozenset()).nodes == fresh.nodes


def test_huge_pages_are_not_part_of_allocatable_memory() -> None:
    state = start({0: {"memory": 10 * GI, "hugepages-1Gi": 4 * GI}}, {0: {"memory": GI, "hugepages-1Gi": GI}})

    assert {kind: table.free_bytes // GI for kind, table in state.nodes[0].tables.items()} == {
        "memory": 5,
        "hugepages-1Gi": 3,
    }


def test_a_huge_page_size_that_a_node_does_not_list_crashes_the_kubelet() -> None:
    one = pod(app(cpu="1", memory="1Gi", huge="2Mi"))

    assert "crashes: NUMA node 0 lists no hugepages-2Mi" in (crash_reason(two_nodes(), one) or "")
    assert crash_reason(two_nodes(), pod(wanting(1))) is None


@pytest.mark.parametrize(
    ("reserved", "reservation", "reason"),
    [
        ({0: {}}, None, "needs reservedMemory with some memory"),
        ({3: {"memory": GI}}, None, "names NUMA node 3"),
        ({0: {"memory": 99 * GI}}, None, "more memory is reserved than there is"),
        ({0: {"memory": GI}}, {"memory": 2 * GI}, "sums up to 1073741824 bytes"),
        ({0: {"memory": GI}}, {"memory": GI, "hugepages-1Gi": GI}, "of type hugepages-1Gi sums up to 0"),
    ],
)
def test_a_reservation_that_the_kubelet_refuses_does_not_start(
    reserved: dict[int, dict[str, int]], reservation: dict[str, int] | None, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        start({0: {"memory": 10 * GI}}, reserved, reservation)


def test_the_memory_of_a_machine_is_its_nodes_memory() -> None:
    machine = handmade.machine(numa=2)

    assert totals_of(machine) == {node.id: {"memory": node.memory_bytes} for node in machine.numa_nodes}


@given(st.lists(st.tuples(st.integers(1, 60), st.sampled_from((None, 1, 2, 3)), st.booleans()), max_size=8))
def test_memory_is_never_given_beyond_what_is_free_and_comes_back_whole(
    wishes: list[tuple[int, int | None, bool]],
) -> None:
    fresh = state = two_nodes(50, 40)
    for number, (gib, affinity, preferred) in enumerate(wishes):
        one = pod(wanting(gib), uid=f"p{number}")
        after = allocate(state, one, one.containers[0], Hint(affinity, preferred))
        state = state if isinstance(after, Refusal) else after
        given_out = sum(block.size_bytes for blocks in state.blocks.values() for block in blocks)
        assert min(free_gib(state)) >= 0
        assert sum(free_gib(state)) * GI + given_out == 90 * GI
        for node in state.nodes.values():
            assert (node.assignments == 0) <= (node.group.bit_count() == 1)

    assert collect(state, frozenset()).nodes == fresh.nodes
