"""What was measured: rows, kept as lines of JSON while a section runs, in the end one JSON and one table."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

BEGAN_VARIABLE = "TOPOALLOC_GPU_BEGAN"  # so that the sections, each a process, tell one time
_BEGAN_AT_S = float(os.environ.setdefault(BEGAN_VARIABLE, str(time.monotonic())))


@dataclass(frozen=True)
class Row:
    """`verdict`: the target holds or misses, the row failed, or it is a figure without a target."""

    section: str
    what: str
    measured: str
    target: str = ""
    verdict: str = "figure"
    figures: Mapping[str, object] = field(default_factory=dict)


def judged(holds: bool) -> str:
    return "holds" if holds else "misses"


def say(text: str) -> None:
    """One write, so that lines of several threads stay whole."""
    sys.stdout.write(f"[{time.monotonic() - _BEGAN_AT_S:6.1f}] {text}\n")
    sys.stdout.flush()


@dataclass
class Record:
    """Rows of one section, each on disk as soon as it is known."""

    section: str
    path: Path

    def add(self, what: str, measured: str, target: str = "", verdict: str = "figure", **figures: object) -> None:
        row = Row(self.section, what, measured, target, verdict, figures)
        with self.path.open("a") as lines:
            lines.write(json.dumps(asdict(row)) + "\n")
        mark = {"holds": "+", "misses": "-", "failed": "!", "figure": " "}[verdict]
        say(f"{mark} {self.section}: {what}: {measured}" + (f" (target {target})" if target else ""))

    def failed(self, what: str, problem: BaseException | str) -> None:
        text = problem if isinstance(problem, str) else f"{type(problem).__name__}: {problem}"
        self.add(what, text[:600].replace("\n", " / "), "", "failed")


def read_rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    return [Row(**json.loads(line)) for line in path.read_text().splitlines() if line.endswith("}")]


def as_markdown(rows: Iterable[Row], facts: Mapping[str, object]) -> str:
    lines = ["# The sharing library on a GPU", ""]
    lines += [f"- {key}: {value}" for key, value in facts.items()]
    section = ""
    for row in rows:
        if row.section != section:
            section = row.section
            lines += ["", f"## {section}", "", "| what | measured | target | verdict |", "| --- | --- | --- | --- |"]
        cells = (row.what, row.measured, row.target, row.verdict)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
