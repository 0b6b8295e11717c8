"""Which devices are out of order and why, from what was seen and said."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.handmade import machine
from topoalloc.agent.health import (
    APPLICATION_XIDS,
    CALM_S,
    Health,
    after_answers,
    after_faults,
    after_look,
    missing_keys,
)
from topoalloc.sharing.inventory import Inventory, inventory_of
from topoalloc.sharing.settings import SharingSettings
from topoalloc.topology.gpu_condition import GpuCondition, GpuFault
from topoalloc.topology.pci import PciAddress

WHOLE = machine()
IGNORED = frozenset(APPLICATION_XIDS)


def _inventory() -> Inventory:
    found = inventory_of(WHOLE, SharingSettings())
    assert isinstance(found, Inventory)
    return found


INVENTORY = _inventory()
ADDRESSES = tuple(gpu.bdf for gpu in WHOLE.gpus if isinstance(gpu.bdf, PciAddress))
KEYS = INVENTORY.gpu_keys
WELL = [GpuCondition(address, False, False, False) for address in ADDRESSES]


def faulted(*faults: GpuFault, health: Health | None = None) -> Health:
    return after_faults(health or Health(), INVENTORY, faults, IGNORED)


def answered(health: Health, now_s: float, *conditions: GpuCondition) -> Health:
    """The driver's answers: these, and of the other GPUs that they are well."""
    said = {condition.address: condition for condition in (*WELL, *conditions)}
    return after_answers(health, INVENTORY, said.values(), now_s)


def test_nothing_is_missing_from_the_same_machine() -> None:
    assert missing_keys(INVENTORY, WHOLE) == frozenset()


def test_a_gpu_that_fell_off_the_bus_is_missing_and_the_others_are_not() -> None:
    lost = replace(WHOLE, gpus=WHOLE.gpus[:2] + WHOLE.gpus[3:])

    assert after_look(Health(), INVENTORY, lost).reasons() == {KEYS[2]: "it is not there"}


def test_a_gpu_that_came_back_is_not_missing() -> None:
    lost = after_look(Health(), INVENTORY, replace(WHOLE, gpus=WHOLE.gpus[1:]))

    assert after_look(lost, INVENTORY, WHOLE).reasons() == {}


def test_a_nic_that_went_away_is_missing() -> None:
    assert missing_keys(INVENTORY, replace(WHOLE, nics=WHOLE.nics[1:])) == {INVENTORY.nic_keys[0]}


def test_a_new_device_is_no_reason_for_anything() -> None:
    fewer = inventory_of(replace(WHOLE, gpus=WHOLE.gpus[:4], links=()), SharingSettings())
    assert isinstance(fewer, Inventory)

    assert missing_keys(fewer, WHOLE) == frozenset()


def test_a_critical_xid_takes_its_gpu_out_and_no_other() -> None:
    assert faulted(GpuFault(ADDRESSES[3], 79)).reasons() == {KEYS[3]: "Xid 79"}


def test_what_a_program_did_wrong_is_no_fault_of_the_gpu() -> None:
    assert faulted(*(GpuFault(ADDRESSES[0], xid) for xid in APPLICATION_XIDS)).reasons() == {}


def test_which_xids_are_ignored_is_configured() -> None:
    fault = GpuFault(ADDRESSES[0], 31)

    assert after_faults(Health(), INVENTORY, [fault], frozenset()).reasons() == {KEYS[0]: "Xid 31"}


def test_a_fault_of_nobody_knows_whom_counts_for_every_gpu() -> None:
    assert faulted(GpuFault(None, 79)).reasons().keys() == set(KEYS)


def test_a_fault_stays_while_the_driver_says_nothing_of_recovery() -> None:
    silent = [GpuCondition(address) for address in ADDRESSES]
    health = faulted(GpuFault(ADDRESSES[0], 79))
    for now_s in (0.0, CALM_S, 100 * CALM_S):
        health = after_answers(health, INVENTORY, silent, now_s)

    assert health.reasons() == {KEYS[0]: "Xid 79"}


def test_a_fault_is_over_once_the_driver_has_long_enough_needed_no_recovery() -> None:
    health = answered(faulted(GpuFault(ADDRESSES[0], 94)), 10.0)

    assert answered(health, 10.0 + CALM_S - 1).reasons() == {KEYS[0]: "Xid 94"}
    assert answered(health, 10.0 + CALM_S).reasons() == {}


def test_another_fault_begins_the_wait_anew() -> None:
    health = answered(faulted(GpuFault(ADDRESSES[0], 94)), 0.0)
    health = answered(faulted(GpuFault(ADDRESSES[0], 95), health=health), 200.0)

    assert answered(health, CALM_S).reasons() == {KEYS[0]: "Xid 95"}
    assert answered(health, 200.0 + CALM_S).reasons() == {}


def test_a_need_of_recovery_in_between_begins_the_wait_anew() -> None:
    health = answered(faulted(GpuFault(ADDRESSES[0], 94)), 0.0)
    health = answered(health, 100.0, GpuCondition(ADDRESSES[0], needs_recovery=True))
    health = answered(health, 200.0)

    assert answered(health, CALM_S).reasons() == {KEYS[0]: "Xid 94"}
    assert answered(health, 200.0 + CALM_S).reasons() == {}


