"""110 pods at once: how long until all are decided, and how much of it is spent in calls to the agent."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agent_log import AgentLog
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.namespaces import wait_for
from tests.e2e.deployment import Deployment
from tests.e2e.judge import faults
from tests.e2e.pods import all_pods, create, verdicts
from tests.e2e.workloads import CORE, MEMORY, NIC, container, pod

PODS = 110  # what a kubelet takes by default
DECIDED_S = 300.0
CREATORS = 4
CALL_S_MAX = 3.0  # the bound the agent keeps for itself


@pytest.fixture(scope="module")
def cluster(images: tuple[Path, ...]) -> Iterator[Cluster]:
    with Cluster("azure-ndv5.nccl-topo.xml", images=images) as made:
        Deployment(made).apply()
        Deployment(made).wait_registered()
        yield made


def burst() -> list[dict[str, Any]]:
    """Shares of 6 or 7 cores: 14 or more fit a GPU whatever the order, so all do; every fourteenth with a NIC.

    Under policy none, since hints count free cores per NUMA node and not per GPU, and would refuse the last of these.
    """
    draw, made = random.Random(6), []
    for number in range(PODS):
        limits = {CORE: draw.choice([6, 7]), MEMORY: 16}
        made.append(pod(f"b{number}", [container("c", {**limits, NIC: 1} if number % 14 == 0 else limits)]))
    return made


def undecided(cluster: Cluster) -> list[str]:
    """Pods that the kubelet has not judged yet: it writes containers' statuses right after it admitted a pod."""
    return [
        name
        for name, item in all_pods(cluster).items()
        if item["status"]["phase"] == "Pending" and not item["status"].get("containerStatuses")
    ]


def test_a_hundred_and_ten_pods_at_once_are_all_admitted(
    cluster: Cluster, record_property: Callable[[str, object], None]
) -> None:
    log, pods = AgentLog(cluster.nodes[0]), burst()
    began_s = time.monotonic()
    with ThreadPoolExecutor(CREATORS) as creators:
        list(creators.map(lambda item: create(cluster, item), pods))
    created_s = time.monotonic() - began_s
    wait_for(lambda: not undecided(cluster), DECIDED_S, "every pod decided", 0.1)
    decided_s = time.monotonic() - began_s
    judged = verdicts(cluster, [item["metadata"]["name"] for item in pods], DECIDED_S)

    calls = log.call_seconds()
    ours_s = sum(sum(seconds) for seconds in calls.values())
    medians = {name: round(1000 * statistics.median(seconds), 1) for name, seconds in calls.items()}
    text = (
        f"{PODS} pods created in {created_s:.1f} s, decided after {decided_s:.1f} s, running after "
        f"{time.monotonic() - began_s:.1f} s; {sum(map(len, calls.values()))} calls to the agent took {ours_s:.2f} s, "
        f"{100 * ours_s / decided_s:.0f} % of the time until decided; medians in ms: {medians}"
    )
    record_property("110 pods at once", text)
    print(text)
    assert [name for name, verdict in judged.items() if not verdict.admitted] == []
    assert [str(fault) for fault in faults(cluster, cluster.nodes[0])] == []
    assert max(max(seconds) for seconds in calls.values()) <= CALL_S_MAX
