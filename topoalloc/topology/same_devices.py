"""Which entries of several sources speak of one device: clusters of mentions that no source splits."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Mention:
    """One device entry: which reading, and the entry's position in it."""

    reading: int
    position: int


Cluster = tuple[Mention, ...]


class Clusters:
    """Mentions joined into devices. Two mentions of one reading are two devices, whatever else they share."""

    def __init__(self, mentions: Iterable[Mention]) -> None:
        self._cluster_of: dict[Mention, Cluster] = {mention: (mention,) for mention in sorted(mentions)}

    def of(self, mention: Mention) -> Cluster:
        return self._cluster_of[mention]

    def all(self) -> tuple[Cluster, ...]:
        return tuple(dict.fromkeys(self._cluster_of.values()))

    def drop(self, cluster: Cluster) -> None:
        """Leave a device out."""
        for mention in cluster:
            del self._cluster_of[mention]

    def join(self, a: Cluster, b: Cluster) -> bool:
        """Make one device of two; False where some source lists both."""
        if a == b:
            return True
        if {mention.reading for mention in a} & {mention.reading for mention in b}:
            return False
        joined = tuple(sorted((*a, *b)))
        for mention in joined:
            self._cluster_of[mention] = joined
        return True

    def join_by(
        self,
        keys: Callable[[Mention], Iterable[Hashable]],
        may_join: Callable[[Cluster, Cluster], bool] = lambda a, b: True,
    ) -> None:
        """Join mentions that share a key. Where a source repeats a key, its n-th mention meets the others' n-th."""
        holders: dict[tuple[Hashable, int], list[Mention]] = {}
        seen: dict[tuple[int, Hashable], int] = {}
        for mention in self._cluster_of:
            for key in dict.fromkeys(keys(mention)):
                nth = seen[mention.reading, key] = seen.get((mention.reading, key), -1) + 1
                holders.setdefault((key, nth), []).append(mention)
        for mentions in holders.values():
            self._join_holders(mentions, may_join)

    def _join_holders(self, mentions: list[Mention], may_join: Callable[[Cluster, Cluster], bool]) -> None:
        for at, mention in enumerate(mentions):
            for earlier in mentions[:at]:
                a, b = self.of(earlier), self.of(mention)
                if may_join(a, b) and self.join(a, b):
                    break


def strangers(sources: Sequence[str], clusters: Iterable[Cluster], kind: str) -> tuple[str, ...]:
    """Warnings for sources that list such devices and share none with the sources before them.

    Sources of one machine may list different devices (a container sees fewer, a table RDMA devices only), but hardly
    ever have none in common; two machines taken for one would show twice the devices.
    """
    lists: set[int] = set()
    shares: set[int] = set()
    for cluster in clusters:
        readings = sorted(mention.reading for mention in cluster)
        lists.update(readings)
        shares.update(readings[1:])
    return tuple(
        f"no {kind} of {sources[number]} is one of {sources[min(lists)]}; are they of one machine?"
        for number in sorted(lists - shares)
        if number > min(lists)
    )
