"""One question at a time put to upstream and to topoalloc.admission: equal answers, or an AssertionError.

Where upstream leaves a choice to chance (which devices are picked, what is left of a container that failed half way)
its choice is followed, or the rest of the conversation left out and counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from tests.admission import replay
from tests.admission.replayed_node import NodeReplay
from tests.e2e.semantics import cpu_cases, device_cases, memory_cases, merge_cases, node_cases, pod_cases
from tests.e2e.semantics.oracle import Oracle
from topoalloc.admission.pod import pod_limits, pod_requests, qos
from topoalloc.admission.policy import Policy
from topoalloc.admission.predicates import fit
from topoalloc.admission.quantity import parse_quantity
from topoalloc.errors import InputError

Json = Any
HANG: Json = {"hang": True}
# A question that upstream never answers costs 30 s; these are enough to see that it still does not.
HANGS_ASKED_MAX = 2
INT64_MAX = 2**63 - 1
REFUSED_IN_ORDER = ("OutOfpods", "OutOfcpu", "OutOfmemory", "OutOfephemeral-storage")


@dataclass(slots=True)
class Judge:
    """What was asked and what came out; `kept` are the questions and answers that can be replayed."""

    oracle: Oracle
    cases: int = 0
    compared: int = 0  # questions whose answers were found equal; a case can hold several
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    kept: Callable[[Json, Json], None] = lambda question, answer: None

    def agreed(self, question: Json, answer: Json, *, replayable: bool = True) -> None:
        """Count an answer; `replayable` unless it is equal in meaning only, or not to its end."""
        self.compared += 1
        if replayable:
            self.kept(question, answer)


def merge(judge: Judge, question: Json) -> None:
    """The same hints under all four policies."""
    questions = [{**question, "policy": str(policy)} for policy in Policy]
    for asked, told in zip(questions, judge.oracle.ask_all(questions), strict=True):
        ours = replay.merged(asked)
        if "panic" in told:
            assert "crashes the kubelet" in ours.get("error", ""), (asked, told, ours)
            outcome = "upstream panics"
        elif "crashes the kubelet" in ours.get("error", ""):
            outcome = "upstream could panic"  # it did not come to compare two masks of one size
        elif "error" in told:
            assert same_start_error(told["error"], ours.get("error", "")), (asked, told, ours)
            outcome = "start refused"
        else:
            assert told == ours, (asked, told, ours)
            outcome = f"{asked['policy']} {'admits' if told['admit'] else 'refuses'}"
        judge.outcomes[outcome] += 1
        judge.agreed(asked, told, replayable=told == ours)


def same_start_error(told: str, ours: str) -> bool:
    """Of several options at fault upstream names one at random, in the words of Go's parsers: any error is like it."""
    about_the_machine = told.startswith(("unsupported on machines", "cannot discover NUMA"))
    return ours == told if about_the_machine else ours != ""


def take(judge: Judge, question: Json) -> None:
    ours = replay.taken(question)
    if ours == HANG:
        judge.outcomes["hangs"] += 1
        if judge.outcomes["hangs"] > HANGS_ASKED_MAX:
            return
    told = judge.oracle.ask(question)
    assert told == ours, (question, told, ours)
    judge.outcomes["taken" if "cpus" in told else "refused"] += 1
    judge.agreed(question, told)


def cpus(judge: Judge, question: Json) -> None:
    try:
        ours = replay.replay_cpus(question)
    except replay.LeftToChance:
        judge.outcomes["hangs"] += 1
        return
    told = judge.oracle.ask(question)
    if ours is None:
        assert "error" in told, (question, told)
        judge.outcomes["start refused"] += 1
    else:
        compare_steps(judge, question, told, ours)
    judge.agreed(question, told, replayable=ours is not None)


def memory(judge: Judge, question: Json) -> None:
    told = judge.oracle.ask(question)
    try:
        ours = replay.replay_memory(question)
    except InputError:
        # Upstream subtracts without a sign and starts with 16 EiB (policy_static.go:getDefaultMachineState).
        judge.outcomes["more reserved than there is"] += 1
        judge.agreed(question, told, replayable=False)
        assert "panic" in told or largest_table(told[0]) > INT64_MAX, (question, told)
        return
    if isinstance(ours, str):
        assert "nil pointer" in told["panic"], (question, told)
        judge.outcomes["upstream panics"] += 1
        judge.agreed(question, told, replayable=False)
        return
    compare_steps(judge, question, told, ours)
    judge.agreed(question, told)


def largest_table(state: Json) -> int:
    """The largest amount in a memory manager's state, in bytes."""
    return max(amount for node in state.values() for table in node["kinds"].values() for amount in table)


def compare_steps(judge: Judge, question: Json, told: Json, ours: list[Json]) -> None:
    assert isinstance(told, list), (question, told)
    for step, theirs, mine in zip([None, *question["steps"]], told, ours, strict=True):
        assert theirs == mine, (question, step, theirs, mine)
        if step is not None:
            refused = isinstance(theirs, dict) and "error" in theirs
            judge.outcomes["refused" if refused else step["do"]] += 1


