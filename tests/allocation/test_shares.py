"""The shares that follow from the ledger, and from the kubelet's checkpoint beside it."""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType

from hypothesis import given
from hypothesis import strategies as st

from tests.handmade import GIB, machine
from topoalloc.allocation.ledger import CheckpointEntry, Holding, Owner, State
from topoalloc.allocation.shares import is_granted_anew, shares_held, shares_on_record
from topoalloc.sharing.inventory import Inventory, ResourceKind, inventory_of
from topoalloc.sharing.settings import SharingSettings
from topoalloc.sharing.share import share_name

NODE = inventory_of(machine(numa=1, switches=1, memory_bytes=4 * GIB), SharingSettings())
assert isinstance(NODE, Inventory)
INVENTORY: Inventory = NODE
IDS = sorted(INVENTORY.devices)
CORES = [device.id for device in INVENTORY.resources[0].devices if device.position == 0]


def holding(ids: frozenset[str], uid: str = "uid") -> Holding:
    return Holding(ids, confirmed=True, call=0, granted_at_s=0.0, uid=uid)


@st.composite
def states(draw: st.DrawFn) -> State:
    """Any ids of the node, each held by one of a few owners or nobody."""
    chosen = draw(st.lists(st.sampled_from(IDS), unique=True, max_size=60))
    owners = draw(st.lists(st.integers(0, 5), min_size=len(chosen), max_size=len(chosen)))
    table = {
        Owner("ns", f"p{number}", "app") if number % 2 else Owner(serial=number + 1): holding(
            frozenset(i for i, owner in zip(chosen, owners, strict=True) if owner == number)
        )
        for number in range(6)
    }
    return State(holdings=MappingProxyType({owner: held for owner, held in table.items() if held.ids}))


def cores_of(ids: frozenset[str]) -> Counter[int]:
    return Counter(INVENTORY.devices[i].position for i in ids if INVENTORY.devices[i].kind is ResourceKind.CORE)


@given(states())
def test_every_holding_of_cores_of_one_gpu_is_one_share_and_nothing_else_is(state: State) -> None:
    found = shares_held(INVENTORY, state)

    limited = [h for h in state.holdings.values() if len(c := cores_of(h.ids)) == 1 and sum(c.values()) < 100]
    assert len(found) == len(limited)
    assert sorted(share.cores for share in found.values()) == sorted(sum(cores_of(h.ids).values()) for h in limited)
    assert all(name == share.name for name, share in found.items())


@given(states())
def test_a_name_is_that_of_a_core_its_container_holds(state: State) -> None:
    held = {share_name(device_id) for held in state.holdings.values() for device_id in held.ids}

    assert shares_held(INVENTORY, state).keys() <= held


def test_what_is_on_record_alone_is_put_together_from_its_resources() -> None:
    memory = frozenset(i for i in IDS if "-m000" in i and i.startswith(INVENTORY.gpu_keys[0]))
    entries = (CheckpointEntry("u", "app", frozenset(CORES[:30])), CheckpointEntry("u", "app", memory))

    (share,) = shares_on_record(INVENTORY, entries, {}).values()

    assert (share.cores, share.memory_bytes, share.pod_uid) == (30, 10 * 256 * 1024**2, "u")


def test_what_the_ledger_holds_is_not_put_aside_for_what_is_on_record() -> None:
    state = State(holdings=MappingProxyType({Owner("ns", "a", "app"): holding(frozenset(CORES[:10]))}))
    held = shares_held(INVENTORY, state)

    assert not shares_on_record(INVENTORY, (CheckpointEntry("old", "app", frozenset(CORES[:50])),), held)


def test_the_same_cores_for_the_same_pod_are_no_new_grant() -> None:
    before = holding(frozenset(CORES[:10]))

    assert not is_granted_anew(INVENTORY, before, holding(before.ids | {IDS[-1]}))
    assert is_granted_anew(INVENTORY, None, before)
    assert is_granted_anew(INVENTORY, before, holding(before.ids, uid="another"))
    assert is_granted_anew(INVENTORY, before, holding(frozenset(CORES[:11])))
    assert is_granted_anew(INVENTORY, holding(before.ids, uid=""), holding(before.ids, uid=""))
