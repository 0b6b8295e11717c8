"""What sysfs trees hold beyond the recorded ones: SR-IOV, switchdev, XGMI, broken firmware, kernels of all ages."""

from __future__ import annotations

import pytest

from tests.topology.trees import Link, Tree, netdev_tree, numa_tree, pci_tree, reading_of
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import NicFunction, NicLink, Unknown
from topoalloc.topology.pci import PciAddress
from topoalloc.topology.reading import NO_NAME, FarEnd, NvlinkReading

NVIDIA_GPU = ("0x030200", "0x10de")
PORT = "pci0000:00/0000:00:01.0"


def gpus_of(*trees: Tree) -> list[str]:
    return [str(gpu.bdf) for gpu in reading_of(merged(numa_tree("0-3"), *trees)).gpus]


def merged(*trees: Tree) -> Tree:
    return {path: content for tree in trees for path, content in tree.items()}


@pytest.mark.parametrize(
    ("pci_class", "vendor", "is_gpu"),
    [
        ("0x030200", "0x10de", True),
        ("0x030000", "0x10de", True),
        ("0x038000", "0x1002", True),
        ("0x120000", "0x1002", True),
        ("0x030200", "0x1002", True),
        ("0x030000", "0x1002", False),
        ("0x030000", "0x1a03", False),
        ("0x030000", "0x1af4", False),
        ("0x038000", "0x8086", False),
        ("0x120000", "0x1b36", False),
        ("0x120000", "0x10de", False),
        ("0x068000", "0x10de", False),
    ],
)
def test_class_and_vendor_together_make_a_gpu(pci_class: str, vendor: str, is_gpu: bool) -> None:
    found = gpus_of(pci_tree(f"{PORT}/0000:01:00.0", pci_class, vendor))
    assert found == (["0000:01:00.0"] if is_gpu else [])


def test_nvidias_other_bridges_are_nvswitches() -> None:
    tree = merged(
        numa_tree("0"),
        pci_tree(f"{PORT}/0000:01:00.0", "0x068000", "0x10de"),
        pci_tree(f"{PORT}/0000:02:00.0", "0x068000", "0x8086"),
    )
    assert reading_of(tree).nvswitches == (PciAddress(0, 1, 0, 0),)


def test_a_virtual_function_of_a_gpu_is_no_other_gpu() -> None:
    share = f"{PORT}/0000:01:00.4"
    tree = {f"sys/devices/{share}/physfn": Link("../0000:01:00.0")}
    found = gpus_of(pci_tree(f"{PORT}/0000:01:00.0", *NVIDIA_GPU), pci_tree(share, *NVIDIA_GPU), tree)
    assert found == ["0000:01:00.0"]


def test_the_nvidia_driver_tells_model_uuid_and_minor_below_proc() -> None:
    information = (
        "Model: \t\t NVIDIA H200\nIRQ:   \t\t 35\nGPU UUID: \t GPU-1234\nBus Type: \t PCIe\nDevice Minor: \t 3\n"
    )
    gpu = reading_of(
        merged(
            numa_tree("0"),
            pci_tree(f"{PORT}/0000:0f:00.0", *NVIDIA_GPU),
            {"proc/driver/nvidia/gpus/0000:0f:00.0/information": information},
        )
    ).gpus[0]
    assert (gpu.model, gpu.uuid, gpu.minor) == ("NVIDIA H200", "GPU-1234", 3)


def test_question_marks_of_the_nvidia_driver_are_silence() -> None:
    information = "Model: \t\t Unknown\nGPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t ?\n"
    gpu = reading_of(
        merged(
            numa_tree("0"),
            pci_tree(f"{PORT}/0000:0f:00.0", *NVIDIA_GPU),
            {"proc/driver/nvidia/gpus/0000:0f:00.0/information": information},
        )
    ).gpus[0]
    assert (gpu.uuid, gpu.minor) == (None, None)


def test_amdgpu_tells_the_memory_in_sysfs() -> None:
    tree = pci_tree(f"{PORT}/0000:c1:00.0", "0x120000", "0x1002", mem_info_vram_total="206141652992")
    assert reading_of(merged(numa_tree("0"), tree)).gpus[0].memory_bytes == 206141652992


