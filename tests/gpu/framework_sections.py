"""PyTorch, Triton, CuPy, JAX and NCCL under shares."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.bench import GIB, MIB, Bench, ending
from tests.gpu.ground_truth import ClockWatch
from tests.gpu.program import EndedError, TooLateError
from tests.gpu.record import judged, say

LIMIT_BYTES = 4 * GIB
KEPT_BYTES = 180 * MIB  # a chunk of 64, what a young context is charged beyond what it takes, and 16 for the driver
IMPORT_S = 120.0
WORK_S = 30.0
WORKLOADS = ("matmul", "mlp", "small", "graph", "tiny")
FREE_WORKLOADS = ("mlp", "tiny")  # where the library would be felt first
# Eager operations this small are held up by the host: they leave most of the GPU idle, so no share can be read off.
NOT_JUDGED = ("tiny",)
LIMIT_PERCENT = 30
POINTS = 2.0
SLOWER_PERCENT = 3.0
ALLOCATORS = {
    "default allocator": {},
    "expandable segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "cudaMallocAsync": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}


@dataclass(frozen=True)
class Speed:
    """Units of work per second, in windows of a second, and the GPU's clock meanwhile."""

    windows: Sequence[float]
    mhz: float

    @property
    def mean(self) -> float:
        return statistics.fmean(self.windows)


def _speeds(bench: Bench, folder: Path | None, workloads: Sequence[str] = WORKLOADS) -> dict[str, Speed]:
    program = bench.start_python(folder, "torch_speed.py", *workloads)
    speeds: dict[str, Speed] = {}
    clock = ClockWatch(bench.truth)
    with ending(program):
        program.line("ready", IMPORT_S)
        for _ in workloads:
            words = program.line("work", WORK_S)
            speeds[words[1]] = Speed([float(word) for word in words[2:]], clock.mean_mhz())
            say(f"  {words[1]}: {speeds[words[1]].mean:.1f}/s at {speeds[words[1]].mhz:.0f} MHz")
    return speeds


def torch(bench: Bench) -> None:
    """Throughput without the library, with it and no limit, and at 30 %."""
    unlimited = _speeds(bench, None)
    # A GPU that is never idle may slow down to stay within its power, so a share of its time does more than that share
    # of an unlimited program's work. It is compared with the same program, unlimited, that rests for the other time.
    resting = {name: f"{name}/{LIMIT_PERCENT}" for name in WORKLOADS if name not in NOT_JUDGED}
    rested = _speeds(bench, None, tuple(resting.values()))
    with bench.share() as folder:
        free = _speeds(bench, folder, FREE_WORKLOADS)
    with bench.share(cores=LIMIT_PERCENT * 100) as folder:
        limited = _speeds(bench, folder)
    for name in WORKLOADS:
        base = unlimited[name].mean
        if name in free:
            ratio = 100 * free[name].mean / base
            bench.record.add(
                f"{name}, nothing limited",
                f"{ratio:.1f} % of {base:.1f}/s",
                f"at least {100 - SLOWER_PERCENT:.0f} %",
                "figure" if name in NOT_JUDGED else judged(ratio >= 100 - SLOWER_PERCENT),
                ratio=ratio,
                base_per_s=base,
            )
        done = 100 * limited[name].mean / base
        clocks = limited[name].mhz, unlimited[name].mhz
        busy_per_s = rested[resting[name]].mean if name in resting else base
        shares = [100 * window / busy_per_s for window in limited[name].windows]
        mean, deviation = statistics.fmean(shares), statistics.pstdev(shares)
        bench.record.add(
            f"{name}, {LIMIT_PERCENT} %",
            f"{mean:.2f} ± {deviation:.2f} % of the time ({done:.2f} % of the work, at {clocks[0]:.0f} MHz instead of "
            f"{clocks[1]:.0f})",
            f"{LIMIT_PERCENT} ± {POINTS:g} %",
            "figure" if name in NOT_JUDGED else judged(abs(mean - LIMIT_PERCENT) <= POINTS),
            mean=mean,
            deviation=deviation,
            windows=shares,
            work=done,
            mhz=clocks,
        )


def _fill(bench: Bench, label: str, more: Mapping[str, str]) -> None:
    name = f"torch, {label}"
    try:
        with bench.share(memory=LIMIT_BYTES) as folder:
            program = bench.start_python(folder, "torch_limit.py", **more)
            with ending(program):
                words = program.line("held", IMPORT_S)
                taken = bench.held([program])
                program.tell()
                after = program.line("went-on", WORK_S)
            text = f"{taken / MIB:.0f} MiB, {words[2]}, trained on afterwards: {after[1]} steps"
            holds = LIMIT_BYTES - KEPT_BYTES <= taken <= LIMIT_BYTES and words[2] == "OutOfMemoryError"
            target = f"{(LIMIT_BYTES - KEPT_BYTES) // MIB} to 4096 MiB, OutOfMemoryError, goes on"
            bench.record.add(name, text, target, judged(holds and after[1] == "20"), taken_bytes=taken)
    except (EndedError, TooLateError, OSError) as problem:
        bench.record.failed(name, problem)


def _small_program(bench: Bench, script: str, label: str, more: Mapping[str, str]) -> None:
    """A small program that prints `held <bytes asked for>` once it is at its most, and `done` with the right sum."""
    try:
        with bench.share(memory=LIMIT_BYTES, cores=LIMIT_PERCENT * 100) as folder:
            program = bench.start_python(folder, script, **more)
            with ending(program):
                program.line("held", IMPORT_S)
                taken = bench.held([program])
                program.tell()
                words = program.line("done", WORK_S)
            text = f"{' '.join(words[1:])}, {taken / MIB:.0f} MiB at its most"
            bench.record.add(label, text, "right, at most 4096 MiB", judged(taken <= LIMIT_BYTES), taken_bytes=taken)
    except (EndedError, TooLateError, OSError) as problem:
        bench.record.failed(label, problem)


def frameworks(bench: Bench) -> None:
    """Memory limits of PyTorch's allocators, and every other framework at work within a share; four at a time."""
    programs: Sequence[tuple[str, str, Mapping[str, str]]] = (
        ("triton_small.py", "Triton", {}),
        ("cupy_small.py", "CuPy", {}),
        ("jax_small.py", "JAX without preallocation", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
        ("jax_small.py", "JAX as it comes", {}),
        ("nccl_small.py", "NCCL, one rank", {}),
    )
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(_fill, bench, label, more) for label, more in ALLOCATORS.items()]
        futures += [pool.submit(_small_program, bench, *program) for program in programs]
        for future in futures:
            future.result()
