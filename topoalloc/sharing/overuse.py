"""Which containers take more of a GPU than they were granted, by what the driver says of each process. Pure.

A preloaded library binds only programs that load it; the driver counts everybody's memory. What is seen once may be a
context that is just being made or torn down, so only what is seen several times in a row is a finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

SAMPLE_PERIOD_S = 1.0
SAMPLES_IN_A_ROW = 3


class Overuse(StrEnum):
    """What is wrong."""

    MEMORY = "memory"  # more GPU memory than granted
    UNLIMITED = "unlimited"  # more processes on the GPU than are known to the limits


@dataclass(frozen=True, slots=True)
class WatchedShare:
    """One share. `container`: the runtime's id, where a process of it has shown itself at the share's own socket.
    `live_processes` None: its usage file cannot be read."""

    name: str
    gpu: str
    pod_uid: str
    memory_bytes: int | None
    live_processes: int | None
    container: str | None = None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process that the driver lists on a GPU. `started`: its start in clock ticks, which with the pid names it."""

    gpu: str
    pid: int
    started: int
    memory_bytes: int | None
    pod_uid: str
    container: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a container, or with several of one pod that cannot be told apart. `new`: it was not
    found in the sample before."""

    kind: Overuse
    shares: tuple[str, ...]
    gpu: str
    processes: tuple[GpuProcess, ...]
    used_bytes: int
    limit_bytes: int | None
    live_processes: int | None
    new: bool

    def __str__(self) -> str:
        who = f"{' and '.join(self.shares)} (pod {self.processes[0].pod_uid})"
        pids = ", ".join(str(process.pid) for process in self.processes[:8])
        if self.kind is Overuse.MEMORY:
            return f"{who} holds {self.used_bytes} bytes of {self.gpu}, granted {self.limit_bytes}; processes {pids}"
        known = f"{len(self.processes)} processes use {self.gpu}, {self.live_processes} under limits"
        return f"{who}: {known}; processes {pids}"


Key = tuple[Overuse, tuple[str, ...]]
OveruseState = Mapping[Key, int]  # how many samples in a row it has been so


def overuse(
    state: OveruseState, shares: Sequence[WatchedShare], processes: Sequence[GpuProcess], tolerance_bytes: int
) -> tuple[OveruseState, tuple[Finding, ...]]:
    """Judge one sample; findings in the order of kind and names. What is not seen any more is forgotten."""
    seen: dict[Key, int] = {}
    findings: list[Finding] = []
    for names, theirs in sorted(_by_shares(shares, processes).items()):
        group = [share for share in shares if share.name in names]
        for kind in _wrong(group, theirs, tolerance_bytes):
            count = min(state.get((kind, names), 0) + 1, SAMPLES_IN_A_ROW + 1)
            seen[kind, names] = count
            if count >= SAMPLES_IN_A_ROW:
                findings.append(_finding(kind, names, group, theirs, new=count == SAMPLES_IN_A_ROW))
    return seen, tuple(findings)


def _by_shares(
    shares: Iterable[WatchedShare], processes: Iterable[GpuProcess]
) -> dict[tuple[str, ...], tuple[GpuProcess, ...]]:
    """Each process with the share whose container it is in. Where a pod has several on one GPU and the containers are
    not known they are judged together; a process of a pod without a share is nobody's here."""
    by_pod: dict[tuple[str, str], list[WatchedShare]] = {}
    for share in shares:
        by_pod.setdefault((share.pod_uid, share.gpu), []).append(share)
    found: dict[tuple[str, ...], tuple[GpuProcess, ...]] = {}
    for process in sorted(processes, key=lambda process: (process.gpu, process.pid)):
        names = _whose(process, by_pod.get((process.pod_uid, process.gpu), []))
        if names:
            found[names] = (*found.get(names, ()), process)
    return found


def _whose(process: GpuProcess, candidates: Sequence[WatchedShare]) -> tuple[str, ...]:
    named = [share.name for share in candidates if share.container == process.container]
    unnamed = [share.name for share in candidates if share.container is None]
    return tuple(sorted(named or unnamed))


def _wrong(group: Sequence[WatchedShare], processes: Sequence[GpuProcess], tolerance_bytes: int) -> Iterable[Overuse]:
    limit_bytes = _sum(share.memory_bytes for share in group)
    if limit_bytes is not None and _used_bytes(processes) > limit_bytes + tolerance_bytes:
        yield Overuse.MEMORY
    live = _sum(share.live_processes for share in group)
    if live is not None and len(processes) > live:
        yield Overuse.UNLIMITED


def _sum(parts: Iterable[int | None]) -> int | None:
    """Their sum, None where one is unknown."""
    total = 0
    for part in parts:
        if part is None:
            return None
        total += part
    return total


def _used_bytes(processes: Iterable[GpuProcess]) -> int:
    return sum(process.memory_bytes or 0 for process in processes)


def _finding(
    kind: Overuse,
    names: tuple[str, ...],
    group: Sequence[WatchedShare],
    processes: tuple[GpuProcess, ...],
    *,
    new: bool,
) -> Finding:
    return Finding(
        kind=kind,
        shares=names,
        gpu=processes[0].gpu,
        processes=processes,
        used_bytes=_used_bytes(processes),
        limit_bytes=_sum(share.memory_bytes for share in group),
        live_processes=_sum(share.live_processes for share in group),
        new=new,
    )
