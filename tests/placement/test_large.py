"""Boards beyond 16 GPUs: twins by number, else greedily; always a valid answer, and said which."""

from __future__ import annotations

from random import Random

import pytest

from tests.placement.oracle import Oracle
from tests.placement.worlds import GpuOffer, even_tree, mesh, random_tree, tree, whole_offer
from topoalloc.placement.board import board_of
from topoalloc.placement.choose import Choice, NoChoice, choose
from topoalloc.placement.large import SETS_MAX
from topoalloc.placement.offer import Offer, Want
from topoalloc.placement.twins import set_count, sets_but_for_twins

NOBODY = frozenset[int]()


@pytest.mark.parametrize("kind", ["even", "random"])
def test_few_gpus_of_many_are_the_best(kind: str):
    random = Random(kind)
    machine = even_tree(20, 4, nodes=2, switches=4) if kind == "even" else random_tree(random, 18, 4)
    count, oracle, made = len(machine.gpus), Oracle(machine), board_of(machine)
    for _ in range(25):
        size = random.randint(1, 3)
        free = random.sample(range(count), random.randint(size, count))
        nics = frozenset(random.sample(range(4), random.randint(1, 4)))
        for counts in ((), (1,)):
            want, offer = Want(100 * size, 0, counts), whole_offer(count, free, (nics,) if counts else ())
            answer, best = choose(made, want, offer), oracle.best(want, offer)
            assert isinstance(answer, Choice)
            assert best is not None
            assert (answer.gpus, answer.nics) == (best.gpus, best.nics)


def test_a_switch_full_of_gpus_is_found_among_64():
    machine = even_tree(64, 8, nodes=8, switches=8)
    answer = choose(board_of(machine), Want(800, 0, (1,)), whole_offer(64, range(64), (frozenset({5}),)))
    assert isinstance(answer, Choice)
    assert len({gpu // 8 for gpu in answer.gpus}) == 1


def test_a_limit_that_was_reached_is_said():
    machine = mesh(Random(3), 24)
    answer = choose(board_of(machine), Want(800, 0, ()), whole_offer(24, range(24)))
    assert isinstance(answer, Choice)
    assert dict(answer.terms)["search_complete"] == 0
    assert len(answer.gpus) == 8


def test_a_grown_set_is_far_better_than_a_random_one():
    random, machine = Random(4), mesh(Random(3), 24)
    made = board_of(machine)
    answer = choose(made, Want(800, 0, ()), whole_offer(24, range(24)))
    assert isinstance(answer, Choice)
    guesses = [random.sample(range(24), 8) for _ in range(200)]
    best_guess = max(sum(made.bandwidth[a][b] for a in guess for b in guess) // 2 for guess in guesses)
    assert dict(answer.terms)["link_bandwidth"] > best_guess


def test_fixed_gpus_are_part_of_a_grown_set():
    machine = mesh(Random(3), 24)
    answer = choose(board_of(machine), Want(800, 0, ()), whole_offer(24, range(24), fixed=frozenset({7, 13})))
    assert isinstance(answer, Choice)
    assert {7, 13} <= set(answer.gpus)


@pytest.mark.parametrize("units", [1080, 1200])
def test_a_grown_set_has_the_memory_asked_for(units: int):
    """Eight large GPUs of 150 units are scattered among small ones of 50."""
    machine = mesh(Random(5), 24)
    gpus = tuple(GpuOffer(100, 150 if gpu % 3 == 0 else 50, True) for gpu in range(24))
    answer = choose(board_of(machine), Want(800, units, ()), Offer(gpus, (), NOBODY, NOBODY, ()))
    assert isinstance(answer, Choice)
    assert sum(gpus[gpu].memory_units_free or 0 for gpu in answer.gpus) >= units


def test_memory_that_no_set_has_is_refused_on_large_boards_too():
    machine = mesh(Random(5), 24)
    gpus = tuple(GpuOffer(100, 150 if gpu % 3 == 0 else 50, True) for gpu in range(24))
    assert isinstance(choose(board_of(machine), Want(800, 1201, ()), Offer(gpus, (), NOBODY, NOBODY, ())), NoChoice)


def test_nearly_all_of_64_gpus_are_chosen_by_what_is_left():
    machine = even_tree(64, 8, nodes=8, switches=8)
    answer = choose(board_of(machine), Want(6000, 0, ()), whole_offer(64, range(64)))
    assert isinstance(answer, Choice)
    assert dict(answer.terms)["search_complete"] == 1


def test_a_share_on_a_large_board_is_packed():
    machine = tree([(0, 0, switch) for switch in range(20)])
    gpus = tuple(GpuOffer(40, 320, False, 320) if gpu == 17 else GpuOffer(100, 320, True, 320) for gpu in range(20))
    answer = choose(board_of(machine), Want(30, 10, ()), Offer(gpus, (), NOBODY, NOBODY, ()))
    assert isinstance(answer, Choice)
    assert answer.gpus == (17,)


def test_sets_are_counted_as_they_are_listed():
    classes = [(0, 1, 2), (3, 4), (5,)]
    for size in range(7):
        sets = sets_but_for_twins(classes, size, 1 << 9)
        assert len(sets) == len(set(sets)) == set_count(classes, size)
        assert all(gpus.bit_count() == size + 1 and gpus >> 9 & 1 for gpus in sets)


def test_the_limit_is_above_what_uniform_boards_need_for_pairs():
    assert set_count([tuple(range(8 * c, 8 * c + 8)) for c in range(8)], 2) <= SETS_MAX
