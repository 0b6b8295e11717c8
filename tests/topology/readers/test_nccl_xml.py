"""NCCL and RCCL topology XML: every recorded file as its facts say, and what made-up files must not do."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.trees import FACTS, MACHINES, recorded
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.links import nearest_nics
from topoalloc.topology.machine import LinkClass, Machine, NicFunction, NicLink, Unknown
from topoalloc.topology.pci import PciAddress, PciPath
from topoalloc.topology.readers.nccl_xml import read_nccl_xml
from topoalloc.topology.readers.xml_document import XmlElement, read_xml
from topoalloc.topology.reading import FarEnd, GpuReading, NvlinkReading, Reading, SourceRefusal, Standing
from topoalloc.topology.sources import load_machine

NAMES = recorded(".nccl-topo.xml")
UNSEEN = "fffffff:ff:ff.0"  # as NCCL and the facts spell a switch that the guest does not see


@cache
def reading(name: str) -> Reading:
    root = read_xml((MACHINES / name).read_bytes(), name)
    assert isinstance(root, XmlElement)
    result = read_nccl_xml(root, name)
    assert isinstance(result, Reading), result
    return result


@cache
def machine(name: str) -> Machine:
    return load_machine([str(MACHINES / name)])


def made_up(body: str) -> Reading | SourceRefusal:
    root = read_xml(f'<system version="1">{body}</system>', "a.xml")
    assert isinstance(root, XmlElement), root
    return read_nccl_xml(root, "a.xml")


def accepted(body: str) -> Reading:
    result = made_up(body)
    assert isinstance(result, Reading), result
    return result


def refused(body: str) -> str:
    result = made_up(body)
    assert isinstance(result, SourceRefusal)
    return result.reason


@pytest.mark.parametrize("name", NAMES)
def test_the_nodes_are_the_cpu_elements_of_the_facts(name: str) -> None:
    found = {node.id: None if node.cpus is None else str(node.cpus) for node in reading(name).numa_nodes}
    assert found == {fact["numaid"]: fact["cpus"] for fact in FACTS[name]["cpu_elements"]}


@pytest.mark.parametrize("name", NAMES)
def test_the_gpus_hang_where_the_facts_say(name: str) -> None:
    found = {str(gpu.bdf): (gpu.numa_node, list(map(str, bridges(gpu.path)))) for gpu in reading(name).gpus}
    assert found == {fact["busid"]: (fact["numa"], fact["bridges"]) for fact in FACTS[name]["gpus"]}


@pytest.mark.parametrize("name", NAMES)
def test_every_net_element_with_a_pci_device_is_a_nic(name: str) -> None:
    found = sorted(
        (nic.name or str(nic.bdf), str(nic.bdf), nic.numa_node, nic.port, list(map(str, bridges(nic.path))))
        for nic in reading(name).nics
    )
    assert found == sorted(
        (fact.get("name") or fact["busid"], fact["busid"], fact["numa"], fact.get("port"), fact["bridges"])
        for fact in FACTS[name]["nics"]
        if fact["busid"] is not None
    )


def bridges(path: PciPath | None) -> tuple[PciAddress, ...]:
    assert path is not None
    return path.bridges


@pytest.mark.parametrize("name", NAMES)
def test_links_to_switches_are_those_of_the_facts(name: str) -> None:
    found = {
        str(gpu.bdf): {
            UNSEEN if link.target is None else str(link.target): link.count
            for link in gpu.nvlinks or ()
            if link.far_end in {FarEnd.SWITCH, FarEnd.UNSEEN_SWITCH}
        }
        for gpu in reading(name).gpus
    }
    expected = {
        gpu: {fact["switch"]: fact["links"] for fact in facts} for gpu, facts in FACTS[name]["switch_links"].items()
    }
    assert {gpu: links for gpu, links in found.items() if links} == expected


@pytest.mark.parametrize("name", NAMES)
def test_the_switches_at_the_ends_of_links_are_listed(name: str) -> None:
    facts = {fact["switch"] for switches in FACTS[name]["switch_links"].values() for fact in switches}
    assert {str(switch) for switch in reading(name).nvswitches} == facts - {UNSEEN}


@pytest.mark.parametrize("name", NAMES)
def test_the_links_of_every_pair_are_those_of_the_facts(name: str) -> None:
    """Direct links as listed; through switches the smaller total; null where a hand-written file lists none at all."""
    facts = FACTS[name]
    links = machine(name).links_by_pair()
    direct = {frozenset((pair["a"], pair["b"])): pair["links"] for pair in facts["direct_link_pairs"]}
    written = {str(gpu.bdf) for gpu in reading(name).gpus if gpu.nvlinks is not None}
    assert written in ({fact["busid"] for fact in facts["gpus"]}, set())
    for a, b in combinations(machine(name).gpus, 2):
        expected = direct.get(frozenset((str(a.bdf), str(b.bdf))), 0)
        if facts["switch_links"]:
            expected = min(facts["links_per_gpu"][str(gpu.bdf)] for gpu in (a, b))
        found = links[a.id, b.id].nvlinks
        assert found == expected if written else isinstance(found, Unknown)


@pytest.mark.parametrize("name", NAMES)
def test_each_gpus_nearest_nics_are_those_of_the_facts(name: str) -> None:
    here, facts = machine(name), FACTS[name]["best_nic_per_gpu"]
    label = {nic.id: nic.name for nic in here.nics}
    found = {
        str(gpu.bdf): (near.pcie.name, sorted(label[nic] for nic in near.nics))
        for gpu in here.gpus
        if (near := nearest_nics(here).get(gpu.id))
    }
    assert found == {gpu: (fact["class"], sorted(fact["nics"])) for gpu, fact in facts.items() if fact is not None}


@pytest.mark.parametrize("name", NAMES)
def test_the_devices_below_one_top_switch_are_those_of_the_facts(name: str) -> None:
    """Sets of two or more. Two ports of a card on a root port are one set too, which the facts leave out here."""
    here = machine(name)
    label = {gpu.id: str(gpu.bdf) for gpu in here.gpus} | {nic.id: nic.name for nic in here.nics}
    with_gpu = {frozenset(label[member] for member in group) for group in here.switch_groups}
    facts = [{*fact["gpus"], *fact["nics"]} for fact in FACTS[name]["switch_groups"]]
    assert with_gpu == {frozenset(fact) for fact in facts if len(fact) > 1}


def test_devices_without_a_class_are_neither_gpu_nor_nic_and_reported() -> None:
    read = reading("aws-g5.48xlarge.nccl-topo.xml")
    assert (read.gpus, read.nics) == ((), ())
    assert "9 PCI devices have no class" in read.warnings[0]
    assert "0000:00:15.0" in read.warnings[0]


def test_a_socket_interface_below_every_cpu_is_left_out_and_reported() -> None:
    read = reading("hgx-b200-8gpu-container.nccl-topo.xml")
    assert read.nics == ()
    assert read.warnings == (
        "hgx-b200-8gpu-container.nccl-topo.xml: NIC eth0 has no PCI device, so no locality; it is left out",
    )


def test_the_cuda_number_is_not_taken_for_an_index() -> None:
    assert {gpu.index for gpu in reading("rccl-8x-mi300x-vm.nccl-topo.xml").gpus} == {None}


def test_a_file_stands_for_itself_but_does_not_list_every_node() -> None:
    read = reading("perlmutter-4xa100-epyc7763-slingshot.nccl-topo.xml")
    assert (read.standing, read.all_numa_nodes, read.ordered) == (Standing.WHOLE, False, False)


GPU = '<pci busid="0000:{0}:00.0" class="0x030200" vendor="0x10de" device="0x2330"><gpu dev="0">{1}</gpu></pci>'


def gpu(body: str) -> GpuReading:
    return accepted(f'<cpu numaid="0">{GPU.format("0f", body)}</cpu>').gpus[0]


def test_a_channel_plan_is_refused_by_name() -> None:
    root = read_xml('<graphs version="1"><graph/></graphs>', "a.xml")
    assert isinstance(root, XmlElement)
    result = read_nccl_xml(root, "a.xml")
    assert isinstance(result, SourceRefusal)
    assert "channel plan" in result.reason
    assert "NCCL_TOPO_DUMP_FILE" in result.reason


def test_a_file_of_several_hosts_is_refused() -> None:
    hosts = '<cpu numaid="0" host_hash="0x1"/><cpu numaid="0" host_hash="0x2"/>'
    assert refused(hosts) == "describes 2 hosts in one; give the file of one host"
    assert "describes 2 hosts" in refused('<cpu numaid="1"/><cpu numaid="1"/>')


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "no <cpu> element"),
        ('<cpu numaid="x"/>', "which is no number"),
        ("<cpu/>", "which is no number"),
        ('<cpu numaid="0" affinity="zz"/>', "affinity is damaged"),
        ('<cpu numaid="0"><pci busid="here"/></cpu>', "which is no PCI address"),
        ('<cpu numaid="0"><pci/></cpu>', "which is no PCI address"),
    ],
)
def test_damage_is_named(body: str, reason: str) -> None:
    assert reason in refused(body)


def test_a_mask_with_short_words_is_read() -> None:
    read = accepted('<cpu numaid="0" affinity="ff,0,,0000ffff"/>')
    assert read.numa_nodes[0].cpus == CpuSet.from_list("0-15,96-103")


def test_devices_of_a_cpu_without_a_node_have_an_unknown_node() -> None:
    read = accepted(f'<cpu numaid="-1">{GPU.format("0f", "")}</cpu>')
    assert read.numa_nodes == ()
    assert read.gpus[0].numa_node == Unknown("numaid is -1")


def test_a_gpu_element_without_links_has_none_and_a_leaf_without_one_is_silent() -> None:
    leaf = '<cpu numaid="0"><pci busid="0001:00:00.0" class="0x030200"/></cpu>'
    assert gpu("").nvlinks == ()
    assert accepted(leaf).gpus[0].nvlinks is None


def test_a_gpu_that_is_its_own_far_end_has_links_to_nowhere_told() -> None:
    """Azure's NCv4 file; the pair is not named, so no pair is counted, and none is denied either."""
    links = gpu('<nvlink target="0000:0f:00.0" count="12" tclass="0x030200"/>').nvlinks
    assert links == (NvlinkReading(FarEnd.UNKNOWN, None, 12),)


