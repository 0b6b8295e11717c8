"""Follows what the agent of a node says while a test acts on it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.cluster.node import Node
from tests.e2e.deployment import NAMESPACE

LOOK_S = 0.001
_TOOK = re.compile(r": (?P<call>GetPreferredAllocation|Allocate) \S+ for .*?: \d+ devices in (?P<ms>[\d.]+) ms; ")
_ASKED = re.compile(r"asked (?P<resource>\S+) for (?P<owner>\S+): ")


@dataclass
class AgentLog:
    """What was said since this object was made, over restarts of the container."""

    node: Node

    def __post_init__(self) -> None:
        self._ends = {file: file.stat().st_size for file in self._files()}

    def _files(self) -> list[Path]:
        return sorted((self.node.base / "pods").glob(f"{NAMESPACE}_*/agent/*.log"))

    def text(self) -> str:
        return "".join(_from(file, self._ends.get(file, 0)) for file in self._files())

    def first_resources(self) -> list[str]:
        """The resource that the kubelet asked for first, of each container that it asked about more than one."""
        asked: dict[str, list[str]] = {}
        for match in _ASKED.finditer(self.text()):
            asked.setdefault(match["owner"], []).append(match["resource"])
        return [resources[0] for resources in asked.values() if len(resources) > 1]

    def call_seconds(self) -> dict[str, list[float]]:
        """How long the agent says each GetPreferredAllocation and Allocate took."""
        found: dict[str, list[float]] = {}
        for match in _TOOK.finditer(self.text()):
            found.setdefault(match["call"], []).append(float(match["ms"]) / 1000)
        return found

    def calls_for(self, pod: str) -> tuple[int, int]:
        """How many questions and allocations for a pod of the default namespace were answered."""
        lines = [line for line in self.text().splitlines() if f" for default/{pod}/" in line]
        return sum(": GetPreferredAllocation " in line for line in lines), sum(": Allocate " in line for line in lines)

    def wait_for_line(self, *words: str, timeout_s: float) -> bool:
        """Whether a line with all these words comes in time; looks every millisecond."""
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            if any(all(word in line for word in words) for line in self.text().splitlines()):
                return True
            time.sleep(LOOK_S)
        return False


def _from(file: Path, offset: int) -> str:
    with file.open("rb") as opened:
        opened.seek(offset)
        return opened.read().decode(errors="replace")
