"""Whole lives of a node, seeded: every promise holds in every one of them."""

from __future__ import annotations

import pytest

from tests.simulation.world import MACHINES, Tally, live

LIVES_SLOW = 1000
PODS_SLOW = 200
PODS_QUICK = 40


def check(tally: Tally) -> None:
    assert tally.faults == []
    assert tally.admitted > 0


@pytest.mark.parametrize("seed", range(len(MACHINES)))
def test_a_short_life_on_each_machine_keeps_every_promise(seed: int):
    check(live(seed, PODS_QUICK))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(LIVES_SLOW))
def test_a_long_life_keeps_every_promise(seed: int):
    check(live(seed, PODS_SLOW))
