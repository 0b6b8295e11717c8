"""What joins every pair of devices, from the classes that sources state and those that their paths and links imply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topoalloc.topology.agreement import Agreement, Claim
from topoalloc.topology.links import NvlinkAsymmetry, Place, nvlink_counts, pcie_class
from topoalloc.topology.machine import Gpu, Link, LinkClass, Nic, Unknown
from topoalloc.topology.pci import PciAddress
from topoalloc.topology.reading import GpuReading, LinkReading, NicReading, NvlinkReading, Reading
from topoalloc.topology.same_devices import Cluster

_NOT_ASKED = Unknown("only asked of pairs of GPUs")


@dataclass(frozen=True, slots=True)
class _Class:
    """A class, and whether the source folds host bridges, so that its PHB means anything up to NODE."""

    pcie: LinkClass
    folded: bool

    def __str__(self) -> str:
        return self.pcie.name


def _finer(a: _Class, b: _Class) -> _Class | None:
    """NCCL's PHB fits PIX (its view has no root ports), PXB, PHB and NODE; the class that says more is taken."""
    if a.pcie == b.pcie:
        return a if b.folded else b
    if a.folded == b.folded:
        return None
    folded, exact = (a, b) if a.folded else (b, a)
    fits = folded.pcie is LinkClass.PHB and exact.pcie <= LinkClass.NODE
    return exact if fits else None


@dataclass(frozen=True, slots=True)
class _View:
    """What one reading tells of pairs, by positions of the joined devices (GPUs, then NICs)."""

    source: str
    places: Mapping[int, Place]
    stated: Mapping[tuple[int, int], LinkReading]
    nvlinks: Mapping[tuple[int, int], int | Unknown]
    asymmetries: tuple[NvlinkAsymmetry, ...]


def joined_links(
    readings: Sequence[Reading],
    clusters: Sequence[Cluster],
    gpus: Sequence[Gpu],
    nics: Sequence[Nic],
    agreement: Agreement,
) -> tuple[tuple[Link, ...], tuple[str, ...]]:
    """A Link for every unordered pair, and warnings. `clusters` are those of the GPUs, then those of the NICs."""
    devices: tuple[Gpu | Nic, ...] = (*gpus, *nics)
    views = [_view(number, reading, clusters, devices, len(gpus)) for number, reading in enumerate(readings)]
    views.append(_joint_view(devices))
    links = tuple(
        _link(devices, (a, b), b < len(gpus), views, agreement)
        for a in range(len(devices))
        for b in range(a + 1, len(devices))
    )
    return links, tuple(line for view in views for line in _asymmetry_lines(view))


def _view(
    number: int, reading: Reading, clusters: Sequence[Cluster], devices: Sequence[Gpu | Nic], gpu_count: int
) -> _View:
    at_end: dict[tuple[str, int], int] = {}
    places: dict[int, Place] = {}
    links_of: list[tuple[NvlinkReading, ...] | None] = [None] * gpu_count
    for at, cluster in enumerate(clusters):
        for mention in cluster:
            if mention.reading != number:
                continue
            entry: GpuReading | NicReading
            if at < gpu_count:
                entry = gpu = reading.gpus[mention.position]
                links_of[at] = gpu.nvlinks
            else:
                entry = reading.nics[mention.position]
            at_end["gpu" if at < gpu_count else "nic", mention.position] = at
            if entry.path is not None:
                places[at] = Place(entry.path, entry.bdf, devices[at].numa_node)
    stated = {
        (min(a, b), max(a, b)): link
        for link in reading.links
        if (a := at_end.get(link.a)) is not None and (b := at_end.get(link.b)) is not None
    }
    addresses = {gpu.bdf: at for at, gpu in enumerate(devices[:gpu_count]) if isinstance(gpu.bdf, PciAddress)}
    counts, asymmetries = nvlink_counts(links_of, addresses)
    return _View(reading.source, places, stated, counts, asymmetries)


def _joint_view(devices: Sequence[Gpu | Nic]) -> _View:
    """What no source tells alone: the class of a pair whose paths come from two sources."""
    places = {
        at: Place(device.path, None if isinstance(device.bdf, Unknown) else device.bdf, device.numa_node)
        for at, device in enumerate(devices)
        if not isinstance(device.path, Unknown)
    }
    return _View("the sources together", places, {}, {}, ())


def _link(
    devices: Sequence[Gpu | Nic], pair: tuple[int, int], gpus_only: bool, views: Sequence[_View], agreement: Agreement
) -> Link:
    a, b = devices[pair[0]].id, devices[pair[1]].id
    name = f"{a}-{b}"
    pcie = _settled_class(name, pair, views, agreement)
    if not gpus_only:
        return Link(a, b, pcie, 0, _NOT_ASKED)
    nvlinks = agreement.on(name, "number of NVLinks", _nvlink_claims(pair, views))
    peer = agreement.on(
        name,
        "peer access",
        [Claim(view.source, view.stated[pair].peer_access) for view in views if pair in view.stated],
    )
    return Link(
        a,
        b,
        pcie,
        Unknown("no source tells of NVLink") if nvlinks is None else nvlinks,
        Unknown("no source tells of peer access") if peer is None else peer,
    )


def _settled_class(
    name: str, pair: tuple[int, int], views: Sequence[_View], agreement: Agreement
) -> LinkClass | Unknown:
    *own, joint = views
    settled = agreement.on(name, "PCIe class", [claim for view in own for claim in _class_claims(pair, view)], _finer)
    if isinstance(settled, _Class):
        return settled.pcie
    together = agreement.on(name, "PCIe class", _class_claims(pair, joint))
    if isinstance(together, _Class):
        return together.pcie
    return settled or together or Unknown("no source tells the PCIe class")


def _class_claims(pair: tuple[int, int], view: _View) -> list[Claim[_Class]]:
    claims: list[Claim[_Class]] = []
    stated = view.stated.get(pair)
    if stated is not None and stated.pcie is not None:
        value = stated.pcie if isinstance(stated.pcie, Unknown) else _Class(stated.pcie, folded=False)
        claims.append(Claim(view.source, value))
    if pair[0] in view.places and pair[1] in view.places:
        a, b = view.places[pair[0]], view.places[pair[1]]
        implied = pcie_class(a, b)
        folded = a.path.is_folded
        claims.append(Claim(view.source, implied if isinstance(implied, Unknown) else _Class(implied, folded)))
    return claims


def _nvlink_claims(pair: tuple[int, int], views: Sequence[_View]) -> list[Claim[int]]:
    stated = [Claim(view.source, view.stated[pair].nvlinks) for view in views if pair in view.stated]
    counted = [Claim(view.source, view.nvlinks[pair]) for view in views if pair in view.nvlinks]
    return stated + counted


def _asymmetry_lines(view: _View) -> tuple[str, ...]:
    if not view.asymmetries:
        return ()
    found = view.asymmetries[0]
    more = f", and {len(view.asymmetries) - 1} more pairs like it" if len(view.asymmetries) > 1 else ""
    line = (
        f"GPU{found.a}-GPU{found.b}: {view.source} counts {found.from_a} NVLinks from GPU{found.a} and {found.from_b} "
        f"from GPU{found.b}{more}; the smaller number is taken"
    )
    return (line,)