def devices(judge: Judge, question: Json) -> None:
    told = judge.oracle.ask(question)
    assert isinstance(told, list), (question, told)
    ours = replay.DeviceReplay(question["nodes"])
    follow(judge, question, told, ours.step)
    judge.outcomes.update(ours.seen)


def node(judge: Judge, question: Json) -> None:
    told = judge.oracle.ask(question)
    assert isinstance(told, list), (question, told)
    ours = NodeReplay(question)
    follow(judge, question, told, ours.step)
    judge.outcomes.update(ours.outcomes)


def follow(judge: Judge, question: Json, told: Json, step: Callable[[Json, Json], None]) -> None:
    """Step by step with upstream's answers, as far as they are not left to chance."""
    try:
        for asked, answer in zip(question["steps"], told, strict=True):
            try:
                step(asked, answer)
            except AssertionError as difference:
                raise AssertionError(f"{difference}\nat {asked}\nof {question}") from difference
    except replay.LeftToChance:
        judge.outcomes["left to chance from some step on"] += 1
        judge.agreed(question, told, replayable=False)
        return
    judge.agreed(question, told)


def quantity(judge: Judge, question: Json) -> None:
    told = judge.oracle.ask(question)
    judge.agreed(question, told)
    try:
        ours = parse_quantity(question["text"])
    except InputError as refusal:
        if "larger than 2^63-1" in str(refusal):
            # Upstream caps them at that; a node never has so much.
            assert abs(Decimal(told["dec"])) > INT64_MAX, (question, told)
        elif "exponent of" not in str(refusal) and re.search("[0-9]", re.split("[eE]", question["text"])[0]):
            assert "error" in told or "panic" in told, (question, told, str(refusal))
        judge.outcomes["refused"] += 1
        return
    assert "dec" in told, (question, told, ours)
    nanos = Decimal(told["dec"]) * 10**9
    assert nanos == ours.nanos, (question, told, ours)
    if ours.nanos >= 0 and ours.milli < INT64_MAX:
        assert (told["value"], told["milli"]) == (str(ours.value), str(ours.milli)), (question, told, ours)
    judge.outcomes["read"] += 1


def totals(judge: Judge, question: Json) -> None:
    told = judge.oracle.ask(question)
    pod = replay.read_pod(question["pod"])
    ours = {
        "qos": qos(pod),
        "requests": {name: amount.nanos for name, amount in pod_requests(pod).items()},
        "limits": {name: amount.nanos for name, amount in pod_limits(pod).items()},
    }
    theirs = {
        "qos": told["qos"],
        "requests": {name: int(Decimal(text) * 10**9) for name, text in told["requests"].items()},
        "limits": {name: int(Decimal(text) * 10**9) for name, text in told["limits"].items()},
    }
    assert theirs == ours, (question, theirs, ours)
    judge.outcomes[told["qos"]] += 1
    judge.agreed(question, told)


def fits(judge: Judge, question: Json) -> None:
    """Cpu, memory and ephemeral storage are checked in this order, the rest in a random one: of those that are short
    upstream may name another than ours, which is then given enough of, so that ours names the next."""
    told = judge.oracle.ask(question)
    amounts = dict(question["allocatable"])
    pods_max = int(amounts.pop("pods"))
    allocatable = {name: int(text) * (1000 if name == "cpu" else 1) for name, text in amounts.items()}
    pod, others = replay.read_pod(question["pod"]), [replay.read_pod(other) for other in question["others"]]
    refusal = fit(pod, others, allocatable, pods_max=pods_max)
    judge.agreed(question, told)
    judge.outcomes["fits" if refusal is None else "refused"] += 1
    assert told["admit"] == (refusal is None), (question, told, refusal)
    while refusal is not None and refusal.reason != told["reason"] and refusal.reason not in REFUSED_IN_ORDER:
        allocatable[refusal.reason.removeprefix("OutOf")] = INT64_MAX
        refusal = fit(pod, others, allocatable, pods_max=pods_max)
    if not told["admit"]:
        assert refusal is not None, (question, told)
        assert (told["reason"], told["message"]) == (refusal.reason, refusal.message), (question, told, refusal)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of question: its cases, how an answer is judged, how many cases a quick and a slow run take."""

    cases: st.SearchStrategy[Json]
    judged: Callable[[Judge, Json], None]
    quick: int
    slow: int


KINDS = {
    "merge": Kind(merge_cases.merges(), merge, 150, 5_000),
    "take": Kind(cpu_cases.takes(), take, 110, 5_500),
    "devices": Kind(device_cases.conversations(), devices, 60, 3_000),
    "cpus": Kind(cpu_cases.conversations(), cpus, 60, 2_500),
    "memory": Kind(memory_cases.conversations(), memory, 60, 2_500),
    "node": Kind(node_cases.admissions(), node, 60, 2_000),
    "quantity": Kind(pod_cases.quantities(), quantity, 100, 2_000),
    "totals": Kind(pod_cases.totals(), totals, 40, 1_000),
    "fit": Kind(pod_cases.fits(), fits, 40, 1_000),
}
