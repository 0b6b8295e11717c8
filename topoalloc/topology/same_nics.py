"""Which NIC entries of several sources are one NIC port.

In this order: PCI address and name together, the card's slot and name (NCCL writes all functions of a card under one
address), address, address and port, RDMA, netdev or table name. What then has names only, beside entries that have
addresses only, is matched in bus order if vendor, count and every link class allow it; else one side is left out,
since a NIC listed twice would be given twice.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from topoalloc.topology.links import Place, pcie_class
from topoalloc.topology.machine import LinkClass, Unknown
from topoalloc.topology.pci import PciAddress
from topoalloc.topology.pci_classes import MELLANOX
from topoalloc.topology.reading import GpuReading, LinkReading, NicReading, Reading
from topoalloc.topology.same_devices import Cluster, Clusters, Mention

# The vendor whose driver names RDMA devices so; a name that fits none says nothing about the vendor.
_VENDOR_OF_NAME = {"mlx": MELLANOX, "bnxt": "14e4", "irdma": "8086", "hfi1": "8086", "cxi": "17db", "efa": "1d0f"}


_NOT_COMPARED = Unknown("not compared")
_NaturalName = tuple[tuple[int, str], ...]
_Rank = tuple[int, int, bool, tuple[int, int, int, int], int, _NaturalName, Mention]


@dataclass(frozen=True, slots=True)
class SameNics:
    """The NIC ports of the machine in their numbering, each with its mentions."""

    clusters: tuple[Cluster, ...]
    warnings: tuple[str, ...]


def same_nics(readings: Sequence[Reading], gpus: Sequence[Cluster]) -> SameNics:
    """Join the NIC entries of all readings; `gpus` are the GPUs already joined, for checking link classes."""
    matching = _Matching(readings, gpus)
    matching.join_proved()
    warnings = (*matching.namesakes(), *matching.join_names_with_addresses())
    return SameNics(tuple(sorted(matching.clusters.all(), key=matching.rank)), warnings)


class _Matching:
    def __init__(self, readings: Sequence[Reading], gpus: Sequence[Cluster]) -> None:
        self._readings = readings
        self._gpus = gpus
        self.clusters = Clusters(
            Mention(number, position)
            for number, reading in enumerate(readings)
            for position in range(len(reading.nics))
        )

    def _nic(self, mention: Mention) -> NicReading:
        return self._readings[mention.reading].nics[mention.position]

    def _bdf(self, cluster: Cluster) -> PciAddress | None:
        return next((nic.bdf for mention in cluster if (nic := self._nic(mention)).bdf is not None), None)

    def _source(self, cluster: Cluster) -> str:
        return self._readings[cluster[0].reading].source

    def _names(self, cluster: Cluster) -> set[str]:
        return {name for mention in cluster for name in names_of(self._nic(mention))}

    def rank(self, cluster: Cluster) -> _Rank:
        """Row order where a source numbers by rows, else PCI address, port, name."""
        rows = [mention.position for mention in cluster if self._readings[mention.reading].ordered]
        bdf = self._bdf(cluster)
        address = (bdf.domain, bdf.bus, bdf.device, bdf.function) if bdf else (0, 0, 0, 0)
        port = min((nic.port for mention in cluster if (nic := self._nic(mention)).port is not None), default=0)
        name = min((natural(name) for name in self._names(cluster)), default=())
        return (0 if rows else 1, min(rows, default=0), bdf is None, address, port, name, cluster[0])

    def join_proved(self) -> None:
        join_by = self.clusters.join_by
        join_by(lambda mention: ((bdf, name) for bdf, name in self._address_and_name(mention)))
        join_by(lambda mention: ((slot_of(bdf), name) for bdf, name in self._address_and_name(mention)))
        shared = self._addresses_of_several_ports()
        join_by(lambda mention: (bdf for bdf in self._address(mention) if bdf not in shared), self._rdma_names_may_meet)
        join_by(self._address_and_port, self._rdma_names_may_meet)
        join_by(lambda mention: names_of(self._nic(mention)), self._one_lacks_address)

    def _address(self, mention: Mention) -> Iterable[PciAddress]:
        bdf = self._nic(mention).bdf
        return () if bdf is None else (bdf,)

    def _address_and_name(self, mention: Mention) -> Iterable[tuple[PciAddress, str]]:
        return ((bdf, name) for bdf in self._address(mention) for name in names_of(self._nic(mention)))

    def _address_and_port(self, mention: Mention) -> Iterable[Hashable]:
        port = self._nic(mention).port
        return ((bdf, port) for bdf in self._address(mention) if port is not None)

    def _addresses_of_several_ports(self) -> set[PciAddress]:
        count: dict[tuple[int, PciAddress], int] = {}
        for number, reading in enumerate(self._readings):
            for nic in reading.nics:
                if nic.bdf is not None:
                    count[number, nic.bdf] = count.get((number, nic.bdf), 0) + 1
        return {bdf for (_, bdf), ports in count.items() if ports > 1}

    def _rdma_names_may_meet(self, a: Cluster, b: Cluster) -> bool:
        names = [{nic.rdma for m in cluster if (nic := self._nic(m)).rdma} for cluster in (a, b)]
        known = [{name for name in side if isinstance(name, str)} for side in names]
        return not known[0] or not known[1] or bool(known[0] & known[1])

    def _one_lacks_address(self, a: Cluster, b: Cluster) -> bool:
        return self._bdf(a) is None or self._bdf(b) is None

    def namesakes(self) -> tuple[str, ...]:
        """Warnings for one name at two addresses by two sources; both are kept, since each exists by its source."""
        holder: dict[str, Cluster] = {}
        warnings: list[str] = []
        for cluster in self.clusters.all():
            for name in sorted(self._names(cluster)):
                other = holder.setdefault(name, cluster)
                if other != cluster and not {m.reading for m in other} & {m.reading for m in cluster}:
                    warnings.append(
                        f"{name} is {self._bdf(other)} by {self._source(other)} and {self._bdf(cluster)} by "
                        f"{self._source(cluster)}; both are listed"
                    )
        return tuple(warnings)

    def join_names_with_addresses(self) -> tuple[str, ...]:
        """Returns warnings."""
        named = [cluster for cluster in self.clusters.all() if self._bdf(cluster) is None]
        unnamed = [cluster for cluster in self.clusters.all() if self._is_silent_on_names(cluster)]
        vendors = {vendor_of_name(name) for cluster in named for name in self._names(cluster)}
        if len(vendors) == 1 and None not in vendors:
            unnamed = [cluster for cluster in unnamed if self._vendor(cluster) in vendors | {None}]
        if not named or not unnamed:
            return ()
        named.sort(key=lambda cluster: min((natural(name) for name in self._names(cluster)), default=()))
        unnamed.sort(key=self.rank)
        if len(named) == len(unnamed) and self._classes_allow(dict(zip(named, unnamed, strict=True))):
            for a, b in zip(named, unnamed, strict=True):
                self.clusters.join(a, b)
            warning = (
                f"the {len(named)} NIC names of {self._source(named[0])} are matched with the addresses of "
                f"{self._source(unnamed[0])} in bus order, which their link classes allow"
            )
            return (warning,)
        return self._leave_out(named, unnamed)

    def _is_silent_on_names(self, cluster: Cluster) -> bool:
        readings = [self._nic(mention) for mention in cluster]
        return self._bdf(cluster) is not None and all(nic.rdma is None and nic.netdev is None for nic in readings)

    def _vendor(self, cluster: Cluster) -> str | None:
        return next((nic.vendor for mention in cluster if (nic := self._nic(mention)).vendor is not None), None)

    def _leave_out(self, named: list[Cluster], unnamed: list[Cluster]) -> tuple[str, ...]:
        kept, dropped = (named, unnamed) if named[0] < unnamed[0] else (unnamed, named)
        for cluster in dropped:
            self.clusters.drop(cluster)
        warning = (
            f"of the NICs, {self._source(named[0])} gives names and {self._source(unnamed[0])} addresses, so which is "
            f"which cannot be told: the {len(dropped)} of {self._source(dropped[0])} are left out, the {len(kept)} of "
            f"{self._source(kept[0])} kept"
        )
        return (warning,)

    def _classes_allow(self, address_of: dict[Cluster, Cluster]) -> bool:
        """Whether every class that a named NIC's source states is possible between the places; one must be stated."""
        sources = {mention.reading for named in address_of for mention in named}
        allowed = [
            class_is_possible(*places, link.pcie)
            for number in sources
            for link in self._readings[number].links
            if isinstance(link.pcie, LinkClass) and (places := self._places_of_link(number, link, address_of))
        ]
        return bool(allowed) and all(allowed)

    def _places_of_link(
        self, reading: int, link: LinkReading, address_of: dict[Cluster, Cluster]
    ) -> tuple[Place, Place] | None:
        return _alike(self._places(reading, link.a, address_of), self._places(reading, link.b, address_of))

    def _places(self, reading: int, end: tuple[str, int], address_of: dict[Cluster, Cluster]) -> list[Place]:
        kind, position = end
        mention = Mention(reading, position)
        entries: list[GpuReading | NicReading]
        if kind == "nic":
            cluster = self.clusters.of(mention)
            entries = [self._nic(other) for other in address_of.get(cluster, cluster)]
        else:
            gpu = next((cluster for cluster in self._gpus if mention in cluster), ())
            entries = [self._readings[other.reading].gpus[other.position] for other in gpu]
        return [Place(entry.path, entry.bdf, _NOT_COMPARED) for entry in entries if entry.path is not None]


