"""Compute: how near to its limit a container's share of the GPU's time lies, second by second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.gpu.bench import Bench, ending
from tests.gpu.program import EndedError, Program, TooLateError
from tests.gpu.record import judged
from tests.gpu.share_folder import told_alone, told_turns, write_pace

BLOCKS = 1056  # eight of 256 threads on each of 132 multiprocessors: a cooperative launch still fits
WARM_UP_S = 2.0
CELL_S = 6.0
SHORT_CELL_S = 5.0  # where the same is asked of many ways
WINDOW_MS = 1000.0
START_S = 60.0
MEAN_POINTS = 1.5
DEVIATION_POINTS = 1.0
PAIR_POINTS = 2.0
STALL_MORE_NS = 10e6
KERNELS_NS = {"20 us": 20e3, "1 ms": 1e6, "50 ms": 50e6}
BATCH_NS = 300e3  # launches between two timestamps: so many that the timestamps cost nothing
BATCH_MAX = 16


@dataclass(frozen=True)
class Work:
    """What `probe share` runs; `kernel` names one of KERNELS_NS."""

    kind: str = "launch"
    kernel: str = "1 ms"
    blocks: int = BLOCKS
    streams: int = 1

    def __str__(self) -> str:
        return f"{self.kind} {self.kernel}, {self.blocks} blocks, {self.streams} streams"


@dataclass
class Speed:
    """`unit_ns` of GPU time per kernel alone; windows of work done per second, 1.0: all of the time."""

    windows: Sequence[float]
    stall_ns: int

    @property
    def mean(self) -> float:
        return statistics.fmean(self.windows)


@dataclass
class Lab:
    """The programs' loop counts and their speed without any limit, each found out once."""

    bench: Bench
    loops: dict[tuple[str, int], tuple[int, float]] = field(default_factory=dict)
    unlimited: dict[Work, float] = field(default_factory=dict)

    def calibrate(self, kernel: str, blocks: int) -> tuple[int, float]:
        """(loops, measured ns alone) of a kernel that takes about as long as its name says."""
        if (kernel, blocks) not in self.loops:
            program = self.bench.start_probe(None, "share", "time", blocks, KERNELS_NS[kernel])
            with ending(program):
                words = program.line("alone", START_S)
            self.loops[kernel, blocks] = (int(words[1]), float(words[2]))
        return self.loops[kernel, blocks]

    def start(self, folder: Path | None, work: Work, seconds: float) -> Program:
        loops, alone_ns = self.calibrate(work.kernel, work.blocks)
        batch = 1 if work.kind == "graph" else max(1, min(BATCH_MAX, round(BATCH_NS / alone_ns)))
        return self.bench.start_probe(
            folder, "share", work.kind, loops, work.blocks, batch, alone_ns, seconds, work.streams
        )

    def run(self, starts: Sequence[tuple[Path | None, Work]], seconds: float = CELL_S) -> list[Speed]:
        """All of them together."""
        programs = [self.start(folder, work, seconds) for folder, work in starts]
        with ending(*programs):
            for program in programs:
                program.line("ready", START_S)
            for program in programs:
                program.tell()
            limit_s = seconds * 3 + 10
            return [
                speed_of(program.rest(limit_s), self.calibrate(work.kernel, work.blocks)[1], seconds)
                for program, (_, work) in zip(programs, starts, strict=True)
            ]

    def unlimited_of(self, work: Work) -> float:
        if work not in self.unlimited:
            self.unlimited[work] = self.run([(None, work)], WARM_UP_S + 2.0)[0].mean
        return self.unlimited[work]


def speed_of(lines: Sequence[Sequence[str]], alone_ns: float, seconds: float) -> Speed:
    """Each batch fills the time before its end that its kernels need alone, or as much as lies after the last end."""
    first_ms, last_ms = WARM_UP_S * 1000, seconds * 1000
    windows = [0.0] * max(1, int((last_ms - first_ms) / WINDOW_MS))
    stall_ns, before_ms = 0, 0.0
    ends = sorted((float(line[1]), int(line[2])) for line in lines if line[0] == "end")
    for end_ms, kernels in ends:
        work_ms = kernels * alone_ns / 1e6
        begin_ms = min(max(before_ms, end_ms - work_ms), end_ms - 1e-6)
        density = work_ms / (end_ms - begin_ms)
        before_ms = end_ms
        for index in range(len(windows)):
            low = first_ms + index * WINDOW_MS
            overlap = min(end_ms, low + WINDOW_MS) - max(begin_ms, low)
            if overlap > 0:
                windows[index] += overlap * density / WINDOW_MS
    for line in lines:
        if line[0] == "stall":
            stall_ns = int(line[1])
    return Speed(windows, stall_ns)