def kfd_node(number: int, location: int, peers: dict[int, tuple[int, int]]) -> Tree:
    """A GPU of the KFD tree; peers as node number -> (link type, weight)."""
    folder = f"sys/class/kfd/kfd/topology/nodes/{number}"
    tree = {f"{folder}/properties": f"cpu_cores_count 0\nsimd_count 304\nlocation_id {location}\ndomain 0\n"}
    for at, (peer, (link_type, weight)) in enumerate(peers.items()):
        tree[f"{folder}/io_links/{at}/properties"] = (
            f"type {link_type}\nversion_major 0\nnode_from {number}\nnode_to {peer}\nweight {weight}\n"
            "min_bandwidth 50000\nmax_bandwidth 200000\n"
        )
    return tree


def test_xgmi_links_of_one_hop_come_from_the_kfd_tree() -> None:
    """Type 11 is XGMI, type 2 PCIe; weight 30 is two hops. The count is the larger bandwidth over the smaller."""
    tree = merged(
        numa_tree("0"),
        *(pci_tree(f"{PORT}/0000:{bus}:00.0", "0x120000", "0x1002") for bus in ("01", "02", "03")),
        {"sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 64\nsimd_count 0\n"},
        kfd_node(1, 0x0100, {0: (2, 20), 2: (11, 15), 3: (11, 30)}),
        kfd_node(2, 0x0200, {1: (11, 15)}),
        kfd_node(3, 0x0300, {1: (2, 40)}),
    )
    links = [gpu.nvlinks for gpu in reading_of(tree).gpus]
    assert links == [
        (NvlinkReading(FarEnd.GPU, PciAddress(0, 2, 0, 0), 4),),
        (NvlinkReading(FarEnd.GPU, PciAddress(0, 1, 0, 0), 4),),
        (),
    ]


def test_sysfs_is_silent_about_nvlink() -> None:
    assert reading_of(merged(numa_tree("0"), pci_tree(f"{PORT}/0000:01:00.0", *NVIDIA_GPU))).gpus[0].nvlinks is None


def test_a_function_on_a_node_that_does_not_exist_has_no_known_node() -> None:
    read = reading_of(
        merged(
            numa_tree("0-1", "2-3"),
            pci_tree(f"{PORT}/0000:01:00.0", *NVIDIA_GPU, numa_node="7"),
            pci_tree(f"{PORT}/0000:02:00.0", "0x020000", "0x15b3", numa_node="7"),
        )
    )
    unknown = Unknown("numa_node is 7, and there is no such node")
    assert [read.gpus[0].numa_node, read.nics[0].numa_node] == [unknown, unknown]
    assert len(read.warnings) == 2


def test_a_gpu_kept_for_a_virtual_machine_is_pointed_out() -> None:
    folder = f"sys/devices/{PORT}/0000:01:00.0"
    tree = merged(
        numa_tree("0"),
        pci_tree(f"{PORT}/0000:01:00.0", *NVIDIA_GPU),
        {f"{folder}/driver": Link("../../../../bus/pci/drivers/vfio-pci")},
    )
    assert reading_of(tree).warnings == ("made-up: GPU 0000:01:00.0 is bound to vfio-pci: kept for a virtual machine",)


def test_plain_folders_in_place_of_links_are_found_in_the_device_tree() -> None:
    """The oldest dumps copied /sys/bus/pci/devices without its links."""
    place = "pci0000:00/0000:00:01.0/0000:01:00.0"
    tree = merged(
        numa_tree("0"),
        {f"sys/devices/{place}/{key}": value for key, value in {"class": "0x030200", "vendor": "0x10de"}.items()},
        {"sys/bus/pci/devices/0000:01:00.0/class": "0x030200"},
    )
    gpu = reading_of(tree).gpus[0]
    assert gpu.path is not None
    assert (gpu.path.host_bridge, gpu.path.bridges) == ("0000:00", (PciAddress(0, 0, 1, 0),))
    assert gpu.numa_node == Unknown("numa_node is missing or cannot be read")


def test_a_plain_folder_without_a_device_tree_is_a_device_without_a_path() -> None:
    tree = merged(
        numa_tree("0"),
        {
            f"sys/bus/pci/devices/0000:01:00.0/{key}": value
            for key, value in {"class": "0x030200", "vendor": "0x10de"}.items()
        },
    )
    gpu = reading_of(tree).gpus[0]
    assert (str(gpu.bdf), gpu.path) == ("0000:01:00.0", None)


def test_the_configuration_space_tells_what_missing_files_do_not() -> None:
    config = bytes.fromhex("de10352300000000a1000203") + bytes(52)
    tree = merged(
        numa_tree("0"),
        {
            f"sys/devices/{PORT}/0000:01:00.0/config": config,
            "sys/bus/pci/devices/0000:01:00.0": Link(f"../../../devices/{PORT}/0000:01:00.0"),
        },
    )
    gpu = reading_of(tree).gpus[0]
    assert (gpu.vendor, gpu.pci_device) == ("10de", "2335")


