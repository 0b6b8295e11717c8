"""Machines written by hand, small enough to know by heart, for tests of how a machine is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.links import Place, pcie_class, switch_groups
from topoalloc.topology.machine import (
    Gpu,
    Link,
    LinkClass,
    Machine,
    Nic,
    NicFunction,
    NicLink,
    NumaNode,
    Unknown,
)
from topoalloc.topology.pci import PciAddress, PciPath

SILENT = Unknown("the source does not tell")
NO_NODE = Unknown("numa_node is -1")
GIB = 1 << 30


def node(number: int, cpus: str, memory_gib: int | None = 64, distances: tuple[int, ...] | None = None) -> NumaNode:
    return NumaNode(
        number,
        CpuSet.from_list(cpus),
        SILENT if memory_gib is None else memory_gib * GIB,
        SILENT if distances is None else distances,
    )


def path(host_bridge: str, *bridges: str) -> PciPath:
    return PciPath(host_bridge, tuple(PciAddress.parse(bridge) for bridge in bridges))


def gpu(
    index: int,
    numa: int | Unknown,
    bdf: str | None = None,
    at: PciPath | None = None,
    cpus: str | None = None,
    model: str | None = None,
    memory_gib: int | None = None,
    vendor: str = "10de",
) -> Gpu:
    return Gpu(
        id=f"GPU{index}",
        index=index,
        bdf=PciAddress.parse(bdf) if bdf else SILENT,
        uuid=SILENT,
        model=model or SILENT,
        memory_bytes=memory_gib * GIB if memory_gib else SILENT,
        numa_node=numa,
        cpus=CpuSet.from_list(cpus) if cpus is not None else SILENT,
        path=at or SILENT,
        vendor=vendor,
        minor=SILENT,
    )


def nic(
    number: int,
    numa: int | Unknown,
    bdf: str | None = None,
    at: PciPath | None = None,
    name: str | None = None,
    link: NicLink | None = None,
    function: NicFunction | None = None,
) -> Nic:
    return Nic(
        id=f"NIC{number}",
        name=name or f"mlx5_{number}",
        bdf=PciAddress.parse(bdf) if bdf else SILENT,
        numa_node=numa,
        rdma=name or f"mlx5_{number}",
        netdev=SILENT,
        path=at or SILENT,
        function=function or SILENT,
        link=link or SILENT,
        driver=SILENT,
        vendor=SILENT,
        physical_function=SILENT,
    )


def machine(
    nodes: Sequence[NumaNode],
    gpus: Sequence[Gpu],
    nics: Sequence[Nic] = (),
    pcie: Callable[[str, str], LinkClass | Unknown] | None = None,
    nvlinks: Mapping[tuple[str, str], int] | None = None,
    source: str = "made by hand",
) -> Machine:
    """Classes come from `pcie`, else from the PCI paths; `nvlinks` names the pairs that have any."""
    counts = nvlinks or {}
    devices = {device.id: device for device in (*gpus, *nics)}

    def from_paths(a: str, b: str) -> LinkClass | Unknown:
        places = []
        for device in (devices[a], devices[b]):
            if isinstance(device.path, Unknown) or isinstance(device.bdf, Unknown):
                return SILENT
            places.append(Place(device.path, device.bdf, device.numa_node))
        return pcie_class(*places)

    links = tuple(
        Link(a, b, (pcie or from_paths)(a, b), counts.get((a, b), 0), SILENT) for a, b in combinations(devices, 2)
    )
    return Machine(tuple(nodes), tuple(gpus), tuple(nics), links, switch_groups(links), (), (source,), ())


def dgx() -> Machine:
    """Four nodes with two GPUs and two NICs below one switch each, every GPU pair by 12 links; no addresses."""
    cpus = ("0-15", "16-31", "32-47", "48-63")
    gpus = [gpu(i, i // 2, cpus=cpus[i // 2], model="NVIDIA A100-SXM4-40GB", memory_gib=40) for i in range(8)]
    nics = [nic(i, i // 2) for i in range(8)]

    def pcie(a: str, b: str) -> LinkClass | Unknown:
        if a.startswith("GPU") and b.startswith("GPU"):
            return Unknown("NV# hides the PCIe class")
        return LinkClass.PXB if int(a[3:]) // 2 == int(b[3:]) // 2 else LinkClass.SYS

    every = {(a.id, b.id): 12 for a, b in combinations(gpus, 2)}
    return machine([node(i, cpus[i], None) for i in range(4)], gpus, nics, pcie, every)


CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def cube_mesh() -> Machine:
    """Eight GPUs of unknown node, told apart by their CPUs, joined by 1 or 2 links or none."""
    gpus = [gpu(i, NO_NODE, cpus="0-11" if i < 4 else "12-23") for i in range(8)]

    def pcie(a: str, b: str) -> LinkClass | Unknown:
        return LinkClass.NODE if int(a[3:]) // 4 == int(b[3:]) // 4 else LinkClass.SYS

    return machine([], gpus, [], pcie, {(f"GPU{a}", f"GPU{b}"): count for (a, b), count in CUBE_MESH.items()})


def pci_tree() -> Machine:
    """Two sockets and a memory-only node. Node 0: a switch with two GPUs and a two-port card, and a NIC on a host
    bridge of its own; node 1: a GPU in a slot and a VF; one NIC whose node is unknown.
    """
    switch = ("0000:00:01.0", "0000:01:00.0")
    gpus = [
        gpu(0, 0, "0000:04:00.0", path("0000:00", *switch, "0000:02:00.0"), "0-3", "NVIDIA L40S", 48),
        gpu(1, 0, "0000:05:00.0", path("0000:00", *switch, "0000:02:01.0"), "0-3", "NVIDIA L40S", 48),
        gpu(2, 1, "0000:81:00.0", path("0000:80", "0000:80:01.0"), "4-7", "NVIDIA L40S", 48),
    ]
    card = path("0000:00", *switch, "0000:02:02.0")
    ethernet, infiniband = NicLink.ETHERNET, NicLink.INFINIBAND
    nics = [
        nic(0, 0, "0000:06:00.0", card, link=infiniband, function=NicFunction.PHYSICAL),
        nic(1, 0, "0000:06:00.1", card, link=infiniband, function=NicFunction.PHYSICAL),
        nic(2, 0, "0000:41:00.0", path("0000:40", "0000:40:01.0"), "eno1", ethernet, NicFunction.PHYSICAL),
        nic(3, 1, "0000:82:00.2", path("0000:80", "0000:80:02.0"), "eth3v0", ethernet, NicFunction.VIRTUAL),
        nic(4, NO_NODE, "0000:c1:00.0", path("0000:c0", "0000:c0:01.0"), "ens9"),
    ]
    nodes = [
        node(0, "0-3", 64, (10, 21, 24)),
        node(1, "4-7", 64, (21, 10, 14)),
        node(2, "", 128, (24, 14, 10)),
    ]
    return machine(nodes, gpus, nics, nvlinks={("GPU0", "GPU1"): 4})


def lone_vm() -> Machine:
    """One GPU of unknown node, nothing else."""
    return machine([], [gpu(0, NO_NODE, cpus="0-7")])


def bare() -> Machine:
    """Two nodes and no device."""
    return machine([node(0, "0-5", 8, (10, 16)), node(33, "6-11", 16, (16, 10))], [])


def sixteen_nics() -> Machine:
    """No GPU; sixteen NICs on one node, each on a host bridge of its own."""
    nics = [nic(i, 0, f"{i:04x}:01:00.0", path(f"{i:04x}:00"), link=NicLink.ETHERNET) for i in range(16)]
    return machine([node(0, "0-127", 512)], [], nics)


def hostile() -> Machine:
    """Names that are long, hold markup, control characters and blanks, and more nodes than fit in a row."""
    nasty = "<script>alert('&')</script>\x00\x1b[31m" + "W" * 200
    gpus = [gpu(0, 0, model=nasty, cpus=",".join(str(cpu) for cpu in range(0, 400, 2))), gpu(1, 7, model="日本" * 40)]
    nics = [nic(0, NO_NODE, name=nasty), nic(1, 3, name=" a b ")]
    nodes = [node(i, ",".join(str(cpu) for cpu in range(i, 1024, 24)), 100_000) for i in range(24)]
    return machine(nodes, gpus, nics, source=nasty)


ALL: Mapping[str, Callable[[], Machine]] = {
    "dgx": dgx,
    "cube_mesh": cube_mesh,
    "pci_tree": pci_tree,
    "lone_vm": lone_vm,
    "bare": bare,
    "sixteen_nics": sixteen_nics,
    "hostile": hostile,
}
