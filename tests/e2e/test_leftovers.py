"""On a real node shares that fill more than half of a GPU take every GPU of every NUMA node, and not one pod more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.namespaces import wait_for
from tests.e2e.deployment import Deployment
from tests.e2e.judge import faults
from tests.e2e.pod_resources import PodResourcesOf
from tests.e2e.pods import create, delete, delete_all, verdict
from tests.e2e.workloads import CORE, MEMORY, container, pod

GPUS, CORES = 8, 800
AGAIN_S = 30.0  # the agent looks every 2 s while something is kept back; the pods have to end first


@pytest.fixture(scope="module", params=["best-effort", "single-numa-node"])
def cluster(images: tuple[Path, ...], request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster("azure-ndv5.nccl-topo.xml", request.param, images=images) as made:
        Deployment(made, config={"leftovers": "withhold"}).apply()
        Deployment(made).wait_registered()
        yield made


def admitted(cluster: Cluster, name: str) -> bool:
    create(cluster, pod(name, [container("c", {CORE: 60, MEMORY: 32})]))
    return verdict(cluster, name).admitted


def healthy_cores(cluster: Cluster) -> int:
    return len(PodResourcesOf(cluster.nodes[0].pod_resources).allocatable()[CORE])


def test_eight_shares_of_60_take_eight_gpus_and_what_two_of_them_leave_is_given_again(
    cluster: Cluster, record_property: Callable[[str, object], None]
) -> None:
    names = [f"p{number}" for number in range(GPUS)]
    assert {name: admitted(cluster, name) for name in names} == dict.fromkeys(names, True)
    assert not admitted(cluster, "ninth")
    # Of each NUMA node's four GPUs one offers the 40 cores that are left of it.
    wait_for(lambda: healthy_cores(cluster) == CORES - 6 * 40, AGAIN_S, "leftovers kept back")

    began_s = time.monotonic()
    delete(cluster, "p1", "p6")
    wait_for(lambda: healthy_cores(cluster) == CORES - 4 * 40, AGAIN_S, "what two pods held offered again")
    text = f"{time.monotonic() - began_s:.1f} s after two pods were deleted their GPUs are offered again"
    record_property("leftovers", text)
    print(text)
    assert admitted(cluster, "next")
    assert admitted(cluster, "last")
    assert not admitted(cluster, "eleventh")

    assert [str(fault) for fault in faults(cluster, cluster.nodes[0])] == []
    delete_all(cluster)
    wait_for(lambda: healthy_cores(cluster) == CORES, AGAIN_S, "everything offered again")