def test_domains_that_a_function_opens_itself_begin_at_their_own_host_bridge() -> None:
    """Intel VMD: pci0000:00/0000:00:0e.0/pci10000:00/10000:00:02.0/10000:01:00.0."""
    place = "pci0000:00/0000:00:0e.0/pci10000:00/10000:00:02.0/10000:01:00.0"
    nic = reading_of(merged(numa_tree("0"), pci_tree(place, "0x020000", "0x15b3"))).nics[0]
    assert nic.path is not None
    assert (nic.path.host_bridge, nic.path.bridges) == ("10000:00", (PciAddress(0x10000, 0, 2, 0),))


CARD = f"{PORT}/0000:02:00.0"
MELLANOX_NIC = ("0x020000", "0x15b3", "0x101d")


def test_a_virtual_function_names_its_physical_one() -> None:
    virtual = f"{PORT}/0000:02:00.2"
    nics = reading_of(
        merged(
            numa_tree("0"),
            pci_tree(CARD, *MELLANOX_NIC, sriov_totalvfs="8"),
            pci_tree(virtual, "0x020000", "0x15b3", "0x101e"),
            {f"sys/devices/{virtual}/physfn": Link("../0000:02:00.0")},
        )
    ).nics
    assert [(nic.function, nic.physical_function) for nic in nics] == [
        (NicFunction.PHYSICAL, None),
        (NicFunction.VIRTUAL, PciAddress(0, 2, 0, 0)),
    ]


def test_in_a_guest_the_device_id_alone_tells_a_virtual_function() -> None:
    nic = reading_of(merged(numa_tree("0"), pci_tree(CARD, "0x020000", "0x15b3", "0x101e"))).nics[0]
    assert (nic.function, nic.physical_function) == (NicFunction.VIRTUAL, None)


def test_without_proof_of_either_the_kind_of_function_is_not_told() -> None:
    assert reading_of(merged(numa_tree("0"), pci_tree(CARD, "0x020000", "0x10ec"))).nics[0].function is None


def test_representors_of_a_switchdev_card_are_not_its_ports() -> None:
    nics = reading_of(
        merged(
            numa_tree("0"),
            pci_tree(CARD, *MELLANOX_NIC),
            netdev_tree(f"{CARD}/net/enp2s0f0np0", phys_port_name="p0"),
            netdev_tree(f"{CARD}/net/enp2s0f0npf0vf0", phys_port_name="pf0vf0"),
            netdev_tree(f"{CARD}/net/enp2s0f0npf0vf1", phys_port_name="c1pf0vf1"),
        )
    ).nics
    assert [nic.netdev for nic in nics] == ["enp2s0f0np0"]


def test_two_netdevs_of_one_function_are_two_ports_in_port_order() -> None:
    nics = reading_of(
        merged(
            numa_tree("0"),
            pci_tree(CARD, "0x020000", "0x1425"),
            netdev_tree(f"{CARD}/net/a1", dev_port="1"),
            netdev_tree(f"{CARD}/net/b0", dev_port="0"),
        )
    ).nics
    assert [nic.name for nic in nics] == ["b0", "a1"]


def rdma_tree(path: str, **files: str) -> Tree:
    name = path.rsplit("/", 1)[-1]
    return {f"sys/devices/{path}/{key}": f"{value}\n" for key, value in files.items()} | {
        f"sys/class/infiniband/{name}": Link(f"../../devices/{path}")
    }


def test_an_rdma_device_and_its_netdev_are_one_port() -> None:
    nics = reading_of(
        merged(
            numa_tree("0"),
            pci_tree(CARD, *MELLANOX_NIC),
            netdev_tree(f"{CARD}/net/enp2s0f0np0"),
            rdma_tree(f"{CARD}/infiniband/mlx5_0", **{"ports/1/link_layer": "Ethernet"}),
        )
    ).nics
    assert [(nic.name, nic.netdev, nic.rdma, nic.link) for nic in nics] == [
        ("enp2s0f0np0", "enp2s0f0np0", "mlx5_0", NicLink.ETHERNET)
    ]


