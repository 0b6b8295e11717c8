"""The GPUs and NICs of the machine, field by field, from every mention of each in the sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from topoalloc.topology.agreement import Agreement, Claim, fuller_name, longer_list, uncut_size
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.gpu_models import memory_of
from topoalloc.topology.machine import Gpu, Nic, NicFunction, Unknown, known
from topoalloc.topology.pci import PciAddress, PciPath
from topoalloc.topology.reading import NO_NAME, GpuReading, NicReading, Reading
from topoalloc.topology.same_devices import Cluster

T = TypeVar("T")


def joined_gpus(
    readings: Sequence[Reading], clusters: Sequence[Cluster], agreement: Agreement, gpu_memory_bytes: int | None
) -> tuple[Gpu, ...]:
    """One Gpu per cluster, numbered in order. `gpu_memory_bytes` stands in where source and model table are silent."""
    return tuple(
        _gpu(index, _GpuFacts(f"GPU{index}", readings, cluster, agreement), gpu_memory_bytes)
        for index, cluster in enumerate(clusters)
    )


class _GpuFacts:
    """Settles facts of one GPU."""

    def __init__(self, gpu_id: str, readings: Sequence[Reading], cluster: Cluster, agreement: Agreement) -> None:
        self.id = gpu_id
        self._agreement = agreement
        self._mentions = [(readings[at.reading].source, readings[at.reading].gpus[at.position]) for at in cluster]

    def settled(
        self,
        fact: str,
        field: Callable[[GpuReading], T | Unknown | None],
        reconcile: Callable[[T, T], T | None] | None = None,
    ) -> T | Unknown | None:
        claims = [Claim(source, field(gpu)) for source, gpu in self._mentions]
        return self._agreement.on(self.id, fact, claims, reconcile)

    def told(
        self,
        fact: str,
        field: Callable[[GpuReading], T | Unknown | None],
        reconcile: Callable[[T, T], T | None] | None = None,
    ) -> T | Unknown:
        """Unknown where every source is silent."""
        value: T | Unknown | None = self.settled(fact, field, reconcile)
        return _untold(fact) if value is None else value


def _gpu(index: int, facts: _GpuFacts, gpu_memory_bytes: int | None) -> Gpu:
    model = facts.told("model", lambda gpu: gpu.model, fuller_name)
    vendor = facts.told("PCI vendor", lambda gpu: gpu.vendor)
    pci_device = facts.told("PCI device id", lambda gpu: gpu.pci_device)
    memory = facts.settled("memory", lambda gpu: gpu.memory_bytes or None, uncut_size)
    if memory is None:
        memory = memory_of(known(model), known(vendor), known(pci_device)) or gpu_memory_bytes
    cpus: CpuSet | Unknown = facts.told("CPU list", lambda gpu: gpu.cpus, longer_list)
    path: PciPath | Unknown = facts.told("PCIe path", lambda gpu: gpu.path, finer_path)
    mig = facts.settled("MIG devices", lambda gpu: gpu.mig or None)
    return Gpu(
        id=facts.id,
        index=index,
        bdf=facts.told("PCI address", lambda gpu: gpu.bdf),
        uuid=facts.told("UUID", lambda gpu: gpu.uuid),
        model=model,
        memory_bytes=_untold("memory, and the model is not in the table of GPU memory") if memory is None else memory,
        numa_node=facts.told("NUMA node", lambda gpu: gpu.numa_node),
        cpus=cpus,
        path=path,
        vendor=vendor,
        minor=facts.told("device minor", lambda gpu: gpu.minor),
        mig=mig if isinstance(mig, tuple) else (),
    )


def joined_nics(readings: Sequence[Reading], clusters: Sequence[Cluster], agreement: Agreement) -> tuple[Nic, ...]:
    """One Nic per cluster, numbered in order."""
    return tuple(_nic(_NicFacts(f"NIC{at}", readings, cluster, agreement)) for at, cluster in enumerate(clusters))


class _NicFacts:
    """Settles facts of one NIC port."""

    def __init__(self, nic_id: str, readings: Sequence[Reading], cluster: Cluster, agreement: Agreement) -> None:
        self.id = nic_id
        self._agreement = agreement
        self._mentions = [
            (readings[at.reading].source, readings[at.reading].nics[at.position], readings[at.reading])
            for at in cluster
        ]

    def told(
        self,
        fact: str,
        field: Callable[[NicReading], T | Unknown | None],
        reconcile: Callable[[T, T], T | None] | None = None,
    ) -> T | Unknown:
        claims = [Claim(source, field(nic)) for source, nic, _ in self._mentions]
        value: T | Unknown | None = self._agreement.on(self.id, fact, claims, reconcile)
        return _untold(fact) if value is None else value

    def name(self, fact: str, field: Callable[[NicReading], str | Unknown | None]) -> str | Unknown | None:
        """A reading says "no name" with an empty string, the model with None."""
        told: str | Unknown = self.told(fact, field)
        return None if told == NO_NAME else told

    def address(self) -> PciAddress | Unknown:
        """An address that a source gives to several ports is the card's (NCCL); a function's own says more."""
        own: list[Claim[PciAddress]] = []
        shared: list[Claim[PciAddress]] = []
        for source, nic, reading in self._mentions:
            is_shared = nic.bdf is not None and sum(other.bdf == nic.bdf for other in reading.nics) > 1
            (shared if is_shared else own).append(Claim(source, nic.bdf))
        claims = own if any(claim.value is not None for claim in own) else shared
        value: PciAddress | Unknown | None = self._agreement.on(self.id, "PCI address", claims)
        return _untold("PCI address") if value is None else value

    def labels(self) -> set[str]:
        return {nic.name for _, nic, _ in self._mentions if nic.name}


def _nic(facts: _NicFacts) -> Nic:
    bdf = facts.address()
    rdma = facts.name("RDMA name", lambda nic: nic.rdma)
    netdev = facts.name("netdev", lambda nic: nic.netdev)
    function = facts.told("PCI function kind", lambda nic: nic.function)
    parent = facts.told("physical function", lambda nic: nic.physical_function)
    path: PciPath | Unknown = facts.told("PCIe path", lambda nic: nic.path, finer_path)
    return Nic(
        id=facts.id,
        name=_display_name(netdev, rdma, facts.labels(), bdf),
        bdf=bdf,
        numa_node=facts.told("NUMA node", lambda nic: nic.numa_node),
        rdma=rdma,
        netdev=netdev,
        path=path,
        function=function,
        link=facts.told("link layer", lambda nic: nic.link),
        driver=facts.told("driver", lambda nic: nic.driver),
        vendor=facts.told("PCI vendor", lambda nic: nic.vendor),
        physical_function=None if function is NicFunction.PHYSICAL else parent,
    )


def _display_name(
    netdev: str | Unknown | None, rdma: str | Unknown | None, labels: set[str], bdf: PciAddress | Unknown
) -> str:
    """The netdev, RDMA or table name; a port that no source names goes by its address."""
    for name in (netdev, rdma):
        if isinstance(name, str):
            return name
    # Of names that are neither netdev nor RDMA name, a table's label says least.
    return min(labels, key=lambda name: (name.startswith("NIC"), name), default=str(bdf))


def finer_path(a: PciPath, b: PciPath) -> PciPath | None:
    """The path that counts every bridge, of two that fit: NCCL folds bridges, hwloc leaves some out."""
    if a.is_folded != b.is_folded:
        return b if a.is_folded else a
    longer, shorter = (a, b) if len(a.bridges) >= len(b.bridges) else (b, a)
    rest = iter(longer.bridges)
    fits = a.host_bridge == b.host_bridge and all(bridge in rest for bridge in shorter.bridges)
    return longer if fits and len(a.bridges) != len(b.bridges) else None


def distinct_devices(gpus: Sequence[Gpu], nics: Sequence[Nic]) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """GPUs of which no two claim one PCI address, UUID or MIG UUID, and warnings.

    Both devices are kept, since the source lists both and which one the name is wrong for cannot be told; the first
    keeps the name, so that it names one device.
    """
    holder: dict[str, str] = {}
    kept: list[Gpu] = []
    warnings: list[str] = []

    def claimed_before(fact: str, value: object, gpu_id: str) -> bool:
        first = holder.setdefault(f"{fact} {value}", gpu_id)
        if first != gpu_id:
            warnings.append(f"{first} and {gpu_id} have one {fact}, {value}; {first} keeps it")
        return first != gpu_id

    for gpu in gpus:
        distinct = gpu
        if isinstance(gpu.bdf, PciAddress) and claimed_before("PCI address", gpu.bdf, gpu.id):
            distinct = replace(distinct, bdf=Unknown(f"{gpu.bdf}, which another GPU has too"))
        if isinstance(gpu.uuid, str) and claimed_before("UUID", gpu.uuid, gpu.id):
            distinct = replace(distinct, uuid=Unknown(f"{gpu.uuid}, which another GPU has too"))
        if any(mig.uuid and claimed_before("MIG UUID", mig.uuid, gpu.id) for mig in gpu.mig):
            distinct = replace(distinct, mig=())
        kept.append(distinct)
    for nic in nics:
        first = holder.get(f"PCI address {nic.bdf}")
        if first is not None:
            warnings.append(f"{first} and {nic.id} have one PCI address, {nic.bdf}; both keep it")
    return tuple(kept), tuple(warnings)


def _untold(fact: str) -> Unknown:
    return Unknown(f"no source tells the {fact}")
