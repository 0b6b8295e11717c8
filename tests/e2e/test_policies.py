"""Every policy of the Topology Manager, container and pod scope: who is admitted, who is refused and with which words,
and that what the kubelet recorded is what the container got.

The machine has two NUMA nodes with 48 CPUs, 64 GiB, four GPUs and four NICs each; CPU Manager static, Memory Manager
Static. Every case starts on an empty node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.kubelet_files import KubeletSettings
from tests.e2e.deployment import Deployment
from tests.e2e.judge import cpus_asked, faults, key_of, specifications
from tests.e2e.pod_resources import PodResourcesOf
from tests.e2e.pods import Verdict, delete_all, events_on, verdict
from tests.e2e.workloads import CORE, MEMORY, NIC, container, pod
from topoalloc.topology.cpus import CpuSet

NONE, BEST, RESTRICTED, SINGLE = "none", "best-effort", "restricted", "single-numa-node"
COMBINATIONS = [(policy, scope) for policy in (NONE, BEST, RESTRICTED, SINGLE) for scope in ("container", "pod")]
STRICT = frozenset(pair for pair in COMBINATIONS if pair[0] in (RESTRICTED, SINGLE))
ALIGNED = frozenset(pair for pair in COMBINATIONS if pair[0] != NONE)
AFFINITY, UNEXPECTED = "TopologyAffinityError", "UnexpectedAdmissionError"
AFFINITY_TEXT = "Resources cannot be allocated with Topology locality"


@dataclass(frozen=True)
class Case:
    """A pod, the combinations that refuse it, and the reason and words a user sees there."""

    name: str
    containers: tuple[dict[str, Any], ...]
    refused_under: frozenset[tuple[str, str]] = frozenset()
    reason: str = AFFINITY
    words: str = AFFINITY_TEXT


def one(**limits: int | str) -> tuple[dict[str, Any], ...]:
    return (container("c", named(**limits)),)


def named(**limits: int | str) -> dict[str, int | str]:
    names = {"cores": CORE, "units": MEMORY, "nics": NIC}
    return {names.get(key, key): value for key, value in limits.items()}


CASES = [
    Case("share-nic-cpus", one(cores=30, units=16, nics=1, cpu=2, memory="1Gi")),
    Case("two-whole-with-nics", one(cores=200, nics=2, cpu=4, memory="1Gi")),
    Case(
        "two-containers",
        (*one(cores=200, nics=1, cpu=4, memory="1Gi"), container("d", named(cores=25, units=8, cpu=1, memory="1Gi"))),
    ),
    Case("five-whole", one(cores=500), frozenset(pair for pair in STRICT if pair[0] == SINGLE)),
    # GPUs need two nodes at least, CPUs one: the widths differ, so no hint is preferred.
    Case("five-whole-and-cpus", one(cores=500, cpu=2, memory="1Gi"), STRICT),
    Case("more-cpus-than-a-node", one(cores=100, cpu=60, memory="1Gi"), STRICT),
    Case("more-memory-than-a-node", one(cores=100, cpu=1, memory="70Gi"), STRICT),
    # Container scope puts one half on each node; pod scope wants both on one.
    Case(
        "two-halves-of-a-machine",
        (*one(cores=300), container("d", named(cores=300))),
        frozenset({(SINGLE, "pod")}),
    ),
    Case("no-share-of-two-gpus", one(cores=150), frozenset(COMBINATIONS), UNEXPECTED, "150"),
    Case("more-memory-than-a-gpu", one(cores=30, units=400), frozenset(COMBINATIONS), UNEXPECTED, "400"),
]


@pytest.fixture(scope="module")
def cluster(images: tuple[Any, ...]) -> Iterator[Cluster]:
    with Cluster("azure-ndv5.nccl-topo.xml", cpu_manager="static", memory_manager="Static", images=images) as made:
        yield made


@pytest.fixture(scope="module", params=COMBINATIONS, ids="-".join)
def combination(request: pytest.FixtureRequest, cluster: Cluster) -> tuple[str, str]:
    """The cluster's only node, empty and under this policy and scope."""
    policy, scope = request.param
    node = cluster.nodes[0]
    deployment = Deployment(cluster)
    node.reconfigure(KubeletSettings(policy, scope, "static", "Static"))
    cluster.wait_ready()
    deployment.apply()
    deployment.wait_registered()
    return policy, scope


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Case]:
    yield request.param
    delete_all(cluster)


def test_a_pod_is_admitted_or_refused_as_the_policy_says(
    cluster: Cluster, combination: tuple[str, str], case: Case
) -> None:
    cluster.apply(pod("p", case.containers))

    seen = verdict(cluster, "p")

    if combination in case.refused_under:
        assert (seen.admitted, seen.reason) == (False, case.reason)
        assert case.words in seen.message
        assert any(case.words in event["message"] for event in events_on(cluster, "p"))
    else:
        assert seen == Verdict(True, "", "")
        check_what_was_given(cluster, combination, case)


def check_what_was_given(cluster: Cluster, combination: tuple[str, str], case: Case) -> None:
    """PodResources, the container's specification and the machine agree; under a policy everything is on one node."""
    node = cluster.nodes[0]
    assert faults(cluster, node) == []
    listed = PodResourcesOf(node.pod_resources).listed()
    specs = specifications(node)
    for wanted in case.containers:
        limits = wanted["resources"]["limits"]
        held = listed["p", wanted["name"]]
        for resource in (CORE, MEMORY, NIC):
            assert len(held.devices.get(resource, ())) == int(limits.get(resource, 0)), resource
        assert len(held.cpus) == int(limits.get("cpu", 0))
        if held.cpus:
            assert CpuSet.from_list(cpus_asked(specs["p", wanted["name"]])) == CpuSet.of(held.cpus)
        if combination in ALIGNED and case.name in ("share-nic-cpus", "two-whole-with-nics", "two-containers"):
            assert len(nodes_of(cluster, held.devices, held.cpus) | set(held.memory_nodes)) == 1


def nodes_of(cluster: Cluster, devices: dict[str, tuple[str, ...]], cpus: tuple[int, ...]) -> set[object]:
    """The NUMA nodes that a container's GPUs, NICs and CPUs are on, by the machine's own description."""
    by_key = {str(device.bdf): device.numa_node for device in (*cluster.machine.gpus, *cluster.machine.nics)}
    keys = {key_of(device) for device in (*devices.get(CORE, ()), *devices.get(MEMORY, ()))}
    nodes: set[object] = {by_key[key] for key in (*keys, *devices.get(NIC, ()))}
    for node in cluster.nodes[0].layout:
        nodes |= {node.id for cpu in cpus if cpu in node.cpus}
    return nodes
