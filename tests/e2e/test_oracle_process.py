"""The oracle as a process: what it says of questions without an answer, and how its own failures are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.semantics.oracle import Oracle, OracleFailed

MERGE: dict[str, Any] = {"op": "merge", "nodes": [0, 1], "policy": "restricted", "answers": [{"a.io/x": []}]}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "read question; echo 'fatal error: out of memory' >&2; exit 2",
            "crashed; asked: .*restricted.*\nits last words: fatal error",
        ),
        ("read question; exec sleep 60", "said nothing for 0.5 s; asked: .*restricted"),
        ("read question; echo hello", "answered b'hello', which is no JSON; asked: .*restricted"),
    ],
    ids=["crash", "silence", "nonsense"],
)
def test_a_failing_oracle_is_named_with_the_question_that_it_failed_at(tmp_path: Path, script: str, reason: str):
    program = tmp_path / "oracle"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)

    with (
        Oracle(program, answer_max_s=0.5 if "sleep" in script else 30) as oracle,
        pytest.raises(OracleFailed, match=f"(?s){reason}"),
    ):
        oracle.ask(MERGE)


def test_many_questions_at_once_are_answered_in_their_order():
    masks = list(range(1, 4)) * 1_000
    hints = [{**MERGE, "answers": [{"a.io/x": [{"mask": mask, "preferred": True}]}]} for mask in masks]

    with Oracle() as oracle:
        assert [answer["mask"] for answer in oracle.ask_all(hints)] == masks


def test_a_panic_of_upstream_is_an_answer_and_the_oracle_goes_on():
    sparse = {**MERGE, "nodes": [0, 5], "distances": {0: [10, 21], 5: [21, 10]}}
    closest = {**sparse, "options": {"prefer-closest-numa-nodes": "true"}}
    both = [{"mask": 1, "preferred": True}, {"mask": 32, "preferred": True}]

    with Oracle() as oracle:
        answers = oracle.ask_all([{**closest, "answers": [{"a.io/x": both}]}, MERGE])

    assert "index out of range" in answers[0]["panic"]
    assert answers[1] == {"mask": 3, "preferred": False, "admit": False}


@pytest.mark.parametrize("op", ["", "divine"])
def test_an_unknown_question_is_answered_as_such(op: str):
    with Oracle() as oracle:
        assert oracle.ask({"op": op}) == {"panic": f"unknown op {op}"}
