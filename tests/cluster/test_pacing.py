"""When to write: changes are coalesced, writes keep their distance, failures back off within bounds."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from topoalloc.cluster.allowance import MINUTE_S, Allowance
from topoalloc.cluster.pacing import RETRY_AFTER_MAX_S, Pace, Pacing, backoff_s

PACE = Pace()
STEPS = st.lists(st.floats(0.0, 30.0), min_size=1, max_size=40)
ROUNDING_S = 1e-6
SPREAD = st.floats(0.0, 1.0)


def test_changes_that_come_close_together_become_one_write():
    pacing = Pacing().changed(0.0).changed(1.0).changed(2.5)

    assert pacing.due_at_s(PACE) == 2.5 + PACE.quiet_s


def test_without_a_change_nothing_is_due():
    assert Pacing().due_at_s(PACE) is None
    assert Pacing().changed(1.0).settled().due_at_s(PACE) is None


@given(STEPS)
def test_a_change_is_written_in_bounded_time_however_many_follow(steps: list[float]):
    pacing, now_s = Pacing(), 0.0
    for step_s in steps:
        pacing = pacing.changed(now_s)
        now_s += step_s

    due_s = pacing.due_at_s(PACE)
    assert due_s is not None
    assert due_s <= PACE.delay_max_s


@given(STEPS)
def test_two_writes_are_never_closer_than_the_pace_allows(steps: list[float]):
    pacing, now_s = Pacing(), 0.0
    written: list[float] = []
    for step_s in steps:
        now_s += step_s
        pacing = pacing.changed(now_s)
        due_s = pacing.due_at_s(PACE)
        assert due_s is not None
        now_s = max(now_s, due_s)
        written.append(now_s)
        pacing = pacing.succeeded(now_s, PACE)

    assert all(b - a >= PACE.period_min_s - ROUNDING_S for a, b in pairwise(written))


@given(st.integers(1, 200), SPREAD, st.floats(0.0, 1e12))
def test_a_failure_is_tried_again_after_a_pause_within_bounds(failures: int, spread: float, retry_after_s: float):
    pacing, now_s = Pacing(), 0.0
    for _ in range(failures):
        pacing = pacing.failed(now_s, PACE, spread, retry_after_s)
        due_s = pacing.due_at_s(PACE)
        assert due_s is not None
        pause_s = due_s - now_s
        assert PACE.backoff_min_s / 2 <= pause_s <= max(PACE.backoff_max_s, RETRY_AFTER_MAX_S)
        now_s = due_s


@given(st.integers(1, 50), SPREAD)
def test_the_pause_never_shrinks_and_differs_between_nodes(failures: int, spread: float):
    assert backoff_s(failures, PACE, spread) <= backoff_s(failures + 1, PACE, spread)
    assert backoff_s(failures, PACE, 0.0) <= backoff_s(failures, PACE, spread) <= backoff_s(failures, PACE, 1.0)


def test_a_success_forgets_the_failures():
    failed = Pacing().changed(0.0).failed(0.0, PACE, 1.0).failed(1.0, PACE, 1.0)

    assert failed.succeeded(9.0, PACE).failures == 0


@given(st.lists(st.floats(0.0, 20.0), max_size=60), st.integers(1, 5))
def test_no_minute_lets_more_through_than_is_allowed_and_none_is_lost_uncounted(steps: list[float], most: int):
    allowance, now_s, dropped = Allowance(0.0), 0.0, 0
    passed: list[tuple[float, bool]] = []
    for step_s in steps:
        now_s += step_s
        allowance, counted = allowance.turned(now_s)
        dropped += counted
        allowance, through = allowance.asked(most)
        passed.append((allowance.began_s, through))

    for began_s in {began_s for began_s, _ in passed}:
        assert sum(through for at_s, through in passed if at_s == began_s) <= most
    assert dropped + allowance.dropped == sum(not through for _, through in passed)
    starts = sorted({began_s for began_s, _ in passed})
    assert all(b - a >= MINUTE_S for a, b in pairwise(starts))
