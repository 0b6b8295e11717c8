"""Which entries of several sources are one device: every rule of joining GPUs and NICs, one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from topoalloc.topology.assemble import assemble
from topoalloc.topology.machine import LinkClass, Machine, Unknown, known
from topoalloc.topology.pci import PciAddress, PciPath
from topoalloc.topology.reading import NO_NAME, GpuReading, LinkReading, NicReading, Reading, SourceRefusal, Standing

PIX, PXB, PHB, NODE, SYS = LinkClass


def at(bus: int, function: int = 0) -> PciAddress:
    return PciAddress(0, bus, 0, function)


def whole(name: str = "a source", **fields: object) -> Reading:
    return Reading(name, Standing.WHOLE, **fields)  # type: ignore[arg-type]


def addition(name: str = "an addition", **fields: object) -> Reading:
    return Reading(name, Standing.ADDITION, **fields)  # type: ignore[arg-type]


def machine_of(*readings: Reading, memory: int | None = None) -> Machine:
    machine = assemble(readings, memory)
    assert isinstance(machine, Machine), machine
    return machine


def refusal_of(*readings: Reading) -> str:
    refusal = assemble(readings, None)
    assert isinstance(refusal, SourceRefusal)
    assert "\n" not in str(refusal)
    return str(refusal)


def table(*nodes: int | None, name: str = "topo -m") -> Reading:
    gpus = tuple(
        GpuReading(index=number, numa_node=Unknown("N/A") if node is None else node)
        for number, node in enumerate(nodes)
    )
    return whole(name, gpus=gpus, ordered=True)


def addressed(*nodes: int | None, name: str = "sysfs", vendor: str = "10de") -> Reading:
    gpus = tuple(
        GpuReading(bdf=at(bus), numa_node=Unknown("-1") if node is None else node, vendor=vendor)
        for bus, node in enumerate(nodes, 1)
    )
    return whole(name, gpus=gpus)


# Which GPU is which.


def test_numbers_and_addresses_meet_in_bus_order_when_nothing_proves_more() -> None:
    machine = machine_of(table(0, 0, 1), addressed(0, 0, 1))
    assert [gpu.bdf for gpu in machine.gpus] == [at(1), at(2), at(3)]
    assert machine.warnings == ()


def test_a_source_with_numbers_and_addresses_beats_bus_order() -> None:
    query = addition("-q -x", gpus=(GpuReading(index=1, bdf=at(1)), GpuReading(index=0, bdf=at(2))))
    machine = machine_of(table(0, 1), addressed(1, 0), query)
    assert [(gpu.bdf, gpu.numa_node) for gpu in machine.gpus] == [(at(2), 0), (at(1), 1)]
    assert machine.warnings == ()


def test_numa_nodes_with_one_gpu_each_prove_which_is_which() -> None:
    machine = machine_of(table(3, 2, 1), addressed(1, 2, 3))
    assert [gpu.bdf for gpu in machine.gpus] == [at(3), at(2), at(1)]
    assert machine.warnings == ()


def test_one_gpu_that_a_container_saw_is_found_by_its_node() -> None:
    machine = machine_of(addressed(0, 1, 2, 3), table(2))
    assert len(machine.gpus) == 4
    assert machine.gpus[0].bdf == at(3), "the table numbers it GPU0"


def test_bus_order_that_numa_nodes_contradict_is_named() -> None:
    machine = machine_of(table(1, 1, 0, 0), addressed(0, 0, 1, 1))
    assert "in bus order, but number 0 is on NUMA node 1 and 0000:01:00.0 on node 0" in machine.warnings[0]
    assert [gpu.numa_node for gpu in machine.gpus] == [1, 1, 0, 0]


def test_a_table_of_some_gpus_is_not_guessed_to_be_the_first_ones() -> None:
    assert "which is which cannot be told" in refusal_of(addressed(0, 0, 1, 1), table(0, 0))


def test_an_addition_that_lists_some_gpus_means_their_numbers() -> None:
    listed = addition(gpus=(GpuReading(index=1, uuid="GPU-b"), GpuReading(index=3, uuid="GPU-d")))
    machine = machine_of(addressed(0, 0, 1, 1), listed)
    assert [known(gpu.uuid) for gpu in machine.gpus] == [None, "GPU-b", None, "GPU-d"]


def test_an_addition_that_numbers_beyond_the_addresses_is_refused() -> None:
    assert "cannot be told" in refusal_of(addressed(0, 0), addition(gpus=(GpuReading(index=2),)))


def test_only_addresses_of_nvidia_are_candidates_for_numbers_of_nvidia_smi() -> None:
    both = whole(gpus=(*addressed(0, vendor="1002").gpus, GpuReading(bdf=at(9), vendor="10de")))
    machine = machine_of(both, addition(gpus=(GpuReading(index=0, uuid="GPU-a"),)))
    assert [(gpu.bdf, known(gpu.uuid)) for gpu in machine.gpus] == [(at(1), None), (at(9), "GPU-a")]


def test_two_sources_of_numbers_meet_by_number() -> None:
    machine = machine_of(
        table(0, 1), addition(gpus=(GpuReading(index=1, uuid="GPU-b"), GpuReading(index=0, uuid="GPU-a")))
    )
    assert [gpu.uuid for gpu in machine.gpus] == ["GPU-a", "GPU-b"]


def test_a_uuid_joins_what_has_no_other_name_in_common() -> None:
    machine = machine_of(
        whole(gpus=(GpuReading(bdf=at(1), uuid="GPU-b"), GpuReading(bdf=at(2), uuid="GPU-a"))),
        addition(gpus=(GpuReading(index=0, uuid="GPU-a", model="NVIDIA L4"), GpuReading(index=1, uuid="GPU-b"))),
    )
    assert [known(gpu.model) for gpu in machine.gpus] == [None, "NVIDIA L4"]


def test_one_address_on_two_gpus_is_warned_of_and_both_are_kept() -> None:
    machine = machine_of(whole(gpus=(GpuReading(bdf=at(1), uuid="GPU-a"), GpuReading(bdf=at(1), uuid="GPU-b"))))
    assert [known(gpu.bdf) for gpu in machine.gpus] == [at(1), None]
    assert machine.warnings == ("GPU0 and GPU1 have one PCI address, 0000:01:00.0; GPU0 keeps it",)


def test_one_address_on_a_gpu_and_a_nic_is_warned_of() -> None:
    machine = machine_of(whole(gpus=(GpuReading(bdf=at(1)),), nics=(NicReading("eth0", at(1)),)))
    assert machine.warnings == ("GPU0 and NIC0 have one PCI address, 0000:01:00.0; both keep it",)


def test_devices_of_an_unordered_source_are_numbered_by_address() -> None:
    machine = machine_of(whole(gpus=tuple(GpuReading(bdf=at(bus)) for bus in (9, 0x41, 2))))
    assert [(gpu.id, gpu.index, gpu.bdf) for gpu in machine.gpus] == [
        ("GPU0", 0, at(2)),
        ("GPU1", 1, at(9)),
        ("GPU2", 2, at(0x41)),
    ]


def test_ports_of_one_address_are_numbered_by_port_then_by_name() -> None:
    nics = (
        NicReading("mlx5_10", at(1), port=2),
        NicReading("mlx5_3", at(1), port=1),
        NicReading("eth10", at(0)),
        NicReading("eth9", at(0)),
    )
    assert [nic.name for nic in machine_of(whole(nics=nics)).nics] == ["eth9", "eth10", "mlx5_3", "mlx5_10"]


# Which NIC is which.


def test_a_table_name_meets_the_rdma_name_of_an_address() -> None:
    machine = machine_of(
        whole("topo -m", nics=(NicReading("mlx5_1", rdma="mlx5_1"), NicReading("mlx5_0", rdma="mlx5_0")), ordered=True),
        whole(
            "sysfs",
            nics=(NicReading("ens1", at(1), rdma="mlx5_0", netdev="ens1"), NicReading("eno1", at(2), rdma=NO_NAME)),
        ),
    )
    assert [(nic.name, nic.rdma, known(nic.bdf)) for nic in machine.nics] == [
        ("mlx5_1", "mlx5_1", None),
        ("ens1", "mlx5_0", at(1)),
        ("eno1", None, at(2)),
    ]


def test_ports_that_nccl_writes_under_the_cards_first_function_get_their_own() -> None:
    nccl = whole(
        "nccl",
        nics=tuple(NicReading(f"mlx5_{port - 1}", at(1), rdma=f"mlx5_{port - 1}", port=port) for port in (1, 2)),
    )
    sysfs = whole("sysfs", nics=tuple(NicReading(f"e{f}", at(1, f), rdma=f"mlx5_{f}", netdev=f"e{f}") for f in (0, 1)))
    for readings in ((nccl, sysfs), (sysfs, nccl)):
        machine = machine_of(*readings)
        assert [(nic.name, nic.rdma, nic.bdf) for nic in machine.nics] == [
            ("e0", "mlx5_0", at(1)),
            ("e1", "mlx5_1", at(1, 1)),
        ]
        assert machine.warnings == ()


def test_an_address_joins_a_fabric_name_with_a_netdev() -> None:
    nccl = whole("nccl", nics=(NicReading("cxi0", at(1), port=1),))
    sysfs = whole("sysfs", nics=(NicReading("hsn0", at(1), netdev="hsn0", rdma=NO_NAME),))
    assert [nic.name for nic in machine_of(nccl, sysfs).nics] == ["hsn0"]


def test_one_address_with_two_rdma_names_is_two_nics() -> None:
    machine = machine_of(
        whole("a", nics=(NicReading("mlx5_0", at(1), rdma="mlx5_0"),)),
        whole("b", nics=(NicReading("mlx5_7", at(1), rdma="mlx5_7"),)),
    )
    assert [nic.name for nic in machine.nics] == ["mlx5_0", "mlx5_7"]
    assert "no NIC of b is one of a; are they of one machine?" in machine.warnings


def test_one_name_at_two_addresses_is_two_nics_and_said() -> None:
    machine = machine_of(
        whole("a", nics=(NicReading("eth0", at(1), netdev="eth0"), NicReading("eth1", at(2), netdev="eth1"))),
        whole("b", nics=(NicReading("eth0", at(9), netdev="eth0"), NicReading("eth1", at(2), netdev="eth1"))),
    )
    assert len(machine.nics) == 3
    assert machine.warnings == ("eth0 is 0000:01:00.0 by a and 0000:09:00.0 by b; both are listed",)


def names_only(*, pix: bool) -> Reading:
    """A table of two NICs, of one card or of two below one host bridge."""
    return whole(
        "topo -m",
        nics=(NicReading("mlx5_0", rdma="mlx5_0"), NicReading("mlx5_1", rdma="mlx5_1")),
        links=(LinkReading(("nic", 0), ("nic", 1), PIX if pix else PHB),),
        ordered=True,
    )


def addresses_only(*addresses: PciAddress, vendor: str = "15b3") -> Reading:
    return whole(
        "lspci",
        nics=tuple(
            NicReading(bdf=address, path=PciPath("0000:00", (PciAddress(0, 0, address.bus, 0),)), vendor=vendor)
            for address in addresses
        ),
    )


def test_names_and_addresses_of_nics_meet_in_bus_order_if_the_classes_allow() -> None:
    machine = machine_of(names_only(pix=True), addresses_only(at(1, 1), at(1, 0)))
    assert [(nic.name, nic.bdf) for nic in machine.nics] == [("mlx5_0", at(1, 0)), ("mlx5_1", at(1, 1))]
    assert "in bus order, which their link classes allow" in machine.warnings[0]


@pytest.mark.parametrize("addresses", [(at(1), at(2)), (at(1, 0), at(1, 1), at(2))])
def test_names_and_addresses_that_cannot_be_told_apart_are_not_listed_twice(addresses: tuple[PciAddress, ...]) -> None:
    machine = machine_of(names_only(pix=True), addresses_only(*addresses))
    assert [nic.name for nic in machine.nics] == ["mlx5_0", "mlx5_1"]
    assert f"the {len(addresses)} of lspci are left out, the 2 of topo -m kept" in machine.warnings[0]
    other_way = machine_of(addresses_only(*addresses), names_only(pix=True))
    assert [nic.bdf for nic in other_way.nics] == list(addresses)


def test_cards_of_another_vendor_are_no_candidates_for_a_name_and_stay() -> None:
    lspci = addresses_only(at(1, 0), at(1, 1))
    intel = addresses_only(at(3), vendor="8086")
    machine = machine_of(names_only(pix=True), replace(lspci, nics=(*lspci.nics, *intel.nics)))
    assert [nic.name for nic in machine.nics] == ["mlx5_0", "mlx5_1", "0000:03:00.0"]
