"""The DaemonSet's pod as the kernel sees it, and the node without the API server."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.namespaces import wait_for
from tests.e2e.deployment import NAMESPACE, Deployment
from tests.e2e.judge import faults
from tests.e2e.pod_resources import PodResourcesOf
from tests.e2e.workloads import CORE, MEMORY, NIC, container, pod

STATIC_S = 60.0
SECCOMP_FILTER = "2"  # proc_pid_status(5)
CREDENTIALS = "/run/secrets"  # /var/run is a link to /run


@pytest.fixture(scope="module")
def cluster(images: tuple[Path, ...]) -> Iterator[Cluster]:
    with Cluster("azure-ndv5.nccl-topo.xml", "single-numa-node", nodes=2, images=images) as made:
        Deployment(made).apply()
        Deployment(made).wait_registered()
        yield made


def amounts(kubelet: PodResourcesOf, owner: tuple[str, str]) -> list[int]:
    """Cores, memory units and NICs that a container holds by now."""
    held = kubelet.listed().get(owner)
    return [len(held.devices.get(resource, ())) if held else 0 for resource in (CORE, MEMORY, NIC)]


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def mounts_of(pid: int) -> list[list[str]]:
    return [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]


@pytest.mark.parametrize("verb", ["agent", "publish"])
def test_a_container_has_no_capability_no_way_to_get_one_and_no_root_to_write_to(cluster: Cluster, verb: str) -> None:
    pid = Deployment(cluster).process(cluster.nodes[0], verb)
    assert pid is not None

    status = status_of(pid)

    none = "0" * 16
    assert [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")] == [none] * 5
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == SECCOMP_FILTER
    (root,) = [mount for mount in mounts_of(pid) if mount[4] == "/"]
    assert "ro" in root[5].split(",")


def test_only_the_container_that_talks_to_the_api_server_has_credentials(cluster: Cluster) -> None:
    deployment, node = Deployment(cluster), cluster.nodes[0]
    agent, publish = (deployment.process(node, verb) for verb in ("agent", "publish"))
    assert agent is not None and publish is not None

    assert not [mount for mount in mounts_of(agent) if mount[4].startswith(CREDENTIALS)]
    assert [mount for mount in mounts_of(publish) if mount[4].startswith(CREDENTIALS)]


def test_without_the_api_server_shares_are_given_and_a_killed_agent_comes_back(cluster: Cluster) -> None:
    """Only static pods can arrive then; the kubelet takes them from a folder."""
    node, deployment = cluster.nodes[0], Deployment(cluster)
    kubelet = PodResourcesOf(node.pod_resources)
    cluster.control_plane.processes["kube-apiserver"].end(signal.SIGKILL)
    try:
        for number in range(2):
            manifest = pod(f"static{number}", [container("c", {CORE: 30, MEMORY: 16, NIC: 1})], node=None)
            (node.base / "static" / f"static{number}.json").write_text(json.dumps(manifest))
            there = (f"static{number}-{node.name}", "c")
            wait_for(lambda there=there: amounts(kubelet, there) == [30, 16, 1], STATIC_S, f"{there} has all", 0.2)
            pid = deployment.wait_agent(node)
            os.kill(pid, signal.SIGKILL)
            deployment.wait_agent(node, other_than=pid)
            wait_for(lambda: deployment.kubelet_has_some(node), STATIC_S, "every resource is back")

        assert faults(cluster, node) == []
    finally:
        cluster.control_plane.start_api_server()


@dataclass(frozen=True)
class Attempt:
    """A change of a node that somebody tries with the token of the pod on node-0."""

    name: str
    node: str
    change: dict[str, Any]
    words: str = ""  # of the refusal; empty where it is allowed


ATTEMPTS = [
    Attempt("a label of ours", "node-0", {"metadata": {"labels": {"topoalloc.io/e2e": "1"}}}),
    Attempt(
        "another node", "node-1", {"metadata": {"labels": {"topoalloc.io/e2e": "1"}}}, "may not change node node-1"
    ),
    Attempt("a foreign label", "node-0", {"metadata": {"labels": {"example.com/e2e": "1"}}}, "no label of a node but"),
    Attempt(
        "a foreign annotation",
        "node-0",
        {"metadata": {"annotations": {"example.com/e2e": "1"}}},
        "no annotation of a node but",
    ),
    Attempt("the spec", "node-0", {"spec": {"unschedulable": True}}, "may not change the spec"),
    Attempt(
        "the finalizers", "node-0", {"metadata": {"finalizers": ["example.com/e2e"]}}, "may not change the finalizers"
    ),
]


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
def test_the_token_of_a_pod_changes_keys_of_ours_on_its_own_node_alone(cluster: Cluster, attempt: Attempt) -> None:
    plane = cluster.control_plane
    pods = cluster.get("pods", "-n", NAMESPACE, "--field-selector", "spec.nodeName=node-0")["items"]
    bound = ("--bound-object-kind", "Pod", "--bound-object-name", pods[0]["metadata"]["name"])
    token = cluster.kubectl("-n", NAMESPACE, "create", "token", "topoalloc", *bound).strip()

    status, answer = plane.attempt("PATCH", f"/api/v1/nodes/{attempt.node}", attempt.change, token)

    assert status == (422 if attempt.words else 200), answer
    assert attempt.words in answer
