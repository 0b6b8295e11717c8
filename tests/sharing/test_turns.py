"""Whose turn a GPU is, and when there are none."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.sharing.made_usage import usage_bytes
from topoalloc.sharing.share_file import ShareLimits
from topoalloc.sharing.share_sample import ShareSample, UsageRate
from topoalloc.sharing.told_files import TURN_PERIOD_US, Turn
from topoalloc.sharing.turns import (
    CHANGE_US,
    REST_LOOKS,
    SHORT_LOOKS,
    TURN_FROM_CORES,
    TURNS_FROM_CORES,
    WORK_LOOKS,
    TurnShare,
    TurnsState,
    turn_share,
    turns,
    turns_after,
)
from topoalloc.sharing.usage import parse_usage

NOW_NS = 10**12
SHARES = [TurnShare("a", 3000, True, 2900), TurnShare("b", 5000, True, 4900), TurnShare("c", 2000, True, 1950)]


def sample(wanting_at_ns: int) -> ShareSample:
    limits = ShareLimits(1, None, 3000, 3000, None, 0, True)
    return ShareSample("a", 1, limits, parse_usage(usage_bytes(wanting_at_ns=wanting_at_ns), frozenset()), NOW_NS)


def looked(state: TurnsState, shares: list[TurnShare], times: int) -> list[set[str]]:
    """Whose turns there were after each of so many looks."""
    seen = []
    for _ in range(times):
        state, given = turns_after(state, shares)
        seen.append(set(given))
    return seen


def test_shares_that_fill_a_gpu_have_turns_as_long_as_their_cores_but_for_the_change() -> None:
    assert turns(SHARES) == {
        "a": Turn(0, 30_000 - CHANGE_US),
        "b": Turn(30_000, 50_000 - CHANGE_US),
        "c": Turn(80_000, 20_000 - CHANGE_US),
    }


def test_turns_of_shares_that_leave_some_of_the_gpu_are_longer_than_their_cores() -> None:
    assert turns(SHARES[:2]) == {"a": Turn(0, 37_500 - CHANGE_US), "b": Turn(37_500, 62_500 - CHANGE_US)}


def test_a_share_that_does_not_work_has_no_turn() -> None:
    assert looked(TurnsState(), [*SHARES[:2], TurnShare("c", 2000, False)], 1) == [{"a", "b"}]


def test_a_small_share_has_no_turn_and_the_others_have_its_part() -> None:
    small = TurnShare("c", TURN_FROM_CORES - 1, True)

    assert turns([*SHARES[:2], small]) == turns(SHARES[:2])


def test_a_share_that_pauses_for_a_look_or_two_keeps_its_turn() -> None:
    state, _ = turns_after(TurnsState(), SHARES)
    resting = [*SHARES[:2], TurnShare("c", 2000, False)]

    assert looked(state, resting, WORK_LOOKS) == [{"a", "b", "c"}] * (WORK_LOOKS - 1) + [{"a", "b"}]


def test_one_share_alone_has_no_turn_whatever_its_cores() -> None:
    assert turns([TurnShare("a", 9900, True)]) == {}


def test_shares_that_seldom_meet_have_no_turns() -> None:
    assert turns([TurnShare("a", 3000, True), TurnShare("b", 4000, True)]) == {}


@given(st.dictionaries(st.text("abc:-", min_size=1), st.tuples(st.integers(100, 10_000), st.booleans()), max_size=20))
def test_turns_never_overlap_and_stay_within_the_period(cores: dict[str, tuple[int, bool]]) -> None:
    given = sorted(
        turns([TurnShare(name, *each) for name, each in cores.items()]).values(), key=lambda turn: turn.from_us
    )

    assert all(turn.length_us > 0 for turn in given)
    assert all(one.from_us + one.length_us <= other.from_us + 1 for one, other in pairwise(given))
    assert not given or given[-1].from_us + given[-1].length_us <= TURN_PERIOD_US


@given(st.permutations(SHARES))
def test_the_order_in_which_shares_are_read_changes_nothing(shares: list[TurnShare]) -> None:
    assert turns(shares) == turns(SHARES)


def test_a_share_that_was_held_back_just_now_is_at_work_whatever_it_used() -> None:
    assert turn_share(sample(NOW_NS - 1), 3000, UsageRate(10, 0.0)).is_at_work


def test_a_share_that_uses_most_of_its_cores_is_at_work_although_nothing_holds_it_back() -> None:
    assert turn_share(sample(0), 3000, UsageRate(2200, 0.0)).is_at_work
    assert not turn_share(sample(0), 3000, UsageRate(1500, 0.0)).is_at_work


def test_a_share_of_which_nothing_is_known_is_not_at_work() -> None:
    assert turn_share(sample(0), 3000, None) == TurnShare("a", 3000, False, None)


def test_turns_go_on_while_everybody_gets_his_cores() -> None:
    assert looked(TurnsState(), SHARES, 3 * REST_LOOKS) == [{"a", "b", "c"}] * 3 * REST_LOOKS


def test_a_share_that_uses_all_that_its_small_turn_holds_does_not_fall_short() -> None:
    shares = [TurnShare("a", 9500, True, 9450), TurnShare("b", 500, True, 450)]

    assert looked(TurnsState(), shares, REST_LOOKS) == [{"a", "b"}] * REST_LOOKS


def test_a_share_that_keeps_falling_short_goes_without_a_turn_for_a_while_and_then_it_is_tried_again() -> None:
    shares = [SHARES[0], SHARES[1], TurnShare("c", 2000, True, 1200)]

    # The first look gives turns, and the last that is short ends its own.
    round_of_looks = [{"a", "b", "c"}] * SHORT_LOOKS + [{"a", "b"}] * REST_LOOKS
    assert looked(TurnsState(), shares, 2 * len(round_of_looks)) == round_of_looks * 2


def test_where_too_few_are_left_nobody_has_a_turn() -> None:
    shares = [TurnShare("a", 3000, True, 2000), *SHARES[1:]]

    assert looked(TurnsState(), shares, SHORT_LOOKS + 2)[-2:] == [set(), set()]


def test_a_share_that_falls_short_now_and_then_keeps_its_turn() -> None:
    short = [TurnShare("a", 3000, True, 2000), *SHARES[1:]]
    state, _ = turns_after(TurnsState(), SHARES)
    for _ in range(REST_LOOKS):
        for shares in (short, short, SHARES):
            state, given = turns_after(state, shares)
            assert given


def test_what_is_not_known_of_a_share_is_no_shortfall() -> None:
    shares = [TurnShare("a", 3000, True, None), *SHARES[1:]]

    assert looked(TurnsState(), shares, REST_LOOKS) == [{"a", "b", "c"}] * REST_LOOKS


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(100, 10_000), st.booleans(), st.none() | st.integers(0, 10_000)),
            min_size=3,
            max_size=3,
        ),
        max_size=60,
    )
)
def test_turns_are_of_shares_that_claim_enough_and_counts_stay_bounded_after_any_history(
    looks: list[list[tuple[int, bool, int | None]]],
) -> None:
    state = TurnsState()
    for look in looks:
        shares = [TurnShare(name, *each) for name, each in zip("abc", look, strict=True)]
        state, given = turns_after(state, shares)
        assert not given or sum(share.cores for share in shares if share.name in given) >= TURNS_FROM_CORES
        assert all(share.cores >= TURN_FROM_CORES for share in shares if share.name in given)
        assert max(state.rest_looks.values()) <= REST_LOOKS
        assert max(state.short_looks.values()) < SHORT_LOOKS
