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
    places = [(node, switch) for node in range(numa) for switch in range(switches)]
    made_gpus: list[Gpu] = []
    made_nics: list[Nic] = []
    groups: list[tuple[str, ...]] = []
    place_of: dict[str, tuple[int, int]] = {}
    for bus, (node, switch) in enumerate(places, start=1):
        bridge = PciAddress(0, bus * 16, 0, 0)
        path = PciPath(f"{0:04x}:{node * 128:02x}", (bridge,))
        members: list[str] = []
        for _ in range(gpus):
            index = len(made_gpus)
            bdf = PciAddress(0, bus * 16 + 1 + len(members), 0, 0)
            made_gpus.append(
                Gpu(
                    id=f"GPU{index}",
                    index=index,
                    bdf=bdf if addresses else UNTOLD,
                    uuid=UNTOLD,
                    model="Handmade GPU",
                    memory_bytes=memory_bytes,
                    numa_node=node if numa_known else UNTOLD,
                    cpus=CpuSet.of(range(node * 8, node * 8 + 8)),
                    path=path,
                    vendor="10de",
                    minor=index,
                )
            )
            members.append(f"GPU{index}")
        for _ in range(nics):
            index = len(made_nics)
            bdf = PciAddress(0, bus * 16 + 1 + len(members), 0, 0)
            made_nics.append(
                Nic(
                    id=f"NIC{index}",
                    name=f"mlx5_{index}",
                    bdf=bdf if addresses else UNTOLD,
                    numa_node=node if numa_known else UNTOLD,
                    rdma=f"mlx5_{index}",
                    netdev=None,
                    path=path,
                    function=NicFunction.PHYSICAL,
                    link=NicLink.INFINIBAND,
                    driver="mlx5_core",
                    vendor="15b3",
                    physical_function=None,
                )
            )
            members.append(f"NIC{index}")
        for member in members:
            place_of[member] = (node, switch)
        if len(members) > 1:
            groups.append(tuple(members))
    ids = [*(gpu.id for gpu in made_gpus), *(nic.id for nic in made_nics)]
    links = tuple(
        Link(a, b, _class(place_of[a], place_of[b]), nvlinks if a[0] == b[0] == "G" else 0, UNTOLD)
        for a, b in combinations(ids, 2)
    )
    nodes = tuple(
        NumaNode(
            id=node,
            cpus=CpuSet.of(range(node * 8, node * 8 + 8)),
            memory_bytes=64 * GIB,
            distances=tuple(10 if other == node else 21 for other in range(numa)),
        )
        for node in range(numa)
    )
    return Machine(nodes, tuple(made_gpus), tuple(made_nics), links, tuple(groups), (), ("handmade",), ())


def _class(a: tuple[int, int], b: tuple[int, int]) -> LinkClass:
    if a == b:
        return LinkClass.PIX
    return LinkClass.PHB if a[0] == b[0] else LinkClass.SYS
