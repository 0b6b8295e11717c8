"""What became of pods on a real node and in `topoalloc simulate`, put into the same values to be compared.

Core and memory ids are compared by the GPU that they name and not one by one: which of a GPU's ids a container has
decides nothing (docs/adr/0001), and a kubelet that takes part of what an init container left takes any.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.cluster.node import Node
from tests.e2e.cluster.numa_layout import as_laid
from tests.e2e.judge import key_of
from tests.e2e.pod_resources import Held
from tests.e2e.pods import Verdict
from tests.e2e.workloads import NIC
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Machine
from topoalloc.topology.snapshot import dump

SIMULATE_S = 300.0
_ASKED = re.compile(
    r"asked (?P<resource>\S+) for default/(?P<pod>[^/\s]+)/(?P<container>[^/\s]+): (?P<size>\d+) of "
    r"\[(?P<offered>[^]]*)\], must include \[(?P<must>[^]]*)\]: answered \[(?P<answered>[^]]*)\]"
)
_UNNAMED = re.compile(r"asked \S+ for unnamed container")


@dataclass(frozen=True)
class Question:
    """One GetPreferredAllocation as the agent's log tells it; devices as `<device> x<count>, ...`."""

    size: int
    offered: str
    must_include: str
    answered: str


@dataclass(frozen=True)
class Seen:
    """One pod on one side. `questions` by (container, resource); of what its containers hold: `devices` as device ->
    count by (container, resource), `cpus` and `memory_nodes` by container. A container that has ended holds nothing."""

    verdict: Verdict
    questions: Mapping[tuple[str, str], Question]
    devices: Mapping[tuple[str, str], Mapping[str, int]] = field(default_factory=dict)
    cpus: Mapping[str, str] = field(default_factory=dict)
    memory_nodes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def seen_really(
    pods: Iterable[Mapping[str, Any]],
    verdicts: Mapping[str, Verdict],
    log: str,
    listed: Mapping[tuple[str, str], Held],
) -> dict[str, Seen]:
    """`log` is the agent's, `listed` what PodResources says while the admitted pods run."""
    asked = questions_in(log)
    seen = {}
    for name in names_of(pods):
        held = {container: one for (pod, container), one in listed.items() if pod == name}
        devices = {
            (container, resource): counted(resource, ids)
            for container, one in held.items()
            for resource, ids in one.devices.items()
        }
        cpus = {container: str(CpuSet.of(one.cpus)) for container, one in held.items() if one.cpus}
        memory_nodes = {container: one.memory_nodes for container, one in held.items() if one.memory_nodes}
        seen[name] = Seen(verdicts[name], asked.get(name, {}), devices, cpus, memory_nodes)
    return seen


@dataclass(frozen=True)
class Simulator:
    """`topoalloc simulate` on a node's machine, with the files that its kubelet and its agent read.

    The NUMA nodes are those that the kubelet was shown, also where no source of the machine tells of them.
    """

    machine: Path
    kubelet_config: Path
    agent_config: Path
    folder: Path

    @classmethod
    def of(cls, node: Node, machine: Machine, agent_config: Path, folder: Path) -> Simulator:
        snapshot = folder / "machine.json"
        snapshot.write_text(dump(as_laid(machine, node.layout)))
        return cls(snapshot, node.base / "kubelet.yaml", agent_config, folder)

    def seen(
        self, before: Sequence[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]], seed: int
    ) -> dict[str, Seen]:
        """What becomes of the pods on a node where those of `before` are already; raises where one of these is not
        admitted."""
        file = self.folder / "pods.json"
        file.write_text(json.dumps({"kind": "List", "items": [{"kind": "Pod", **pod} for pod in (*before, *pods)]}))
        arguments = {
            "--node": self.machine,
            "--pods": file,
            "--kubelet-config": self.kubelet_config,
            "--config": self.agent_config,
            "--seed": seed,
            "--as": "json",
        }
        command = [
            sys.executable,
            "-m",
            "topoalloc",
            "simulate",
            *(str(word) for pair in arguments.items() for word in pair),
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SIMULATE_S)
        if done.returncode != 0:
            raise RuntimeError(f"topoalloc simulate: {done.stderr[-2000:]}")
        document = json.loads(done.stdout)
        outcomes = {(pod["namespace"], pod["name"]): pod for pod in document["pods"]}
        for pod in before:
            assert outcomes[pod["metadata"]["namespace"], pod["metadata"]["name"]]["admitted"]
        asked = questions_in(done.stderr)
        return {pod["metadata"]["name"]: _simulated(pod, outcomes, asked) for pod in pods}


def _simulated(
    pod: Mapping[str, Any],
    outcomes: Mapping[tuple[str, str], Any],
    asked: Mapping[str, Mapping[tuple[str, str], Question]],
) -> Seen:
    name = pod["metadata"]["name"]
    outcome = outcomes["default", name]
    verdict = Verdict(outcome["admitted"], outcome["reason"] or "", outcome["message"] or "")
    if not verdict.admitted:
        return Seen(verdict, asked.get(name, {}))
    running = still_running(pod)
    containers = [one for one in outcome["containers"] if one["name"] in running]
    devices = {
        (one["name"], resource): counted(resource, ids)
        for one in containers
        for resource, ids in one["devices"].items()
    }
    cpus = {one["name"]: one["cpus"] for one in containers if one["cpus"]}
    memory_nodes = {one["name"]: tuple(one["memory_nodes"]) for one in containers if one["memory_nodes"]}
    return Seen(verdict, asked.get(name, {}), devices, cpus, memory_nodes)


def questions_in(log: str) -> dict[str, dict[tuple[str, str], Question]]:
    """The questions of a log by pod; raises where the agent did not know whose one was or was asked twice."""
    unnamed = _UNNAMED.search(log)
    if unnamed is not None:
        raise ValueError(f"the agent did not know whom a question was about: {unnamed[0]}")
    found: dict[str, dict[tuple[str, str], Question]] = {}
    for match in _ASKED.finditer(log):
        of_pod = found.setdefault(match["pod"], {})
        key = (match["container"], match["resource"])
        if key in of_pod:
            raise ValueError(f"{match['pod']}: asked twice about {key}")
        of_pod[key] = Question(int(match["size"]), match["offered"], match["must"], match["answered"])
    return found


def counted(resource: str, ids: Iterable[str]) -> dict[str, int]:
    """Ids by the device that they name."""
    return dict(Counter(device if resource == NIC else key_of(device) for device in ids))


def names_of(pods: Iterable[Mapping[str, Any]]) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods]


def still_running(pod: Mapping[str, Any]) -> frozenset[str]:
    """Containers that a pod that has started still has: all but its ordinary init containers."""
    spec = pod["spec"]
    sidecars = [one for one in spec.get("initContainers", ()) if one.get("restartPolicy") == "Always"]
    return frozenset(one["name"] for one in (*spec["containers"], *sidecars))
