"""One immutable description of a machine, the same whatever source it was read from.

Levels stay separate: PCIe distance and NVLink count are two facts about a pair, never one number. A fact no
source gave is `Unknown` and says why; it is never 0, -1 or an empty list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TypeVar

from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.pci import PciAddress, PciPath

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unknown:
    """A fact that no source gave; `evidence` says what was looked at (`numa_node is -1`)."""

    evidence: str


def known(value: T | Unknown) -> T | None:
    """The value, or None where it is unknown; for printing and for JSON only."""
    return None if isinstance(value, Unknown) else value


class LinkClass(IntEnum):
    """PCIe distance of two devices in nvidia-smi's words, nearest first.

    PIX: at most one bridge on either side below their common bridge. PXB: a common bridge, more between.
    PHB: only the host bridge in common. NODE: another host bridge of the same NUMA node. SYS: farther.
    """

    PIX = 0
    PXB = 1
    PHB = 2
    NODE = 3
    SYS = 4


class NicFunction(StrEnum):
    """Which kind of PCI function a NIC port is."""

    PHYSICAL = "pf"
    VIRTUAL = "vf"


class NicLink(StrEnum):
    """Link layer of a port."""

    ETHERNET = "ethernet"
    INFINIBAND = "infiniband"


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node; CPU-less (`cpus` empty) and memory-less (`memory_bytes` 0) nodes are nodes too.

    `distances` follows the order of `Machine.numa_nodes`, not node ids.
    """

    id: int
    cpus: CpuSet | Unknown
    memory_bytes: int | Unknown
    distances: tuple[int, ...] | Unknown


@dataclass(frozen=True, slots=True)
class MigDevice:
    """One MIG instance of a GPU; it shares the GPU's locality."""

    index: int
    profile: str
    uuid: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU. `id` is `GPU<index>`; `minor` numbers its device node (/dev/nvidia<minor>)."""

    id: str
    index: int
    bdf: PciAddress | Unknown
    uuid: str | Unknown
    model: str | Unknown
    memory_bytes: int | Unknown
    numa_node: int | Unknown
    cpus: CpuSet | Unknown
    path: PciPath | Unknown
    vendor: str | Unknown  # four hex digits: 10de NVIDIA, 1002 AMD
    minor: int | Unknown
    mig: tuple[MigDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class Nic:
    """One NIC port with a PCI locality. `id` is `NIC<i>`; `name` the netdev, RDMA or table name."""

    id: str
    name: str
    bdf: PciAddress | Unknown
    numa_node: int | Unknown
    rdma: str | Unknown | None  # None: known to have no RDMA device
    netdev: str | Unknown | None
    path: PciPath | Unknown
    function: NicFunction | Unknown
    link: NicLink | Unknown
    driver: str | Unknown
    vendor: str | Unknown
    physical_function: PciAddress | Unknown | None  # of a VF; None on a PF


@dataclass(frozen=True, slots=True)
class Link:
    """What joins two devices; `a` sorts before `b` (GPUs before NICs, then by number).

    `nvlinks` is the number of NVLinks or XGMI links between the pair, through NVSwitch the smaller of the two
    GPUs' counts; 0 where there are none.
    """

    a: str
    b: str
    pcie: LinkClass | Unknown
    nvlinks: int | Unknown
    peer_access: bool | Unknown


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything known about one machine. `links` holds every unordered pair of devices (GPU and NIC ids)."""

    numa_nodes: tuple[NumaNode, ...]
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    links: tuple[Link, ...]
    switch_groups: tuple[tuple[str, ...], ...]
    nvswitches: tuple[PciAddress, ...]
    sources: tuple[str, ...]
    warnings: tuple[str, ...]

    def links_by_pair(self) -> Mapping[tuple[str, str], Link]:
        """The links keyed by both orders of their ends."""
        table: dict[tuple[str, str], Link] = {}
        for link in self.links:
            table[link.a, link.b] = table[link.b, link.a] = link
        return table


@dataclass(frozen=True, slots=True)
class NearestNics:
    """The NICs that share the nearest known PCIe class with a GPU; several when they tie."""

    pcie: LinkClass
    nics: tuple[str, ...]


def device_order(device_id: str) -> tuple[int, int]:
    """Total order of device ids: GPUs before NICs, then by number."""
    kind = 0 if device_id.startswith("GPU") else 1
    return kind, int(device_id[3:])
