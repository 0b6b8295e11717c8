"""The sharing library proved on a real GPU, section by section: `python3 tests/gpu/shim_gpu.py [SECTION...]`.

Needs a GPU that is otherwise idle, gcc, and for the frameworks whatever of PyTorch, Triton, CuPy and JAX is to be
tried. Each section runs in a process of its own with a time limit; what it found until then is kept. Writes
shim-gpu.json and shim-gpu.md into the folder that the environment variable OUT names (./shim-gpu-results without it).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY))

from tests.gpu import compute_sections, cost_sections, framework_sections, memory_sections  # noqa: E402
from tests.gpu.bench import Bench  # noqa: E402
from tests.gpu.ground_truth import GroundTruth  # noqa: E402
from tests.gpu.program import build_probe, build_static_runtime, environment  # noqa: E402
from tests.gpu.record import Record, Row, as_markdown, read_rows, say  # noqa: E402

LIBRARY_NAME = "libtopoalloc-vcuda.so"
BUDGET_S = 570.0


@dataclass(frozen=True)
class Section:
    """`limit_s`: after this it is ended."""

    run: Callable[[Bench], None]
    limit_s: float


# In the order in which they are worth most, should the time run out.
SECTIONS: Mapping[str, Section] = {
    "memory": Section(memory_sections.memory, 80),
    "reported": Section(memory_sections.reported, 40),
    "compute": Section(compute_sections.compute, 130),
    "neighbours": Section(compute_sections.neighbours, 90),
    "cost": Section(cost_sections.cost, 60),
    "paths": Section(compute_sections.paths, 95),
    "varying": Section(compute_sections.varying, 55),
    "torch": Section(framework_sections.torch, 150),
    "frameworks": Section(framework_sections.frameworks, 100),
    "elastic": Section(compute_sections.elastic, 45),
    "kill": Section(memory_sections.kill, 60),
    "race": Section(memory_sections.race, 80),
    "start": Section(cost_sections.start, 45),
}


def find_library() -> Path:
    """The newest one below the repository, when --shim names none."""
    found = [path for path in REPOSITORY.rglob(LIBRARY_NAME) if path.is_file()]
    if not found:
        raise SystemExit(f"no {LIBRARY_NAME} below {REPOSITORY}: run make shim, or name it with --shim")
    return max(found, key=lambda path: path.stat().st_mtime)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; all without any")
    parser.add_argument("--shim", type=Path, help="the library; the newest build below the repository without it")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for all of it")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)  # the working folder: run one section in here
    options = parser.parse_args(arguments)
    unknown = [name for name in options.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"no such section: {', '.join(unknown)}")
    return options


def run_section(name: str, library: Path, work: Path, left_s: float) -> None:
    """In the section's own process."""
    static_runtime = work / "static-runtime"
    bench = Bench(
        library=library,
        probe=work / "probe",
        static_runtime=static_runtime if static_runtime.exists() else None,
        truth=GroundTruth(),
        record=Record(name, work / f"{name}.jsonl"),
        deadline_at_s=time.monotonic() + left_s,
    )
    try:
        SECTIONS[name].run(bench)
    finally:
        bench.close()


def run_apart(name: str, library: Path, work: Path, left_s: float) -> list[Row]:
    """The section in a process group of its own, ended with everything it started when its time is up."""
    limit_s = min(SECTIONS[name].limit_s, left_s)
    say(f"== {name} (at most {limit_s:.0f} s)")
    command = [sys.executable, __file__, name, "--shim", str(library), "--one", str(work), "--budget", str(limit_s - 2)]
    began_at_s = time.monotonic()
    process = subprocess.Popen(command, start_new_session=True, env=environment(None, None))
    problem = ""
    try:
        if process.wait(limit_s) != 0:
            problem = f"ended with {process.returncode}"
    except subprocess.TimeoutExpired:
        problem = f"not done within {limit_s:.0f} s"
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if problem:
        Record(name, work / f"{name}.jsonl").failed("the section", problem)
    say(f"== {name}: {time.monotonic() - began_at_s:.0f} s")
    return read_rows(work / f"{name}.jsonl")


def facts_of(library: Path) -> dict[str, object]:
    truth = GroundTruth()
    return {
        "GPU": truth.name(),
        "driver": truth.driver(),
        "kernel": platform.release(),
        "CPUs": os.cpu_count(),
        "library": f"{library.name}, {library.stat().st_size} bytes",
        "free GPU memory": f"{truth.free_bytes() >> 20} MiB",
    }


def write_results(out: Path, rows: Sequence[Row], facts: Mapping[str, object]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    content = {"facts": facts, "rows": [asdict(row) for row in rows]}
    (out / "shim-gpu.json").write_text(json.dumps(content, indent=1) + "\n")
    (out / "shim-gpu.md").write_text(as_markdown(rows, facts))


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    library = (options.shim or find_library()).resolve()
    if options.one is not None:
        run_section(options.sections[0], library, options.one, options.budget)
        return 0
    until_s = time.monotonic() + options.budget
    out = Path(os.environ.get("OUT", "shim-gpu-results"))
    work = Path(tempfile.mkdtemp(prefix="topoalloc-shim-gpu-work-"))
    try:
        build_probe(work)
        try:
            build_static_runtime(work)
        except (RuntimeError, subprocess.TimeoutExpired) as problem:
            say(f"no program with the static runtime: {problem}")
        facts = facts_of(library)
        say("; ".join(f"{key}: {value}" for key, value in facts.items()))
        rows: list[Row] = []
        for name in options.sections or SECTIONS:
            left_s = until_s - time.monotonic()
            if left_s < 10:
                rows.append(Row(name, "the section", f"not tried: {left_s:.0f} s left", "", "failed"))
                continue
            rows += run_apart(name, library, work, left_s)
            write_results(out, rows, facts)
        write_results(out, rows, facts)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    count = {
        verdict: sum(row.verdict == verdict for row in rows) for verdict in ("holds", "misses", "failed", "figure")
    }
    say(f"{', '.join(f'{number} {verdict}' for verdict, number in count.items())}; see {out}/shim-gpu.md")
    return 0 if not count["misses"] and not count["failed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