def test_on_power_the_bridge_class_is_the_cpus_end_of_the_links() -> None:
    link = '<nvlink target="0004:00:00.0" count="3" tclass="0x068000"/>'
    read = accepted(f'<cpu numaid="0" arch="ppc64">{GPU.format("0f", link)}</cpu>')
    assert read.gpus[0].nvlinks == ()
    assert read.nvswitches == ()


@pytest.mark.parametrize("count", ["0", "-1", "x", "99999", ""])
def test_a_link_count_that_is_none_is_no_link(count: str) -> None:
    assert gpu(f'<nvlink target="0000:10:00.0" count="{count}" tclass="0x030200"/>').nvlinks == ()


def nic(net: str, device: str = "0x1021", pci_class: str = "0x020000") -> Reading:
    return accepted(
        f'<cpu numaid="0"><pci busid="0000:0c:00.0" class="{pci_class}" vendor="0x15b3" device="{device}">'
        f"<nic>{net}</nic></pci></cpu>"
    )


def test_a_verbs_port_is_an_rdma_device_and_a_socket_port_is_an_interface() -> None:
    verbs = nic('<net name="mlx5_0" port="1"/>').nics[0]
    socket = nic('<net name="eth0" port="0"/>').nics[0]
    slingshot = nic('<net name="cxi0" port="1"/>').nics[0]
    assert (verbs.rdma, verbs.netdev) == ("mlx5_0", None)
    assert (socket.rdma, socket.netdev) == (None, "eth0")
    assert (slingshot.rdma, slingshot.netdev, slingshot.name) == (None, None, "cxi0")


