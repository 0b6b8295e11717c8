"""What one source says about a machine, before sources are joined.

A field that is None: the source is silent about it. `Unknown`: the source speaks of it and says that it does not
know (`numa_node` -1, `N/A`, an empty cell). Only `assemble` turns readings into a Machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import LinkClass, MigDevice, NicFunction, NicLink, Unknown
from topoalloc.topology.pci import PciAddress, PciPath


class Standing(StrEnum):
    """Whether a source describes a machine by itself or only adds to another source of the same machine."""

    WHOLE = "whole"
    ADDITION = "addition"


@dataclass(frozen=True, slots=True)
class NumaReading:
    """One NUMA node; `distances` in the order of the reading's nodes."""

    id: int
    cpus: CpuSet | Unknown | None = None
    memory_bytes: int | Unknown | None = None
    distances: tuple[int, ...] | Unknown | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU as a source sees it; matched with other sources by bdf, else uuid, else index."""

    index: int | None = None  # nvidia-smi's number; None where a source numbers otherwise (CUDA, ranks)
    bdf: PciAddress | None = None
    uuid: str | None = None
    model: str | None = None
    memory_bytes: int | None = None
    numa_node: int | Unknown | None = None
    cpus: CpuSet | Unknown | None = None
    path: PciPath | None = None
    vendor: str | None = None  # four hex digits
    pci_device: str | None = None  # four hex digits, for the memory table
    minor: int | None = None
    mig: tuple[MigDevice, ...] = ()
    # NVLink/XGMI links of this GPU by far end: a GPU's address, an NVSwitch's address, or None for a switch that
    # is not visible (a guest). Counts are links, not bandwidth. None: the source is silent about NVLink.
    nvlinks: tuple[NvlinkReading, ...] | None = None


class FarEnd(StrEnum):
    """What an NVLink ends at."""

    GPU = "gpu"
    SWITCH = "switch"
    UNSEEN_SWITCH = "unseen-switch"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class NvlinkReading:
    """`count` links from one GPU to one far end; `target` is None for a switch that is not visible."""

    far_end: FarEnd
    target: PciAddress | None
    count: int


@dataclass(frozen=True, slots=True)
class NicReading:
    """One NIC port; matched with other sources by bdf and port, else by RDMA name, netdev or name."""

    name: str | None = None
    bdf: PciAddress | None = None
    numa_node: int | Unknown | None = None
    rdma: str | Unknown | None = None  # None: silent; NO_NAME: known to have none
    netdev: str | Unknown | None = None
    path: PciPath | None = None
    function: NicFunction | None = None
    link: NicLink | None = None
    driver: str | None = None
    vendor: str | None = None
    physical_function: PciAddress | None = None
    port: int | None = None


NO_NAME = ""  # in NicReading.rdma and .netdev: the source lists such names and this port has none


@dataclass(frozen=True, slots=True)
class LinkReading:
    """A pair's class or link count that a source states outright (tables); ends are positions in the reading.

    `a` and `b` are ("gpu", i) or ("nic", i) with i the position in `Reading.gpus` / `Reading.nics`.
    """

    a: tuple[str, int]
    b: tuple[str, int]
    pcie: LinkClass | Unknown | None = None
    nvlinks: int | Unknown | None = None
    peer_access: bool | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything one source says. Device order is the source's row order where it has one."""

    source: str  # format and file name, for messages: "topo -m (host.txt)"
    standing: Standing
    numa_nodes: tuple[NumaReading, ...] = ()
    gpus: tuple[GpuReading, ...] = ()
    nics: tuple[NicReading, ...] = ()
    links: tuple[LinkReading, ...] = ()
    nvswitches: tuple[PciAddress, ...] = ()
    # True where row order is the numbering (tables); False: devices are numbered in PCI address order.
    ordered: bool = False
    # The source lists every NUMA node of the machine (sysfs, hwloc), not only those it happens to name.
    all_numa_nodes: bool = False
    warnings: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class SourceRefusal:
    """Why a source cannot be used: one clear line, with the remedy."""

    source: str
    reason: str

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}"
