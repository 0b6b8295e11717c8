"""Kubernetes' own admission code and topoalloc.admission answer the same questions, and no answer differs.

The questions are drawn by Hypothesis. 500 cases are compared in the quick run, over 20,000 with TOPOALLOC_SLOW=1.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from tests.e2e.semantics.judged import KINDS, Json, Judge
from tests.e2e.semantics.oracle import Oracle, OracleFailed

SLOW = bool(os.environ.get("TOPOALLOC_SLOW"))
MANAGERS = ("merge", "take", "devices", "cpus", "memory", "node")
CASES_MIN = 20_000 if SLOW else 500

pytestmark = [pytest.mark.timeout(7_200), *([pytest.mark.slow] if SLOW else [])]


class Comparisons:
    """Each kind of question is put once in a session, whichever test asks for it first."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._judges: dict[str, Judge] = {}
        self._failures: dict[str, Exception] = {}

    def of(self, name: str) -> Judge:
        if name in self._failures:
            raise self._failures[name]
        if name not in self._judges:
            try:
                self._judges[name] = compared(name, Judge(self._oracle))
            except Exception as failure:
                self._failures[name] = failure
                raise
        return self._judges[name]


def compared(name: str, judge: Judge) -> Judge:
    """Hypothesis draws the cases. An oracle that fails is no case to be made smaller, so it ends the comparison."""
    kind = KINDS[name]
    failures: list[OracleFailed] = []

    def one_case(question: Json) -> None:
        if failures:
            return
        judge.cases += 1
        try:
            kind.judged(judge, question)
        except OracleFailed as failed:
            failures.append(failed)

    many = settings(max_examples=kind.slow if SLOW else kind.quick, suppress_health_check=list(HealthCheck))
    started = time.monotonic()
    many(given(kind.cases)(one_case))()
    judge.seconds = time.monotonic() - started
    if failures:
        raise failures[0]
    return judge


@pytest.fixture(scope="session")
def comparisons() -> Iterator[Comparisons]:
    with Oracle() as oracle:
        yield Comparisons(oracle)


def test_the_topology_manager_starts_merges_and_admits_alike_under_every_policy_and_option(comparisons: Comparisons):
    assert comparisons.of("merge").compared > 0


def test_the_same_cpus_are_taken(comparisons: Comparisons):
    assert comparisons.of("take").compared > 0


def test_the_device_manager_gives_the_same_hints_and_asks_plugins_the_same(comparisons: Comparisons):
    assert comparisons.of("devices").compared > 0


def test_the_cpu_manager_gives_the_same_hints_and_cpus(comparisons: Comparisons):
    assert comparisons.of("cpus").compared > 0


def test_the_memory_manager_gives_the_same_hints_and_blocks(comparisons: Comparisons):
    assert comparisons.of("memory").compared > 0


def test_whole_pods_are_admitted_and_refused_alike_in_the_same_words(comparisons: Comparisons):
    assert comparisons.of("node").compared > 0


@pytest.mark.parametrize("kind", ["quantity", "totals", "fit"])
def test_quantities_totals_of_pods_and_the_fit_check_are_the_same(comparisons: Comparisons, kind: str):
    assert comparisons.of(kind).compared > 0


def test_as_many_cases_were_compared_as_promised(comparisons: Comparisons, capsys: pytest.CaptureFixture[str]):
    judges = {name: comparisons.of(name) for name in KINDS}

    with capsys.disabled():
        print(f"\n{'':<10}{'cases':>8}{'answers':>9}{'s':>7}")
        for name, judge in judges.items():
            outcomes = ", ".join(f"{outcome} {count}" for outcome, count in judge.outcomes.most_common())
            print(f"{name:<10}{judge.cases:>8}{judge.compared:>9}{judge.seconds:>7.0f}  {outcomes}")
        print(f"{'all':<10}{sum(j.cases for j in judges.values()):>8}{sum(j.compared for j in judges.values()):>9}")
    assert sum(judges[name].cases for name in MANAGERS) >= CASES_MIN
