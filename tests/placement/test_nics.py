"""NICs: next to their GPUs, and not the ones that other free GPUs need."""

from __future__ import annotations

from tests.placement.worlds import DGX_A100, HGX_H100, TAKEN, UNTOUCHED, board, tree, whole_offer
from topoalloc.placement.board import board_of
from topoalloc.placement.choose import Choice, choose
from topoalloc.placement.offer import Offer, Want

NOBODY = frozenset[int]()


def chosen(name: str, want: Want, offer: Offer) -> Choice:
    answer = choose(board(name), want, offer)
    assert isinstance(answer, Choice)
    return answer


def test_every_gpu_gets_the_nic_one_bridge_away():
    answer = chosen(HGX_H100, Want(400, 0, (4,)), whole_offer(8, range(8), (frozenset(range(13)),)))
    assert answer.nics == (answer.gpus,)  # NIC i is beside GPU i


def test_fewer_nics_than_gpus_go_to_as_many_of_the_gpus():
    answer = chosen(HGX_H100, Want(800, 0, (4,)), whole_offer(8, range(8), (frozenset(range(13)),)))
    assert dict(answer.terms)["nics_one_bridge_away"] == 4


def test_gpus_move_to_where_nics_are_free():
    answer = chosen(HGX_H100, Want(200, 0, (2,)), whole_offer(8, range(8), (frozenset({6, 7, 8}),)))
    assert answer.gpus == (6, 7)
    assert answer.nics == ((6, 7),)


def test_link_bandwidth_comes_before_the_nic():
    # GPU0 and GPU1 have the link, GPU2 and GPU3 the NICs.
    machine = tree(
        [(0, 0, 0), (0, 0, 0), (1, 0, 0), (1, 0, 0)], [(1, 0, 0), (1, 0, 0)], lambda a, b: 4 if (a, b) == (0, 1) else 0
    )
    answer = choose(board_of(machine), Want(200, 0, (2,)), whole_offer(4, range(4), (frozenset({0, 1}),)))
    assert isinstance(answer, Choice)
    assert answer.gpus == (0, 1)


def test_a_container_without_gpus_gets_the_nic_no_free_gpu_needs():
    answer = chosen(HGX_H100, Want(0, 0, (1,)), whole_offer(8, range(8), (frozenset(range(13)),)))
    assert answer.gpus == ()
    assert answer.nics == ((8,),)  # beside no GPU


def test_a_container_without_gpus_gets_the_nic_of_a_gpu_that_is_taken():
    offer = whole_offer(8, [0, 1, 2, 3, 4, 6, 7], (frozenset(range(8)),))
    assert chosen(HGX_H100, Want(0, 0, (1,)), offer).nics == ((5,),)


def test_the_nic_given_already_draws_the_gpu_to_it():
    offer = whole_offer(8, range(8), (NOBODY,), nics_fixed=(frozenset({3}),))
    answer = chosen(HGX_H100, Want(100, 0, (1,)), offer)
    assert answer.gpus == (3,)
    assert answer.nics == ((3,),)


def test_nics_fixed_in_part_are_completed_beside_the_same_gpus():
    offer = whole_offer(8, range(8), (frozenset(range(13)),), nics_fixed=(frozenset({3}),))
    answer = chosen(HGX_H100, Want(200, 0, (2,)), offer)
    assert answer.gpus == (2, 3)
    assert answer.nics == ((2, 3),)


def test_two_pools_are_each_spread_over_the_gpus():
    infiniband, ethernet = frozenset(range(8)), frozenset(range(8, 13))
    offer = whole_offer(8, range(8), (infiniband, ethernet))
    answer = chosen(HGX_H100, Want(200, 0, (2, 1)), offer)
    assert set(answer.gpus) <= {4, 5, 6, 7}  # the socket of the Ethernet NICs
    assert answer.nics[0] == answer.gpus
    assert answer.nics[1] == (8,)


def test_a_nic_of_two_pools_is_given_once():
    machine = tree([(0, 0, 0)], [(0, 0, 0), (0, 0, 1)])
    offer = whole_offer(1, [0], (frozenset({0, 1}), frozenset({0})))
    answer = choose(board_of(machine), Want(100, 0, (1, 1)), offer)
    assert isinstance(answer, Choice)
    assert answer.nics == ((1,), (0,))
    assert dict(answer.terms)["search_complete"] == 0


def test_hundreds_of_virtual_functions_are_taken_from_the_right_card():
    places = [(0, 0, 0), (1, 0, 0)]
    machine = tree(places, [place for place in places for _ in range(256)])
    offer = whole_offer(2, [0, 1], (frozenset(range(256, 512)),))
    answer = choose(board_of(machine), Want(100, 0, (64,)), offer)
    assert isinstance(answer, Choice)
    assert answer.gpus == (1,)
    assert answer.nics == (tuple(range(256, 320)),)


def test_nics_of_taken_gpus_serve_the_free_ones_of_their_switch():
    gpus = tuple(TAKEN if gpu == 0 else UNTOUCHED for gpu in range(8))
    offer = Offer(gpus, (frozenset({0}),), NOBODY, NOBODY, (NOBODY,))
    answer = chosen(DGX_A100, Want(100, 0, (1,)), offer)
    assert answer.gpus == (1,)
