"""The rules by which sources become one machine, one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from topoalloc.topology.assemble import GPUS_MAX, NICS_MAX, assemble
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import LinkClass, Machine, MigDevice, NicFunction, Unknown, known
from topoalloc.topology.pci import PciAddress, PciPath
from topoalloc.topology.reading import (
    FarEnd,
    GpuReading,
    LinkReading,
    NicReading,
    NumaReading,
    NvlinkReading,
    Reading,
    SourceRefusal,
    Standing,
)

PIX, PXB, PHB, NODE, SYS = LinkClass
GIB = 1 << 30


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


def test_additions_alone_are_refused_with_the_sources_that_would_do() -> None:
    refusal = refusal_of(addition("numactl -H (a.txt)"), addition("nvidia-smi -L (b.txt)"))
    assert refusal.startswith("numactl -H (a.txt): this text only adds to another source of the same machine")
    for source in ("sysfs", "NCCL", "hwloc", "topo -m", "lspci -tv", "topoalloc record"):
        assert source in refusal


def test_no_source_at_all_is_refused() -> None:
    assert "no source is given" in refusal_of()


def test_more_gpus_than_a_machine_has_are_refused_and_nics_left_out_with_a_warning() -> None:
    assert f"{GPUS_MAX} at most" in refusal_of(table(*[0] * (GPUS_MAX + 1)))
    nics = tuple(NicReading(f"eth{number}", at(number // 8, number % 8)) for number in range(NICS_MAX + 1))
    machine = machine_of(whole(nics=nics))
    assert len(machine.nics) == NICS_MAX
    assert machine.warnings == (f"{NICS_MAX + 1} NIC ports are found; those after the first {NICS_MAX} are left out",)


def test_silence_and_doubt_give_way_to_knowledge_from_either_side() -> None:
    doubtful = whole("a", gpus=(GpuReading(bdf=at(1), numa_node=Unknown("numa_node is -1")),))
    knowing = whole("b", gpus=(GpuReading(bdf=at(1), numa_node=1, model="NVIDIA L4"),))
    for readings in ((doubtful, knowing), (knowing, doubtful)):
        gpu = machine_of(*readings).gpus[0]
        assert (gpu.numa_node, gpu.model) == (1, "NVIDIA L4")


def test_doubt_of_all_sources_keeps_its_evidence_in_any_order() -> None:
    one = whole("a", gpus=(GpuReading(bdf=at(1), numa_node=Unknown("numa_node is -1")),))
    other = whole("b", gpus=(GpuReading(bdf=at(1), numa_node=Unknown("NUMA Affinity is N/A")),))
    expected = Unknown("NUMA Affinity is N/A; numa_node is -1")
    assert machine_of(one, other).gpus[0].numa_node == machine_of(other, one).gpus[0].numa_node == expected


def test_a_contradiction_is_one_line_with_both_sources_and_the_winner() -> None:
    machine = machine_of(addressed(0, 0, name="a"), addressed(1, 1, name="b"))
    assert machine.warnings == ("GPU0: NUMA node is 0 by a and 1 by b (and 1 more like it); a wins",)
    assert [gpu.numa_node for gpu in machine.gpus] == [0, 0]


def test_nodes_are_united_and_named_by_devices_too() -> None:
    machine = machine_of(
        whole(
            "a",
            numa_nodes=(NumaReading(3, memory_bytes=GIB), NumaReading(1)),
            gpus=(GpuReading(bdf=at(1), numa_node=7),),
        ),
        addition("b", numa_nodes=(NumaReading(3, cpus=CpuSet.of([0])), NumaReading(250, cpus=CpuSet()))),
    )
    assert [node.id for node in machine.numa_nodes] == [1, 3, 7, 250]
    assert (machine.numa_nodes[1].memory_bytes, machine.numa_nodes[1].cpus) == (GIB, CpuSet.of([0]))
    assert machine.numa_nodes[3].cpus == CpuSet()


def test_distances_follow_the_united_nodes_and_a_row_with_a_gap_is_unknown() -> None:
    numactl = addition(numa_nodes=(NumaReading(2, distances=(10, 21)), NumaReading(0, distances=(20, 10))))
    machine = machine_of(whole(numa_nodes=(NumaReading(0), NumaReading(2))), numactl)
    assert [node.distances for node in machine.numa_nodes] == [(10, 20), (21, 10)]
    with_third = machine_of(whole(numa_nodes=(NumaReading(5),)), numactl)
    assert all(isinstance(node.distances, Unknown) for node in with_third.numa_nodes)


def test_a_node_beyond_a_full_list_is_said() -> None:
    full = whole("sysfs", numa_nodes=(NumaReading(0),), all_numa_nodes=True)
    machine = machine_of(full, addition("numactl", numa_nodes=(NumaReading(0), NumaReading(4))))
    assert machine.warnings == ("NUMA nodes 4 are named by other sources and not listed by sysfs",)


def gpu_row(index: int, node: int, cpus: str) -> GpuReading:
    return GpuReading(
        index=index, numa_node=node, cpus=CpuSet.from_list(cpus) if cpus else Unknown("the cell is empty")
    )


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(0, "0-3"), (0, "0-3"), (1, "4-7")], ["0-3", "4-7"]),
        ([(0, "0-3"), (0, "0-1"), (1, "4-7")], [None, "4-7"]),
        ([(0, "0-3"), (1, "0-3")], [None, None]),
        ([(0, "0-3"), (1, "")], ["0-3", None]),
        ([(0, "0-3"), (1, "2-7"), (1, "4-7")], [None, None]),
    ],
)
def test_affinities_are_a_nodes_cpus_only_where_no_cpuset_has_cut_them(
    rows: list[tuple[int, str]], expected: list[str | None]
) -> None:
    machine = machine_of(whole(gpus=tuple(gpu_row(index, node, cpus) for index, (node, cpus) in enumerate(rows))))
    found = [known(node.cpus) for node in machine.numa_nodes]
    assert [None if cpus is None else str(cpus) for cpus in found] == expected


def test_an_affinity_cut_by_a_cpuset_contradicts_nothing() -> None:
    cut = table(0)
    cut = replace(cut, gpus=(replace(cut.gpus[0], cpus=CpuSet.from_list("0-1")),))
    uncut = whole("b", gpus=(GpuReading(index=0, cpus=CpuSet.from_list("0-3")),))
    machine = machine_of(cut, uncut)
    assert str(machine.gpus[0].cpus) == "0-3"
    assert machine.warnings == ()


def test_the_cpus_near_a_gpu_are_those_of_its_node() -> None:
    nodes = (NumaReading(0, CpuSet.from_list("0-3")), NumaReading(1, CpuSet.from_list("4-7")))
    machine = machine_of(whole(numa_nodes=nodes, gpus=(GpuReading(bdf=at(1), numa_node=1),)))
    assert str(machine.gpus[0].cpus) == "4-7"


def test_on_a_machine_of_one_node_the_node_stays_unknown_and_the_cpus_are_all_there_are() -> None:
    sysfs = whole(
        numa_nodes=(NumaReading(0, CpuSet.from_list("0-7")),),
        gpus=(GpuReading(bdf=at(1), numa_node=Unknown("numa_node is -1")),),
        all_numa_nodes=True,
    )
    gpu = machine_of(sysfs).gpus[0]
    assert (known(gpu.numa_node), str(gpu.cpus)) == (None, "0-7")
    unlisted = machine_of(replace(sysfs, all_numa_nodes=False)).gpus[0]
    assert known(unlisted.cpus) is None, "a source that names one node need not have named all"


@pytest.mark.parametrize(
    ("classes", "expected"),
    [((PXB, SYS), 0), ((PXB, NODE), None), ((SYS, SYS), None), ((Unknown("?"), NODE), 1)],
)
def test_a_tables_nic_is_on_the_node_of_the_gpus_nearer_than_sys(
    classes: tuple[LinkClass | Unknown, ...], expected: int | None
) -> None:
    links = tuple(LinkReading(("gpu", gpu), ("nic", 0), pcie) for gpu, pcie in enumerate(classes))
    machine = machine_of(replace(table(0, 1), nics=(NicReading("mlx5_0"),), links=links))
    assert known(machine.nics[0].numa_node) == expected


def test_a_nic_whose_kernel_says_minus_one_gets_no_node_from_its_neighbour() -> None:
    path = PciPath("0000:00", (PciAddress(0, 0, 1, 0),))
    machine = machine_of(
        whole(
            gpus=(GpuReading(bdf=at(1), numa_node=0, path=path),),
            nics=(NicReading("eth0", at(2), numa_node=Unknown("numa_node is -1"), path=path),),
        )
    )
    assert machine.links[0].pcie is PIX
    assert known(machine.nics[0].numa_node) is None


def test_paths_from_two_sources_give_the_class_that_neither_tells() -> None:
    bridge = PciAddress(0, 0, 1, 0)
    machine = machine_of(
        whole("a", gpus=(GpuReading(bdf=at(1), path=PciPath("0000:00", (bridge,))),)),
        whole("b", nics=(NicReading("eth0", at(2), path=PciPath("0000:00", (bridge, PciAddress(0, 5, 0, 0)))),)),
    )
    assert machine.links[0].pcie is PIX


def test_nccls_phb_gives_way_to_the_class_that_says_more() -> None:
    def nccl(*below: PciPath) -> Reading:
        return whole("nccl", gpus=tuple(GpuReading(bdf=at(bus), path=path) for bus, path in enumerate(below, 1)))

    def stated(pcie: LinkClass) -> Reading:
        return whole(
            "topo -m",
            gpus=tuple(GpuReading(index=number, bdf=at(number + 1)) for number in range(2)),
            links=(LinkReading(("gpu", 0), ("gpu", 1), pcie, 0),),
        )

    one_node = nccl(PciPath("numa0", ()), PciPath("numa0", ()))
    for pcie in (PIX, PXB, PHB, NODE):
        for readings in ((one_node, stated(pcie)), (stated(pcie), one_node)):
            assert machine_of(*readings).links[0].pcie is pcie
            assert machine_of(*readings).warnings == ()
    contradicted = machine_of(one_node, stated(SYS))
    assert contradicted.links[0].pcie is PHB
    assert contradicted.warnings == ("GPU0-GPU1: PCIe class is PHB by nccl and SYS by topo -m; nccl wins",)


def test_links_of_one_gpu_counted_differently_are_warned_of() -> None:
    gpus = (
        GpuReading(bdf=at(1), nvlinks=(NvlinkReading(FarEnd.GPU, at(2), 4),)),
        GpuReading(bdf=at(2), nvlinks=(NvlinkReading(FarEnd.GPU, at(1), 3),)),
    )
    machine = machine_of(whole("nccl", gpus=gpus))
    assert machine.links[0].nvlinks == 3
    assert machine.warnings == (
        "GPU0-GPU1: nccl counts 4 NVLinks from GPU0 and 3 from GPU1; the smaller number is taken",
    )


def test_nvlinks_of_which_only_the_number_is_told_leave_pairs_to_other_sources() -> None:
    status = addition(
        gpus=tuple(GpuReading(index=number, nvlinks=(NvlinkReading(FarEnd.UNKNOWN, None, 4),)) for number in (0, 1))
    )
    stated = replace(table(0, 0), links=(LinkReading(("gpu", 0), ("gpu", 1), Unknown("hidden by NV4 cell"), 4),))
    assert machine_of(status, stated).links[0].nvlinks == 4
    assert known(machine_of(addressed(0, 0), status).links[0].nvlinks) is None


def test_a_nic_has_no_nvlinks_and_peer_access_is_a_thing_of_gpus() -> None:
    machine = machine_of(whole(gpus=(GpuReading(bdf=at(1)),), nics=(NicReading("eth0", at(2)),)))
    assert (machine.links[0].nvlinks, known(machine.links[0].peer_access)) == (0, None)


def test_memory_comes_from_a_source_then_the_model_table_then_the_given_size() -> None:
    gpus = (
        GpuReading(bdf=at(1), model="NVIDIA H200", memory_bytes=5 * GIB),
        GpuReading(bdf=at(2), model="NVIDIA H200"),
        GpuReading(bdf=at(3), vendor="10de", pci_device="2335"),
        GpuReading(bdf=at(4), model="NVIDIA Something"),
    )
    found = [gpu.memory_bytes for gpu in machine_of(whole(gpus=gpus), memory=7 * GIB).gpus]
    assert found == [5 * GIB, 143771 << 20, 143771 << 20, 7 * GIB]
    assert isinstance(machine_of(whole(gpus=gpus)).gpus[3].memory_bytes, Unknown)


def test_sizes_within_one_mebibyte_agree_and_the_exact_one_is_kept() -> None:
    exact, cut = 64 * GIB + 4096, 64 * GIB
    for first, second in ((exact, cut), (cut, exact)):
        machine = machine_of(
            whole("a", numa_nodes=(NumaReading(0, memory_bytes=first),)),
            addition("b", numa_nodes=(NumaReading(0, memory_bytes=second),)),
        )
        assert machine.numa_nodes[0].memory_bytes == exact
        assert machine.warnings == ()


def test_one_model_in_two_spellings_is_no_contradiction_and_the_drivers_name_wins() -> None:
    lspci = whole("lspci", gpus=(GpuReading(bdf=at(1), model="NVIDIA Corporation GA100 [A100 SXM4 40GB]"),))
    driver = addition("-q -x", gpus=(GpuReading(bdf=at(1), model="NVIDIA A100-SXM4-40GB"),))
    for readings in ((lspci, driver), (driver, lspci)):
        assert machine_of(*readings).gpus[0].model == "NVIDIA A100-SXM4-40GB"
        assert machine_of(*readings).warnings == ()
    other = addition("-L", gpus=(GpuReading(bdf=at(1), model="NVIDIA A100-SXM4-80GB"),))
    assert (
        "model is NVIDIA A100-SXM4-40GB by -q -x and NVIDIA A100-SXM4-80GB by -L"
        in machine_of(lspci, driver, other).warnings[0]
    )


def test_mig_devices_stay_with_their_gpu() -> None:
    mig = (MigDevice(0, "1g.10gb", "MIG-a"), MigDevice(1, "1g.10gb", "MIG-b"))
    assert machine_of(table(0), addition(gpus=(GpuReading(index=0, mig=mig),))).gpus[0].mig == mig


def test_a_physical_function_has_none_and_a_virtual_one_keeps_its_own() -> None:
    nics = (
        NicReading("eth0", at(1), function=NicFunction.PHYSICAL),
        NicReading("eth1", at(1, 1), function=NicFunction.VIRTUAL, physical_function=at(1)),
        NicReading("eth2", at(1, 2), function=NicFunction.VIRTUAL),
    )
    found = [nic.physical_function for nic in machine_of(whole(nics=nics)).nics]
    assert found[:2] == [None, at(1)]
    assert isinstance(found[2], Unknown)


def test_a_path_that_counts_every_bridge_is_kept() -> None:
    full = PciPath("0000:00", (PciAddress(0, 0, 1, 0), PciAddress(0, 1, 0, 0), PciAddress(0, 2, 1, 0)))
    thinned = PciPath("0000:00", full.bridges[::2])
    folded = PciPath("numa0", full.bridges[1:2])
    readings = [
        whole(str(number), gpus=(GpuReading(bdf=at(9), path=path),))
        for number, path in enumerate((thinned, folded, full))
    ]
    for order in (readings, readings[::-1]):
        assert machine_of(*order).gpus[0].path == full
        assert machine_of(*order).warnings == ()
