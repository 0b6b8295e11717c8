"""Machines for placement tests: recorded tables, and synthetic ones of any shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import combinations
from pathlib import Path
from random import Random

from topoalloc.placement.board import Board, board_of
from topoalloc.placement.offer import GpuOffer, Offer
from topoalloc.topology.machine import Gpu, Link, LinkClass, Machine, Nic, NumaNode, Unknown
from topoalloc.topology.sources import load_machine

MACHINES = Path(__file__).parent.parent / "machines"
UNTOLD = Unknown("not told")

V100_MESH = "v100-sxm2-8gpu-hybrid-cube-mesh-1nic.topo-m.txt"
DGX1_4NIC = "dgx1-v100-4nic-unsorted-columns.topo-m.txt"
DGX_A100 = "dgx-a100-epyc-nps4-10nic.topo-m.txt"
HGX_H100 = "hgx-h100-13nic-ib-and-eth-header-shift.topo-m.txt"
PCIE_UNEVEN = "8gpu-pcie-uneven-6plus2-phb-node.topo-m.txt"
PCIE_6 = "pcie-6gpu-2socket-ansi.topo-m.txt"
PCIE_5 = "5gpu-mixed-one-on-other-socket.topo-m.txt"
POWER9 = "power9-ac922-4xv100.topo-m.txt"
RTX4090_8 = "8xrtx4090-2socket-sys-dualport-nic.topo-m.txt"
ASUS_4 = "asus-esc8000a-e12-4xrtx6000ada.topo-m.txt"
P4D = "aws-p4d.24xlarge.nccl-topo.xml"
MI50_8NUMA = "rccl-8x-mi50-epyc-nps4-8numa.nccl-topo.xml"
MI100_4NIC = "rccl-8x-mi100-epyc-nps4-4nic.nccl-topo.xml"
MINSKY = "ibm-minsky-power8-4xp100.hwloc.xml"

FOUR_TO_SIX = (PCIE_6, PCIE_5, POWER9, ASUS_4, MINSKY)
EIGHT = (V100_MESH, DGX1_4NIC, DGX_A100, HGX_H100, PCIE_UNEVEN, RTX4090_8, P4D, MI50_8NUMA, MI100_4NIC)
RECORDED = (*FOUR_TO_SIX, *EIGHT)


@cache
def recorded(name: str) -> Machine:
    """A recorded machine."""
    return load_machine([str(MACHINES / name)])


def gpu(index: int, node: int | Unknown = UNTOLD) -> Gpu:
    """A GPU of which hardly anything is known."""
    return Gpu(
        id=f"GPU{index}",
        index=index,
        bdf=UNTOLD,
        uuid=UNTOLD,
        model="Example V100",
        memory_bytes=UNTOLD,
        numa_node=node,
        cpus=UNTOLD,
        path=UNTOLD,
        vendor=UNTOLD,
        minor=UNTOLD,
    )


def nic(number: int, node: int | Unknown = UNTOLD) -> Nic:
    """A NIC of which hardly anything is known."""
    return Nic(
        id=f"NIC{number}",
        name=f"mlx5_{number}",
        bdf=UNTOLD,
        numa_node=node,
        rdma=UNTOLD,
        netdev=UNTOLD,
        path=UNTOLD,
        function=UNTOLD,
        link=UNTOLD,
        driver=UNTOLD,
        vendor=UNTOLD,
        physical_function=UNTOLD,
    )


def node(number: int, distances: tuple[int, ...] | Unknown = UNTOLD) -> NumaNode:
    """A NUMA node of which hardly anything is known."""
    return NumaNode(number, UNTOLD, UNTOLD, distances)


Place = tuple[int, int, int]  # NUMA node, host bridge, switch: each number means something inside the one before


def tree_class(a: Place, b: Place) -> LinkClass:
    """PCIe class of two devices at these places; a switch of two levels is not modelled, so PXB does not occur."""
    if a == b:
        return LinkClass.PIX
    if a[:2] == b[:2]:
        return LinkClass.PHB
    return LinkClass.NODE if a[0] == b[0] else LinkClass.SYS


def tree(
    gpu_places: Sequence[Place],
    nic_places: Sequence[Place] = (),
    nvlinks: Callable[[int, int], int] = lambda a, b: 0,
) -> Machine:
    """A machine whose devices hang at these places, with `nvlinks(a, b)` links between GPUs a < b."""
    gpus = tuple(gpu(index, place[0]) for index, place in enumerate(gpu_places))
    nics = tuple(nic(number, place[0]) for number, place in enumerate(nic_places))
    devices = [*zip(gpus, gpu_places, strict=True), *zip(nics, nic_places, strict=True)]
    links = tuple(
        Link(
            a.id,
            b.id,
            tree_class(here, there),
            nvlinks(a.index, b.index) if isinstance(a, Gpu) and isinstance(b, Gpu) else 0,
            UNTOLD,
        )
        for (a, here), (b, there) in combinations(devices, 2)
    )
    nodes = sorted({place[0] for place in (*gpu_places, *nic_places)})
    # Two nodes for each socket.
    near = {(a, b): 10 if a == b else 12 if a // 2 == b // 2 else 32 for a in nodes for b in nodes}
    numa = tuple(node(a, tuple(near[a, b] for b in nodes)) for a in nodes)
    return Machine(numa, gpus, nics, links, (), (), ("synthetic",), ())


def even_tree(gpus: int, nics: int, *, nodes: int, switches: int, nvlinks: int = 0) -> Machine:
    """GPUs and NICs dealt out evenly over `switches` switches of `nodes` NUMA nodes, all GPUs with equal NVLinks."""
    gpu_places = [(i * nodes // gpus, 0, i * switches // gpus) for i in range(gpus)]
    nic_places = [(i * nodes // nics, 0, i * switches // nics) for i in range(nics)]
    return tree(gpu_places, nic_places, lambda a, b: nvlinks)


def random_tree(random: Random, gpus: int, nics: int) -> Machine:
    """Random places; NVLinks on some pairs."""
    places = [(random.randrange(4), random.randrange(2), random.randrange(2)) for _ in range(max(2, gpus // 2))]
    links = {pair: random.choice((0, 0, 0, 1, 2, 4)) for pair in combinations(range(gpus), 2)}
    return tree(
        [random.choice(places) for _ in range(gpus)],
        [random.choice(places) if random.random() < 0.8 else (random.randrange(4), 9, 9) for _ in range(nics)],
        lambda a, b: links[a, b],
    )


def mesh(random: Random, gpus: int) -> Machine:
    """No PCIe or NUMA facts at all, random NVLink counts."""
    members = tuple(gpu(index) for index in range(gpus))
    links = tuple(Link(a.id, b.id, UNTOLD, random.choice((0, 0, 1, 2)), UNTOLD) for a, b in combinations(members, 2))
    return Machine((), members, (), links, (), (), ("mesh",), ())


@cache
def board(name: str) -> Board:
    """The board of a recorded machine."""
    return board_of(recorded(name))


@lru_cache(maxsize=64)
def board_for(machine: Machine) -> Board:
    """The board of a machine, kept: properties ask thousands of questions about few machines."""
    return board_of(machine)


MEMORY_UNITS = 320  # 80 GiB in units of 256 MiB
UNTOUCHED = GpuOffer(100, MEMORY_UNITS, True, MEMORY_UNITS)
TAKEN = GpuOffer(0, 0, False, MEMORY_UNITS)


def whole_offer(
    gpus: int,
    free: Sequence[int],
    nics: Sequence[frozenset[int]] = (),
    *,
    fixed: frozenset[int] = frozenset(),
    nics_fixed: Sequence[frozenset[int]] | None = None,
    nics_idle: frozenset[int] | None = None,
) -> Offer:
    """Every GPU is either untouched (`free`) or taken."""
    return Offer(
        gpus=tuple(UNTOUCHED if position in free else TAKEN for position in range(gpus)),
        nics_free=tuple(nics),
        gpus_fixed=fixed,
        gpus_closed=frozenset(),
        nics_fixed=tuple(nics_fixed) if nics_fixed is not None else tuple(frozenset[int]() for _ in nics),
        nics_idle=nics_idle,
    )
