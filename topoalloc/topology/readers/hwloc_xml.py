"""hwloc's XML (lstopo FILE.xml), versions 2 and 3, as a reading of the whole machine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import NicLink, Unknown
from topoalloc.topology.pci import PciAddress, PciPath
from topoalloc.topology.pci_classes import (
    AMD,
    PciKind,
    is_infiniband_class,
    kind_of,
)
from topoalloc.topology.readers.shared_cpus import shared_cpus
from topoalloc.topology.readers.xml_document import XmlElement
from topoalloc.topology.reading import (
    NO_NAME,
    FarEnd,
    GpuReading,
    NicReading,
    NumaReading,
    NvlinkReading,
    Reading,
    SourceRefusal,
    Standing,
)

# OSDev kinds: numbers up to version 2, bits since 3 (hwloc/include/hwloc.h, hwloc_obj_osdev_type_e).
_NETWORK = {"2": 2, "3": 16}
_OPENFABRICS = {"2": 3, "3": 32}
_MATRIX_SIDE_MAX = 1024
# hwloc writes NVLink bandwidth in MB/s: 20,000 a link for the first generation (P100), 25,000 for later ones, and a
# million for a GPU to itself (hwloc/topology-nvml.c).
_LINK_MBPS = {"15f8": 20_000, "15f9": 20_000}
_LATER_LINK_MBPS = 25_000
_LINKS_MAX = 64


def read_hwloc_xml(root: XmlElement, source: str) -> Reading | SourceRefusal:
    """What a `<topology>` document says; a file of hwloc 1 (no version, or 1.x) is refused."""
    version = root.attributes.get("version", "1")
    if not re.fullmatch(r"[23]\.\d{1,3}", version):
        return SourceRefusal(source, f"is written by hwloc {version[:10]}; record it with lstopo of hwloc 2 or later")
    machine = root.child("object")
    if machine is None:
        return SourceRefusal(source, "holds no <object>; it is cut or no hwloc topology")
    reader = _HwlocReader(source, version[0])
    try:
        reader.visit(machine, _Place())
    except ValueError as error:
        return SourceRefusal(source, f"is damaged: {error}")
    if not reader.nodes:
        return SourceRefusal(source, "names no NUMANode; record it with lstopo of hwloc 2 or later")
    return reader.finish(root)


@dataclass(frozen=True, slots=True)
class _Place:
    """What the objects above an object say about its place."""

    nodes: CpuSet | None = None  # a node set has the spelling of a CPU set
    path: PciPath | None = None


@dataclass(slots=True)
class _HwlocReader:
    """Collects objects by walking down the tree."""

    source: str
    major: str
    nodes: list[NumaReading] = field(default_factory=list)
    gpus: list[GpuReading] = field(default_factory=list)
    nics: list[NicReading] = field(default_factory=list)
    nvswitches: list[PciAddress] = field(default_factory=list)
    gpu_of_object: dict[str, PciAddress] = field(default_factory=dict)  # OSDev gp_index -> its GPU
    switch_of_object: dict[str, PciAddress] = field(default_factory=dict)

    def visit(self, item: XmlElement, place: _Place) -> None:
        """Take in an object and all below it; raises ValueError with the damage."""
        attributes = item.attributes
        kind = attributes.get("type")
        nodes = _node_set(attributes.get("nodeset")) or place.nodes
        path = place.path
        if kind == "NUMANode":
            self.nodes.append(_node(item))
        elif kind == "Bridge":
            path = _below_bridge(attributes, path)
        elif kind == "PCIDev":
            self._add_pci(item, _Place(nodes, path))
        for child in item.named("object"):
            self.visit(child, _Place(nodes, path))

    def _add_pci(self, item: XmlElement, place: _Place) -> None:
        address = PciAddress.parse(item.attributes.get("pci_busid", ""))
        subclass, vendor, device = _pci_type(item.attributes.get("pci_type", ""))
        match kind_of(subclass << 8, vendor):
            case PciKind.GPU:
                self.gpus.append(_gpu(item, address, vendor, device, place))
                self.gpu_of_object.update(dict.fromkeys(_object_ids(item), address))
            case PciKind.NIC:
                self.nics.extend(self._ports(item, address, vendor, subclass, place))
            case PciKind.NVSWITCH:
                self.nvswitches.append(address)
                self.switch_of_object.update(dict.fromkeys(_object_ids(item), address))
            case _:
                pass

    def _ports(
        self, item: XmlElement, address: PciAddress, vendor: str | None, subclass: int, place: _Place
    ) -> list[NicReading]:
        """One port per RDMA device, else per netdev, else one."""
        netdevs = self._names(item, _NETWORK[self.major])
        rdma_devices = self._names(item, _OPENFABRICS[self.major])
        pairs = [
            (rdma, netdevs[min(at, len(netdevs) - 1)] if netdevs else NO_NAME) for at, rdma in enumerate(rdma_devices)
        ]
        if not pairs:
            pairs = [(NO_NAME, netdev) for netdev in netdevs or (NO_NAME,)]
        return [
            NicReading(
                name=netdev or rdma or None,
                bdf=address,
                numa_node=_numa_node(place),
                rdma=rdma if netdevs or rdma_devices else None,
                netdev=netdev if netdevs or rdma_devices else None,
                path=place.path,
                link=NicLink.INFINIBAND if is_infiniband_class(subclass << 8) else None,
                vendor=vendor,
            )
            for rdma, netdev in pairs
        ]

    def _names(self, item: XmlElement, osdev_type: int) -> list[str]:
        devices = [child for child in item.named("object") if child.attributes.get("type") == "OSDev"]
        is_mask = self.major != "2"
        return sorted(
            child.attributes.get("name", "")
            for child in devices
            if (number := _number(child.attributes.get("osdev_type"))) is not None
            and (number & osdev_type if is_mask else number == osdev_type)
        )

    def finish(self, root: XmlElement) -> Reading:
        links = self._nvlinks(root)
        nodes = sorted(self.nodes, key=lambda node: node.id)
        distances = _distances(root, [node.id for node in nodes])
        if distances is not None:
            nodes = [
                NumaReading(node.id, node.cpus, node.memory_bytes, row)
                for node, row in zip(nodes, distances, strict=True)
            ]
        return Reading(
            source=self.source,
            standing=Standing.WHOLE,
            numa_nodes=tuple(nodes),
            gpus=tuple(_with_links(gpu, links) for gpu in sorted(self.gpus, key=_address_of)),
            nics=tuple(sorted(self.nics, key=lambda nic: (_address_of(nic), nic.name or ""))),
            nvswitches=tuple(sorted(self.nvswitches)),
            all_numa_nodes=True,
            warnings=tuple(f"{self.source}: {warning}" for warning in shared_cpus(nodes)),
        )

    def _nvlinks(self, root: XmlElement) -> Mapping[PciAddress, tuple[NvlinkReading, ...]]:
        """Links by GPU from the NVLinkBandwidth or XGMIHops matrix; a GPU in such a matrix without links has ()."""
        devices = {gpu.bdf: gpu.pci_device for gpu in self.gpus if gpu.bdf is not None}
        links: dict[PciAddress, tuple[NvlinkReading, ...]] = {}
        for matrix in _matrices(root):
            if matrix.name not in {"NVLinkBandwidth", "XGMIHops"}:
                continue
            for row, object_id in enumerate(matrix.object_ids):
                address = self.gpu_of_object.get(object_id)
                if address is not None:
                    links[address] = tuple(self._links_of_row(matrix, row, address, devices.get(address)))
        return links

    def _links_of_row(self, matrix: _Matrix, row: int, address: PciAddress, device: str | None) -> list[NvlinkReading]:
        links: list[NvlinkReading] = []
        for column, far_id in enumerate(matrix.object_ids):
            value = matrix.at(row, column)
            if matrix.name == "XGMIHops":
                count = 1 if value == 1 else 0  # more hops are a way through other GPUs
            else:
                count = value // _LINK_MBPS.get(device or "", _LATER_LINK_MBPS)
            if not 0 < count <= _LINKS_MAX:
                continue
            gpu, switch = self.gpu_of_object.get(far_id), self.switch_of_object.get(far_id)
            if gpu is not None and gpu != address:
                links.append(NvlinkReading(FarEnd.GPU, gpu, count))
            elif switch is not None:
                links.append(NvlinkReading(FarEnd.SWITCH, switch, count))
        return links


@dataclass(frozen=True, slots=True)
class _Matrix:
    """One square matrix of a `distances2` or `distances2hetero` element, objects by number."""

    name: str
    by_os_index: bool
    object_ids: tuple[str, ...]
    values: tuple[int, ...]

    def at(self, row: int, column: int) -> int:
        return self.values[row * len(self.object_ids) + column]


def _matrices(root: XmlElement) -> list[_Matrix]:
    """The matrices that are whole; others are left out."""
    found: list[_Matrix] = []
    for element in (*root.named("distances2"), *root.named("distances2hetero")):
        # Heterogeneous matrices write `OSDev:332`, the others the number alone.
        ids = [word.rsplit(":", 1)[-1] for part in element.named("indexes") for word in part.text.split()]
        words = [word for part in element.named("u64values") for word in part.text.split()]
        is_whole = 0 < len(ids) <= _MATRIX_SIDE_MAX and len(words) == len(ids) ** 2
        if is_whole and all(re.fullmatch(r"\d{1,19}", word) for word in words):
            found.append(
                _Matrix(
                    element.attributes.get("name", ""),
                    element.attributes.get("indexing") == "os",
                    tuple(ids),
                    tuple(int(word) for word in words),
                )
            )
    return found


def _distances(root: XmlElement, node_ids: Sequence[int]) -> list[tuple[int, ...]] | None:
    """Rows of the NUMALatency matrix in order of `node_ids`; None where it is missing or covers other nodes."""
    for matrix in _matrices(root):
        positions = {object_id: position for position, object_id in enumerate(matrix.object_ids)}
        if matrix.name != "NUMALatency" or not matrix.by_os_index or positions.keys() != {str(n) for n in node_ids}:
            continue
        order = [positions[str(node_id)] for node_id in node_ids]
        return [tuple(matrix.at(row, column) for column in order) for row in order]
    return None


def _node(item: XmlElement) -> NumaReading:
    number = _number(item.attributes.get("os_index"))
    if number is None:
        raise ValueError("a NUMANode has no os_index")
    cpuset, memory = item.attributes.get("cpuset"), _number(item.attributes.get("local_memory"))
    return NumaReading(
        number,
        cpus=CpuSet.from_mask(cpuset) if cpuset else Unknown("the NUMANode has no cpuset"),
        memory_bytes=memory if memory is not None else Unknown("the NUMANode has no local_memory"),
        distances=Unknown("the file has no NUMALatency matrix of its nodes"),
    )


def _node_set(mask: str | None) -> CpuSet | None:
    """Nodes of a mask; None where there is none, or where it is endless (`0xf...f`: the machine is not NUMA)."""
    return None if not mask or "..." in mask else CpuSet.from_mask(mask)


def _below_bridge(attributes: Mapping[str, str], path: PciPath | None) -> PciPath | None:
    """The path below a bridge: 0-1 is a host bridge and opens a path, 1-1 a PCI bridge and lengthens it."""
    if attributes.get("bridge_type") == "0-1":
        match = re.match(r"([0-9a-f]{4,8}):\[([0-9a-f]{2})-", attributes.get("bridge_pci", ""))
        return PciPath(f"{match.group(1)}:{match.group(2)}", ()) if match is not None else None
    if path is None:
        return None
    return PciPath(path.host_bridge, (*path.bridges, PciAddress.parse(attributes.get("pci_busid", ""))))


def _gpu(item: XmlElement, address: PciAddress, vendor: str | None, device: str | None, place: _Place) -> GpuReading:
    told = {
        info.attributes.get("name", ""): info.attributes.get("value", "")
        for child in item.named("object")
        for info in child.named("info")
    }
    return GpuReading(
        bdf=address,
        uuid=told.get("NVIDIAUUID") or (told.get("AMDUUID") if vendor == AMD else None) or None,
        model=told.get("GPUModel") or None,
        memory_bytes=_kibibytes(told.get("CUDAGlobalMemorySize") or told.get("RSMIVRAMSize")),
        numa_node=_numa_node(place),
        path=place.path,
        vendor=vendor,
        pci_device=device,
    )


def _with_links(gpu: GpuReading, links: Mapping[PciAddress, tuple[NvlinkReading, ...]]) -> GpuReading:
    return replace(gpu, nvlinks=links.get(gpu.bdf)) if gpu.bdf is not None else gpu


def _numa_node(place: _Place) -> int | Unknown:
    """Locality is the node set of the nearest object above that has one; several nodes are no answer."""
    if place.nodes is None:
        return Unknown("nothing above the device has a nodeset")
    if len(place.nodes) != 1:
        return Unknown(f"the nodeset above the device is {place.nodes or 'empty'}")
    return next(iter(place.nodes))


def _pci_type(text: str) -> tuple[int, str | None, str | None]:
    """Class, vendor and device of `0302 [10de:15f9] [10de:116b] a1 00`; raises ValueError."""
    match = re.match(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\]", text)
    if match is None:
        raise ValueError(f"a PCIDev has the pci_type {text[:40]!r}")
    return int(match.group(1), 16), match.group(2), match.group(3)


def _object_ids(item: XmlElement) -> list[str]:
    return [part.attributes["gp_index"] for part in (item, *item.named("object")) if "gp_index" in part.attributes]


def _kibibytes(text: str | None) -> int | None:
    """`16671616KiB`, in version 2 without the unit."""
    match = re.fullmatch(r"(\d{1,15})(?:KiB)?", text or "")
    return int(match.group(1)) * 1024 if match is not None else None


def _address_of(device: GpuReading | NicReading) -> PciAddress:
    assert device.bdf is not None, "every device of an hwloc file comes from a PCIDev"
    return device.bdf


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\d{1,18}", text) else None
