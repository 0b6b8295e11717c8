"""An earlier minor release of the kubelet, without the pods API: who is being admitted is inferred, and verified.

`make e2e-slow` builds it; elsewhere `make e2e-components COMPONENTS=kubelet-1.36`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.kubelet_files import KubeletSettings
from tests.e2e.deployment import Deployment
from tests.e2e.judge import faults
from tests.e2e.pods import create, delete_all, verdict, verdicts
from tests.e2e.workloads import CORE, MEMORY, NIC, asks_for_half, container, pod, random_pod

pytestmark = pytest.mark.slow

OLDER = "kubelet-1.36"
PODS = 40


@pytest.fixture(scope="module")
def cluster(images: tuple[Path, ...]) -> Iterator[Cluster]:
    settings = KubeletSettings("best-effort", binary=OLDER)
    with Cluster("azure-ndv5.nccl-topo.xml", settings=settings, images=images) as made:
        Deployment(made).apply()
        Deployment(made).wait_registered()
        yield made


@pytest.fixture(autouse=True)
def emptied(cluster: Cluster) -> Iterator[None]:
    yield
    delete_all(cluster)


def test_the_node_runs_the_older_version(cluster: Cluster) -> None:
    assert cluster.get("node", "node-0")["status"]["nodeInfo"]["kubeletVersion"].startswith("v1.36.")


def test_shares_whole_gpus_and_nics_are_given_as_on_a_newer_one(cluster: Cluster) -> None:
    for number, limits in enumerate(({CORE: 30, MEMORY: 16, NIC: 1}, {CORE: 200, NIC: 2}, {CORE: 60, MEMORY: 8})):
        create(cluster, pod(f"p{number}", [container("c", limits)]))
        assert verdict(cluster, f"p{number}").admitted

    assert [str(fault) for fault in faults(cluster, cluster.nodes[0])] == []


def test_random_pods_get_nothing_twice_or_apart(cluster: Cluster) -> None:
    draw = random.Random(36)
    drawn = [random_pod(draw, f"r{number}") for number in range(PODS)]
    pods = [item for item in drawn if not asks_for_half(item)]

    create(cluster, *pods)
    judged = verdicts(cluster, [item["metadata"]["name"] for item in pods])

    assert any(seen.admitted for seen in judged.values())
    assert [str(fault) for fault in faults(cluster, cluster.nodes[0], nics_near=False)] == []
