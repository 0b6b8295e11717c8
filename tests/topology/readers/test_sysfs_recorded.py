"""Every recorded sysfs tree reads as its facts say, from the archive and from the unpacked folder alike."""

from __future__ import annotations

import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.topology.trees import FACTS, MACHINES, recorded
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.links import Place, pcie_class
from topoalloc.topology.machine import Unknown, known
from topoalloc.topology.readers.archive import ArchiveFiles, open_archive
from topoalloc.topology.readers.files import FilesBelow, FolderFiles
from topoalloc.topology.readers.sysfs import read_machine_tree
from topoalloc.topology.readers.sysfs_pci import PciFunction, numa_node_of, read_pci_functions
from topoalloc.topology.reading import GpuReading, NicReading, Reading

NAMES = recorded(".sysfs.")


def files(name: str) -> ArchiveFiles:
    opened = open_archive((MACHINES / name).read_bytes(), name)
    assert isinstance(opened, ArchiveFiles), opened
    return opened


@cache
def reading(name: str) -> Reading:
    result = read_machine_tree(files(name), name)
    assert isinstance(result, Reading), result
    return result


def path_text(device: GpuReading | NicReading | PciFunction, address: object) -> str:
    """As the facts spell it: `pci0000:17/0000:17:00.0/0000:1a:00.0`."""
    assert device.path is not None
    return "/".join([f"pci{device.path.host_bridge}", *map(str, device.path.bridges), str(address)])


@pytest.mark.parametrize("name", NAMES)
def test_the_numa_nodes_are_those_of_the_facts(name: str) -> None:
    read = reading(name)
    found = [(node.id, known(node.memory_bytes), known(node.distances)) for node in read.numa_nodes]
    facts = FACTS[name]["numa_nodes"]
    assert found == [
        (
            node["id"],
            None if node["mem_total_kb"] is None else node["mem_total_kb"] * 1024,
            None if node["distance"] is None else tuple(node["distance"]),
        )
        for node in facts
    ]
    assert read.all_numa_nodes


@pytest.mark.parametrize("name", NAMES)
def test_the_cpus_of_a_node_are_its_usable_ones(name: str) -> None:
    found = {node.id: str(node.cpus) for node in reading(name).numa_nodes}
    assert found == {node["id"]: node.get("usable_cpus", node["cpus_by_cpumap"]) for node in FACTS[name]["numa_nodes"]}


@pytest.mark.parametrize("name", NAMES)
def test_nodes_without_cpus_stay_and_have_none(name: str) -> None:
    empty = [node.id for node in reading(name).numa_nodes if node.cpus == CpuSet()]
    assert empty == FACTS[name]["memory_only_nodes"]


def compare(found: list[GpuReading] | list[NicReading], facts: list[dict[str, Any]]) -> None:
    assert [(str(device.bdf), device.numa_node) for device in found] == [
        (fact["busid"], Unknown("numa_node is -1") if fact["numa"] is None else fact["numa"]) for fact in facts
    ]
    assert [path_text(device, device.bdf) for device in found] == [fact["path"] for fact in facts]
    assert [device.vendor for device in found] == [fact["vendor"].removeprefix("0x") for fact in facts]


@pytest.mark.parametrize("name", NAMES)
def test_the_gpus_are_those_of_the_facts(name: str) -> None:
    compare(list(reading(name).gpus), FACTS[name]["gpus"])


@pytest.mark.parametrize("name", NAMES)
def test_the_nics_are_those_of_the_facts(name: str) -> None:
    """The facts list names below the function itself; eth0 of a virtio card hangs one level deeper (virtio2/net).

    That it is the card's own interface is said in the notes on that machine, so reading it is right.
    """
    nics = list(reading(name).nics)
    compare(nics, FACTS[name]["nics"])
    virtio = {"firecracker-2xh200-nv18.sysfs.tar.gz": ["eth0"]}
    assert [([nic.netdev] if nic.netdev else [], [nic.rdma] if nic.rdma else []) for nic in nics] == [
        (fact.get("netdevs", virtio.get(name, [])), fact.get("rdma", [])) for fact in FACTS[name]["nics"]
    ]


@pytest.mark.parametrize("name", NAMES)
def test_neither_virtual_interfaces_nor_display_adapters_count(name: str) -> None:
    read, facts = reading(name), FACTS[name]
    names = {nic.netdev for nic in read.nics} | {nic.rdma for nic in read.nics}
    assert not names & {*facts["virtual_netdevs"], *facts["virtual_rdma"]}
    assert not {str(gpu.bdf) for gpu in read.gpus} & {fact["busid"] for fact in facts["display_only"]}
    assert [str(switch) for switch in read.nvswitches] == facts["nvswitches"]


# Unpacking 130,000 small files takes a minute; one archive of each origin is enough for the quick run.
QUICK = ("kvm-pci-domain-10000.sysfs.tar.bz2", "firecracker-2xh200-nv18.sysfs.tar.gz")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_archive_and_unpacked_folder_are_read_alike(name: str, tmp_path: Path) -> None:
    with tarfile.open(MACHINES / name) as archive:
        archive.extractall(tmp_path, filter="tar")
    assert read_machine_tree(FolderFiles(tmp_path), name) == reading(name)


@pytest.mark.parametrize("name", [name for name in NAMES if "device_nic_class" in FACTS[name]])
def test_paths_give_the_link_classes_of_the_facts(name: str) -> None:
    """GPUs, and where there are none the accelerators of the same shape (NEC's vector engines, a Xeon Phi)."""
    sys = FilesBelow(files(name), str(Path(FACTS[name]["root_inside_archive"]) / "sys"))
    functions = read_pci_functions(sys)
    assert not isinstance(functions, str)
    places = {
        str(function.address): Place(function.path, function.address, numa_node_of(sys, function))
        for function in functions
        if function.path is not None
    }
    expected = {**FACTS[name]["device_nic_class"], **FACTS[name].get("device_device_class", {})}
    for device, classes in FACTS[name]["device_nic_class"].items():
        for other, link_class in classes.items():
            assert pcie_class(places[device], places[other]).name == link_class, (device, other)  # type: ignore[union-attr]
    for device, classes in FACTS[name].get("device_device_class", {}).items():
        for other, link_class in classes.items():
            assert pcie_class(places[device], places[other]).name == link_class, (device, other)  # type: ignore[union-attr]
    assert expected


def test_a_numa_node_that_the_local_cpus_contradict_is_reported() -> None:
    warnings = reading("dell-4socket-qib-numa-minus1.sysfs.tar.bz2").warnings
    assert len(warnings) == 1
    assert "0000:43:00.0 says NUMA node 2" in warnings[0]
    assert "its local CPUs are 0-39" in warnings[0]
