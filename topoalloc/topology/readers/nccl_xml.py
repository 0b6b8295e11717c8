"""NCCL's and RCCL's topology XML (NCCL_TOPO_DUMP_FILE, NCCL_TOPO_FILE) as a reading.

NCCL folds all host bridges of a NUMA node into one `cpu` element, and each switch into one `pci` element, so NODE
shows as PHB here, and PIX means the same parent element. Written files list every NVLink of a GPU that NCCL saw;
hand-written ones describe PCIe only and are silent about NVLink.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import NicFunction, NicLink, Unknown
from topoalloc.topology.pci import PciAddress, PciPath
from topoalloc.topology.pci_classes import (
    PciKind,
    class_code_of,
    hex_id,
    is_infiniband_class,
    is_virtual_function_id,
    kind_of,
)
from topoalloc.topology.readers.xml_document import XmlElement
from topoalloc.topology.reading import (
    FarEnd,
    GpuReading,
    NicReading,
    NumaReading,
    NvlinkReading,
    Reading,
    SourceRefusal,
    Standing,
)

_NVSWITCH_CLASS = 0x0680
_GPU_TARGET_CLASSES = frozenset({0x0300, 0x0302, 0x0380, 0x1200})
_LINKS_PER_ELEMENT_MAX = 1024  # bounds a hostile count; NVLink 5 has 18 links a GPU
_NAMED_IN_WARNINGS_MAX = 9
# libfabric provider names that NCCL's OFI plugin shows in place of an RDMA (verbs) device's name.
_NO_RDMA_NAME = re.compile(r"cxi\d+|hsn\d+|psm.*")


def read_nccl_xml(root: XmlElement, source: str) -> Reading | SourceRefusal:
    """What a `<system>` document says.

    A file of several hosts fused into one (NVL72 dumps: several host_hash values, or one NUMA id twice) is refused:
    nothing in it says which of the hosts is meant, and bus ids repeat between them.
    """
    if root.tag == "graphs":
        return SourceRefusal(
            source, "is NCCL's channel plan (NCCL_GRAPH_DUMP_FILE); record NCCL_TOPO_DUMP_FILE instead"
        )
    cpus = root.named("cpu")
    if not cpus:
        return SourceRefusal(source, "has no <cpu> element; it is cut or no NCCL topology")
    hosts = {cpu.attributes["host_hash"] for cpu in cpus if cpu.attributes.get("host_hash")}
    node_ids = [cpu.attributes.get("numaid", "") for cpu in cpus]
    repeated = {node_id for node_id in node_ids if node_ids.count(node_id) > 1 and node_id != "-1"}
    if len(hosts) > 1 or repeated:
        return SourceRefusal(source, f"describes {max(len(hosts), 2)} hosts in one; give the file of one host")
    reader = _NcclReader(source)
    for cpu in cpus:
        reason = reader.add_cpu(cpu)
        if reason is not None:
            return SourceRefusal(source, reason)
    return reader.finish()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an element hangs."""

    numa_node: int | Unknown
    path: PciPath
    is_power: bool  # POWER CPUs have NVLink of their own, and NCCL gives them NVSwitch's class


