"""Memory: every way to take it against a limit, many processes at once, what is reported, and kill -9 at any moment."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.bench import GIB, MIB, Bench, ending
from tests.gpu.program import EndedError, Program, TooLateError
from tests.gpu.record import judged, say

LIMIT_BYTES = 4 * GIB
MOST_BYTES = 6 * GIB
CHUNK_BYTES = 64 * MIB
UNIT_BYTES = 256 * MIB  # of memory as it is asked for; a limit is met if less than one of it cannot be had
OUT_OF_MEMORY = 2
KEPT_BYTES = 16 * MIB  # of each process for what the driver takes by itself (MARGIN_BYTES of measure.c)
CONTEXT_SETTLES_S = 2.5
YOUNG_CONTEXT_BYTES = 100 * MIB  # charged beyond what it takes, until it is settled
START_S = 60.0
TAKE_S = 60.0
AT_ONCE = 8  # even without any limit these fit on the GPU together
RACERS = 64
KILLS = 20


@dataclass(frozen=True)
class Way:
    """`unit_bytes`: what one more allocation would have taken."""

    name: str
    words: Sequence[object]
    unit_bytes: int = CHUNK_BYTES


def _probe_way(
    name: str, path: str, *, chunk: int = CHUNK_BYTES, unit: int = CHUNK_BYTES, then: Sequence[object] = ()
) -> Way:
    return Way(name, ("memory", path, chunk, MOST_BYTES, *then), unit)


WAYS = (
    _probe_way("cuMemAlloc (dlsym)", "plain", then=("dlsym",)),
    _probe_way("cuMemAlloc (cuGetProcAddress)", "plain", then=("proc1",)),
    _probe_way("cuMemAlloc (cuGetProcAddress_v2)", "plain", then=("proc2",)),
    _probe_way("cuMemAlloc, 16 threads at once", "plain", then=("dlsym", 16)),
    _probe_way("cuMemAlloc, 2 MiB + 4 KiB", "plain", chunk=2 * MIB + 4096, unit=4 * MIB),
    _probe_way("cuMemAllocPitch", "pitch"),
    _probe_way("cuMemAllocPitch, 513-byte rows", "pitch-513", unit=2 * CHUNK_BYTES),
    _probe_way("cuMemAllocAsync", "async"),
    _probe_way("cuMemAllocAsync (cuGetProcAddress_v2)", "async", then=("proc2",)),
    _probe_way("cuMemAllocAsync_ptsz", "async-ptsz"),
    _probe_way("cuMemAllocAsync per thread (cuGetProcAddress_v2)", "async-ptsz", then=("proc2",)),
    _probe_way("cuMemPoolCreate + cuMemAllocFromPoolAsync", "pool"),
    _probe_way("cuMemCreate", "physical"),
    _probe_way("cuArrayCreate", "array"),
    _probe_way("cuArray3DCreate", "array3d"),
    _probe_way("cuMipmappedArrayCreate", "mipmap", unit=96 * MIB),
    _probe_way("graph allocation nodes", "graph-node"),
    _probe_way("cuMemAllocAsync while capturing", "captured"),
    _probe_way("module globals", "module", unit=66 * MIB),
    _probe_way("device heap (cuCtxSetLimit)", "heap", unit=MOST_BYTES // 24 + CHUNK_BYTES),
    _probe_way("stacks (cuCtxSetLimit)", "stack", unit=MOST_BYTES // 24 + CHUNK_BYTES),
)
# Its pages are in no process's figure, so that it is tried alone and read off the whole GPU.
MANAGED = _probe_way("cuMemAllocManaged, touched", "managed")


def _mib(count: int) -> str:
    return f"{count / MIB:.0f} MiB"


def take(program: Program, settled: bool = True) -> tuple[int, int, str]:
    """(bytes asked for, result, failing call) of a program that takes memory until it is refused.

    Not `settled`: at once, while the library still charges what a young context may come to take.
    """
    program.line("ready", START_S)
    if settled:
        time.sleep(CONTEXT_SETTLES_S)
    program.tell()
    words = program.line("held", TAKE_S)
    return int(words[1]), int(words[2]), " ".join(words[3:])


def _judge(bench: Bench, way: Way, taken: int, asked: int, result: int, call: str, processes: int = 1) -> None:
    least = LIMIT_BYTES - max(UNIT_BYTES, way.unit_bytes) - processes * KEPT_BYTES
    enough = taken >= least
    clean = result == OUT_OF_MEMORY
    bench.record.add(
        way.name,
        f"{_mib(taken)} ({_mib(asked)} asked for, then {result} from {call})",
        f"{_mib(least)} to {_mib(LIMIT_BYTES)}, then {OUT_OF_MEMORY}",
        judged(taken <= LIMIT_BYTES and enough and clean),
        taken_bytes=taken,
        asked_bytes=asked,
        limit_bytes=LIMIT_BYTES,
        unit_bytes=way.unit_bytes,
        result=result,
        over_bytes=max(0, taken - LIMIT_BYTES),
    )


def _one_way(bench: Bench, way: Way) -> None:
    try:
        with bench.share(memory=LIMIT_BYTES) as folder:
            program = bench.start_probe(folder, *way.words)
            with ending(program):
                asked, result, call = take(program)
                _judge(bench, way, bench.held([program]), asked, result, call)
    except (EndedError, TooLateError, OSError) as problem:
        bench.record.failed(way.name, problem)


def _managed(bench: Bench) -> None:
    if bench.truth.free_bytes() < 2 * MOST_BYTES:
        bench.record.failed(MANAGED.name, "not tried: less memory is free than twice what it asks for")
        return
    before = bench.settle()
    try:
        with bench.share(memory=LIMIT_BYTES) as folder:
            program = bench.start_probe(folder, *MANAGED.words)
            with ending(program):
                asked, result, call = take(program)
                _judge(bench, MANAGED, bench.truth.used_bytes() - before, asked, result, call)
    except (EndedError, TooLateError, OSError) as problem:
        bench.record.failed(MANAGED.name, problem)


def _static_runtime(bench: Bench) -> None:
    way = Way("cudaMalloc (static runtime)", ())
    if bench.static_runtime is None:
        bench.record.failed(way.name, "not tried: no nvcc")
        return
    try:
        with bench.share(memory=LIMIT_BYTES) as folder:
            program = bench.start(folder, [bench.static_runtime, CHUNK_BYTES, MOST_BYTES])
            with ending(program):
                asked, result, call = take(program)
                _judge(bench, way, bench.held([program]), asked, result, call)
    except (EndedError, TooLateError, OSError) as problem:
        bench.record.failed(way.name, problem)


def _second_process(bench: Bench) -> None:
    way = Way("second process while the first holds 2 GiB", ())
    with bench.share(memory=LIMIT_BYTES) as folder:
        first = bench.start_probe(folder, "memory", "plain", CHUNK_BYTES, 2 * GIB)
        with ending(first):
            take(first)
            second = bench.start_probe(folder, "memory", "plain", CHUNK_BYTES, MOST_BYTES)
            with ending(second):
                asked, result, call = take(second)
                _judge(bench, way, bench.held([first, second]), asked + 2 * GIB, result, call, processes=2)


def _after_kill(bench: Bench) -> None:
    way = Way("after kill -9 of a holder of 3 GiB", ())
    with bench.share(memory=LIMIT_BYTES) as folder:
        first = bench.start_probe(folder, "memory", "plain", CHUNK_BYTES, 3 * GIB)
        with ending(first):
            take(first)
            first.kill()
        second = bench.start_probe(folder, "memory", "plain", CHUNK_BYTES, MOST_BYTES)
        with ending(second):
            asked, result, call = take(second)
            _judge(bench, way, bench.held([second]), asked, result, call)


def _at_once(bench: Bench) -> None:
    way = Way("cuMemAlloc, as soon as the context is made", (), CHUNK_BYTES + YOUNG_CONTEXT_BYTES)
    with bench.share(memory=LIMIT_BYTES) as folder:
        program = bench.start_probe(folder, "memory", "plain", CHUNK_BYTES, MOST_BYTES)
        with ending(program):
            asked, result, call = take(program, settled=False)
            _judge(bench, way, bench.held([program]), asked, result, call)


def _unmeasured(bench: Bench) -> None:
    """No agent answers: the context costs what the share file says, and the limit holds all the same."""
    name = "cuMemAlloc, no agent to measure the context"
    with bench.share(answered=False, memory=LIMIT_BYTES) as folder:
        program = bench.start_probe(folder, "memory", "plain", CHUNK_BYTES, MOST_BYTES)
        with ending(program):
            asked, result, call = take(program)
            taken = bench.held([program])
            text = f"{_mib(taken)} ({_mib(asked)} asked for, then {result} from {call})"
            holds = taken <= LIMIT_BYTES and result == OUT_OF_MEMORY
            bench.record.add(name, text, f"at most {_mib(LIMIT_BYTES)}", judged(holds), taken_bytes=taken)


def memory(bench: Bench) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda way: _one_way(bench, way), WAYS))
    _static_runtime(bench)
    for part in (_second_process, _after_kill, _at_once, _unmeasured):
        try:
            part(bench)
        except (EndedError, TooLateError, OSError) as problem:
            bench.record.failed(part.__name__.strip("_").replace("_", " "), problem)
    _managed(bench)


def _race(bench: Bench, limit: int) -> None:
    name = f"{RACERS} processes, limit {limit // GIB} GiB"
    with bench.share(memory=limit) as folder:
        racers = [bench.start_probe(folder, "memory", "plain", CHUNK_BYTES, MOST_BYTES) for _ in range(RACERS)]
        with ending(*racers):
            for racer in racers:
                racer.line("ready", START_S)
            for racer in racers:
                racer.tell()
            ends = [racer.line("held", TAKE_S) for racer in racers]
            taken = bench.held(racers)
            started = sum(1 for words in ends if words[3:] != ["start"])
            results = sorted({int(words[2]) for words in ends})
            bench.record.add(
                name,
                f"{_mib(taken)}, {max(0, taken - limit)} bytes over; {started} got a context; results {results}",
                f"at most {_mib(limit)}, refused with {OUT_OF_MEMORY} alone",
                judged(taken <= limit and {OUT_OF_MEMORY} <= set(results) <= {0, OUT_OF_MEMORY}),
                taken_bytes=taken,
                limit_bytes=limit,
                started=started,
            )


def race(bench: Bench) -> None:
    for limit in (40 * GIB, 4 * GIB):
        try:
            _race(bench, limit)
        except (EndedError, TooLateError, OSError) as problem:
            bench.record.failed(f"{RACERS} processes, limit {limit // GIB} GiB", problem)


def _reported_row(bench: Bench, name: str, words: Sequence[str], columns: Sequence[str]) -> None:
    """`total` columns have to be the limit; `free` and `used` ones have to lie within it."""
    figures = dict(zip(columns, (int(word) for word in words), strict=False))
    totals = [value for key, value in figures.items() if key.endswith("total")]
    within = all(0 <= value <= LIMIT_BYTES for value in figures.values())
    text = ", ".join(f"{key} {_mib(value)}" for key, value in figures.items())
    bench.record.add(name, text, _mib(LIMIT_BYTES), judged(set(totals) == {LIMIT_BYTES} and within), **figures)


def reported(bench: Bench) -> None:
    cases = (
        ("cuMemGetInfo, cuDeviceTotalMem", "reported", ("free", "total", "device total")),
        ("NVML memory v1", "v1", ("total", "used", "free")),
        ("NVML memory v2", "v2", ("total", "used", "free")),
        ("nvidia-smi", "smi", ("total", "used", "free")),
        ("torch", "torch", ("free", "total", "properties total")),
    )
    with bench.share(memory=LIMIT_BYTES) as folder:
        programs = [bench.start_probe(folder, "reported")]
        programs += [bench.start_python(folder, "reported.py", word) for _, word, _ in cases[1:]]
        with ending(*programs):
            for (name, word, columns), program in zip(cases, programs, strict=True):
                try:
                    _reported_row(bench, name, program.line(word, START_S)[1:], columns)
                except (EndedError, TooLateError, ValueError) as problem:
                    bench.record.failed(name, problem)


def _time_to_ready(bench: Bench, folder: Path) -> tuple[float, int]:
    """(seconds until a fresh process has its context, bytes it then gets)."""
    began_at_s = time.monotonic()
    program = bench.start_probe(folder, "memory", "plain", CHUNK_BYTES, MOST_BYTES)
    with ending(program):
        program.line("ready", START_S)
        took_s = time.monotonic() - began_at_s
        program.tell()
        program.line("held", TAKE_S)
        return took_s, bench.held([program])


def kill(bench: Bench) -> None:
    dice = random.Random(20)
    with bench.share(memory=LIMIT_BYTES, cores=3000) as folder:
        usual = [_time_to_ready(bench, folder)[0] for _ in range(5)]
        after, taken = [], []
        for number in range(KILLS):
            if bench.left_s() < 10:
                break
            victim = bench.start_probe(folder, "memory", "plain", CHUNK_BYTES, 3 * GIB)
            victim.tell()
            time.sleep(dice.uniform(0.005, max(usual) * 1.2))
            victim.kill()
            took_s, got = _time_to_ready(bench, folder)
            after.append(took_s)
            taken.append(got)
            if number % 5 == 4:
                say(f"  {number + 1} kills, the latest successor ready after {took_s * 1000:.0f} ms")
    least = LIMIT_BYTES - CHUNK_BYTES - YOUNG_CONTEXT_BYTES
    unharmed = all(least <= got <= LIMIT_BYTES for got in taken)
    late_s = max(after) - max(usual)
    bench.record.add(
        f"{len(after)} kills at random moments, then a fresh process",
        f"ready after {statistics.median(after) * 1000:.0f} ms (longest {max(after) * 1000:.0f}; undisturbed "
        f"{statistics.median(usual) * 1000:.0f}, longest {max(usual) * 1000:.0f}); "
        f"{_mib(min(taken))} to {_mib(max(taken))} obtained",
        "no more than 100 ms later, the whole limit",
        judged(unharmed and late_s <= 0.1),
        after_s=after,
        usual_s=usual,
        taken_bytes=taken,
    )