def test_the_gid_table_pairs_rdma_devices_with_netdevs() -> None:
    nics = reading_of(
        merged(
            numa_tree("0"),
            pci_tree(CARD, *MELLANOX_NIC),
            netdev_tree(f"{CARD}/net/eth0"),
            netdev_tree(f"{CARD}/net/eth1"),
            rdma_tree(f"{CARD}/infiniband/roce0", **{"ports/1/gid_attrs/ndevs/0": "eth1"}),
            rdma_tree(f"{CARD}/infiniband/roce1", **{"ports/1/gid_attrs/ndevs/0": "eth0"}),
        )
    ).nics
    assert [(nic.rdma, nic.netdev) for nic in nics] == [("roce0", "eth1"), ("roce1", "eth0")]


def test_an_infiniband_port_is_known_by_its_link_layer_before_its_interface_type() -> None:
    nic = reading_of(
        merged(
            numa_tree("0"),
            pci_tree(CARD, "0x020700", "0x15b3"),
            netdev_tree(f"{CARD}/net/ib0", type="32"),
            rdma_tree(f"{CARD}/infiniband/mlx5_0", **{"ports/1/link_layer": "InfiniBand"}),
        )
    ).nics[0]
    assert nic.link is NicLink.INFINIBAND


@pytest.mark.parametrize(
    "place",
    [
        "virtual/net/bond0",
        "pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/net/eth5",
        "platform/soc/net/eth6",
        f"{CARD}/mlx5_core.sf.4/net/en4",
    ],
)
def test_interfaces_that_do_not_hang_on_a_network_function_are_no_nics(place: str) -> None:
    usb = pci_tree("pci0000:00/0000:00:14.0", "0x0c0330", "0x8086")
    nics = reading_of(merged(numa_tree("0"), usb, pci_tree(CARD, *MELLANOX_NIC), netdev_tree(place))).nics
    assert [(str(nic.bdf), nic.netdev) for nic in nics] == [("0000:02:00.0", NO_NAME)]


def test_a_function_of_another_class_that_carries_an_rdma_device_is_a_nic() -> None:
    """ConnectX-8's data-direct function is a system peripheral (0x0801)."""
    tree = merged(numa_tree("0"), pci_tree(CARD, "0x080100", "0x15b3"), rdma_tree(f"{CARD}/infiniband/mlx5_8"))
    assert [nic.rdma for nic in reading_of(tree).nics] == ["mlx5_8"]


def test_names_are_silent_where_the_tree_lists_none() -> None:
    nic = reading_of(merged(numa_tree("0"), pci_tree(CARD, *MELLANOX_NIC))).nics[0]
    assert (nic.name, nic.netdev, nic.rdma) == (None, None, None)


def test_per_cpu_files_stand_in_for_the_online_list() -> None:
    tree = merged(numa_tree("0-3"), {f"sys/devices/system/cpu/cpu{n}/topology/core_id": str(n) for n in range(4)})
    tree = merged(tree, {"sys/devices/system/cpu/cpu2/online": "0\n", "sys/devices/system/cpu/cpu3/online": "1\n"})
    assert reading_of(tree).numa_nodes[0].cpus == CpuSet.from_list("0-1,3")


def test_list_and_mask_of_a_node_are_intersected() -> None:
    tree = merged(numa_tree("0-7"), {"sys/devices/system/node/node0/cpumap": "00000000,0000000f\n"})
    assert reading_of(tree).numa_nodes[0].cpus == CpuSet.from_list("0-3")


def test_an_attribute_may_end_in_a_nul_byte() -> None:
    tree = merged(numa_tree("0-7"), {"sys/devices/system/node/node0/cpumap": b"000000ff\n\0"})
    assert reading_of(tree).numa_nodes[0].cpus == CpuSet.from_list("0-7")


def test_a_distance_row_that_does_not_fit_the_nodes_is_unknown_and_reported() -> None:
    tree = merged(numa_tree("0-1", "2-3"), {"sys/devices/system/node/node1/distance": "20 10 20\n"})
    read = reading_of(tree)
    assert isinstance(read.numa_nodes[1].distances, Unknown)
    assert read.numa_nodes[0].distances == (10, 20)
    assert len(read.warnings) == 1


def test_nodes_that_all_list_all_cpus_are_reported() -> None:
    assert reading_of(numa_tree("0-3", "0-3")).warnings == (
        "made-up: NUMA node 1 lists CPUs 0-3, which other nodes list too",
    )


def test_a_kernel_without_numa_names_no_node() -> None:
    read = reading_of({"sys/devices/system/cpu/online": "0-3\n"})
    assert (read.numa_nodes, read.all_numa_nodes) == ((), False)
