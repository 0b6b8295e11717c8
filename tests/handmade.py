"""Small machines built by hand, for tests that need a shape and not a recording."""

from __future__ import annotations

from itertools import combinations

from topoalloc.topology.cpus import CpuSet
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
from topoalloc.topology.pci_classes import MELLANOX, NVIDIA

GIB = 1024**3
UNTOLD = Unknown("not told")


def machine(
    *,
    numa: int = 2,
    switches: int = 2,
    gpus: int = 2,
    nics: int = 1,
    memory_bytes: int | Unknown = 4 * GIB,
    nvlinks: int = 0,
    addresses: bool = True,
    numa_known: bool = True,
) -> Machine:
    """`numa` nodes with `switches` switches each, `gpus` GPUs and `nics` NICs below every switch."""
    made_gpus: list[Gpu] = []
    made_nics: list[Nic] = []
    groups: list[tuple[str, ...]] = []
    place_of: dict[str, tuple[int, int]] = {}
    for bus, (node, switch) in enumerate(((node, switch) for node in range(numa) for switch in range(switches)), 1):
        addressed = [PciAddress(0, bus * 16 + 1 + slot, 0, 0) if addresses else UNTOLD for slot in range(gpus + nics)]
        told_node = node if numa_known else UNTOLD
        path = PciPath(f"{0:04x}:{node * 128:02x}", (PciAddress(0, bus * 16, 0, 0),))
        cpus = CpuSet.of(range(node * 8, node * 8 + 8))
        here_gpus = [_gpu(len(made_gpus) + n, addressed[n], memory_bytes, told_node, cpus, path) for n in range(gpus)]
        here_nics = [_nic(len(made_nics) + n, addressed[gpus + n], told_node, path) for n in range(nics)]
        made_gpus += here_gpus
        made_nics += here_nics
        members = (*(gpu.id for gpu in here_gpus), *(nic.id for nic in here_nics))
        place_of.update(dict.fromkeys(members, (node, switch)))
        if len(members) > 1:
            groups.append(members)
    ids = [*(gpu.id for gpu in made_gpus), *(nic.id for nic in made_nics)]
    links = tuple(
        Link(a, b, _class(place_of[a], place_of[b]), nvlinks if a[0] == b[0] == "G" else 0, UNTOLD)
        for a, b in combinations(ids, 2)
    )
    nodes = tuple(_numa_node(node, numa) for node in range(numa))
    return Machine(nodes, tuple(made_gpus), tuple(made_nics), links, tuple(groups), (), ("handmade",), ())


def _gpu(
    index: int,
    bdf: PciAddress | Unknown,
    memory_bytes: int | Unknown,
    numa_node: int | Unknown,
    cpus: CpuSet,
    path: PciPath,
) -> Gpu:
    return Gpu(
        id=f"GPU{index}",
        index=index,
        bdf=bdf,
        uuid=UNTOLD,
        model="Handmade GPU",
        memory_bytes=memory_bytes,
        numa_node=numa_node,
        cpus=cpus,
        path=path,
        vendor=NVIDIA,
        minor=index,
    )


def _nic(index: int, bdf: PciAddress | Unknown, numa_node: int | Unknown, path: PciPath) -> Nic:
    return Nic(
        id=f"NIC{index}",
        name=f"mlx5_{index}",
        bdf=bdf,
        numa_node=numa_node,
        rdma=f"mlx5_{index}",
        netdev=None,
        path=path,
        function=NicFunction.PHYSICAL,
        link=NicLink.INFINIBAND,
        driver="mlx5_core",
        vendor=MELLANOX,
        physical_function=None,
    )


def _numa_node(node: int, count: int) -> NumaNode:
    return NumaNode(
        id=node,
        cpus=CpuSet.of(range(node * 8, node * 8 + 8)),
        memory_bytes=64 * GIB,
        distances=tuple(10 if other == node else 21 for other in range(count)),
    )


def _class(a: tuple[int, int], b: tuple[int, int]) -> LinkClass:
    if a == b:
        return LinkClass.PIX
    return LinkClass.PHB if a[0] == b[0] else LinkClass.SYS
