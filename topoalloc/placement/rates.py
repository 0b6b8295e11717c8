"""What a pair of devices is worth: GB/s of the links between them and points for PCIe and NUMA distance.

A fact that is unknown counts as the worst that the known facts allow, never as the best.
"""

from __future__ import annotations

from collections.abc import Sequence

from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Gpu, Link, LinkClass, Machine, Nic, Unknown
from topoalloc.topology.pci_classes import AMD

# GB/s in one direction, nominal. NVLink: 20 in its first generation, 25 in the second to fourth, 50 in the fifth
# (vendor data sheets of P100, V100, A100, H100, B200); XGMI between AMD accelerators: 50 for each link.
NVLINK_GBPS_BY_MODEL = {"P100": 20, "B100": 50, "B200": 50, "B300": 50}
NVLINK_GBPS = 25
NVLINK_UNKNOWN_GBPS = 20
XGMI_GBPS = 50

# GB/s of a peer copy on a PCIe 3.0 x16 tree; the order counts more than the figures.
PCIE_GBPS = {LinkClass.PIX: 13, LinkClass.PXB: 12, LinkClass.PHB: 11, LinkClass.NODE: 10, LinkClass.SYS: 9}

# The scale go-gpuallocator made customary.
PCIE_POINTS = {LinkClass.PIX: 50, LinkClass.PXB: 40, LinkClass.PHB: 30, LinkClass.NODE: 20, LinkClass.SYS: 10}

# Large enough that a set inside one node beats every set of its size across nodes, whatever the PCIe points: pairs
# inside differ by 30 points at most, and of k GPUs at least k-1 pairs cross and miss 540 or more; so for k <= 35.
SAME_NODE_POINTS = 1000
NEAR_NODE_POINTS = 500  # nodes nearer to each other than the farthest two of the machine: one socket

Home = int | CpuSet | None


def pair_class(link: Link | None, same_node: bool, farthest: LinkClass = LinkClass.SYS) -> LinkClass:
    """PCIe distance of a pair; unknown is the farthest it can be: NODE inside one NUMA node, else `farthest`."""
    if link is not None and not isinstance(link.pcie, Unknown):
        return link.pcie
    return min(LinkClass.NODE, farthest) if same_node else farthest


def class_by_nics(a: Sequence[LinkClass], b: Sequence[LinkClass]) -> LinkClass:
    """The farthest that two GPUs can be apart, by the classes of both to every NIC (SYS without NICs).

    Tables hide the PCIe class of GPUs that NVLink joins. But on a tree two devices that share a switch (host bridge,
    NUMA node) with a third share it with each other; only how many bridges lie between does not carry over.
    """
    return min((max(LinkClass.PXB, *pair) for pair in set(zip(a, b, strict=True))), default=LinkClass.SYS)


def pair_bandwidth(link: Link | None, pcie: LinkClass, a: Gpu, b: Gpu) -> int:
    """GB/s between two GPUs: their NVLink or XGMI links where they have any, else the PCIe path."""
    if link is None or isinstance(link.nvlinks, Unknown) or link.nvlinks == 0:
        return PCIE_GBPS[pcie]
    return max(link.nvlinks * min(link_gbps(a), link_gbps(b)), PCIE_GBPS[pcie])


def link_gbps(gpu: Gpu) -> int:
    """GB/s of one NVLink or XGMI link of this GPU."""
    if gpu.vendor == AMD:
        return XGMI_GBPS
    if isinstance(gpu.model, Unknown):
        return NVLINK_UNKNOWN_GBPS
    return next((rate for name, rate in NVLINK_GBPS_BY_MODEL.items() if name in gpu.model), NVLINK_GBPS)


def home(gpu: Gpu) -> Home:
    """What tells GPUs of one NUMA node from others: the node, else the CPUs said to be near; None: unknown."""
    if not isinstance(gpu.numa_node, Unknown):
        return gpu.numa_node
    if isinstance(gpu.cpus, CpuSet) and gpu.cpus:
        return gpu.cpus
    return None


def same_home(a: Home, b: Home) -> bool:
    """Whether two devices are known to be on one NUMA node."""
    return a is not None and a == b


def nic_home(nic: Nic) -> Home:
    """The NUMA node of a NIC; None: unknown."""
    return None if isinstance(nic.numa_node, Unknown) else nic.numa_node


def node_distances(machine: Machine) -> dict[tuple[int, int], int]:
    """Distances between the NUMA nodes that hold GPUs, both directions at their worse; only what is known."""
    order = [node.id for node in machine.numa_nodes]
    rows = {node.id: node.distances for node in machine.numa_nodes}
    nodes = sorted({gpu.numa_node for gpu in machine.gpus if not isinstance(gpu.numa_node, Unknown)} & set(order))
    table: dict[tuple[int, int], int] = {}
    for a in nodes:
        for b in nodes:
            there, back = rows[a], rows[b]
            if not isinstance(there, Unknown) and not isinstance(back, Unknown):
                table[a, b] = max(there[order.index(b)], back[order.index(a)])
    return table


def numa_points(a: Home, b: Home, distances: dict[tuple[int, int], int]) -> int:
    """Points for two GPUs on one NUMA node, or on two nodes that are not the farthest apart."""
    if same_home(a, b):
        return SAME_NODE_POINTS
    if not isinstance(a, int) or not isinstance(b, int) or (a, b) not in distances:
        return 0
    return NEAR_NODE_POINTS if distances[a, b] < max(distances.values()) else 0
