"""Which GPU entries of several sources are one GPU.

In this order: PCI address, UUID, nvidia-smi number. What then has numbers only, beside entries that have addresses
only, is matched by NUMA nodes where those leave one choice, else in bus order, the order in which nvidia-smi numbers
GPUs. Where the counts forbid that, nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from topoalloc.topology.machine import Unknown
from topoalloc.topology.pci import PciAddress
from topoalloc.topology.pci_classes import NVIDIA
from topoalloc.topology.reading import GpuReading, Reading, SourceRefusal, Standing
from topoalloc.topology.same_devices import Cluster, Clusters, Mention

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SameGpus:
    """The GPUs of the machine in their numbering, each with its mentions."""

    clusters: tuple[Cluster, ...]
    warnings: tuple[str, ...] = ()


def same_gpus(readings: Sequence[Reading]) -> SameGpus | SourceRefusal:
    """Join the GPU entries of all readings; a refusal where two sources cannot be brought together."""
    matching = _Matching(readings)
    matching.join_proved()
    outcome = matching.join_numbers_with_addresses()
    if isinstance(outcome, SourceRefusal):
        return outcome
    return SameGpus(tuple(sorted(matching.clusters.all(), key=matching.rank)), outcome)


class _Matching:
    def __init__(self, readings: Sequence[Reading]) -> None:
        self._readings = readings
        self.clusters = Clusters(
            Mention(number, position)
            for number, reading in enumerate(readings)
            for position in range(len(reading.gpus))
        )

    def _gpu(self, mention: Mention) -> GpuReading:
        return self._readings[mention.reading].gpus[mention.position]

    def _first(self, cluster: Cluster, field: Callable[[GpuReading], T | None]) -> T | None:
        for mention in cluster:
            value = field(self._gpu(mention))
            if value is not None:
                return value
        return None

    def _bdf(self, cluster: Cluster) -> PciAddress | None:
        return self._first(cluster, lambda gpu: gpu.bdf)

    def _index(self, cluster: Cluster) -> int | None:
        return self._first(cluster, lambda gpu: gpu.index)

    def _node(self, cluster: Cluster) -> int | None:
        return self._first(cluster, lambda gpu: None if isinstance(gpu.numa_node, Unknown) else gpu.numa_node)

    def _source(self, cluster: Cluster) -> str:
        return self._readings[cluster[0].reading].source

    def rank(self, cluster: Cluster) -> tuple[int, int, bool, tuple[int, int, int, int], Mention]:
        """Row order where a source numbers by rows, else PCI address order."""
        rows = [
            mention.position if gpu.index is None else gpu.index
            for mention in cluster
            if self._readings[mention.reading].ordered
            for gpu in (self._gpu(mention),)
        ]
        bdf = self._bdf(cluster)
        address = (bdf.domain, bdf.bus, bdf.device, bdf.function) if bdf else (0, 0, 0, 0)
        return (0 if rows else 1, min(rows, default=0), bdf is None, address, cluster[0])

    def join_proved(self) -> None:
        self.clusters.join_by(lambda mention: _given(self._gpu(mention).bdf))
        self.clusters.join_by(lambda mention: _given(self._gpu(mention).uuid))
        self.clusters.join_by(lambda mention: _given(self._gpu(mention).index), self._numbers_may_meet)

    def _numbers_may_meet(self, a: Cluster, b: Cluster) -> bool:
        """Numbers are the weakest name: two addresses or two UUIDs under one number are two GPUs."""
        if self._bdf(a) is not None and self._bdf(b) is not None:
            return False
        uuids = {self._first(cluster, lambda gpu: gpu.uuid) for cluster in (a, b)} - {None}
        return len(uuids) < 2

    def join_numbers_with_addresses(self) -> tuple[str, ...] | SourceRefusal:
        """Returns warnings. Numbers come from nvidia-smi alone, so only NVIDIA's addresses are candidates."""
        numbered = [cluster for cluster in self.clusters.all() if self._bdf(cluster) is None]
        numbered.sort(key=lambda cluster: (self._index(cluster) or 0, cluster[0]))
        # A source that lists both lists them as two devices.
        listing = {mention.reading for cluster in numbered for mention in cluster}
        addressed = [
            cluster
            for cluster in self.clusters.all()
            if self._bdf(cluster) is not None
            and self._index(cluster) is None
            and self._first(cluster, lambda gpu: gpu.vendor) in {None, NVIDIA}
            and not listing & {mention.reading for mention in cluster}
        ]
        addressed.sort(key=self.rank)
        if not numbered or not addressed:
            return ()
        pairs = self._pairs_by_node(numbered, addressed)
        if pairs is None:
            pairs = self._pairs_in_bus_order(numbered, addressed)
        if pairs is None or not all(self.clusters.join(a, b) for a, b in pairs):
            return self._refusal(numbered, addressed)
        return self._doubts(pairs)

    def _pairs_by_node(self, numbered: list[Cluster], addressed: list[Cluster]) -> list[tuple[Cluster, Cluster]] | None:
        """The proved mapping: every numbered GPU is alone on its node on both sides."""
        at_node: dict[int | None, list[Cluster]] = {}
        for cluster in addressed:
            at_node.setdefault(self._node(cluster), []).append(cluster)
        nodes = [self._node(cluster) for cluster in numbered]
        if None in nodes or None in at_node or len(set(nodes)) < len(nodes):
            return None
        if any(len(at_node.get(node, ())) != 1 for node in nodes):
            return None
        return [(cluster, at_node[node][0]) for cluster, node in zip(numbered, nodes, strict=True)]

    def _pairs_in_bus_order(
        self, numbered: list[Cluster], addressed: list[Cluster]
    ) -> list[tuple[Cluster, Cluster]] | None:
        if len(numbered) == len(addressed):
            return list(zip(numbered, addressed, strict=True))
        # An addition may list some of the GPUs under their numbers; a table shows every GPU that its process saw,
        # which in a container is a choice that renumbers them.
        if any(self._readings[mention.reading].standing is Standing.WHOLE for row in numbered for mention in row):
            return None
        indexes = [self._index(cluster) for cluster in numbered]
        if any(index is None or index >= len(addressed) for index in indexes):
            return None
        return [
            (cluster, addressed[index]) for cluster, index in zip(numbered, indexes, strict=True) if index is not None
        ]

    def _refusal(self, numbered: list[Cluster], addressed: list[Cluster]) -> SourceRefusal:
        return SourceRefusal(
            self._source(numbered[0]),
            f"it numbers {len(numbered)} GPUs and gives no PCI addresses, {self._source(addressed[0])} has "
            f"{len(addressed)} addresses without numbers, so which is which cannot be told; are they of one machine? "
            "If they are, add its `nvidia-smi -q -x`, which gives both",
        )

    def _doubts(self, pairs: list[tuple[Cluster, Cluster]]) -> tuple[str, ...]:
        for a, b in pairs:
            nodes = (self._node(a), self._node(b))
            if None not in nodes and nodes[0] != nodes[1]:
                warning = (
                    f"the GPU numbers of {self._source(a)} are matched with the addresses of {self._source(b)} in bus "
                    f"order, but number {self._index(a)} is on NUMA node {nodes[0]} and {self._bdf(b)} on node "
                    f"{nodes[1]}; are they of one machine? `nvidia-smi -q -x` of it gives numbers and addresses"
                )
                return (warning,)
        return ()


def _given(value: T | None) -> tuple[T, ...]:
    return () if value is None else (value,)
