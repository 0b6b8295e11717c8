"""hwloc XML: every recorded file as its facts say, both versions, and damage named."""

from __future__ import annotations

from functools import cache

import pytest

from tests.topology.trees import FACTS, MACHINES, recorded
from topoalloc.topology.links import nearest_nics
from topoalloc.topology.machine import Machine, NicLink, Unknown
from topoalloc.topology.pci import PciAddress
from topoalloc.topology.readers.hwloc_xml import read_hwloc_xml
from topoalloc.topology.readers.xml_document import XmlElement, read_xml
from topoalloc.topology.reading import FarEnd, GpuReading, NicReading, NvlinkReading, Reading, SourceRefusal
from topoalloc.topology.sources import load_machine

NAMES = recorded(".hwloc.xml")


@cache
def reading(name: str) -> Reading:
    root = read_xml((MACHINES / name).read_bytes(), name)
    assert isinstance(root, XmlElement)
    result = read_hwloc_xml(root, name)
    assert isinstance(result, Reading), result
    return result


@cache
def machine(name: str) -> Machine:
    return load_machine([str(MACHINES / name)])


def made_up(body: str, version: str = "3.0") -> Reading | SourceRefusal:
    root = read_xml(f'<topology version="{version}">{body}</topology>', "a.xml")
    assert isinstance(root, XmlElement), root
    return read_hwloc_xml(root, "a.xml")


def accepted(body: str, version: str = "3.0") -> Reading:
    result = made_up(body, version)
    assert isinstance(result, Reading), result
    return result


@pytest.mark.parametrize("name", NAMES)
def test_the_nodes_are_those_of_the_facts(name: str) -> None:
    found = [(node.id, str(node.cpus), node.memory_bytes) for node in reading(name).numa_nodes]
    assert found == [(fact["id"], fact["cpus"], fact["mem_bytes"]) for fact in FACTS[name]["numa_nodes"]]


@pytest.mark.parametrize("name", NAMES)
def test_distances_are_there_where_the_facts_count_a_matrix(name: str) -> None:
    matrices = {matrix["name"] for matrix in FACTS[name]["distance_matrices"]}
    for node in reading(name).numa_nodes:
        assert isinstance(node.distances, tuple) == ("NUMALatency" in matrices)


def place(device: GpuReading | NicReading) -> tuple[str, object, list[str]]:
    assert device.path is not None
    return str(device.bdf), device.numa_node, [device.path.host_bridge, *map(str, device.path.bridges)]


def fact_place(fact: dict[str, object]) -> tuple[object, object, list[str]]:
    host, *bridges = fact["bridges"]  # type: ignore[misc] # `host:0000:[10-1f]`, then addresses
    return fact["busid"], fact["numa"], [host.removeprefix("host:").replace("[", "").partition("-")[0], *bridges]


@pytest.mark.parametrize("name", NAMES)
def test_the_devices_hang_where_the_facts_say(name: str) -> None:
    read, facts = reading(name), FACTS[name]
    assert [place(gpu) for gpu in read.gpus] == sorted(map(fact_place, facts["gpus"]), key=str)
    assert [place(nic) for nic in read.nics] == sorted(map(fact_place, facts["nics"]), key=str)


@pytest.mark.parametrize("name", NAMES)
def test_the_names_of_a_port_are_among_those_of_its_function(name: str) -> None:
    names = {fact["busid"]: set(fact["os"]) for fact in FACTS[name]["nics"]}
    for nic in reading(name).nics:
        assert {label for label in (nic.name, nic.netdev, nic.rdma) if label} <= names[str(nic.bdf)]
        assert nic.name


@pytest.mark.parametrize("name", NAMES)
def test_nearest_nics_and_switch_groups_are_those_of_the_facts(name: str) -> None:
    here, facts = machine(name), FACTS[name]
    address = {device.id: str(device.bdf) for device in (*here.gpus, *here.nics)}
    near = {
        address[gpu]: {"class": found.pcie.name, "nics": [address[nic] for nic in found.nics]}
        for gpu, found in nearest_nics(here).items()
    }
    assert near == facts.get("best_nic_per_gpu", {})
    assert [[address[member] for member in group] for group in here.switch_groups] == facts["switch_groups"]