def _alike(a: Sequence[Place], b: Sequence[Place]) -> tuple[Place, Place] | None:
    """A place of either list, of sources that count bridges alike."""
    pairs = ((x, y) for x in a for y in b if x.path.is_folded == y.path.is_folded)
    return next(pairs, None)


def class_is_possible(a: Place, b: Place, stated: LinkClass) -> bool:
    """Whether two places can be joined by the class; NUMA nodes left aside, NODE and SYS are one."""
    derived = pcie_class(a, b)
    if isinstance(derived, Unknown):
        return stated >= LinkClass.NODE
    if not a.path.is_folded:
        return derived == stated
    # NCCL folds host bridges and shows no root ports, and flattened files have no inner switches.
    return (derived == LinkClass.SYS) == (stated == LinkClass.SYS) and (
        derived == LinkClass.PHB or stated <= LinkClass.PXB
    )


def names_of(nic: NicReading) -> tuple[str, ...]:
    """Every name an entry goes by, without repetition; addresses used as names are none."""
    names = (nic.rdma, nic.netdev, nic.name)
    address = str(nic.bdf)
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name and name != address))


def vendor_of_name(name: str) -> str | None:
    return next((vendor for prefix, vendor in _VENDOR_OF_NAME.items() if name.startswith(prefix)), None)


def slot_of(bdf: PciAddress) -> tuple[int, int, int]:
    """The address without its function."""
    return (bdf.domain, bdf.bus, bdf.device)


def natural(name: str) -> _NaturalName:
    """Sorts `mlx5_2` before `mlx5_10`."""
    parts = re.findall(r"([0-9]{1,18})|([^0-9]+)", name)
    return tuple((int(digits), "") if digits else (-1, letters) for digits, letters in parts)