def test_two_net_elements_are_two_ports_of_one_card() -> None:
    nics = nic('<net name="mlx5_0" port="1" guid="0x1"/><net name="mlx5_1" port="2" guid="0x1"/>').nics
    assert [(port.name, port.port, str(port.bdf)) for port in nics] == [
        ("mlx5_0", 1, "0000:0c:00.0"),
        ("mlx5_1", 2, "0000:0c:00.0"),
    ]


def test_what_the_pci_id_and_class_prove_of_a_port_is_told() -> None:
    virtual = nic('<net name="mlx5_0" port="1"/>', device="0x101e", pci_class="0x020700").nics[0]
    assert (virtual.function, virtual.link) == (NicFunction.VIRTUAL, NicLink.INFINIBAND)
    assert nic('<net name="mlx5_0" port="1"/>').nics[0].function is None


def test_a_nic_of_an_unusual_class_is_one_by_its_nic_element() -> None:
    """ConnectX-8's data-direct function has class 0x0801."""
    assert nic('<net name="mlx5_0" port="1"/>', pci_class="0x080100").nics[0].rdma == "mlx5_0"


def test_a_bus_id_on_two_gpus_leaves_both_for_the_machine_to_settle() -> None:
    read = accepted(f'<cpu numaid="0">{GPU.format("0f", "")}{GPU.format("0f", "")}</cpu>')
    assert len(read.gpus) == 2


def test_perlmutters_classes_agree_between_its_two_sources() -> None:
    """NODE of the table is folded into PHB by NCCL: where both speak of GPUs, SYS stays SYS."""
    here = machine("perlmutter-4xa100-epyc7763-slingshot.nccl-topo.xml")
    classes = {link.pcie for link in here.links if link.b.startswith("GPU")}
    assert classes == {LinkClass.SYS}


attributes = st.dictionaries(
    st.sampled_from(["numaid", "affinity", "busid", "class", "vendor", "target", "count", "tclass", "name", "port"]),
    st.one_of(st.text("0123456789abcdefx:.,-", max_size=14), st.sampled_from(["0000:01:00.0", "0x030200", "0x020000"])),
    max_size=5,
)
elements = st.recursive(
    st.tuples(st.sampled_from(["cpu", "pci", "gpu", "nic", "net", "nvlink", "x"]), attributes, st.just(())),
    lambda inner: st.tuples(
        st.sampled_from(["cpu", "pci", "gpu", "nic"]), attributes, st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=12,
)


@given(st.lists(elements, max_size=4))
def test_no_document_makes_the_reader_raise(children: list[object]) -> None:
    def element(shape: object) -> XmlElement:
        tag, attributes, inner = shape  # type: ignore[misc]
        return XmlElement(tag, attributes, "", tuple(map(element, inner)))

    root = XmlElement("system", {}, "", tuple(map(element, children)))
    assert isinstance(read_nccl_xml(root, "a.xml"), Reading | SourceRefusal)
