"""What joins two devices: the PCIe class from where both hang, NVLink counts from what each GPU says of its links,
and what follows from the classes of all pairs (switch groups, nearest NICs).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from topoalloc.topology.machine import Link, LinkClass, Machine, NearestNics, Unknown, device_order
from topoalloc.topology.pci import PciAddress, PciPath
from topoalloc.topology.reading import FarEnd, NvlinkReading


@dataclass(frozen=True, slots=True)
class Place:
    """Where one function sits, as one source tells it."""

    path: PciPath
    bdf: PciAddress | None
    numa_node: int | Unknown


def pcie_class(a: Place, b: Place) -> LinkClass | Unknown:
    """The PCIe class of two functions; symmetric.

    Counts bridges as the NVIDIA driver and NCCL do: below the last bridge that both have above them, none or one
    on either side is PIX, more is PXB; without a common bridge the host bridge decides, then the NUMA node.
    """
    if _same_device(a.bdf, b.bdf):
        return LinkClass.PIX
    if a.path.is_folded != b.path.is_folded:
        return Unknown("the paths come from sources that count bridges differently")
    if a.path.is_folded:
        return _folded_class(a.path, b.path)
    if a.path.host_bridge == b.path.host_bridge:
        return _class_below_host_bridge(a.path, b.path)
    if isinstance(a.numa_node, Unknown) or isinstance(b.numa_node, Unknown):
        return Unknown("different host bridges, NODE or SYS: the NUMA nodes are not known")
    return LinkClass.NODE if a.numa_node == b.numa_node else LinkClass.SYS


def _same_device(a: PciAddress | None, b: PciAddress | None) -> bool:
    return a is not None and b is not None and (a.domain, a.bus, a.device) == (b.domain, b.bus, b.device)


def _common_bridges(a: PciPath, b: PciPath) -> int:
    common = 0
    for left, right in zip(a.bridges, b.bridges, strict=False):
        if left != right:
            break
        common += 1
    return common


def _class_below_host_bridge(a: PciPath, b: PciPath) -> LinkClass:
    common = _common_bridges(a, b)
    if not common:
        return LinkClass.PHB
    deepest = max(len(a.bridges), len(b.bridges)) - common
    return LinkClass.PIX if deepest <= 1 else LinkClass.PXB


def _folded_class(a: PciPath, b: PciPath) -> LinkClass | Unknown:
    """NCCL writes a switch as one element, so only the same parent is PIX; it folds NODE into PHB."""
    if _common_bridges(a, b):
        return LinkClass.PIX if a.bridges == b.bridges else LinkClass.PXB
    if "numa-1" in {a.host_bridge, b.host_bridge}:
        return Unknown("the source does not know the NUMA node of its host bridges (numaid -1)")
    return LinkClass.PHB if a.host_bridge == b.host_bridge else LinkClass.SYS


@dataclass(frozen=True, slots=True)
class NvlinkAsymmetry:
    """Two GPUs that count the links between them differently; positions, and what each end counts."""

    a: int
    b: int
    from_a: int
    from_b: int


@dataclass(frozen=True, slots=True)
class _Ends:
    """Where one GPU's links go, by far end."""

    to_gpu: Mapping[int, int]
    to_switch: int
    untold: int  # the far end is not told, or is said to be the GPU itself, which no link can be


def nvlink_counts(
    gpus: Sequence[tuple[NvlinkReading, ...] | None], position_of: Mapping[PciAddress, int]
) -> tuple[dict[tuple[int, int], int | Unknown], tuple[NvlinkAsymmetry, ...]]:
    """Links per pair of GPUs (positions, lower first) from what one source says of each GPU's links.

    A pair is absent where the source speaks of neither GPU. Direct links: the smaller of the two ends' counts,
    since a count that differs is an error in the data. Through NVSwitch, seen or not: the smaller of the two
    GPUs' counts to switches, which is what `nvidia-smi topo -m` prints.
    """
    ends = [None if links is None else _ends(at, links, position_of) for at, links in enumerate(gpus)]
    counts: dict[tuple[int, int], int | Unknown] = {}
    asymmetries: list[NvlinkAsymmetry] = []
    for b, end_b in enumerate(ends):
        for a, end_a in enumerate(ends[:b]):
            if end_a is None and end_b is None:
                continue
            counts[a, b] = _pair_count(a, end_a, b, end_b)
            asymmetry = _asymmetry(a, end_a, b, end_b)
            if asymmetry is not None:
                asymmetries.append(asymmetry)
    return counts, tuple(asymmetries)


