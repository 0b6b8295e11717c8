"""What holds for every machine, want and offer."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.placement.cases import Case, cases, small_machines
from tests.placement.worlds import board_for, whole_offer
from topoalloc.placement.board import board_of
from topoalloc.placement.choose import MEANINGS, Choice, NoChoice, choose
from topoalloc.placement.offer import Offer, Want
from topoalloc.topology.machine import Link, Machine, Unknown


def answer_to(case: Case) -> Choice:
    machine, want, offer = case
    answer = choose(board_for(machine), want, offer)
    assume(isinstance(answer, Choice))
    assert isinstance(answer, Choice)
    return answer


@given(cases())
def test_as_many_gpus_as_asked_and_never_a_share_across_two(case: Case):
    _, want, _ = case
    size = want.cores // 100 or int(want.cores > 0 or want.memory_units > 0)
    assert len(answer_to(case).gpus) == size


@given(cases())
def test_gpus_are_offered_fixed_ones_included_closed_ones_not(case: Case):
    _, want, offer = case
    chosen = set(answer_to(case).gpus)
    assert offer.gpus_fixed <= chosen
    assert not chosen & offer.gpus_closed
    for gpu in chosen:
        here = offer.gpus[gpu]
        assert here.whole_free if want.cores >= 100 else here.cores_free >= want.cores


@given(cases())
def test_the_memory_asked_for_is_there(case: Case):
    _, want, offer = case
    units = sum(offer.gpus[gpu].memory_units_free or 0 for gpu in answer_to(case).gpus)
    assert units >= want.memory_units


@given(st.one_of(cases(), cases(disjoint=False)))
def test_nics_are_offered_exactly_as_many_as_asked_and_none_twice(case: Case):
    _, want, offer = case
    answer = answer_to(case)
    taken = [nic for pool in answer.nics for nic in pool]
    assert len(set(taken)) == len(taken)
    for count, pool, free, fixed in zip(want.nics, answer.nics, offer.nics_free, offer.nics_fixed, strict=True):
        assert len(pool) == count
        assert fixed <= set(pool) <= free | fixed
        assert list(pool) == sorted(pool)


@given(st.one_of(cases(), cases(disjoint=False)))
def test_a_refusal_has_reasons_of_one_line_each(case: Case):
    machine, want, offer = case
    answer = choose(board_for(machine), want, offer)
    if isinstance(answer, NoChoice):
        assert answer.reasons
        assert all(reason and "\n" not in reason for reason in answer.reasons)


@given(cases())
def test_every_term_is_explained(case: Case):
    assert all(name in MEANINGS for name, _ in answer_to(case).terms)


@given(cases())
def test_the_same_question_gets_the_same_answer(case: Case):
    machine, want, offer = case
    used = board_of(machine)
    first = choose(used, want, offer)
    assert choose(used, want, offer) == first == choose(board_of(machine), want, offer)


@given(st.data())
def test_an_answer_does_not_depend_on_what_was_asked_before(data: st.DataObject):
    machine, want, offer = data.draw(cases())
    used = board_of(machine)
    for _ in range(3):
        other_machine, other_want, other_offer = data.draw(cases())
        if len(other_machine.gpus) == len(machine.gpus) and len(other_machine.nics) == len(machine.nics):
            choose(used, other_want, other_offer)
    assert choose(used, want, offer) == choose(board_of(machine), want, offer)


@given(cases(), st.integers(0, 2**32 - 1))
def test_renumbering_devices_changes_no_term_of_the_answer(case: Case, seed: int):
    machine, want, offer = case
    gpus, nics = list(range(len(machine.gpus))), list(range(len(machine.nics)))
    Random(seed).shuffle(gpus)
    Random(seed).shuffle(nics)
    answer = answer_to(case)
    moved = choose(board_of(renumbered(machine, gpus, nics)), want, renumbered_offer(offer, gpus, nics))
    assert isinstance(moved, Choice)
    assert moved.terms == answer.terms


def renumbered(machine: Machine, gpus: list[int], nics: list[int]) -> Machine:
    """The machine with its devices in another order; `gpus[i]` is the old position of the new GPU i."""
    return replace(
        machine,
        gpus=tuple(machine.gpus[old] for old in gpus),
        nics=tuple(machine.nics[old] for old in nics),
    )


def renumbered_offer(offer: Offer, gpus: list[int], nics: list[int]) -> Offer:
    def moved(members: frozenset[int], order: list[int]) -> frozenset[int]:
        return frozenset(order.index(member) for member in members)

    return Offer(
        gpus=tuple(offer.gpus[old] for old in gpus),
        nics_free=tuple(moved(pool, nics) for pool in offer.nics_free),
        gpus_fixed=moved(offer.gpus_fixed, gpus),
        gpus_closed=moved(offer.gpus_closed, gpus),
        nics_fixed=tuple(moved(pool, nics) for pool in offer.nics_fixed),
        gpus_idle=None if offer.gpus_idle is None else moved(offer.gpus_idle, gpus),
        nics_idle=None if offer.nics_idle is None else moved(offer.nics_idle, nics),
    )


@given(small_machines(), st.data())
def test_more_links_never_make_the_best_set_slower(machine: Machine, data: st.DataObject):
    pairs = [number for number, link in enumerate(machine.links) if link.a[0] == link.b[0] == "G"]
    assume(pairs)
    number = data.draw(st.sampled_from(pairs))
    better = replace(
        machine, links=(*machine.links[:number], more(machine.links[number]), *machine.links[number + 1 :])
    )
    size = data.draw(st.integers(2, len(machine.gpus)))
    offer = whole_offer(len(machine.gpus), range(len(machine.gpus)))
    before, after = (choose(board_of(made), Want(100 * size, 0, ()), offer) for made in (machine, better))
    assert isinstance(before, Choice)
    assert isinstance(after, Choice)
    assert dict(after.terms)["link_bandwidth"] >= dict(before.terms)["link_bandwidth"]


def more(link: Link) -> Link:
    """The same pair with two more links."""
    return replace(link, nvlinks=2 if isinstance(link.nvlinks, Unknown) else link.nvlinks + 2)


@given(cases())
def test_one_more_free_gpu_never_turns_a_choice_into_a_refusal(case: Case):
    machine, want, offer = case
    answer_to(case)
    for position, here in enumerate(offer.gpus):
        freed = replace(here, cores_free=100, memory_units_free=here.memory_units, whole_free=True)
        wider = replace(offer, gpus=(*offer.gpus[:position], freed, *offer.gpus[position + 1 :]))
        assert isinstance(choose(board_for(machine), want, wider), Choice)
