"""A memory state put together from what containers hold, as PodResources tells it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.admission.test_memory import GI, hints_for, taken, two_nodes
from topoalloc.admission.hints import Hint
from topoalloc.admission.memory import MemoryBlock, MemoryState, allocate, container_hints, restored
from topoalloc.admission.pod import Pod, checked_container

ALLOCATABLE = {0: {"memory": 120 * GI}, 1: {"memory": 124 * GI}}


def again(state: MemoryState) -> MemoryState:
    return restored(ALLOCATABLE, state.blocks)


@given(st.lists(st.tuples(st.integers(1, 90), st.integers(0, 2)), max_size=5), st.integers(1, 250))
def test_it_gives_the_hints_of_the_state_that_gave_the_memory_out(given_out: list[tuple[int, int]], asked: int):
    state = two_nodes()
    for number, (gib, which) in enumerate(given_out):
        limits = {"cpu": "1", "memory": f"{gib}Gi"}
        pod = Pod(f"p{number}", "ns", f"u{number}", (checked_container("app", limits, limits),))
        offered = (container_hints(state, pod, pod.containers[0]) or {}).get("memory") or (Hint(None, False),)
        after = allocate(state, pod, pod.containers[0], offered[which % len(offered)])
        state = after if isinstance(after, MemoryState) else state

    assert again(state).nodes == state.nodes
    assert hints_for(again(state), asked) == hints_for(state, asked)


def test_a_block_of_a_kind_or_node_that_is_not_there_is_left_out():
    state = taken(two_nodes(), 10, "0")
    strange = {("u", "a"): (MemoryBlock("hugepages-2Mi", 1, GI), MemoryBlock("memory", 1 << 7, GI))}

    assert restored(ALLOCATABLE, {**state.blocks, **strange}).nodes == state.nodes
