"""The search gives exactly the answer that trying everything gives."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from hypothesis import given

from tests.placement.cases import Case, cases, random_case
from tests.placement.oracle import Oracle, oracle_for
from tests.placement.worlds import (
    EIGHT,
    FOUR_TO_SIX,
    HGX_H100,
    board,
    board_for,
    even_tree,
    mesh,
    random_tree,
    recorded,
    whole_offer,
)
from topoalloc.placement.board import Board, board_of
from topoalloc.placement.choose import Choice, NoChoice, choose
from topoalloc.placement.nearness import positions
from topoalloc.placement.offer import Offer, Want
from topoalloc.topology.machine import Machine


def agree(board: Board, oracle: Oracle, want: Want, offer: Offer) -> None:
    """Search and oracle give the same devices, or both none."""
    answer, best = choose(board, want, offer), oracle.best(want, offer)
    if best is None:
        assert isinstance(answer, NoChoice), (want, offer, answer)
        assert answer.reasons
    else:
        assert isinstance(answer, Choice), (want, offer, answer, best)
        assert (answer.gpus, answer.nics) == (best.gpus, best.nics), (want, offer, answer, best)
        assert dict(answer.terms)["search_complete"] == 1


@pytest.mark.parametrize("name", (*FOUR_TO_SIX, *EIGHT))
def test_whole_gpus_are_the_best_for_every_free_set_and_size(name: str) -> None:
    oracle, count = Oracle(recorded(name)), len(recorded(name).gpus)
    for free, size in product(range(1 << count), range(1, count + 1)):
        agree(board(name), oracle, Want(100 * size, 0, ()), whole_offer(count, positions(free)))


@pytest.mark.parametrize("name", FOUR_TO_SIX)
def test_whole_gpus_are_the_best_for_every_fixed_set(name: str) -> None:
    oracle, count = Oracle(recorded(name)), len(recorded(name).gpus)
    for free, fixed in product(range(1 << count), repeat=2):
        if fixed & ~free == 0 and fixed:
            for size in range(1, count + 1):
                offer = whole_offer(count, positions(free), fixed=frozenset(positions(fixed)))
                agree(board(name), oracle, Want(100 * size, 0, ()), offer)


@pytest.mark.parametrize("name", ("dgx1-v100-4nic-unsorted-columns.topo-m.txt", "aws-p4d.24xlarge.nccl-topo.xml"))
def test_one_gpu_and_one_nic_are_the_best_for_every_state_of_both(name: str) -> None:
    oracle, count, nics = Oracle(recorded(name)), len(recorded(name).gpus), len(recorded(name).nics)
    for free, free_nics in product(range(1 << count), range(1 << nics)):
        offer = whole_offer(count, positions(free), (frozenset(positions(free_nics)),))
        agree(board(name), oracle, Want(100, 0, (1,)), offer)


@given(cases())
def test_any_want_gets_the_best_answer(case: Case) -> None:
    machine, want, offer = case
    agree(board_for(machine), oracle_for(machine), want, offer)


def test_as_many_nics_as_gpus_are_the_best_jointly() -> None:
    random, oracle = Random(11), Oracle(recorded(HGX_H100))
    for _ in range(60):
        free = random.sample(range(8), random.randint(2, 8))
        nics = frozenset(random.sample(range(13), random.randint(3, 10)))
        size = random.randint(1, min(3, len(free)))
        agree(board(HGX_H100), oracle, Want(100 * size, 0, (size,)), whole_offer(8, free, (nics,)))


@given(cases(disjoint=False))
def test_pools_that_share_nics_get_an_answer_exactly_when_one_exists(case: Case) -> None:
    machine, want, offer = case
    answer, best = choose(board_for(machine), want, offer), oracle_for(machine).best(want, offer)
    assert isinstance(answer, Choice) == (best is not None)


def synthetic(count: int) -> dict[str, Machine]:
    """Boards of `count` GPUs of every kind: uniform fabrics, PCIe trees, random trees and meshes."""
    random = Random(count)
    return {
        "uniform fabric": even_tree(count, count // 2, nodes=2, switches=count // 2, nvlinks=6),
        "uniform, one node": even_tree(count, 4, nodes=1, switches=4, nvlinks=6),
        "pcie": even_tree(count, count // 2, nodes=4, switches=4),
        "random tree": random_tree(random, count, count // 2),
        "random mesh": mesh(random, count),
    }


def sampled(count: int, kind: str, states: int) -> None:
    """Compares search and oracle on random states; NICs are few where sets are many, for the oracle's sake."""
    machine = synthetic(count)[kind]
    random, oracle, case_board = Random(f"{count} {kind}"), Oracle(machine), board_of(machine)
    for state in range(states):
        if state % 3 == 0:
            want, offer = random_case(random, machine)
        else:
            size = random.randint(1, count)
            free = random.sample(range(count), random.randint(size, count))
            fixed = frozenset(random.sample(free, random.randint(0, size // 2))) if state % 2 else frozenset[int]()
            want, offer = Want(100 * size, 0, ()), whole_offer(count, free, fixed=fixed)
        agree(case_board, oracle, want, offer)


KINDS = ("uniform fabric", "uniform, one node", "pcie", "random tree", "random mesh")


@pytest.mark.parametrize("kind", KINDS)
def test_ten_gpus_get_the_best_answer(kind: str) -> None:
    sampled(10, kind, states=60)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_sixteen_gpus_get_the_best_answer(kind: str) -> None:
    sampled(16, kind, states=1000)
