"""The list of findings that the agent keeps for `topoalloc publish`, which makes events of them. Pure.

One finding a line: when it was first found (seconds of the epoch), kind, namespace, pod, uid, containers, GPU, bytes
held and granted (`-`: not limited), processes on the GPU and those under limits (`-`: not known).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from topoalloc.sharing.overuse import Finding, Overuse
from topoalloc.sharing.share_owners import ShareOwner

RECORDS_MAX = 50  # kept after they ended too: whoever reads the list comes by every few seconds
FIELDS = 11
_WORD = re.compile(r"[-A-Za-z0-9._:/,]{1,512}")
_NUMBER = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class OveruseRecord:
    """One finding, with the pod that it is about."""

    found_s: int
    kind: Overuse
    namespace: str
    pod: str
    uid: str
    containers: str
    gpu: str
    used_bytes: int
    limit_bytes: int | None
    processes: int
    live_processes: int | None

    @property
    def sentence(self) -> str:
        """For the pod's events."""
        if self.kind is Overuse.MEMORY:
            return (
                f"Container {self.containers} holds {_mib(self.used_bytes)} of GPU {self.gpu} and was granted "
                f"{_mib(self.limit_bytes or 0)}: some of its programs are not bound by the limit (statically linked, "
                "or without the preloaded library)"
            )
        return (
            f"Container {self.containers} uses GPU {self.gpu} with {self.processes} processes, of which "
            f"{self.live_processes or 0} are under the limits of its share: the others are statically linked or do not "
            "load the library; topoalloc verify, run in the container, says what is missing"
        )


def record_of(finding: Finding, owners: list[ShareOwner], found_s: int) -> OveruseRecord:
    """`owners`: of the shares that the finding names, one at least, all of one pod."""
    return OveruseRecord(
        found_s=found_s,
        kind=finding.kind,
        namespace=owners[0].namespace,
        pod=owners[0].pod,
        uid=owners[0].uid,
        containers=",".join(owner.container for owner in owners),
        gpu=finding.gpu,
        used_bytes=finding.used_bytes,
        limit_bytes=finding.limit_bytes,
        processes=len(finding.processes),
        live_processes=finding.live_processes,
    )


def records_text(records: Iterable[OveruseRecord]) -> str:
    """The list, in the order given."""
    lines = []
    for one in records:
        words = (one.found_s, one.kind, one.namespace, one.pod, one.uid, one.containers, one.gpu, one.used_bytes)
        rest = (one.limit_bytes, one.processes, one.live_processes)
        lines.append(" ".join([*map(str, words), *("-" if word is None else str(word) for word in rest)]))
    return "".join(f"{line}\n" for line in lines)


def parse_records(text: str) -> tuple[OveruseRecord, ...]:
    """Read such a list; lines that are none are left out."""
    return tuple(one for line in text.split("\n")[:RECORDS_MAX] if (one := _record(line.split(" "))) is not None)


def _record(words: list[str]) -> OveruseRecord | None:
    if len(words) != FIELDS or not all(map(_WORD.fullmatch, words)) or words[1] not in set(Overuse):
        return None
    numbers = [words[0], words[7], words[9], *(word for word in (words[8], words[10]) if word != "-")]
    if not all(map(_NUMBER.fullmatch, numbers)):
        return None
    found_s, kind, namespace, pod, uid, containers, gpu, used, limit, processes, live = words
    return OveruseRecord(
        found_s=int(found_s),
        kind=Overuse(kind),
        namespace=namespace,
        pod=pod,
        uid=uid,
        containers=containers,
        gpu=gpu,
        used_bytes=int(used),
        limit_bytes=None if limit == "-" else int(limit),
        processes=int(processes),
        live_processes=None if live == "-" else int(live),
    )


def _mib(amount_bytes: int) -> str:
    return f"{-(-amount_bytes // 1024**2)} MiB"
