"""`lspci -tv`: where GPUs and NICs hang, told from the shape of the tree and the names in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.readers.recorded import FACTS, names, read, refused, says_the_same, text_of
from topoalloc.topology.links import Place, pcie_class
from topoalloc.topology.machine import LinkClass, NicFunction, Unknown
from topoalloc.topology.pci import PciAddress, PciPath
from topoalloc.topology.pci_classes import PciKind
from topoalloc.topology.readers import lspci_tree
from topoalloc.topology.readers.lspci_names import named_function
from topoalloc.topology.reading import GpuReading, NicReading, Reading, SourceRefusal, Standing

RECORDED = names(".lspci-tv.txt")

SWITCHED = """\
-+-[0000:00]-+-00.0  Intel Corporation Device 09a2
 |           \\-01.0-[02-06]----00.0-[03-06]--+-04.0-[04]----00.0  NVIDIA Corporation GH100 [H100 SXM5 80GB]
 |                                           +-08.0-[05]--+-00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
 |                                           |            \\-00.1  Mellanox Technologies MT2910 Family [ConnectX-7]
 |                                           \\-0c.0-[06]--
 \\-[0001:80]---00.0-[81]----00.0  NVIDIA Corporation GH100 [H100 SXM5 80GB]
"""


def tree(text: str) -> Reading:
    return read(lspci_tree.parse(text, "host.txt"))


def hangs(device: GpuReading | NicReading) -> dict[str, object]:
    assert device.path is not None
    bridges = [str(bridge) for bridge in device.path.bridges]
    return {"busid": str(device.bdf), "root": device.path.host_bridge, "bridges": bridges}


def without_name(fact: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in fact.items() if key != "name"}


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_tree_has_the_devices_and_paths_of_its_facts(name: str) -> None:
    reading, facts = tree(text_of(name)), FACTS[name]
    assert [hangs(gpu) for gpu in reading.gpus] == [without_name(fact) for fact in facts["gpus"]]
    assert [gpu.model for gpu in reading.gpus] == [fact["name"] for fact in facts["gpus"]]
    assert [hangs(nic) for nic in reading.nics] == [without_name(fact) for fact in facts["nics"]]
    assert (reading.standing, reading.ordered, reading.warnings) == (Standing.WHOLE, False, ())


@pytest.mark.parametrize("name", RECORDED)
def test_the_classes_that_follow_from_a_recorded_tree_are_those_of_its_facts(name: str) -> None:
    reading, facts = tree(text_of(name)), FACTS[name]
    untold = Unknown("not told")
    places = {
        str(device.bdf): Place(device.path, device.bdf, untold)
        for device in (*reading.gpus, *reading.nics)
        if device.path is not None
    }
    for kind in ("gpu_gpu_class", "gpu_nic_class"):
        for a, row in facts[kind].items():
            for b, expected in row.items():
                found = pcie_class(places[a], places[b])
                assert ("NODE_OR_SYS" if isinstance(found, Unknown) else found.name) == expected


def test_numa_nodes_are_not_told() -> None:
    assert {device.numa_node for device in (*tree(SWITCHED).gpus, *tree(SWITCHED).nics)} == {None}


def test_a_path_has_every_bridge_and_follows_the_bus_numbers() -> None:
    reading = tree(SWITCHED)
    below = tuple(PciAddress.parse(text) for text in ("00:01.0", "02:00.0", "03:04.0"))
    assert reading.gpus[0].bdf == PciAddress.parse("04:00.0")
    assert reading.gpus[0].path == PciPath("0000:00", below)
    assert reading.gpus[1].bdf == PciAddress.parse("0001:81:00.0")
    assert reading.gpus[1].path == PciPath("0001:80", (PciAddress.parse("0001:80:00.0"),))


def test_a_gpu_and_a_nic_below_one_switch_are_near() -> None:
    reading = tree(SWITCHED)
    gpu, nic = reading.gpus[0], reading.nics[0]
    assert gpu.path is not None and nic.path is not None
    untold = Unknown("not told")
    assert pcie_class(Place(gpu.path, gpu.bdf, untold), Place(nic.path, nic.bdf, untold)) is LinkClass.PIX


@pytest.mark.parametrize(
    "text",
    [
        "-[0000:00]-+-00.0  Intel Corporation Device 1\n           \\-05.0-[01]----00.0  NVIDIA Corporation GP100\n",
        "-[0000:00]---05.0-[01]----00.0  NVIDIA Corporation GP100\n",
        "-[10000:00]---05.0-[01]----00.0  NVIDIA Corporation GP100\n",
    ],
)
def test_a_machine_of_one_host_bridge_is_a_tree(text: str) -> None:
    assert len(tree(text).gpus) == 1


def test_indentation_prompts_and_what_follows_are_passed_over() -> None:
    pasted = "$ lspci -tv\n" + "".join(f"    {line}\n" for line in SWITCHED.splitlines()) + "\n$ uptime\n"
    assert says_the_same(tree(pasted), tree(SWITCHED))


def test_ids_of_lspci_nn_tell_vendor_device_and_virtual_functions() -> None:
    text = (
        "-[0000:00]-+-01.0-[01]----00.0  NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330]\n"
        "           \\-02.0-[02]----00.1  Mellanox Technologies ConnectX Family mlx5Gen Virtual Function [15b3:101e]\n"
    )
    reading = tree(text)
    assert (reading.gpus[0].vendor, reading.gpus[0].pci_device) == ("10de", "2330")
    assert reading.gpus[0].model == "NVIDIA Corporation GH100 [H100 SXM5 80GB]"
    assert reading.nics[0].function is NicFunction.VIRTUAL


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA Corporation GA100 [A100 SXM4 40GB]", PciKind.GPU),
        ("NVIDIA Corporation GB110 [B300 SXM6 AC]", PciKind.GPU),
        ("NVIDIA Corporation Device 2901", PciKind.GPU),
        ("NVIDIA Corporation GA100 [A100 NVSwitch]", PciKind.NVSWITCH),
        ("NVIDIA Corporation Device 22a3", PciKind.NVSWITCH),
        ("NVIDIA Corporation AD102 High Definition Audio Controller", PciKind.OTHER),
        ("NVIDIA Corporation TU104 USB 3.1 Host Controller", PciKind.OTHER),
        ("Advanced Micro Devices, Inc. [AMD/ATI] Aqua Vanjaram [Instinct MI300X]", PciKind.GPU),
        ("Advanced Micro Devices, Inc. [AMD/ATI] Vega 20 [Radeon Pro VII/Radeon Instinct MI50 32GB]", PciKind.GPU),
        ("Advanced Micro Devices, Inc. [AMD/ATI] Device 74a1", PciKind.GPU),
        ("Advanced Micro Devices, Inc. [AMD/ATI] Navi 31 HDMI/DP Audio", PciKind.OTHER),
        ("Advanced Micro Devices, Inc. [AMD/ATI] ES1000", PciKind.OTHER),
        ("Advanced Micro Devices, Inc. [AMD] Milan IOMMU", PciKind.OTHER),
        ("ASPEED Technology, Inc. ASPEED Graphics Family", PciKind.OTHER),
        ("Matrox Electronics Systems Ltd. G200eR2", PciKind.OTHER),
        ("Red Hat, Inc. QXL paravirtual graphic card", PciKind.OTHER),
        ("Mellanox Technologies MT2910 Family [ConnectX-7]", PciKind.NIC),
        ("Mellanox Technologies MT43244 BlueField-3 integrated ConnectX-7 network controller", PciKind.NIC),
        ("Mellanox Technologies MT43244 BlueField-3 SoC Management Interface", PciKind.OTHER),
        ("Mellanox Technologies MT2910 Family [ConnectX-7 PCIe Bridge]", PciKind.OTHER),
        ("Mellanox Technologies Device 1023", PciKind.NIC),
        ("Intel Corporation Ethernet Controller X710 for 10GBASE-T", PciKind.NIC),
        ("Intel Corporation I210 Gigabit Backplane Connection", PciKind.NIC),
        ("Intel Corporation Omni-Path HFI Silicon 100 Series [discrete]", PciKind.NIC),
        ("Intel Corporation Ethernet Switch FM10000", PciKind.OTHER),
        ("Cray Inc Cassini 1 [Slingshot 200Gb]", PciKind.NIC),
        ("Broadcom Inc. and subsidiaries BCM57508 NetXtreme-E 10Gb/25Gb/40Gb/50Gb/100Gb/200Gb Ethernet", PciKind.NIC),
        ("Broadcom / LSI PEX890xx PCIe Gen 5 Switch", PciKind.OTHER),
        ("Amazon.com, Inc. Elastic Fabric Adapter (EFA)", PciKind.NIC),
        ("Red Hat, Inc. Virtio 1.0 network device", PciKind.NIC),
        ("QLogic Corp. ISP2722-based 16/32Gb Fibre Channel to PCIe Adapter", PciKind.OTHER),
        ("Samsung Electronics Co Ltd NVMe SSD Controller PM9A1", PciKind.OTHER),
    ],
)
def test_names_tell_gpus_nics_and_nvswitches_from_all_else(name: str, kind: PciKind) -> None:
    assert named_function(name, 0).kind is kind


def test_only_function_zero_of_a_graphics_card_is_a_gpu() -> None:
    assert named_function("NVIDIA Corporation Device 22ba", 1).kind is PciKind.OTHER


def test_a_gpu_without_a_name_is_pointed_out() -> None:
    reading = tree("-[0000:00]---05.0-[01]----00.0  NVIDIA Corporation Device 2901\n")
    assert reading.gpus[0].pci_device == "2901"
    assert "0000:01:00.0" in reading.warnings[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("01:00.0 VGA compatible controller: NVIDIA\n", "no line that begins a tree"),
        ("-[0000:00]-+-00.0  Intel\n          \\-01.0  Intel\n", "line 2: nothing branches off"),
        ("-[0000:00]-+-00.0  Intel\n", "cut short"),
        ("-[0000:00]-+-00.0  Intel\n           \\-00.0  Intel\n", "0000:00:00.0 is there twice"),
        ("-[0000:00]-+-00.0\n           \\-01.0\n", "no name"),
        ("-[0000:00]-+-00.0  Intel\n           \\-zz.0  Intel\n", "line 2: no function"),
        ("-+-[0000:00]---00.0  Intel\n \\-[0000:00]---00.0  Intel\n", "host bridge 0000:00 is there twice"),
        ("-+-[0000:00]---00.0  Intel\n \\-00.0  Intel\n", "no host bridge"),
        ("-[0000:00]-+-00.0  Intel\nxx\n           \\-01.0  Intel\n", "line 2 is no line of the tree"),
        ("-[0000:00]-" + "".join(f"--00.0-[{bus:02x}]" for bus in range(1, 100)) + "--\n", "bridges above one another"),
    ],
)
def test_what_cannot_be_placed_is_refused(text: str, reason: str) -> None:
    assert reason in refused(lspci_tree.parse(text, "host.txt"))


@given(st.sampled_from([SWITCHED, *(text_of(name) for name in RECORDED)]), st.data())
def test_a_tree_cut_anywhere_is_refused_warned_of_or_whole(text: str, data: st.DataObject) -> None:
    result = lspci_tree.parse(text[: data.draw(st.integers(0, len(text)))], "host.txt")
    assert isinstance(result, SourceRefusal) or result.warnings or says_the_same(result, tree(text))


@given(st.sampled_from([SWITCHED, *(text_of(name) for name in RECORDED)]), st.data())
def test_a_tree_with_a_line_lost_is_refused_or_lacks_that_line_alone(text: str, data: st.DataObject) -> None:
    lines = text.split("\n")
    lost = data.draw(st.integers(0, len(lines) - 2))
    result = lspci_tree.parse("\n".join(lines[:lost] + lines[lost + 1 :]), "host.txt")
    if isinstance(result, Reading):
        whole = tree(text)
        assert set(result.gpus) <= set(whole.gpus)
        assert set(result.nics) <= set(whole.nics)
        shown = len(whole.gpus) + len(whole.nics)
        assert shown - len(result.gpus) - len(result.nics) <= 1


@given(st.text(st.sampled_from("-+[]|\\ 0:1.\n a")))
def test_any_text_is_refused_or_read_without_raising(text: str) -> None:
    assert isinstance(lspci_tree.parse("-[0000:00]-" + text, "host.txt"), Reading | SourceRefusal)