def test_an_adapter_with_two_interfaces_and_one_rdma_device_is_one_port() -> None:
    """The facts count mlx4_0 with eth2 and ib0 once, as `topo -m` does: the RDMA device is what is handed out."""
    nics = [nic for nic in reading("hp-2socket-3xc2050-mlx4.hwloc.xml").nics if nic.rdma]
    assert [(nic.rdma, nic.netdev) for nic in nics] == [("mlx4_0", "eth2")]


def test_hbm_nodes_that_share_the_cpus_of_dram_nodes_are_reported() -> None:
    """hwloc gives a memory-only node the CPUs beside it; the facts keep them, so the model does, and says so."""
    warnings = reading("intel64-4node-dram-hbm.hwloc.xml").warnings
    assert len(warnings) == 4
    assert "NUMA node 4 lists CPUs 4-7,20-23,36-39,52-55, which other nodes list too" in warnings[0]


def test_nvlink_bandwidth_becomes_link_counts() -> None:
    """The P100s of a POWER8 machine: 40 GB/s in each pair are two links of 20 GB/s; links to the CPUs join no GPUs."""
    links = {str(gpu.bdf): gpu.nvlinks for gpu in reading("ibm-minsky-power8-4xp100.hwloc.xml").gpus}
    assert links == {
        "0002:01:00.0": (NvlinkReading(FarEnd.GPU, PciAddress(3, 1, 0, 0), 2),),
        "0003:01:00.0": (NvlinkReading(FarEnd.GPU, PciAddress(2, 1, 0, 0), 2),),
        "000a:01:00.0": (NvlinkReading(FarEnd.GPU, PciAddress(0xB, 1, 0, 0), 2),),
        "000b:01:00.0": (NvlinkReading(FarEnd.GPU, PciAddress(0xA, 1, 0, 0), 2),),
    }


def test_model_uuid_and_memory_of_a_gpu_come_from_its_os_devices() -> None:
    first = reading("ibm-minsky-power8-4xp100.hwloc.xml").gpus[0]
    assert (first.model, first.memory_bytes) == ("Tesla P100-SXM2-16GB", 16671616 * 1024)
    assert first.uuid == "GPU-00000000-0000-4000-8000-000000000301"


NODE = '<object type="NUMANode" os_index="0" cpuset="0x0000000f" nodeset="0x1" local_memory="1073741824"/>'


def machine_of(inner: str, nodeset: str = "0x00000001") -> str:
    return f'<object type="Machine" nodeset="{nodeset}">{NODE}{inner}</object>'


def host_bridge(inner: str) -> str:
    return (
        '<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-20]"><object type="Bridge" bridge_type="1-1" '
        f'bridge_pci="0000:[01-01]" pci_busid="0000:00:01.0">{inner}</object></object>'
    )


def pci(pci_type: str, inner: str = "", busid: str = "0000:01:00.0", gp_index: int = 5) -> str:
    return f'<object type="PCIDev" gp_index="{gp_index}" pci_busid="{busid}" pci_type="{pci_type}">{inner}</object>'


@pytest.mark.parametrize(("version", "net", "rdma"), [("2.0", 2, 3), ("3.0", 16, 32)])
def test_os_device_kinds_are_numbers_in_version_2_and_bits_in_version_3(version: str, net: int, rdma: int) -> None:
    devices = (
        f'<object type="OSDev" name="ib0" osdev_type="{net}"/><object type="OSDev" name="mlx5_0" osdev_type="{rdma}"/>'
    )
    nic = accepted(machine_of(host_bridge(pci("0207 [15b3:101b] [15b3:0007] 00 00", devices))), version).nics[0]
    assert (nic.netdev, nic.rdma, nic.link) == ("ib0", "mlx5_0", NicLink.INFINIBAND)


