"""NIC ports from a sysfs tree: one per RDMA device, else one per netdev, else one per network function.

A name counts only where its device path ends at a PCI function: bonds, bridges, VLANs, veth pairs, USB adapters and
soft RDMA devices are no hardware of their own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from topoalloc.topology.machine import NicFunction, NicLink
from topoalloc.topology.pci import PciAddress
from topoalloc.topology.pci_classes import PciKind, is_infiniband_class, is_virtual_function_id
from topoalloc.topology.readers.files import Files, text_of
from topoalloc.topology.readers.sysfs_pci import PciFunction, address_in, driver_of, numa_node_of
from topoalloc.topology.reading import NO_NAME, NicReading

_NET, _RDMA = "net", "infiniband"
# Below a PCI function a netdev hangs in net/, that of a virtio card one level deeper in virtioN/net/.
_BELOW_FUNCTION = re.compile(r"(?:virtio\d+/)?(net|infiniband)/([^/]+)")
# Names of VF and sub-function representors of a card in switchdev mode (devlink port naming): they forward traffic
# of functions that are listed themselves.
_REPRESENTOR = re.compile(r"(?:c\d+)?pf\d+(?:(?:vf|sf)\d+)?")
_ARPHRD_ETHER, _ARPHRD_INFINIBAND = "1", "32"  # linux/if_arp.h
_LINK_LAYERS = {"InfiniBand": NicLink.INFINIBAND, "Ethernet": NicLink.ETHERNET}
# A function's ports: real cards have one or two RDMA devices and netdevs a function.
PORTS_MAX = 64


@dataclass(slots=True)
class _Names:
    """Netdevs and RDMA devices of one function, by name, with their folders."""

    net: dict[str, str] = field(default_factory=dict)
    rdma: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Absent:
    """What to say of a port without a netdev or an RDMA device."""

    net: str | None
    rdma: str | None


def read_nics(sys: Files, functions: Sequence[PciFunction]) -> tuple[NicReading, ...]:
    """Every NIC port with a PCI locality, in address order, then by name."""
    names = _names_by_function(sys)
    # A function without a name is known to have none only where the tree lists the names of that kind at all.
    absent = _Absent(*(NO_NAME if sys.is_folder(f"class/{kind}") else None for kind in (_NET, _RDMA)))
    nics: list[NicReading] = []
    for function in functions:
        here = names.get(function.address) or _names_below(sys, function)
        is_carrier = function.kind is PciKind.OTHER and bool(here.net or here.rdma)
        if function.kind is PciKind.NIC or is_carrier:
            nics.extend(_ports(sys, function, here, absent))
    return tuple(nics)


def _names_by_function(sys: Files) -> dict[PciAddress, _Names]:
    table: dict[PciAddress, _Names] = defaultdict(_Names)
    for kind in (_NET, _RDMA):
        for name in sys.names(f"class/{kind}"):
            real = sys.real_path(f"class/{kind}/{name}")
            place = address_in(real) if real is not None else None
            if real is not None and place is not None and _BELOW_FUNCTION.fullmatch(place[1]):
                _note(sys, table[place[0]], kind, name, real)
    return table


def _names_below(sys: Files, function: PciFunction) -> _Names:
    """The same from the function's own folder, for dumps without /sys/class."""
    found = _Names()
    inner = [f"{name}/{_NET}" for name in sys.names(function.folder) if re.fullmatch(r"virtio\d+", name)]
    for place in (_NET, _RDMA, *inner):
        for name in sys.names(f"{function.folder}/{place}"):
            _note(sys, found, place.rsplit("/", 1)[-1], name, f"{function.folder}/{place}/{name}")
    return found


def _note(sys: Files, names: _Names, kind: str, name: str, folder: str) -> None:
    if kind == _RDMA:
        names.rdma[name] = folder
    elif not _REPRESENTOR.fullmatch(text_of(sys, f"{folder}/phys_port_name") or ""):
        names.net[name] = folder


