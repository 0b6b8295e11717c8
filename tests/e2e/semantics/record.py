"""Writes tests/admission/recorded anew: a sample of cases with upstream's answers, for tests that have no oracle.

`python -m tests.e2e.semantics.record`, after `make e2e-components COMPONENTS=oracle`. The same cases are drawn each
time; the answers differ where upstream chooses devices at random.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.e2e.semantics.judged import KINDS, Judge
from tests.e2e.semantics.oracle import Oracle

Json = Any
RECORDED = Path(__file__).parents[2] / "admission" / "recorded"
SEED = 7
CASE_CHARACTERS_MAX = 6_000  # a longer case says little more and is long to read


@dataclass(frozen=True, slots=True)
class Corpus:
    """One recorded file: the kind of its cases, how many are drawn, how many of the answers are kept."""

    file: str
    kind: str
    drawn: int
    kept: int


CORPORA = (
    Corpus("merges.json", "merge", 250, 160),
    Corpus("takes.json", "take", 250, 120),
    Corpus("cpu_conversations.json", "cpus", 150, 40),
    Corpus("memory_conversations.json", "memory", 150, 40),
    Corpus("device_conversations.json", "devices", 200, 50),
    Corpus("admissions.json", "node", 250, 60),
)


def recorded(corpus: Corpus, oracle: Oracle) -> list[str]:
    """One line of JSON per case, each judged equal; a difference ends the recording."""
    lines: list[str] = []

    def keep(question: Json, answer: Json) -> None:
        line = json.dumps({"request": question, "answers": answer}, separators=(",", ":"), sort_keys=True)
        if len(line) < CASE_CHARACTERS_MAX:
            lines.append(line)

    judge, kind = Judge(oracle, kept=keep), KINDS[corpus.kind]
    drawn = settings(
        max_examples=corpus.drawn,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    seed(SEED)(drawn(given(kind.cases)(lambda question: kind.judged(judge, question))))()
    lines = sorted(set(lines))
    return random.Random(SEED).sample(lines, min(corpus.kept, len(lines)))


def main() -> int:
    with Oracle() as oracle:
        for corpus in CORPORA:
            lines = recorded(corpus, oracle)
            (RECORDED / corpus.file).write_text("[\n" + ",\n".join(lines) + "\n]\n")
            print(f"{corpus.file}: {len(lines)} cases")
    return 0


if __name__ == "__main__":
    sys.exit(main())
