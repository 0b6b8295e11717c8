"""Whole GPUs on real machines: what an operator would say is right."""

from __future__ import annotations

import pytest

from tests.placement.worlds import (
    DGX_A100,
    HGX_H100,
    PCIE_5,
    PCIE_UNEVEN,
    POWER9,
    TAKEN,
    UNTOUCHED,
    V100_MESH,
    board,
    even_tree,
    tree,
    whole_offer,
)
from topoalloc.placement.board import board_of
from topoalloc.placement.choose import MEANINGS, Choice, NoChoice, choose, value_terms
from topoalloc.placement.offer import GpuOffer, Offer, Want


def chosen(name: str, cores: int, free: list[int], **more: object) -> Choice:
    made = board(name)
    answer = choose(made, Want(cores, 0, ()), whole_offer(len(made.gpu_ids), free, **more))  # type: ignore[arg-type]
    assert isinstance(answer, Choice)
    return answer


def test_two_gpus_of_the_mesh_share_a_double_link():
    links = {frozenset(pair) for pair in ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))}
    assert frozenset(chosen(V100_MESH, 200, list(range(8))).gpus) in links


def test_four_gpus_of_the_mesh_are_one_of_its_quads():
    assert chosen(V100_MESH, 400, list(range(8))).gpus in ((0, 1, 2, 3), (4, 5, 6, 7))


def test_one_gpu_of_a_broken_quad_is_taken_where_it_breaks_least():
    # The second quad has lost GPU4 and GPU5: its rest is worth less than the whole first quad.
    assert chosen(V100_MESH, 100, [0, 1, 2, 3, 6]).gpus == (6,)


def test_one_gpu_leaves_the_bridged_pair_alone():
    assert chosen(POWER9, 100, [0, 2, 3]).gpus == (0,)


def test_one_gpu_on_a_uniform_fabric_is_taken_beside_a_lost_neighbour():
    # GPU0's switch mate is gone, so GPU1 breaks no pair.
    assert chosen(HGX_H100, 100, [1, 2, 3, 4, 5, 6, 7]).gpus == (1,)


def test_the_lone_gpu_of_the_other_socket_goes_first():
    assert chosen(PCIE_5, 100, [0, 1, 2, 3, 4]).gpus == (0,)


def test_two_gpus_come_from_below_one_host_bridge():
    assert chosen(PCIE_UNEVEN, 200, [0, 1, 2, 5]).gpus == (1, 2)


def test_on_a_uniform_fabric_sets_stay_inside_one_numa_node():
    assert chosen(DGX_A100, 200, [0, 2, 3, 6]).gpus == (2, 3)


def test_on_a_uniform_fabric_sets_stay_inside_one_socket():
    # NUMA nodes 0 and 1 are one socket, 2 and 3 the other.
    machine = tree([(0, 0, 0), (2, 0, 0), (3, 0, 0)], nvlinks=lambda a, b: 12)
    answer = choose(board_of(machine), Want(200, 0, ()), whole_offer(3, [0, 1, 2]))
    assert isinstance(answer, Choice)
    assert answer.gpus == (1, 2)


def test_gpus_that_must_be_part_of_it_are_and_the_rest_fits_them():
    assert chosen(V100_MESH, 200, list(range(8)), fixed=frozenset({5})).gpus in ((1, 5), (5, 6))


def test_closed_gpus_are_not_given():
    offer = Offer((UNTOUCHED,) * 8, (), frozenset(), frozenset({0, 1, 2, 3}), ())
    answer = choose(board(V100_MESH), Want(400, 0, ()), offer)
    assert isinstance(answer, Choice)
    assert answer.gpus == (4, 5, 6, 7)


def test_gpus_that_others_could_have_count_as_left_over_though_not_offered():
    # GPU0 and GPU3 are both offered; GPU4's free partner of GPU0 makes GPU3 the cheaper loss.
    offer = whole_offer(8, [0, 3])
    offer = Offer(offer.gpus, (), frozenset(), frozenset(), (), gpus_idle=frozenset({0, 3, 4}))
    answer = choose(board(V100_MESH), Want(100, 0, ()), offer)
    assert isinstance(answer, Choice)
    assert answer.gpus == (3,)


def test_a_gpu_is_given_where_no_nic_is_left_before_one_beside_a_nic():
    offer = whole_offer(8, range(8), nics_idle=frozenset({0, 1, 2, 3, 4, 5, 6}))
    answer = choose(board(HGX_H100), Want(100, 0, ()), offer)
    assert isinstance(answer, Choice)
    assert answer.gpus == (7,)


def test_memory_beyond_some_gpus_is_found_on_others():
    small, large = GpuOffer(100, 160, True), GpuOffer(100, 320, True)
    offer = Offer((small, small, large, large), (), frozenset(), frozenset(), ())
    made = board_of(even_tree(4, 1, nodes=1, switches=1))
    answer = choose(made, Want(200, 400, ()), offer)
    assert isinstance(answer, Choice)
    assert sum(offer.gpus[gpu].memory_units_free or 0 for gpu in answer.gpus) >= 400


def test_whole_gpus_without_served_memory_need_none():
    offer = Offer((GpuOffer(100, None, True),) * 2, (), frozenset(), frozenset(), ())
    made = board_of(even_tree(2, 1, nodes=1, switches=1))
    assert isinstance(choose(made, Want(200, 0, ()), offer), Choice)


def test_terms_come_in_the_order_in_which_they_decide_and_are_explained():
    answer = choose(board(HGX_H100), Want(200, 0, (2,)), whole_offer(8, range(8), (frozenset(range(13)),)))
    assert isinstance(answer, Choice)
    names = [name for name, _ in answer.terms]
    assert names[0] == "link_bandwidth"
    assert names[1:5] == [
        "nics_on_same_switch",
        "nics_within_host_bridge",
        "nics_within_numa_node",
        "nics_one_bridge_away",
    ]
    assert names[5:7] == ["leftover_bandwidth", "locality"]
    assert names[-2:] == ["leftover_locality", "search_complete"]
    assert set(names) <= set(MEANINGS)


def test_any_set_can_be_valued():
    terms = dict(value_terms(board(HGX_H100), (0, 1), ((0, 1),)))
    assert terms["link_bandwidth"] == 18 * 20  # the table does not tell the model
    assert terms["nics_one_bridge_away"] == 2


def test_the_terms_of_a_choice_agree_with_those_of_its_set():
    answer = choose(board(HGX_H100), Want(300, 0, (3,)), whole_offer(8, [0, 3, 4, 6], (frozenset(range(13)),)))
    assert isinstance(answer, Choice)
    assert set(value_terms(board(HGX_H100), answer.gpus, answer.nics)) <= set(answer.terms)


@pytest.mark.parametrize("cores", [100, 800])
def test_no_free_gpu_is_no_choice(cores: int):
    offer = Offer((TAKEN,) * 8, (), frozenset(), frozenset(), ())
    assert isinstance(choose(board(HGX_H100), Want(cores, 0, ()), offer), NoChoice)
