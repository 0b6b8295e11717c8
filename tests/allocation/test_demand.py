"""Which requests make sense, and what a user is told about those that do not."""

from __future__ import annotations

import pytest

from tests.handmade import GIB, UNTOLD, machine
from topoalloc.allocation.demand import ContainerDemand, Demand, core_fault, demand_fault, demand_of
from topoalloc.sharing.inventory import Inventory, inventory_of
from topoalloc.sharing.settings import CORE_RESOURCE, MEMORY_RESOURCE, NIC_RESOURCE, SharingSettings


def node(memory_known: bool = True) -> Inventory:
    inventory = inventory_of(machine(memory_bytes=4 * GIB if memory_known else UNTOLD), SharingSettings())
    assert isinstance(inventory, Inventory)
    return inventory


@pytest.mark.parametrize("cores", [1, 50, 99, 100, 200, 800])
def test_a_share_and_whole_gpus_are_fine(cores: int):
    assert core_fault(node(), cores) is None


@pytest.mark.parametrize(("cores", "remedy"), [(101, "100 or 200"), (150, "100 or 200"), (250, "200 or 300")])
def test_a_number_between_whole_gpus_is_refused_with_its_neighbours(cores: int, remedy: str):
    fault = core_fault(node(), cores)

    assert fault is not None
    assert remedy in fault


def test_a_share_without_memory_is_refused_with_what_to_add():
    fault = demand_fault(node(), Demand(30, 0, {}))

    assert fault is not None
    assert "ask for units of 256 MiB too" in fault


def test_a_share_without_memory_is_fine_where_memory_is_not_served():
    assert demand_fault(node(memory_known=False), Demand(30, 0, {})) is None


def test_memory_without_cores_is_refused_with_what_to_add():
    fault = demand_fault(node(), Demand(0, 4, {}))

    assert fault is not None
    assert f"ask for 1 to 99 of {CORE_RESOURCE} too" in fault


def test_a_whole_gpu_needs_no_memory_request():
    assert demand_fault(node(), Demand(200, 0, {})) is None


def test_memory_beyond_the_whole_gpus_asked_is_refused():
    assert demand_fault(node(), Demand(200, 32, {})) is None
    fault = demand_fault(node(), Demand(200, 33, {}))

    assert fault is not None
    assert "33 units are more than 2 whole GPUs of this node have (32)" in fault


def test_memory_of_a_share_beyond_one_gpu_is_refused():
    assert demand_fault(node(), Demand(10, 16, {})) is None
    assert "more than one GPU of this node has (16)" in (demand_fault(node(), Demand(10, 17, {})) or "")


def test_a_container_that_asks_for_nics_only_is_fine():
    assert demand_fault(node(), Demand(0, 0, {NIC_RESOURCE: 2})) is None


def test_amounts_are_sorted_by_what_they_mean():
    container = ContainerDemand("app", ((CORE_RESOURCE, 30), (MEMORY_RESOURCE, 4), (NIC_RESOURCE, 1)))

    assert demand_of(container, node()) == Demand(30, 4, {NIC_RESOURCE: 1})