def test_locality_is_the_nodeset_of_the_nearest_object_above_that_has_one() -> None:
    package = '<object type="Package" nodeset="0x00000001">{0}</object>'
    card = host_bridge(pci("0302 [10de:2330] [10de:16c1] a1 00"))
    other = NODE.replace('os_index="0"', 'os_index="1"')
    assert accepted(machine_of(other + package.format(card), "0x3")).gpus[0].numa_node == 0
    assert accepted(machine_of(other + card, "0x3")).gpus[0].numa_node == Unknown("the nodeset above the device is 0-1")


def test_an_endless_nodeset_says_nothing() -> None:
    card = host_bridge(pci("0302 [10de:2330] [10de:16c1] a1 00"))
    assert isinstance(accepted(machine_of(card, "0xf...f")).gpus[0].numa_node, Unknown)


def test_without_a_host_bridge_the_path_is_not_told() -> None:
    assert accepted(machine_of(pci("0302 [10de:2330] [10de:16c1] a1 00"))).gpus[0].path is None


def test_xgmi_hops_of_one_are_links() -> None:
    matrix = (
        '<distances2 type="OSDev" nbobjs="2" name="XGMIHops" indexing="gp"><indexes length="5">7 8 </indexes>'
        '<u64values length="8">0 1 1 0 </u64values></distances2>'
    )
    cards = "".join(
        pci("0380 [1002:738c] [1002:0c34] 01 00", f'<object type="OSDev" gp_index="{7 + at}"/>', f"0000:0{at}:00.0", at)
        for at in range(2)
    )
    gpus = accepted(f"{machine_of(cards)}{matrix}").gpus
    assert [gpu.nvlinks for gpu in gpus] == [
        (NvlinkReading(FarEnd.GPU, PciAddress(0, 1, 0, 0), 1),),
        (NvlinkReading(FarEnd.GPU, PciAddress(0, 0, 0, 0), 1),),
    ]


def test_nvswitches_in_the_bandwidth_matrix_are_the_far_end() -> None:
    matrix = (
        '<distances2hetero nbobjs="2" name="NVLinkBandwidth"><indexes length="9">OSDev:7 PCIDev:9 </indexes>'
        "<u64values>1000000 300000 </u64values><u64values>300000 0 </u64values></distances2hetero>"
    )
    card = pci("0302 [10de:20b0] [10de:134f] a1 00", '<object type="OSDev" gp_index="7" name="nvml0"/>')
    switch = pci("0680 [10de:1af1] [10de:1af1] a1 00", "", "0000:02:00.0", 9)
    read = accepted(f"{machine_of(card + switch)}{matrix}")
    assert read.nvswitches == (PciAddress(0, 2, 0, 0),)
    assert read.gpus[0].nvlinks == (NvlinkReading(FarEnd.SWITCH, PciAddress(0, 2, 0, 0), 12),)


@pytest.mark.parametrize(
    ("body", "version", "reason"),
    [
        ("", "3.0", "holds no <object>"),
        (machine_of(""), "1.0", "written by hwloc 1.0"),
        (machine_of(""), "", "written by hwloc"),
        ('<object type="Machine"/>', "3.0", "names no NUMANode"),
        ('<object type="Machine"><object type="NUMANode"/></object>', "3.0", "has no os_index"),
        (machine_of(pci("0302")), "3.0", "pci_type '0302'"),
        (machine_of(pci("0302 [10de:2330] x", busid="somewhere")), "3.0", "not a PCI address"),
        (machine_of("", "zz"), "3.0", "not a CPU mask"),
    ],
)
def test_damage_is_named(body: str, version: str, reason: str) -> None:
    result = made_up(body, version)
    assert isinstance(result, SourceRefusal)
    assert reason in result.reason


def test_a_matrix_that_is_not_whole_is_left_out() -> None:
    matrix = (
        '<distances2 name="NUMALatency" indexing="os"><indexes>0 </indexes><u64values>10 20 </u64values></distances2>'
    )
    assert isinstance(accepted(f"{machine_of('')}{matrix}").numa_nodes[0].distances, Unknown)