def _percent(speed: Speed, unlimited: float) -> tuple[float, float]:
    shares = [100 * window / unlimited for window in speed.windows]
    return statistics.fmean(shares), statistics.pstdev(shares)


def _cell(bench: Bench, lab: Lab, name: str, work: Work, cores: int, seconds: float = CELL_S) -> None:
    """One process alone at a limit of `cores` percent."""
    unlimited = lab.unlimited_of(work)
    with bench.share(cores=cores * 100) as folder:
        speed = lab.run([(folder, work)], seconds)[0]
    mean, deviation = _percent(speed, unlimited)
    alone_ns = lab.calibrate(work.kernel, work.blocks)[1] * (10 if work.kind == "graph" else 1)
    bound_ns = alone_ns * 100 / cores * max(2, work.streams) + STALL_MORE_NS
    bench.record.add(
        name,
        f"{mean:.2f} ± {deviation:.2f} %, longest call {speed.stall_ns / 1e6:.1f} ms",
        f"{cores} ± {MEAN_POINTS} %, deviation at most {DEVIATION_POINTS}",
        judged(abs(mean - cores) <= MEAN_POINTS and deviation <= DEVIATION_POINTS),
        mean=mean,
        deviation=deviation,
        limit=cores,
        windows=[100 * window / unlimited for window in speed.windows],
        unlimited=unlimited,
        stall_ns=speed.stall_ns,
        stall_bound_ns=bound_ns,
    )


def _together(
    bench: Bench,
    lab: Lab,
    name: str,
    folders: Sequence[Path],
    limits: Sequence[float],
    work: Work,
    judge: Literal["holds", "figure"] = "holds",
) -> None:
    """Several processes at once. `limits`: one per folder, or one for all of them together."""
    unlimited = lab.unlimited_of(work)
    speeds = lab.run([(folder, work) for folder in folders], SHORT_CELL_S)
    means = [_percent(speed, unlimited) for speed in speeds]
    text = " and ".join(f"{mean:.2f} ± {deviation:.2f} %" for mean, deviation in means)
    if len(limits) == len(folders):
        holds = all(abs(mean - limit) <= PAIR_POINTS for (mean, _), limit in zip(means, limits, strict=True))
        target = " and ".join(f"{limit:g}" for limit in limits) + f" ± {PAIR_POINTS} %"
    else:
        total = sum(mean for mean, _ in means)
        holds, text = abs(total - limits[0]) <= MEAN_POINTS, f"{text}, together {total:.2f} %"
        target = f"together {limits[0]:g} ± {MEAN_POINTS} %"
    figures: Mapping[str, object] = {"means": [mean for mean, _ in means], "limits": list(limits)}
    verdict = judged(holds) if judge == "holds" else "figure"
    bench.record.add(name, text, target, verdict, **figures)


def _guarded(bench: Bench, name: str, needs_s: float, action: object, *arguments: object) -> None:
    if bench.left_s() < needs_s:
        bench.record.failed(name, f"not tried: {bench.left_s():.0f} s left")
        return
    try:
        action(bench, *arguments)  # type: ignore[operator]
    except (EndedError, TooLateError, OSError, ZeroDivisionError) as problem:
        bench.record.failed(name, problem)


def compute(bench: Bench) -> None:
    """One process, plain launches, every limit and every length of kernel."""
    lab = Lab(bench)
    for kernel in KERNELS_NS:
        for cores in (30, 10, 50, 70):
            name = f"{cores} %, {kernel} kernels"
            _guarded(bench, name, CELL_S + 3, _cell, lab, name, Work(kernel=kernel), cores)


PATHS = {
    "graph of ten": Work(kind="graph"),
    "cooperative": Work(kind="cooperative"),
    "per-thread stream": Work(kind="ptsz"),
    "cuLaunchKernelEx": Work(kind="ex"),
    "one block": Work(blocks=1),
    "4 streams": Work(streams=4),
    "4 streams of one block": Work(blocks=1, streams=4),
}


def paths(bench: Bench) -> None:
    """Every way to launch, at 30 %."""
    lab = Lab(bench)
    for label, work in PATHS.items():
        name = f"30 %, {label}"
        _guarded(bench, name, SHORT_CELL_S + 8, _cell, lab, name, work, 30, SHORT_CELL_S)


VARYING_S = 16.0
PAID_BACK_S = 10.0  # what the first two seconds had beyond the share is paid back by then
VARYING_POINTS = 3.0