def test_what_the_driver_complains_of_is_out_for_as_long_as_it_complains() -> None:
    for ill in (
        GpuCondition(ADDRESSES[1], lost=True),
        GpuCondition(ADDRESSES[1], rows_failed=True),
        GpuCondition(ADDRESSES[1], needs_recovery=True),
    ):
        health = answered(Health(), 0.0, ill)

        assert health.reasons().keys() == {KEYS[1]}
        assert answered(health, 1.0).reasons() == {}


def test_a_lost_gpu_of_which_the_driver_falls_silent_stays_lost() -> None:
    lost = answered(Health(), 0.0, GpuCondition(ADDRESSES[1], lost=True))
    for conditions in ([], [WELL[0]], [GpuCondition(ADDRESSES[1])]):
        assert after_answers(lost, INVENTORY, conditions, 1.0).reasons() == {KEYS[1]: "the driver has lost it"}
    assert after_answers(lost, INVENTORY, [GpuCondition(ADDRESSES[1], lost=False)], 1.0).reasons() == {}


def test_a_complaint_stands_until_the_driver_says_otherwise_of_that_very_thing() -> None:
    rows = answered(Health(), 0.0, GpuCondition(ADDRESSES[1], False, rows_failed=True))
    recovery = answered(Health(), 0.0, GpuCondition(ADDRESSES[1], False, needs_recovery=True))

    assert answered(rows, 1.0, GpuCondition(ADDRESSES[1], False, None, False)).reasons() == rows.reasons()
    assert answered(rows, 1.0, GpuCondition(ADDRESSES[1], False, False, None)).reasons() == {}
    assert answered(recovery, 1.0, GpuCondition(ADDRESSES[1], False, False, None)).reasons() == recovery.reasons()
    assert answered(recovery, 1.0, GpuCondition(ADDRESSES[1], False, None, False)).reasons() == {}


def test_a_gpu_that_had_to_be_reset_is_well_once_an_old_driver_answers_for_it_again() -> None:
    unanswering = answered(Health(), 0.0, GpuCondition(ADDRESSES[1], needs_recovery=True))

    assert unanswering.reasons() == {KEYS[1]: "it answers nothing before its reset"}
    assert answered(unanswering, 1.0, GpuCondition(ADDRESSES[1], False)).reasons() == {}


def test_only_a_gpu_that_does_not_answer_awaits_a_new_session() -> None:
    ill = [GpuCondition(ADDRESSES[1], lost=True), GpuCondition(ADDRESSES[1], needs_recovery=True)]
    answering = [GpuCondition(ADDRESSES[1], False, True, False), GpuCondition(ADDRESSES[1], False, False, True)]

    assert all(answered(Health(), 0.0, one).awaits_session for one in ill)
    assert not any(answered(Health(), 0.0, one).awaits_session for one in answering)


def test_a_driver_that_says_nothing_makes_nothing_ill() -> None:
    silent = [GpuCondition(address) for address in ADDRESSES]

    assert after_answers(Health(), INVENTORY, silent, 0.0).reasons() == {}
    assert after_answers(Health(), INVENTORY, [], 0.0).reasons() == {}


FAULTS = st.builds(GpuFault, st.sampled_from((None, *ADDRESSES)), st.sampled_from((13, 31, 48, 63, 79, 94, 119)))
CONDITIONS = st.builds(
    GpuCondition,
    st.sampled_from(ADDRESSES),
    st.none() | st.booleans(),
    st.none() | st.booleans(),
    st.none() | st.booleans(),
)
EVENTS = st.lists(
    st.lists(FAULTS, max_size=3)
    | st.tuples(st.floats(0, 2 * CALM_S), st.lists(CONDITIONS, max_size=8, unique_by=lambda c: c.address)),
    max_size=12,
)


@given(EVENTS)
def test_whatever_happens_only_served_devices_are_out_and_calm_ends_it(events: list[object]) -> None:
    health, now_s = Health(), 0.0
    for event in events:
        if isinstance(event, tuple):
            now_s += event[0]
            health = after_answers(health, INVENTORY, event[1], now_s)
        else:
            health = faulted(*event, health=health)  # type: ignore[misc]
        assert health.reasons().keys() <= set(KEYS)

    for later_s in (0.0, CALM_S + 1.0):
        health = answered(health, now_s + later_s)
    assert health.reasons() == {}


@given(st.lists(FAULTS, max_size=6))
def test_a_gpu_is_out_exactly_when_a_fault_that_counts_was_its_or_nobodys(faults: list[GpuFault]) -> None:
    counting = [fault for fault in faults if fault.xid not in IGNORED]
    owners = {fault.address for fault in counting}
    expected = {key for key, at in zip(KEYS, ADDRESSES, strict=True) if None in owners or at in owners}

    assert faulted(*faults).reasons().keys() == expected
