"""What `topoalloc publish` tells a real API server from its container of the DaemonSet, under its own account.

The machine has two NUMA nodes with 48 CPUs, four GPUs and four NICs each; single-numa-node, CPU Manager static.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.namespaces import wait_for
from tests.e2e.deployment import Deployment
from tests.e2e.pods import create, delete_all, events_on, verdict
from tests.e2e.workloads import CORE, NIC, container, pod

TOLD_S = 60.0  # coalescing and the pause between two writes are seconds; the rest is for a machine in distress
DESCRIBED_LINE_MAX = 140  # kubectl pkg/describe, maxAnnotationLen
AFFINITY = "TopologyAffinityError"


@pytest.fixture(scope="module")
def cluster(images: tuple[Path, ...]) -> Iterator[Cluster]:
    with Cluster("azure-ndv5.nccl-topo.xml", "single-numa-node", cpu_manager="static", images=images) as made:
        Deployment(made).apply()
        Deployment(made).wait_registered()
        yield made


@pytest.fixture(autouse=True)
def empty(cluster: Cluster) -> Iterator[None]:
    yield
    delete_all(cluster)


def metadata(cluster: Cluster) -> Mapping[str, Any]:
    found: Mapping[str, Any] = cluster.get("node", "node-0")["metadata"]
    return found


def picture(cluster: Cluster) -> str:
    return str(metadata(cluster).get("annotations", {}).get("topoalloc.io/topology", ""))


def wait_for_words(cluster: Cluster, words: str) -> None:
    wait_for(lambda: words in picture(cluster), TOLD_S, f"{words!r} in the annotation of the node", 0.3)


def rejection_event(cluster: Cluster, name: str) -> Mapping[str, Any]:
    def found() -> Mapping[str, Any] | None:
        return next((one for one in events_on(cluster, name) if one["reason"] == "TopologyRejected"), None)

    return wait_for(found, TOLD_S, f"an event of ours on pod {name}", 0.3)


def test_the_labels_of_the_node_say_what_it_is(cluster: Cluster) -> None:
    wait_for_words(cluster, "free: 8 of 8 GPUs whole")

    labels = metadata(cluster)["labels"]
    assert {key: value for key, value in labels.items() if key.startswith("topoalloc.io/")} == {
        "topoalloc.io/gpu-count": "8",
        "topoalloc.io/gpu-memory": "80Gi",
        "topoalloc.io/nic-count": "8",
        "topoalloc.io/numa-nodes": "2",
        "topoalloc.io/topology-policy": "single-numa-node",
        "topoalloc.io/topology-scope": "container",
    }


def test_kubectl_describe_shows_every_line_of_the_picture_whole(cluster: Cluster) -> None:
    wait_for_words(cluster, "free: 8 of 8 GPUs whole")

    described = [line.strip() for line in cluster.kubectl("describe", "node", "node-0").splitlines()]

    lines = picture(cluster).splitlines()
    assert len(lines) > 20
    assert all(len(line) <= DESCRIBED_LINE_MAX and line.strip() in described for line in lines)


def test_the_picture_follows_pods_that_come_and_go(cluster: Cluster) -> None:
    create(cluster, pod("p", [container("c", {CORE: 300, NIC: 1, "cpu": 4, "memory": "1Gi"})]))
    assert verdict(cluster, "p").admitted

    wait_for_words(cluster, "free: 5 of 8 GPUs whole")
    assert picture(cluster).count(" taken") == 1

    delete_all(cluster)
    wait_for_words(cluster, "free: 8 of 8 GPUs whole")


def test_a_rejected_pod_is_told_which_resource_was_in_the_way(cluster: Cluster) -> None:
    for name in ("a", "b"):
        create(cluster, pod(name, [container("c", {CORE: 300})]))
        assert verdict(cluster, name).admitted
    wait_for_words(cluster, "free: 2 of 8 GPUs whole")
    create(cluster, pod("c", [container("c", {CORE: 200})]))
    assert verdict(cluster, "c").reason == AFFINITY

    event = rejection_event(cluster, "c")

    assert event["type"] == "Warning"
    assert f"100 more {CORE} would have to be free on" in event["message"]
    assert f"{CORE} 100/400 on 0, 100/400 on 1" in event["message"]


def test_an_api_server_that_was_away_is_told_what_happened_meanwhile(cluster: Cluster) -> None:
    wait_for_words(cluster, "free: 8 of 8 GPUs whole")
    create(cluster, pod("p", [container("c", {CORE: 100})]))
    cluster.control_plane.processes["kube-apiserver"].end()
    cluster.control_plane.start_api_server()
    cluster.wait_ready()
    assert verdict(cluster, "p").admitted

    wait_for_words(cluster, "free: 7 of 8 GPUs whole")


def test_the_account_may_do_no_more_than_it_needs(cluster: Cluster) -> None:
    account = "--as=system:serviceaccount:topoalloc-system:topoalloc"

    beyond = (("update", "nodes"), ("delete", "pods"), ("get", "secrets"), ("patch", "nodes", "--subresource=status"))
    for what in beyond:
        assert cluster.kubectl("auth", "can-i", *what, account, check=False).strip() == "no", what