def _varying(bench: Bench, lab: Lab, name: str, work: Work) -> None:
    """One kernel and grid of two lengths, a nineteenth of each other, which nothing but the launches tells apart."""
    unlimited = lab.unlimited_of(work)
    with bench.share(cores=3000) as folder, told_alone(folder):
        speed = lab.run([(folder, work)], VARYING_S)[0]
    shares = [100 * window / unlimited for window in speed.windows]
    late = shares[round(PAID_BACK_S - WARM_UP_S) :]
    mean = statistics.fmean(late)
    bench.record.add(
        name,
        f"{mean:.2f} ± {statistics.pstdev(late):.2f} % from the {PAID_BACK_S:g}th second on",
        f"30 ± {VARYING_POINTS} %",
        judged(abs(mean - 30) <= VARYING_POINTS),
        windows=shares,
        unlimited=unlimited,
    )


def varying(bench: Bench) -> None:
    """Kernels whose length is in their arguments, as persistent ones' is."""
    lab = Lab(bench)
    for kernel in ("1 ms", "20 us"):
        name = f"30 %, kernels of a tenth of {kernel} or nineteen tenths"
        _guarded(bench, name, VARYING_S + 8, _varying, lab, name, Work(kind="varying", kernel=kernel))


def _same_container(bench: Bench, lab: Lab, name: str, work: Work) -> None:
    with bench.share(cores=3000) as folder:
        _together(bench, lab, name, [folder, folder], [30], work)


def _containers(bench: Bench, lab: Lab, name: str, work: Work, limits: Sequence[int], told: bool = True) -> None:
    """`told`: by the agent, whose turn it is."""
    with ExitStack() as stack:
        folders = [stack.enter_context(bench.share(cores=cores * 100)) for cores in limits]
        if told:
            stack.enter_context(told_turns(folders, [cores * 100 for cores in limits]))
        _together(bench, lab, name, folders, limits, work, "holds" if told else "figure")


def neighbours(bench: Bench) -> None:
    """Two processes of one container, and two containers on one GPU."""
    lab = Lab(bench)
    for kernel in ("1 ms", "20 us"):
        name = f"two processes of one container of 30 %, {kernel} kernels"
        _guarded(bench, name, CELL_S + 5, _same_container, lab, name, Work(kernel=kernel))
    for kernel in KERNELS_NS:
        name = f"two containers of 30 % and 50 %, {kernel} kernels"
        _guarded(bench, name, CELL_S + 5, _containers, lab, name, Work(kernel=kernel), (30, 50))
    for kernel in ("1 ms", "20 us"):
        name = f"three containers of 30 %, 50 % and 20 %, {kernel} kernels"
        _guarded(bench, name, CELL_S + 5, _containers, lab, name, Work(kernel=kernel), (30, 50, 20))
        name = f"{name}, agent away"
        _guarded(bench, name, CELL_S + 5, _containers, lab, name, Work(kernel=kernel), (30, 50, 20), False)


ELASTIC_S = 9.0
SHRINKS_AT_S = 4.0
SILENT_AT_S = 6.5  # from then on nobody writes the pace, so that the share's own cores count


def _elastic(bench: Bench, lab: Lab, name: str, work: Work) -> None:
    """The agent gives 90 %, takes it back to 30 after four seconds, and then dies."""
    unlimited = lab.unlimited_of(work)
    with bench.share(cores=3000, cores_max=10000) as folder:
        write_pace(folder, 9000)
        program = lab.start(folder, work, ELASTIC_S)
        with ending(program):
            program.line("ready", START_S)
            write_pace(folder, 9000)
            program.tell()
            began_at_s = time.monotonic()
            while (passed_s := time.monotonic() - began_at_s) < SILENT_AT_S:
                write_pace(folder, 9000 if passed_s < SHRINKS_AT_S else 3000)
                time.sleep(0.1)
            speed = speed_of(program.rest(ELASTIC_S * 3), lab.calibrate(work.kernel, work.blocks)[1], ELASTIC_S)
    shares = [100 * window / unlimited for window in speed.windows]
    before = int(SHRINKS_AT_S - WARM_UP_S)
    wide, narrow = shares[:before], shares[before + 1 :]  # the second between is the one to shrink in
    bench.record.add(
        name,
        f"{min(wide):.1f} to {max(wide):.1f} %, {shares[before]:.1f}, then {min(narrow):.1f} to {max(narrow):.1f} %",
        f"90, within a second 30, each ± {PAIR_POINTS} %",
        judged(all(abs(s - 90) <= PAIR_POINTS for s in wide) and all(abs(s - 30) <= PAIR_POINTS for s in narrow)),
        windows=shares,
    )


def elastic(bench: Bench) -> None:
    """Idle time given and taken back."""
    lab = Lab(bench)
    name = "elastic share, 1 ms kernels"
    _guarded(bench, name, ELASTIC_S + 8, _elastic, lab, name, Work())
