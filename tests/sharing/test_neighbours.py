"""What a share is told of the others on its GPU."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topoalloc.sharing.neighbours import LOOKS_KEPT, Looks, neighbours, with_look


def after(*taken: dict[str, int]) -> Looks:
    looks = Looks()
    for one in taken:
        looks = with_look(looks, one)
    return looks


def test_a_share_is_told_the_most_that_the_others_took_together() -> None:
    looks = after(
        {"a": 3000, "b": 0, "c": 100}, {"a": 0, "b": 5000, "c": 100}, *[{"a": 1, "b": 2, "c": 3}] * (LOOKS_KEPT - 2)
    )

    assert neighbours(looks) == {"a": 5100, "b": 3100, "c": 5000}


def test_nothing_is_told_before_there_were_enough_looks() -> None:
    assert neighbours(after(*[{"a": 1, "b": 2}] * (LOOKS_KEPT - 1))) == {}


def test_what_lies_further_back_than_the_looks_kept_is_forgotten() -> None:
    assert neighbours(after({"a": 1, "b": 9000}, *[{"a": 1, "b": 0}] * LOOKS_KEPT))["a"] == 0


def test_a_neighbour_that_is_gone_counts_for_as_long_as_it_may_be_in_a_window() -> None:
    assert neighbours(after({"a": 0, "gone": 4000}, *[{"a": 0}] * (LOOKS_KEPT - 1))) == {"a": 4000}


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 10_000)), min_size=1, max_size=8))
def test_nobody_is_told_more_than_the_gpu_has_and_nobody_less_than_the_latest_look_showed(
    taken: list[dict[str, int]],
) -> None:
    for name, cores in neighbours(after(*taken)).items():
        latest = sum(taken[-1].values()) - taken[-1][name]
        assert min(10_000, latest) <= cores <= 10_000
