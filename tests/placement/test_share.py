"""Shares: one GPU, beside the NIC, packed tight."""

from __future__ import annotations

import pytest

from tests.placement.worlds import HGX_H100, POWER9, UNTOUCHED, V100_MESH, board
from topoalloc.placement.choose import Choice, choose
from topoalloc.placement.offer import GpuOffer, Offer, Want

NOBODY = frozenset[int]()


def share(cores_free: int, memory_units_free: int | None = 320) -> GpuOffer:
    return GpuOffer(cores_free, memory_units_free, False, 320)


def chosen(name: str, want: Want, gpus: list[GpuOffer], nics: frozenset[int] | None = None) -> Choice:
    pools = () if nics is None else (nics,)
    offer = Offer(tuple(gpus), pools, NOBODY, NOBODY, tuple(NOBODY for _ in pools))
    answer = choose(board(name), want, offer)
    assert isinstance(answer, Choice)
    return answer


def test_the_fullest_gpu_that_fits_is_taken():
    gpus = [UNTOUCHED, share(70), share(30), share(10)]
    assert chosen(POWER9, Want(30, 0, ()), gpus).gpus == (2,)


def test_fullest_counts_cores_and_memory_alike():
    gpus = [UNTOUCHED, share(50, 300), share(55, 40), UNTOUCHED]
    assert chosen(POWER9, Want(30, 20, ()), gpus).gpus == (2,)


def test_a_gpu_too_full_in_memory_is_passed_over():
    gpus = [UNTOUCHED, share(50, 10), share(90, 300), UNTOUCHED]
    assert chosen(POWER9, Want(30, 20, ()), gpus).gpus == (2,)


def test_memory_alone_is_packed_by_the_same_rule():
    gpus = [UNTOUCHED, share(50, 300), share(50, 100), UNTOUCHED]
    assert chosen(POWER9, Want(0, 60, ()), gpus).gpus == (2,)


def test_a_gpu_in_use_is_taken_before_an_untouched_one():
    # GPU1 has all cores free but some memory taken.
    gpus = [UNTOUCHED, GpuOffer(100, 319, False, 320), UNTOUCHED, UNTOUCHED]
    assert chosen(POWER9, Want(1, 1, ()), gpus).gpus == (1,)


def test_a_new_gpu_is_opened_where_it_breaks_no_good_set():
    gpus = [UNTOUCHED if gpu in (0, 1, 2, 3, 6) else share(0, 0) for gpu in range(8)]
    assert chosen(V100_MESH, Want(50, 0, ()), gpus).gpus == (6,)


def test_the_nic_beside_the_gpu_comes_before_packing():
    gpus = [share(40) if gpu == 0 else UNTOUCHED for gpu in range(8)]
    answer = chosen(HGX_H100, Want(40, 0, (1,)), gpus, nics=frozenset({6}))
    assert answer.gpus == (6,)
    assert answer.nics == ((6,),)


def test_of_gpus_equally_near_a_nic_the_fullest_is_taken():
    gpus = [UNTOUCHED, share(60), *[UNTOUCHED] * 6]
    answer = chosen(HGX_H100, Want(40, 0, (1,)), gpus, nics=frozenset({0, 1}))
    assert answer.gpus == (1,)
    assert answer.nics == ((1,),)


def test_two_nics_of_a_share_are_both_beside_its_gpu():
    answer = chosen(HGX_H100, Want(40, 0, (2,)), [UNTOUCHED] * 8, nics=frozenset(range(13)))
    assert dict(answer.terms)["nics_on_same_switch"] == 2


def test_without_a_memory_resource_cores_alone_decide():
    gpus = [GpuOffer(100, None, True), share(50, None), share(45, None), share(20, None)]
    assert chosen(POWER9, Want(40, 0, ()), gpus).gpus == (2,)


@pytest.mark.parametrize("gpu", range(4))
def test_the_other_half_decides_the_gpu(gpu: int):
    others = frozenset(range(4)) - {gpu}
    offer = Offer((UNTOUCHED, share(60), share(50), share(90)), (), frozenset({gpu}), others, ())
    answer = choose(board(POWER9), Want(40, 10, ()), offer)
    assert isinstance(answer, Choice)
    assert answer.gpus == (gpu,)


def test_without_the_size_of_a_gpu_the_freest_one_stands_for_it():
    gpus = [GpuOffer(50, 160, False), GpuOffer(40, 320, False), GpuOffer(0, 0, False), GpuOffer(0, 0, False)]
    # 20 % of cores and 49 % of memory stay free on GPU0, 10 % and 99 % on GPU1.
    assert chosen(POWER9, Want(30, 1, ()), gpus).gpus == (0,)
