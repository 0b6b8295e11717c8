"""Conversations recorded from Kubernetes 1.37.2's own packages: ours come to the same answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.admission import replay
from tests.admission.replayed_node import NodeReplay

RECORDED = Path(__file__).parent / "recorded"


def cases(name: str) -> list[Any]:
    return [pytest.param(case, id=str(i)) for i, case in enumerate(json.loads((RECORDED / name).read_text()))]


@pytest.mark.parametrize("case", cases("merges.json"))
def test_a_merge_comes_to_the_same_hint_and_verdict(case: Any) -> None:
    assert case["answers"] == replay.merged(case["request"])


@pytest.mark.parametrize("case", cases("takes.json"))
def test_the_same_cpus_are_taken_or_the_same_error_is_given(case: Any) -> None:
    assert case["answers"] == replay.taken(case["request"])


@pytest.mark.parametrize("case", cases("cpu_conversations.json"))
def test_the_cpu_manager_gives_the_same_hints_cpus_and_errors(case: Any) -> None:
    assert case["answers"] == replay.replay_cpus(case["request"])


@pytest.mark.parametrize("case", cases("memory_conversations.json"))
def test_the_memory_manager_gives_the_same_hints_state_and_errors(case: Any) -> None:
    assert case["answers"] == replay.replay_memory(case["request"])


@pytest.mark.parametrize("case", cases("device_conversations.json"))
def test_the_device_manager_gives_the_same_hints_asks_the_same_and_chooses_what_it_may(case: Any) -> None:
    request, answers = case["request"], case["answers"]
    manager = replay.DeviceReplay(request["nodes"])

    for step, told in zip(request["steps"], answers, strict=True):
        manager.step(step, told)


@pytest.mark.parametrize("case", cases("admissions.json"))
def test_whole_pods_are_admitted_and_refused_alike_with_the_same_words_and_resources(case: Any) -> None:
    request, answers = case["request"], case["answers"]
    node = NodeReplay(request)

    for step, told in zip(request["steps"], answers, strict=True):
        node.step(step, told)
