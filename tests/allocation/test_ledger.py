"""What a PodResources list proves and disproves, and what a pod's end releases."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from topoalloc.allocation.demand import PodDemand
from topoalloc.allocation.ledger import (
    RECORD_GRACE_S,
    Conversation,
    Holding,
    ListedContainer,
    Listing,
    Owner,
    State,
    confirmed_ids,
    listed,
    only_active,
    with_holding,
)

APP = Owner("ns", "pod", "app")
UNNAMED = Owner(serial=1)
YOUNG = Holding(frozenset({"c1"}), confirmed=False, call=5, granted_at_s=100.0)


def state_of(owner: Owner, holding: Holding) -> State:
    return State(holdings=MappingProxyType({owner: holding}), calls=5)


def listing(*shown: tuple[str, str, set[str]], calls: int = 5, at_s: float = 100.1) -> Listing:
    return Listing(tuple(ListedContainer("ns", pod, name, frozenset(ids)) for pod, name, ids in shown), calls, at_s)


def test_a_grant_that_is_shown_is_confirmed():
    state = listed(state_of(APP, YOUNG), listing(("pod", "app", {"c1"})))

    assert state.holdings[APP].confirmed


def test_a_list_made_before_the_kubelet_recorded_a_grant_disproves_nothing():
    state = listed(state_of(APP, YOUNG), listing(("pod", "app", set())))

    assert state.holdings[APP].ids == {"c1"}


def test_a_list_begun_after_a_later_call_disproves_a_grant_it_does_not_show():
    state = listed(state_of(APP, YOUNG), listing(("pod", "app", set()), calls=6))

    assert APP not in state.holdings


def test_a_list_begun_after_the_grace_disproves_a_grant_it_does_not_show():
    state = listed(state_of(APP, YOUNG), listing(at_s=100.0 + RECORD_GRACE_S))

    assert APP not in state.holdings


def test_a_confirmed_holding_ends_as_soon_as_it_is_not_shown():
    state = listed(state_of(APP, replace(YOUNG, confirmed=True)), listing())

    assert APP not in state.holdings


def test_what_we_never_granted_is_held_by_whom_the_kubelet_says():
    state = listed(State(), listing(("pod", "app", {"c1", "c2"})))

    assert confirmed_ids(state) == {APP: {"c1", "c2"}}


def test_a_second_half_granted_while_the_list_was_made_is_kept():
    halves = replace(YOUNG, ids=frozenset({"c1", "m1"}))

    state = listed(state_of(APP, halves), listing(("pod", "app", {"c1"})))

    assert state.holdings[APP].ids == {"c1", "m1"}
    assert not state.holdings[APP].confirmed


def test_an_unnamed_grant_gets_the_name_of_the_container_that_shows_it():
    talk = Conversation(UNNAMED, "", None, None, frozenset({"c1"}), 100.0)
    state = replace(state_of(UNNAMED, YOUNG), conversation=talk)

    state = listed(state, listing(("pod", "app", {"c1"})))

    assert set(state.holdings) == {APP}
    assert state.conversation is not None
    assert state.conversation.owner == APP


def test_what_an_init_container_leaves_over_stays_with_its_pod_until_that_ends():
    init = Owner("ns", "pod", "init")
    state = state_of(init, replace(YOUNG, ids=frozenset({"c1", "c2"}), init=True))

    waiting = listed(state, listing(("pod", "app", set()), calls=9))
    assert waiting.holdings[init].ids == {"c1", "c2"}
    handed_on = listed(state, listing(("pod", "app", {"c2"}), calls=9))
    assert handed_on.holdings[init].ids == {"c1"}


def speaking(owner: Owner, *, listed_before: bool) -> State:
    talk = Conversation(owner, "", None, None, frozenset({"c1"}), 100.0, listed=listed_before)
    pods = frozenset({("ns", "old")})
    return replace(state_of(owner, YOUNG), conversation=talk, pods_listed=pods)


def test_a_pod_that_was_not_listed_before_ends_the_conversation():
    shown = listing(("pod", "app", {"c1"}), ("next", "app", set()))

    state = listed(replace(speaking(APP, listed_before=True), pods_listed=frozenset({("ns", "pod")})), shown)

    assert state.conversation is None


def test_a_pod_goes_on_speaking_when_the_list_shows_it_for_the_first_time():
    state = listed(speaking(UNNAMED, listed_before=False), listing(("old", "app", set()), ("pod", "app", {"c1"})))

    assert state.conversation is not None
    assert state.conversation.owner == APP


def test_an_init_container_goes_on_speaking_when_its_pod_is_listed_for_the_first_time():
    state = listed(speaking(UNNAMED, listed_before=False), listing(("old", "app", set()), ("pod", "app", set())))

    assert state.conversation is not None
    assert state.conversation.owner == UNNAMED


def test_an_unnamed_speaker_whose_pod_was_listed_before_is_not_the_new_pod():
    state = listed(speaking(UNNAMED, listed_before=True), listing(("old", "app", set()), ("pod", "app", set())))

    assert state.conversation is None


def test_the_conversation_ends_with_the_kubelet_that_led_it():
    spoke = listed(speaking(APP, listed_before=True), replace(listing(("pod", "app", {"c1"}), calls=9), kubelet=1))
    talk = speaking(APP, listed_before=True).conversation

    assert listed(replace(spoke, conversation=talk), replace(listing(calls=9), kubelet=1)).conversation is not None
    assert listed(replace(spoke, conversation=talk), replace(listing(calls=9), kubelet=2)).conversation is None


def test_a_kubelet_that_has_just_started_does_not_disprove_what_the_one_before_vouched_for():
    confirmed = state_of(APP, replace(YOUNG, confirmed=True, kubelet=1))

    state = listed(confirmed, replace(listing(("other", "app", {"c2"}), calls=9), partial=True, kubelet=2))

    assert state.holdings[APP].ids == {"c1"}


def test_a_kubelet_that_has_just_started_disproves_what_it_vouched_for_itself():
    shown = replace(listing(("pod", "app", {"c1"}), calls=9), partial=True, kubelet=2)
    state = listed(state_of(APP, replace(YOUNG, confirmed=True, kubelet=1)), shown)

    state = listed(state, replace(listing(("other", "app", {"c2"}), calls=9), partial=True, kubelet=2))

    assert APP not in state.holdings


def test_an_init_container_of_a_pod_that_is_gone_keeps_nothing():
    init = Owner("ns", "pod", "init")

    state = listed(state_of(init, replace(YOUNG, init=True)), listing(calls=9))

    assert init not in state.holdings


def test_a_pod_that_left_the_roster_holds_nothing():
    assert only_active(state_of(APP, YOUNG), ()).holdings == {}


def test_a_pod_that_is_active_keeps_its_devices_and_gets_its_uid():
    state = only_active(state_of(APP, YOUNG), (PodDemand("ns", "pod", "uid-1", ()),))

    assert state.holdings[APP].uid == "uid-1"


def test_a_successor_of_the_same_name_does_not_inherit():
    state = only_active(state_of(APP, replace(YOUNG, uid="uid-0")), (PodDemand("ns", "pod", "uid-1", ()),))

    assert state.holdings == {}


def test_an_id_has_one_owner_the_latest():
    state = with_holding(state_of(APP, YOUNG), UNNAMED, YOUNG)

    assert set(state.holdings) == {UNNAMED}