def _ends(at: int, links: tuple[NvlinkReading, ...], position_of: Mapping[PciAddress, int]) -> _Ends:
    to_gpu: dict[int, int] = {}
    to_switch = untold = 0
    for link in links:
        match link.far_end:
            case FarEnd.SWITCH | FarEnd.UNSEEN_SWITCH:
                to_switch += link.count
            case FarEnd.UNKNOWN:
                untold += link.count
            case FarEnd.GPU:
                far = None if link.target is None else position_of.get(link.target)
                if link.target is None or far == at:
                    untold += link.count
                elif far is not None:
                    to_gpu[far] = to_gpu.get(far, 0) + link.count
    return _Ends(to_gpu, to_switch, untold)


def _pair_count(a: int, end_a: _Ends | None, b: int, end_b: _Ends | None) -> int | Unknown:
    if end_a is None or end_b is None:
        told, far = (end_a, b) if end_a is not None else (end_b, a)
        assert told is not None, "pairs of which neither GPU is told are left out"
        if told.to_gpu.get(far) or not (told.to_switch or told.untold):
            return told.to_gpu.get(far, 0)
        return Unknown("the NVLinks of one of the two GPUs are not told")
    direct = _direct_count(a, end_a, b, end_b)
    if direct:
        return direct
    if end_a.to_switch and end_b.to_switch:
        return min(end_a.to_switch, end_b.to_switch)
    if (end_a.untold and end_b.untold) or _may_meet(end_a, end_b) or _may_meet(end_b, end_a):
        return Unknown(f"{max(end_a.untold, end_b.untold)} NVLinks of which the far end is not told")
    return 0


def _direct_count(a: int, end_a: _Ends, b: int, end_b: _Ends) -> int:
    """The smaller claim; an end whose links have untold far ends does not contradict the other end."""
    from_a, from_b = end_a.to_gpu.get(b, 0), end_b.to_gpu.get(a, 0)
    if not from_a and end_a.untold:
        return from_b
    if not from_b and end_b.untold:
        return from_a
    return min(from_a, from_b)


def _may_meet(untold: _Ends, switched: _Ends) -> bool:
    return bool(untold.untold and switched.to_switch)


def _asymmetry(a: int, end_a: _Ends | None, b: int, end_b: _Ends | None) -> NvlinkAsymmetry | None:
    if end_a is None or end_b is None or end_a.untold or end_b.untold:
        return None
    from_a, from_b = end_a.to_gpu.get(b, 0), end_b.to_gpu.get(a, 0)
    return None if from_a == from_b else NvlinkAsymmetry(a, b, from_a, from_b)


def switch_groups(links: Iterable[Link]) -> tuple[tuple[str, ...], ...]:
    """Sets of two or more devices joined by PIX or PXB, taken transitively; each in device order, by first member."""
    group_of: dict[str, list[str]] = {}
    for link in links:
        if isinstance(link.pcie, Unknown) or link.pcie > LinkClass.PXB:
            continue
        left = group_of.setdefault(link.a, [link.a])
        right = group_of.setdefault(link.b, [link.b])
        if left is right:
            continue
        left.extend(right)
        for member in right:
            group_of[member] = left
    distinct = {id(group): tuple(sorted(group, key=device_order)) for group in group_of.values()}
    return tuple(sorted(distinct.values(), key=lambda group: device_order(group[0])))


def nearest_nics(machine: Machine) -> dict[str, NearestNics]:
    """For each GPU the NICs of the nearest known class, SYS too; a GPU without a NIC of known class is left out."""
    nearest: dict[str, NearestNics] = {}
    gpus = {gpu.id for gpu in machine.gpus}
    nics = {nic.id for nic in machine.nics}
    for link in machine.links:
        if link.a not in gpus or link.b not in nics or isinstance(link.pcie, Unknown):
            continue
        best = nearest.get(link.a)
        if best is None or link.pcie < best.pcie:
            nearest[link.a] = NearestNics(link.pcie, (link.b,))
        elif link.pcie == best.pcie:
            nearest[link.a] = NearestNics(best.pcie, (*best.nics, link.b))
    return {
        gpu.id: NearestNics(nearest[gpu.id].pcie, tuple(sorted(nearest[gpu.id].nics, key=device_order)))
        for gpu in machine.gpus
        if gpu.id in nearest
    }
