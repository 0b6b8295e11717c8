"""The nesting a machine is drawn in: rooms (NUMA nodes) that hold host bridges, switches, cards and devices.

Where a device's PCI path is known it decides. Where it is not (tables without addresses), devices that are no
farther than PHB, PXB or PIX are put into one box; what no source tells gets no box.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Gpu, Link, LinkClass, Machine, Nic, NumaNode, Unknown, device_order
from topoalloc.topology.pci import PciAddress, PciPath
from topoalloc.topology.spelling import reason_words

BRIDGE_DEPTH_MAX = 16  # real machines stay below 8; what hangs deeper is drawn at this depth


class BoxKind(StrEnum):
    HOST_BRIDGE = "host bridge"
    SWITCH = "PCIe switch"
    CARD = "card"
    CARD_OR_SWITCH = "card or switch"


@dataclass(frozen=True, slots=True)
class Box:
    """What several devices hang below. `address` is its PCI name, None where no source gave it.

    `pcie` is the farthest class that meeting there makes between devices in it; None: no two meet, or not known.
    """

    kind: BoxKind
    address: str | None
    pcie: LinkClass | None
    children: tuple[Box | str, ...]


@dataclass(frozen=True, slots=True)
class Room:
    """A NUMA node and what is on it; `node` None collects devices of unknown node, told apart by `cpus` if known."""

    node: NumaNode | None
    cpus: CpuSet | Unknown
    reason: str  # why the node is unknown; empty for a known node
    children: tuple[Box | str, ...]


def outline(machine: Machine) -> tuple[Room, ...]:
    """Rooms in order of node id, those of unknown node last; every device is in exactly one of them."""
    links = machine.links_by_pair()
    devices = devices_by_id(machine)
    rooms = []
    homes = {device.id: device.numa_node for device in devices.values() if isinstance(device.numa_node, int)}
    for node in sorted(_all_nodes(machine, homes), key=lambda node: node.id):
        members = [device for device in devices.values() if homes.get(device.id) == node.id]
        rooms.append(Room(node, node.cpus, "", _contents(members, links)))
    strays = [device for device in devices.values() if device.id not in homes]
    for cpus, members in _by_affinity(strays, links):
        reasons = [reason_words(device.numa_node) for device in members if isinstance(device.numa_node, Unknown)]
        rooms.append(Room(None, cpus, reasons[0], _contents(members, links)))
    return tuple(rooms)


def devices_by_id(machine: Machine) -> dict[str, Gpu | Nic]:
    """GPUs, then NICs, in machine order."""
    devices: dict[str, Gpu | Nic] = {gpu.id: gpu for gpu in machine.gpus}
    return devices | {nic.id: nic for nic in machine.nics}


def devices_in(children: Sequence[Box | str]) -> tuple[str, ...]:
    """Every device id in these boxes, in drawing order."""
    found: list[str] = []
    for child in children:
        found.extend(devices_in(child.children) if isinstance(child, Box) else (child,))
    return tuple(found)


def _all_nodes(machine: Machine, homes: Mapping[str, int]) -> list[NumaNode]:
    listed = {node.id for node in machine.numa_nodes}
    silent = Unknown("only named by a device")
    missing = sorted(set(homes.values()) - listed)
    return [*machine.numa_nodes, *(NumaNode(node, silent, silent, silent) for node in missing)]


def _by_affinity(
    strays: Sequence[Gpu | Nic], links: Mapping[tuple[str, str], Link]
) -> list[tuple[CpuSet | Unknown, list[Gpu | Nic]]]:
    """Devices of unknown node by the CPUs near them; a NIC joins the GPUs nearer than SYS where these agree."""
    silent = Unknown("no source names CPUs near these devices")
    near: dict[str, CpuSet | Unknown] = {}
    for device in strays:
        near[device.id] = device.cpus if isinstance(device, Gpu) and isinstance(device.cpus, CpuSet) else silent
    gpus = [device.id for device in strays if isinstance(device, Gpu)]
    for device in strays:
        if isinstance(device, Nic):
            around = {near[gpu] for gpu in gpus if _nearer_than_sys(links, gpu, device.id)}
            near[device.id] = around.pop() if len(around) == 1 else silent
    groups: dict[CpuSet | Unknown, list[Gpu | Nic]] = {}
    for device in strays:
        groups.setdefault(near[device.id], []).append(device)
    return sorted(groups.items(), key=lambda group: isinstance(group[0], Unknown))


def _nearer_than_sys(links: Mapping[tuple[str, str], Link], a: str, b: str) -> bool:
    link = links.get((a, b))
    return link is not None and isinstance(link.pcie, LinkClass) and link.pcie < LinkClass.SYS


def _contents(members: Sequence[Gpu | Nic], links: Mapping[tuple[str, str], Link]) -> tuple[Box | str, ...]:
    """Boxes and devices of one room, in order of their first device."""
    paths = {device.id: device.path for device in members if isinstance(device.path, PciPath)}
    paths |= _borrowed_paths([device.id for device in members if device.id not in paths], paths, links)
    addresses = {device.id: device.bdf for device in members}
    by_bridge: dict[str, list[str]] = {}
    for device in sorted(paths, key=device_order):
        by_bridge.setdefault(paths[device].host_bridge, []).append(device)
    children: list[Box | str] = []
    for bridge, below in by_bridge.items():
        nested = _nested(below, paths, addresses, links, 0)
        # A source that folds all host bridges of a node into one tells nothing by it.
        children.extend(
            nested
            if paths[below[0]].is_folded
            else (Box(BoxKind.HOST_BRIDGE, bridge, LinkClass.PHB if len(nested) > 1 else None, nested),)
        )
    pathless = sorted((device.id for device in members if device.id not in paths), key=device_order)
    children.extend(_clustered(pathless, links, 0))
    return _ordered(children)


def _borrowed_paths(
    pathless: Sequence[str], paths: Mapping[str, PciPath], links: Mapping[tuple[str, str], Link]
) -> dict[str, PciPath]:
    """Where a device without an address must hang, given its class to one whose path is known."""
    borrowed: dict[str, PciPath] = {}
    for device in pathless:
        classes = [(link.pcie, other) for other in paths if (link := links.get((device, other))) is not None]
        nearest = min(((pcie, other) for pcie, other in classes if isinstance(pcie, LinkClass)), default=None)
        if nearest is None or nearest[0] > LinkClass.PHB:
            continue
        path = paths[nearest[1]]
        depth = {LinkClass.PIX: len(path.bridges), LinkClass.PXB: 1, LinkClass.PHB: 0}[nearest[0]]
        borrowed[device] = PciPath(path.host_bridge, path.bridges[:depth])
    return borrowed


def _nested(
    below: Sequence[str],
    paths: Mapping[str, PciPath],
    addresses: Mapping[str, PciAddress | Unknown],
    links: Mapping[tuple[str, str], Link],
    depth: int,
) -> tuple[Box | str, ...]:
    """Devices below one bridge, with a box for each further bridge that two or more of them share.

    Bridges with one device are slots, not switches, and are left out.
    """
    here: list[str] = []
    deeper: dict[PciAddress, list[str]] = {}
    for device in below:
        bridges = paths[device].bridges[:BRIDGE_DEPTH_MAX]
        if len(bridges) > depth:
            deeper.setdefault(bridges[depth], []).append(device)
        else:
            here.append(device)
    children = _carded(here, addresses, links)
    for bridge, devices in deeper.items():
        inner = _nested(devices, paths, addresses, links, depth + 1)
        if len(inner) == 1:
            children.extend(inner)
        else:
            children.append(Box(BoxKind.SWITCH, str(bridge), _farthest(devices, links), inner))
    return _ordered(children)


def _carded(
    devices: Sequence[str], addresses: Mapping[str, PciAddress | Unknown], links: Mapping[tuple[str, str], Link]
) -> list[Box | str]:
    """Functions and ports of one PCI device, boxed as the card that they are."""
    by_slot: dict[str, list[str]] = {}
    for device in devices:
        address = addresses[device]
        slot = device if isinstance(address, Unknown) else str(address).rpartition(".")[0]
        by_slot.setdefault(slot, []).append(device)
    children: list[Box | str] = []
    for slot, members in by_slot.items():
        card = Box(BoxKind.CARD, slot, _farthest(members, links), tuple(members))
        children.extend(members if len(members) == 1 else (card,))
    return children


def _farthest(devices: Sequence[str], links: Mapping[tuple[str, str], Link]) -> LinkClass | None:
    found = [link.pcie for pair in combinations(devices, 2) if (link := links.get(pair)) is not None]
    return max((pcie for pcie in found if isinstance(pcie, LinkClass)), default=None)


_CLUSTERS = (LinkClass.PHB, LinkClass.PXB, LinkClass.PIX)


def _switch_or_card(devices: Sequence[str]) -> BoxKind:
    """What PIX or PXB joins in a table, which cannot tell two ports of one card from two cards below one switch."""
    return BoxKind.SWITCH if any(device.startswith("GPU") for device in devices) else BoxKind.CARD_OR_SWITCH


def _clustered(devices: Sequence[str], links: Mapping[tuple[str, str], Link], level: int) -> tuple[Box | str, ...]:
    """Devices without a path, boxed by class: no farther than PHB, in it PXB, in it PIX."""
    if level == len(_CLUSTERS):
        return tuple(devices)
    farthest = _CLUSTERS[level]
    groups: list[list[str]] = []
    for device in devices:
        near = [group for group in groups if any(_within(links, device, other, farthest) for other in group)]
        groups = [group for group in groups if group not in near]
        groups.append(sorted((device, *(other for group in near for other in group)), key=device_order))
    children: list[Box | str] = []
    for group in groups:
        inner = _clustered(group, links, level + 1)
        kind = BoxKind.HOST_BRIDGE if farthest == LinkClass.PHB else _switch_or_card(group)
        children.extend(inner if len(inner) == 1 else (Box(kind, None, farthest, inner),))
    return _ordered(children)


def _within(links: Mapping[tuple[str, str], Link], a: str, b: str, farthest: LinkClass) -> bool:
    link = links.get((a, b))
    return link is not None and isinstance(link.pcie, LinkClass) and link.pcie <= farthest


def _ordered(children: Sequence[Box | str]) -> tuple[Box | str, ...]:
    return tuple(sorted(children, key=lambda child: device_order(devices_in((child,))[0])))
