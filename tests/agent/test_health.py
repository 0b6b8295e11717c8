"""Which devices are out of order: those that were there at start and are not now."""

from __future__ import annotations

from dataclasses import replace

from tests.handmade import machine
from topoalloc.agent.process import missing_keys
from topoalloc.sharing.inventory import Inventory, inventory_of
from topoalloc.sharing.settings import SharingSettings

WHOLE = machine()
INVENTORY = inventory_of(WHOLE, SharingSettings())
assert isinstance(INVENTORY, Inventory)


def test_nothing_is_missing_from_the_same_machine():
    assert isinstance(INVENTORY, Inventory)
    assert missing_keys(INVENTORY, WHOLE) == frozenset()


def test_a_gpu_that_fell_off_the_bus_is_missing_and_the_others_are_not():
    assert isinstance(INVENTORY, Inventory)
    lost = replace(WHOLE, gpus=WHOLE.gpus[:2] + WHOLE.gpus[3:])

    assert missing_keys(INVENTORY, lost) == {INVENTORY.gpu_keys[2]}


def test_a_gpu_that_came_back_is_not_missing():
    assert isinstance(INVENTORY, Inventory)
    more = replace(WHOLE, gpus=WHOLE.gpus)

    assert missing_keys(INVENTORY, more) == frozenset()


def test_a_nic_that_went_away_is_missing():
    assert isinstance(INVENTORY, Inventory)

    assert missing_keys(INVENTORY, replace(WHOLE, nics=WHOLE.nics[1:])) == {INVENTORY.nic_keys[0]}
