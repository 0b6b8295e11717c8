"""How often faults are said: once for each GPU and Xid, with a pause, and none is lost from the counts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from topoalloc.agent.fault_lines import KINDS_MAX, REPEAT_PAUSE_S, FaultLines
from topoalloc.topology.gpu_condition import GpuFault
from topoalloc.topology.pci import PciAddress

GPU = PciAddress(0, 0x0F, 0, 0)
FAULT, OTHER = GpuFault(GPU, 94), GpuFault(None, 94)


def test_a_first_fault_is_said_at_once_with_its_count() -> None:
    assert FaultLines().due([FAULT, OTHER, FAULT], 0.0) == ((FAULT, 2), (OTHER, 1))


def test_repeats_are_said_when_the_pause_is_over_though_nothing_new_comes() -> None:
    lines = FaultLines()
    lines.due([FAULT], 0.0)

    assert lines.due([FAULT] * 3, 1.0) == ()
    assert lines.due([], REPEAT_PAUSE_S - 1.0) == ()
    assert lines.due([], REPEAT_PAUSE_S) == ((FAULT, 3),)
    assert lines.due([], 2 * REPEAT_PAUSE_S) == ()


def test_what_is_remembered_is_bounded_and_what_gives_way_is_said() -> None:
    lines = FaultLines()
    lines.due([FAULT], 0.0)
    lines.due([FAULT], 1.0)
    many = [GpuFault(GPU, 1000 + number) for number in range(KINDS_MAX)]

    assert lines.due(many, 2.0) == (*((fault, 1) for fault in many), (FAULT, 1))
    assert len(lines._kinds) == KINDS_MAX


@given(st.lists(st.tuples(st.integers(0, 40), st.lists(st.sampled_from((FAULT, OTHER)), max_size=4)), max_size=20))
def test_every_fault_is_counted_in_exactly_one_line(drains: list[tuple[float, list[GpuFault]]]) -> None:
    lines, now_s, came, said = FaultLines(), 0.0, Counter[GpuFault](), Counter[GpuFault]()
    for pause_s, faults in [*drains, (REPEAT_PAUSE_S, [])]:
        now_s += pause_s
        came.update(faults)
        for fault, count in lines.due(faults, now_s):
            said[fault] += count

    assert said == came