class _NcclReader:
    """Collects devices in document order."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._nodes: list[NumaReading] = []
        self._gpus: list[tuple[PciAddress, GpuReading]] = []
        self._nics: list[NicReading] = []
        self._nvswitches: set[PciAddress] = set()
        self._unclassed: list[PciAddress] = []
        self._without_pci: set[str] = set()
        self._warnings: list[str] = []

    def add_cpu(self, cpu: XmlElement) -> str | None:
        """Take in one NUMA node; returns why the file cannot be used, or None."""
        text = cpu.attributes.get("numaid", "")
        if not re.fullmatch(r"-1|\d{1,5}", text):
            return f"has a <cpu> with numaid {text[:20]!r}, which is no number"
        mask = cpu.attributes.get("affinity")
        try:
            cpus = CpuSet.from_mask(mask) if mask else None
        except ValueError as error:
            return f"has a <cpu numaid={text}> whose affinity is damaged ({error})"
        if text != "-1":
            self._nodes.append(NumaReading(int(text), cpus=cpus))
        numa_node: int | Unknown = int(text) if text != "-1" else Unknown("numaid is -1")
        place = _Place(numa_node, PciPath(f"numa{text}", ()), cpu.attributes.get("arch") == "ppc64")
        self._without_pci.update(
            net.attributes.get("name", "?") for nic in cpu.named("nic") for net in nic.named("net")
        )
        return self._add_below(cpu, place)

    def _add_below(self, element: XmlElement, place: _Place) -> str | None:
        for pci in element.named("pci"):
            busid = pci.attributes.get("busid", "")
            try:
                address = PciAddress.parse(busid)
            except ValueError:
                # Switches of hand-written files carry invented ids such as ffff:ff:01.0; those are well-formed.
                return f"has a <pci> with busid {busid[:30]!r}, which is no PCI address"
            reason = self._add_pci(pci, address, place)
            if reason is not None:
                return reason
        return None

    def _add_pci(self, pci: XmlElement, address: PciAddress, place: _Place) -> str | None:
        class_code = class_code_of(pci.attributes.get("class"))
        vendor = hex_id(pci.attributes.get("vendor"))
        kind = PciKind.OTHER if class_code is None else kind_of(class_code, vendor)
        gpu, nic = pci.child("gpu"), pci.child("nic")
        inner = PciPath(place.path.host_bridge, (*place.path.bridges, address))
        if pci.child("pci") is not None:
            return self._add_below(pci, _Place(place.numa_node, inner, place.is_power))
        if gpu is not None or (kind is PciKind.GPU and nic is None):
            self._gpus.append((address, _gpu(pci, gpu, address, place)))
        elif nic is not None or kind is PciKind.NIC:
            self._nics.extend(_ports(pci, nic, address, place))
        elif kind is PciKind.NVSWITCH:
            self._nvswitches.add(address)
        elif class_code is None:
            self._unclassed.append(address)
        return None

    def finish(self) -> Reading:
        for _, gpu in self._gpus:
            for link in gpu.nvlinks or ():
                if link.far_end is FarEnd.SWITCH and link.target is not None:
                    self._nvswitches.add(link.target)
        if self._unclassed:
            named = ", ".join(str(address) for address in self._unclassed[:_NAMED_IN_WARNINGS_MAX])
            self._warnings.append(
                f"{self._source}: {len(self._unclassed)} PCI devices have no class and count as neither GPU nor NIC "
                f"({named}); add a source that tells what they are"
            )
        names = {nic.name for nic in self._nics}
        for name in sorted(self._without_pci - {name for name in names if name})[:_NAMED_IN_WARNINGS_MAX]:
            self._warnings.append(f"{self._source}: NIC {name} has no PCI device, so no locality; it is left out")
        return Reading(
            source=self._source,
            standing=Standing.WHOLE,
            numa_nodes=tuple(sorted(self._nodes, key=lambda node: node.id)),
            gpus=tuple(gpu for _, gpu in sorted(self._gpus, key=lambda found: found[0])),
            nics=tuple(self._nics),
            nvswitches=tuple(sorted(self._nvswitches)),
            warnings=tuple(self._warnings),
        )


def _gpu(pci: XmlElement, gpu: XmlElement | None, address: PciAddress, place: _Place) -> GpuReading:
    # `dev` is the number CUDA gave the GPU in the process that wrote the file (CUDA_VISIBLE_DEVICES), not an index.
    return GpuReading(
        bdf=address,
        numa_node=place.numa_node,
        path=place.path,
        vendor=hex_id(pci.attributes.get("vendor")),
        pci_device=hex_id(pci.attributes.get("device")),
        nvlinks=tuple(_links(gpu, address, place)) if gpu is not None else None,
    )


def _links(gpu: XmlElement, address: PciAddress, place: _Place) -> Iterator[NvlinkReading]:
    for link in (*gpu.named("nvlink"), *gpu.named("xgmi")):
        count = _number(link.attributes.get("count")) or 0
        subclass = (class_code_of(link.attributes.get("tclass")) or 0) >> 8
        target = _target(link.attributes.get("target", ""))
        if not 0 < count <= _LINKS_PER_ELEMENT_MAX:
            continue
        if target == address:
            # Azure's hand-written files: there are links, but where they lead is not told.
            yield NvlinkReading(FarEnd.UNKNOWN, None, count)
        elif subclass == _NVSWITCH_CLASS:
            # On POWER this class is the CPU's end of the links.
            if not place.is_power:
                yield NvlinkReading(FarEnd.UNSEEN_SWITCH if target is None else FarEnd.SWITCH, target, count)
        elif target is not None:
            is_gpu = subclass in _GPU_TARGET_CLASSES
            yield NvlinkReading(FarEnd.GPU if is_gpu else FarEnd.UNKNOWN, target, count)


def _target(text: str) -> PciAddress | None:
    """The far end's address; None for `fffffff:ff:ff.0`, which NCCL writes for a switch the guest cannot see."""
    try:
        return PciAddress.parse(text)
    except ValueError:
        return None


def _ports(pci: XmlElement, nic: XmlElement | None, address: PciAddress, place: _Place) -> Iterator[NicReading]:
    nets = nic.named("net") if nic is not None else ()
    vendor, class_code = hex_id(pci.attributes.get("vendor")), class_code_of(pci.attributes.get("class"))
    is_virtual = is_virtual_function_id(vendor, hex_id(pci.attributes.get("device")))
    for net in nets or (None,):
        name = (net.attributes.get("name") or None) if net is not None else None
        port = _number(net.attributes.get("port")) if net is not None else None
        # NCCL's verbs transport numbers ports from 1, its socket transport writes port 0 and an interface's name.
        has_rdma_name = name is not None and bool(port) and not _NO_RDMA_NAME.fullmatch(name)
        yield NicReading(
            name=name,
            bdf=address,
            numa_node=place.numa_node,
            rdma=name if has_rdma_name else None,
            netdev=name if port == 0 else None,
            path=place.path,
            function=NicFunction.VIRTUAL if is_virtual else None,
            link=NicLink.INFINIBAND if class_code is not None and is_infiniband_class(class_code) else None,
            vendor=vendor,
            port=port or None,
        )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\d{1,6}", text) else None
