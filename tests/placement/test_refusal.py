"""What an operator is told when nothing fits."""

from __future__ import annotations

import pytest

from tests.placement.worlds import HGX_H100, POWER9, TAKEN, UNTOUCHED, board, whole_offer
from topoalloc.placement.choose import NoChoice, choose
from topoalloc.placement.offer import GpuOffer, Offer, Want

NOBODY = frozenset[int]()


def reasons(want: Want, offer: Offer, name: str = POWER9) -> str:
    answer = choose(board(name), want, offer)
    assert isinstance(answer, NoChoice)
    return "; ".join(answer.reasons)


def test_missing_whole_gpus_are_named_with_those_that_would_have_to_be_free():
    told = reasons(Want(300, 0, ()), whole_offer(4, [1]))
    assert told == (
        "3 whole GPUs asked, 1 can be given (GPU1); 2 more of these would have to be free: "
        "held by others or not offered: GPU0, GPU2, GPU3"
    )


def test_gpus_ruled_out_by_the_other_half_are_told_apart_from_held_ones():
    offer = Offer((UNTOUCHED, TAKEN, UNTOUCHED, UNTOUCHED), (), NOBODY, frozenset({2, 3}), ())
    told = reasons(Want(200, 0, ()), offer)
    assert "held by others or not offered: GPU1" in told
    assert "ruled out by what the container already has: GPU2, GPU3" in told


def test_more_gpus_than_the_node_has():
    assert reasons(Want(800, 0, ()), whole_offer(4, range(4))) == "8 whole GPUs asked, the node has 4"


def test_a_share_names_what_each_gpu_lacks_nearest_first():
    gpus = (GpuOffer(50, 100, False), GpuOffer(20, 10, False), GpuOffer(70, 10, False), TAKEN)
    told = reasons(Want(60, 20, ()), Offer(gpus, (), NOBODY, NOBODY, ()))
    assert told == (
        "no GPU has 60 cores and 20 memory units free at once: GPU0 lacks 10 cores, GPU2 lacks 10 memory units, "
        "GPU1 lacks 40 cores and 10 memory units, GPU3 lacks 60 cores and 20 memory units"
    )


def test_a_share_bound_to_a_gpu_names_what_that_gpu_lacks():
    offer = Offer((TAKEN, *[UNTOUCHED] * 3), (), frozenset({0}), frozenset({1, 2, 3}), ())
    assert reasons(Want(30, 0, ()), offer) == "30 cores asked on GPU0, which lacks 30 cores"


def test_a_share_bound_to_two_gpus():
    offer = Offer((UNTOUCHED,) * 4, (), frozenset({0, 1}), NOBODY, ())
    assert "a share lies on one GPU, but GPU0, GPU1 would all have to be part of it" in reasons(Want(30, 0, ()), offer)


def test_a_share_where_no_gpu_may_be_used():
    offer = Offer((UNTOUCHED,) * 4, (), NOBODY, frozenset(range(4)), ())
    assert reasons(Want(30, 0, ()), offer) == "30 cores asked, but no GPU may be used"


def test_a_bound_gpu_that_is_closed():
    offer = Offer((UNTOUCHED,) * 4, (), frozenset({0}), frozenset({0}), ())
    assert "GPU0, which has room and is ruled out" in reasons(Want(30, 0, ()), offer)


def test_a_fixed_gpu_that_others_hold():
    told = reasons(Want(200, 0, ()), whole_offer(4, [1, 2, 3], fixed=frozenset({0})))
    assert told == "GPU0 must be part of it but cannot be given whole"


def test_more_fixed_gpus_than_asked():
    told = reasons(Want(100, 0, ()), whole_offer(4, range(4), fixed=frozenset({0, 1})))
    assert told == "GPU0, GPU1 would all have to be part of it, but 1 GPU asked"


def test_memory_that_no_set_of_gpus_has():
    told = reasons(Want(200, 641, ()), whole_offer(4, range(4)))
    assert told == "641 memory units asked, but 2 GPUs here have 640 at most"


def test_memory_where_none_is_served():
    offer = Offer((GpuOffer(100, None, True),) * 4, (), NOBODY, NOBODY, ())
    assert "not served on this node" in reasons(Want(0, 5, ()), offer)


def test_missing_nics_are_counted():
    told = reasons(Want(0, 0, (3,)), whole_offer(4, [], (frozenset({2}),)))
    assert told == "3 NICs asked, 1 free (NIC2); 2 more would have to be free"


def test_the_pool_that_lacks_nics_is_named_by_its_place():
    told = reasons(Want(0, 0, (1, 1)), whole_offer(4, [], (frozenset({0}), NOBODY)))
    assert told == "1 NIC of NIC pool 2 asked, 0 free; 1 more would have to be free"


def test_pools_that_lack_nics_only_together():
    told = reasons(Want(0, 0, (1, 1)), whole_offer(4, [], (frozenset({0}), frozenset({0}))))
    assert told == "2 NICs asked from pools that have 1 free together (NIC0)"


def test_a_nic_fixed_for_two_pools():
    offer = whole_offer(4, [], (NOBODY, NOBODY), nics_fixed=(frozenset({0}), frozenset({0})))
    assert "NIC0 would have to serve two NIC pools" in reasons(Want(0, 0, (1, 1)), offer)


def test_more_fixed_nics_than_asked():
    offer = whole_offer(4, [], (NOBODY,), nics_fixed=(frozenset({0, 1}),))
    assert reasons(Want(0, 0, (1,)), offer) == "NIC0, NIC1 would all have to be part of it, but 1 NIC asked"


def test_every_reason_is_given_at_once():
    told = reasons(Want(300, 0, (1,)), whole_offer(4, [1], (NOBODY,)))
    assert "3 whole GPUs asked" in told
    assert "1 NIC asked" in told


def test_long_lists_of_devices_are_cut():
    told = reasons(Want(0, 0, (13,)), whole_offer(8, [], (frozenset(range(12)),)), HGX_H100)
    assert "and 4 more" in told


@pytest.mark.parametrize("cores", [101, 150, 250])
def test_numbers_between_whole_gpus(cores: int):
    assert "neither a share" in reasons(Want(cores, 0, ()), whole_offer(4, range(4)))


@pytest.mark.parametrize("want", [Want(-1, 0, ()), Want(0, -1, ()), Want(0, 0, (-1,))])
def test_negative_amounts(want: Want):
    pools = tuple(NOBODY for _ in want.nics)
    assert reasons(want, whole_offer(4, range(4), pools)) == "a negative amount cannot be asked"


def test_an_offer_for_another_machine():
    assert "another machine" in reasons(Want(100, 0, ()), whole_offer(8, range(8)))


def test_more_pools_than_are_looked_at():
    want = Want(0, 0, (1,) * 9)
    assert "at most 8" in reasons(want, whole_offer(4, range(4), (NOBODY,) * 9))


def test_fixed_gpus_of_a_container_that_asks_for_none():
    offer = whole_offer(4, range(4), (frozenset({0}),), fixed=frozenset({1}))
    assert reasons(Want(0, 0, (1,)), offer) == "GPU1 would have to be part of it, but no GPU is asked"
