"""Which containers take more of a GPU than they were granted, by what the driver says of each process. Pure.

A preloaded library binds only programs that load it; the driver counts everybody's memory. What is seen once may be a
context that is just being made or torn down, so only what is seen several times in a row is a finding. What is not
known in a sample accuses nobody and acquits nobody: what was seen before is kept until something is known again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
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
    found in the sample before. `used_bytes`: of the processes of which the driver tells, so at least that."""

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
            held = f"{self.used_bytes} bytes"
            if any(process.memory_bytes is None for process in self.processes):
                held = f"at least {held}"
            return f"{who} holds {held} of {self.gpu}, granted {self.limit_bytes}; processes {pids}"
        known = f"{len(self.processes)} processes use {self.gpu}, {self.live_processes} under limits"
        return f"{who}: {known}; processes {pids}"


Key = tuple[Overuse, tuple[str, ...]]
OveruseState = Mapping[Key, int]  # how many samples in a row it has been so


@dataclass(frozen=True, slots=True)
class Judgement:
    """One sample's. `judged`: shares of whose memory it is known whether it is too much, this time."""

    state: OveruseState
    findings: tuple[Finding, ...]
    judged: frozenset[str]


def overuse(
    state: OveruseState,
    shares: Sequence[WatchedShare],
    processes: Sequence[GpuProcess],
    tolerance_bytes: int,
    silent_gpus: Set[str] = frozenset(),
) -> Judgement:
    """Judge one sample; findings in the order of kind and names. What is known to be over is forgotten.

    `silent_gpus`: of these the driver told nothing this time, so that no process there means nothing.
    """
    silent = {share.name for share in shares if share.gpu in silent_gpus}
    seen = {key: count for key, count in state.items() if not silent.isdisjoint(key[1])}
    judged = {share.name for share in shares} - silent
    findings: list[Finding] = []
    for names, theirs in sorted(_by_shares(shares, processes).items()):
        group = [share for share in shares if share.name in names]
        for kind, wrong in _verdicts(group, theirs, tolerance_bytes).items():
            before = state.get((kind, names), 0)
            count = min(before + 1, SAMPLES_IN_A_ROW + 1) if wrong else before
            if wrong is not False and count:
                seen[kind, names] = count
            if wrong and count >= SAMPLES_IN_A_ROW:
                findings.append(_finding(kind, names, group, theirs, new=count == SAMPLES_IN_A_ROW))
            if wrong is None and kind is Overuse.MEMORY:
                judged -= set(names)
    return Judgement(seen, tuple(findings), frozenset(judged))


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


def _verdicts(
    group: Sequence[WatchedShare], processes: Sequence[GpuProcess], tolerance_bytes: int
) -> Mapping[Overuse, bool | None]:
    """What is wrong with them and what is not; None: not known."""
    limit_bytes = _sum(share.memory_bytes for share in group)
    live = _sum(share.live_processes for share in group)
    is_known = all(process.memory_bytes is not None for process in processes)
    if limit_bytes is None:
        too_much: bool | None = False  # memory is not limited
    elif _known_bytes(processes) > limit_bytes + tolerance_bytes:
        too_much = True  # whatever the others hold
    else:
        too_much = False if is_known else None
    return {Overuse.MEMORY: too_much, Overuse.UNLIMITED: None if live is None else len(processes) > live}


def _sum(parts: Iterable[int | None]) -> int | None:
    """Their sum, None where one is unknown."""
    total = 0
    for part in parts:
        if part is None:
            return None
        total += part
    return total


def _known_bytes(processes: Iterable[GpuProcess]) -> int:
    """What the processes hold at least."""
    return sum(process.memory_bytes for process in processes if process.memory_bytes is not None)


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
        used_bytes=_known_bytes(processes),
        limit_bytes=_sum(share.memory_bytes for share in group),
        live_processes=_sum(share.live_processes for share in group),
        new=new,
    )
