"""Cost: what the library adds to a call, and to the start of a process."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from tests.gpu.bench import GIB, Bench, ending
from tests.gpu.program import EndedError, TooLateError
from tests.gpu.record import judged
from tests.gpu.share_folder import NO_CORE_LIMIT

PAIRS = 200
COST_S = 90.0
START_S = 60.0
STARTS = 8
STARTS_AT_ONCE = 8
# Nanoseconds that a call may gain: without a core limit, with one.
TARGETS_NS = {
    "launch": (20.0, 250.0),
    "launch-ex": (20.0, 250.0),
    "alloc-pair": (500.0, 500.0),
    "async-pair": (200.0, 200.0),
    "mem-info": (10.0, 10.0),
}
START_MORE_NS = 5e6
TOGETHER_MORE = 1.10


def _costs(bench: Bench, label: str, memory: int | None, cores: int) -> None:
    with bench.share(memory=memory, cores=cores) as folder:
        program = bench.start_probe(folder, "cost", PAIRS)
        with ending(program):
            lines = program.rest(COST_S)
    hooked = ["hooked", "1"] in lines
    noise = {line[1]: float(line[5]) for line in lines if line[0] == "noise"}
    for line in lines:
        if line[0] != "cost":
            continue
        with_library, direct, added, low, high = (float(word) for word in line[3:8])
        target = TARGETS_NS[line[1]][cores < NO_CORE_LIMIT]
        floor = abs(noise.get(line[1], 0.0))
        bench.record.add(
            f"{line[1]}, {label}",
            f"{added:+.0f} ns ({low:+.0f} to {high:+.0f}; {with_library:.0f} against {direct:.0f}; noise {floor:.0f})",
            f"at most +{target:.0f} ns",
            judged(hooked and added <= target + floor),
            added_ns=added,
            hooked_ns=with_library,
            direct_ns=direct,
            noise_ns=floor,
            hooked=hooked,
        )


def _start_once(bench: Bench, folder: Path | None, count: int) -> list[int]:
    """Nanoseconds of cuInit, context and first launch of each of `count` processes started together."""
    programs = [bench.start_probe(folder, "start") for _ in range(count)]
    with ending(*programs):
        return [sum(int(word) for word in program.line("start", START_S)[1:]) for program in programs]


def _starts(bench: Bench, count: int, rounds: int) -> tuple[list[float], list[float]]:
    """(without, with) the library, taking turns; the slowest of each round."""
    without: list[float] = []
    with_library: list[float] = []
    with bench.share(memory=16 * GIB, cores=3000) as folder:
        for _ in range(rounds):
            without.append(max(_start_once(bench, None, count)))
            with_library.append(max(_start_once(bench, folder, count)))
    return without, with_library


def _ms(values: Sequence[float]) -> str:
    return f"{statistics.median(values) / 1e6:.1f} ms"


def cost(bench: Bench) -> None:
    cases: Sequence[tuple[str, int | None, int]] = (
        ("memory limit", 16 * GIB, NO_CORE_LIMIT),
        ("core limit 99 %", 16 * GIB, 9900),
        ("nothing limited", None, NO_CORE_LIMIT),
    )
    for label, memory, cores in cases:
        try:
            _costs(bench, label, memory, cores)
        except (EndedError, TooLateError, OSError) as problem:
            bench.record.failed(label, problem)


def start(bench: Bench) -> None:
    try:
        without, with_library = _starts(bench, 1, STARTS)
        added = statistics.median(with_library) - statistics.median(without)
        bench.record.add(
            "start of a process",
            f"{added / 1e6:+.1f} ms ({_ms(with_library)} against {_ms(without)})",
            f"at most +{START_MORE_NS / 1e6:.0f} ms",
            judged(added <= START_MORE_NS),
            with_ns=with_library,
            without_ns=without,
        )
        without, with_library = _starts(bench, STARTS_AT_ONCE, 4)
        ratio = statistics.median(with_library) / statistics.median(without)
        bench.record.add(
            f"start of {STARTS_AT_ONCE} processes at once",
            f"{100 * (ratio - 1):+.0f} % ({_ms(with_library)} against {_ms(without)})",
            f"at most {100 * (TOGETHER_MORE - 1):+.0f} %",
            judged(ratio <= TOGETHER_MORE),
            with_ns=with_library,
            without_ns=without,
        )
    except (EndedError, TooLateError, OSError) as problem:
        bench.record.failed("start", problem)