def _ports(sys: Files, function: PciFunction, names: _Names, absent: _Absent) -> list[NicReading]:
    netdevs = sorted(names.net, key=lambda name: (_port_number(sys, names.net[name]), name))[:PORTS_MAX]
    rdma_devices = sorted(names.rdma)[:PORTS_MAX]
    if not rdma_devices:
        ports: list[str | None] = [*netdevs] or [absent.net]
        return [_nic(sys, function, names, absent.rdma, netdev) for netdev in ports]
    pairs = [(rdma, _netdev_of(sys, names, rdma, netdevs, position)) for position, rdma in enumerate(rdma_devices)]
    return [_nic(sys, function, names, rdma, netdev or absent.net) for rdma, netdev in pairs]


def _netdev_of(sys: Files, names: _Names, rdma: str, netdevs: Sequence[str], position: int) -> str | None:
    """The netdev of an RDMA device: as its first port's GID table says, else its like in order, else the first."""
    folder = names.rdma[rdma]
    for port in sys.names(f"{folder}/ports"):
        told = text_of(sys, f"{folder}/ports/{port}/gid_attrs/ndevs/0")
        if told in names.net:
            return told
    if not netdevs:
        return None
    return netdevs[position] if position < len(netdevs) else netdevs[0]


def _nic(sys: Files, function: PciFunction, names: _Names, rdma: str | None, netdev: str | None) -> NicReading:
    kind, physical = _function_kind(sys, function)
    return NicReading(
        name=netdev or rdma or None,
        bdf=function.address,
        numa_node=numa_node_of(sys, function),
        rdma=rdma,
        netdev=netdev,
        path=function.path,
        function=kind,
        link=_link(sys, function, names.rdma.get(rdma or ""), names.net.get(netdev or "")),
        driver=driver_of(sys, function),
        vendor=function.vendor,
        physical_function=physical,
    )


def _function_kind(sys: Files, function: PciFunction) -> tuple[NicFunction | None, PciAddress | None]:
    """Physical or virtual as far as the tree proves it; a guest shows a VF without a link to its physical function."""
    names = set(sys.names(function.folder))
    if "physfn" in names:
        real = sys.real_path(f"{function.folder}/physfn")
        place = address_in(real) if real is not None else None
        return NicFunction.VIRTUAL, place[0] if place is not None and place[0] != function.address else None
    if is_virtual_function_id(function.vendor, function.device):
        return NicFunction.VIRTUAL, None
    return (NicFunction.PHYSICAL if names & {"sriov_totalvfs", "virtfn0"} else None), None


def _link(sys: Files, function: PciFunction, rdma_folder: str | None, net_folder: str | None) -> NicLink | None:
    if rdma_folder is not None:
        for port in sys.names(f"{rdma_folder}/ports"):
            layer = text_of(sys, f"{rdma_folder}/ports/{port}/link_layer")
            if layer in _LINK_LAYERS:
                return _LINK_LAYERS[layer]
    if net_folder is not None:
        hardware_type = text_of(sys, f"{net_folder}/type")
        if hardware_type in {_ARPHRD_ETHER, _ARPHRD_INFINIBAND}:
            return NicLink.INFINIBAND if hardware_type == _ARPHRD_INFINIBAND else NicLink.ETHERNET
    infiniband = function.class_code is not None and is_infiniband_class(function.class_code)
    return NicLink.INFINIBAND if infiniband else None


def _port_number(sys: Files, folder: str) -> int:
    """Which port of its function a netdev is (`dev_port`, on kernels before 3.15 `dev_id`)."""
    for name in ("dev_port", "dev_id"):
        text = text_of(sys, f"{folder}/{name}")
        if text is not None and re.fullmatch(r"\d{1,5}|0x[0-9a-f]{1,4}", text):
            number = int(text, 0)
            if number:
                return number
    return 0
