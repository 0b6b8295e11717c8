"""The ids a node offers: truthful, stable, unique, short enough, few enough."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.handmade import GIB, UNTOLD, machine
from tests.hash_seeds import outputs_of
from topoalloc.pb import deviceplugin_v1beta1_pb2 as pb
from topoalloc.sharing.inventory import (
    DEVICE_ID_CHARACTERS_MAX,
    LIST_BYTES_MAX,
    Device,
    Inventory,
    InventoryRefusal,
    ResourceKind,
    inventory_of,
    list_bytes,
)
from topoalloc.sharing.settings import (
    CORE_RESOURCE,
    MEMORY_RESOURCE,
    NIC_RESOURCE,
    NicPool,
    NicSelector,
    NumaReporting,
    SharingSettings,
)
from topoalloc.topology.machine import NicFunction


def served(settings: SharingSettings | None = None, **shape: object) -> Inventory:
    inventory = inventory_of(machine(**shape), settings or SharingSettings())  # type: ignore[arg-type]
    assert isinstance(inventory, Inventory)
    return inventory


def encoded_bytes(devices: tuple[Device, ...]) -> int:
    """What protobuf itself makes of the list when all of it is Unhealthy."""
    message = pb.ListAndWatchResponse(
        devices=[
            pb.Device(
                ID=device.id,
                health="Unhealthy",
                topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in device.numa_nodes])
                if device.numa_nodes
                else None,
            )
            for device in devices
        ]
    )
    return message.ByteSize()


def test_every_gpu_offers_a_hundred_cores_and_its_memory_in_units():
    inventory = served(memory_bytes=10 * GIB)

    cores, memory, nics = inventory.resources
    assert (len(cores.devices), len(memory.devices), len(nics.devices)) == (8 * 100, 8 * 40, 4)


def test_the_pci_address_of_the_gpu_is_in_the_id():
    inventory = served()

    device = inventory.resources[0].devices[107]
    assert device.id == f"{inventory.machine.gpus[1].bdf}-c07"


def test_without_addresses_the_index_of_the_gpu_is_in_the_id():
    inventory = served(addresses=False)

    assert inventory.resources[0].devices[107].id == "GPU1-c07"


def test_one_gpu_without_an_address_makes_all_ids_use_the_index():
    whole = machine()
    mixed = replace(whole, gpus=(replace(whole.gpus[0], bdf=UNTOLD), *whole.gpus[1:]))

    inventory = inventory_of(mixed, SharingSettings())

    assert isinstance(inventory, Inventory)
    assert inventory.gpu_keys[:2] == ("GPU0", "GPU1")


def test_two_ports_of_one_card_have_ids_of_their_own():
    whole = machine()
    twin = replace(whole.nics[0], id="NIC4", name="mlx5_9")
    inventory = inventory_of(replace(whole, nics=(*whole.nics, twin)), SharingSettings())

    assert isinstance(inventory, Inventory)
    assert inventory.nic_keys[0] == f"{twin.bdf}-p0"
    assert inventory.nic_keys[4] == f"{twin.bdf}-p1"


def test_an_id_survives_the_loss_of_another_gpu():
    whole = machine()
    before = inventory_of(whole, SharingSettings())
    after = inventory_of(replace(whole, gpus=whole.gpus[1:]), SharingSettings())

    assert isinstance(before, Inventory)
    assert isinstance(after, Inventory)
    assert set(after.devices) < set(before.devices)


def test_memory_that_no_source_tells_is_not_served_and_that_is_said():
    inventory = served(memory_bytes=UNTOLD)

    assert [resource.kind for resource in inventory.resources] == [ResourceKind.CORE, ResourceKind.NIC]
    assert any("is unknown (not told): topoalloc.io/vgpu-memory is not served" in note for note in inventory.notes)


def test_no_unit_of_memory_straddles_two_gpus():
    inventory = served(memory_bytes=4 * GIB + 200 * 1024**2)

    assert inventory.memory_units == (16,) * 8


def test_numa_nodes_are_reported_when_every_device_has_one():
    inventory = served()

    assert {device.numa_nodes for device in inventory.resources[0].devices} == {(0,), (1,)}


def test_one_unknown_node_silences_the_whole_resource_with_the_reason():
    whole = machine()
    inventory = inventory_of(
        replace(whole, gpus=(replace(whole.gpus[0], numa_node=UNTOLD), *whole.gpus[1:])), SharingSettings()
    )

    assert isinstance(inventory, Inventory)
    assert {device.numa_nodes for device in inventory.resources[0].devices} == {()}
    assert any("NUMA node of GPU0 is unknown" in note for note in inventory.notes)


def test_reporting_all_names_every_node_with_cpus():
    settings = SharingSettings(numa=MappingProxyType({CORE_RESOURCE: NumaReporting.ALL}))

    inventory = served(settings)

    assert {device.numa_nodes for device in inventory.resources[0].devices} == {(0, 1)}


def test_hints_that_cost_link_bandwidth_are_named_with_the_setting():
    whole = machine(nvlinks=1)
    links = tuple(replace(link, nvlinks=2) if (link.a, link.b) == ("GPU0", "GPU4") else link for link in whole.links)

    inventory = inventory_of(replace(whole, links=links), SharingSettings())

    assert isinstance(inventory, Inventory)
    assert any("cost link bandwidth" in note and "numa." in note for note in inventory.notes)


def test_even_links_cost_nothing_and_nothing_is_said():
    assert served(nvlinks=12).notes == ()


def test_a_nic_is_offered_by_the_first_pool_that_selects_it():
    pools = (NicPool("example.com/ib", NicSelector(rdma=True)), NicPool(NIC_RESOURCE))

    inventory = served(SharingSettings(nic_pools=pools))

    assert [resource.name for resource in inventory.resources] == [CORE_RESOURCE, MEMORY_RESOURCE, "example.com/ib"]


def test_a_pf_that_carries_vfs_is_not_offered_beside_them():
    whole = machine()
    vf = replace(
        whole.nics[0],
        id="NIC4",
        name="mlx5_9",
        bdf=replace(whole.nics[0].bdf, function=1),
        function=NicFunction.VIRTUAL,
        physical_function=whole.nics[0].bdf,
    )
    inventory = inventory_of(replace(whole, nics=(*whole.nics, vf)), SharingSettings())

    assert isinstance(inventory, Inventory)
    offered = {device.position for device in inventory.resources[-1].devices}
    assert offered == {1, 2, 3, 4}


def test_eight_gpus_of_141_gib_stay_below_one_mib():
    inventory = served(memory_bytes=141 * GIB)

    memory = inventory.resource(MEMORY_RESOURCE)
    assert memory is not None
    assert len(memory.devices) == 8 * 564
    assert encoded_bytes(memory.devices) < 1024**2


def test_a_list_beyond_the_kubelets_limit_is_refused_with_the_unit_that_fits():
    shape = machine(memory_bytes=141 * GIB)

    refusal = inventory_of(shape, SharingSettings(memory_unit_bytes=1024**2))

    assert isinstance(refusal, InventoryRefusal)
    assert "memory_unit: 16MiB" in refusal.reason
    fitting = inventory_of(shape, SharingSettings(memory_unit_bytes=16 * 1024**2))
    assert isinstance(fitting, Inventory)


def test_a_unit_larger_than_a_gpu_is_refused():
    refusal = inventory_of(machine(memory_bytes=4 * GIB), SharingSettings(memory_unit_bytes=5 * GIB))

    assert isinstance(refusal, InventoryRefusal)
    assert "5120MiB is more than GPU0 has" in refusal.reason


def test_a_petabyte_per_gpu_is_refused_before_a_device_is_made():
    refusal = inventory_of(machine(memory_bytes=1024**5), SharingSettings())

    assert isinstance(refusal, InventoryRefusal)


def test_a_pool_that_selects_nothing_is_named():
    pools = (NicPool(NIC_RESOURCE), NicPool("example.com/vf", NicSelector(function=NicFunction.VIRTUAL)))

    assert any(
        "example.com/vf: its selector fits none of the 4 NICs" in note
        for note in served(SharingSettings(nic_pools=pools)).notes
    )


@pytest.mark.parametrize("node", [0, 1, 127, 128, 255])
def test_the_size_of_a_list_is_what_protobuf_makes_of_it(node: int):
    devices = tuple(
        replace(device, numa_nodes=(node,) if device.unit % 2 else (0, node))
        for device in served().resources[0].devices
    )

    assert list_bytes(devices) == encoded_bytes(devices)


@given(
    numa=st.integers(1, 4),
    switches=st.integers(1, 2),
    gpus=st.integers(0, 2),
    nics=st.integers(0, 3),
    addresses=st.booleans(),
    memory_gib=st.integers(1, 32),
)
def test_ids_are_unique_across_resources_and_short_and_the_list_fits(
    numa: int, switches: int, gpus: int, nics: int, addresses: bool, memory_gib: int
):
    inventory = served(
        numa=numa, switches=switches, gpus=gpus, nics=nics, addresses=addresses, memory_bytes=memory_gib * GIB
    )

    listed = [device.id for resource in inventory.resources for device in resource.devices]
    assert len(listed) == len(set(listed)) == len(inventory.devices)
    assert all(len(device_id) <= DEVICE_ID_CHARACTERS_MAX for device_id in listed)
    for resource in inventory.resources:
        assert list_bytes(resource.devices) == encoded_bytes(resource.devices) <= LIST_BYTES_MAX


def test_the_same_machine_gives_the_same_ids_in_the_same_order_in_every_process():
    code = "from tests.sharing.test_inventory import served; print(*served().devices)"

    assert len(outputs_of("-c", code)) == 1
