"""Both halves of a container meet on one GPU, with its NIC next to it, in whatever order the kubelet asks.

A real kubelet asks for the resources of a container in random order. Containers come in waves: several in a pod, init
containers, sidecars, containers that ask for one half only, and pods that are deleted in the middle of their admission.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agent_log import AgentLog
from tests.e2e.checkpoint import devices_by_container
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.deployment import Deployment
from tests.e2e.judge import apart, faults
from tests.e2e.pod_resources import PodResourcesOf
from tests.e2e.pods import create, delete, delete_all, verdicts
from tests.e2e.workloads import CORE, MEMORY, NIC, container, pod

CONTAINERS = 500 if os.environ.get("TOPOALLOC_SLOW") else 60
PODS_IN_A_WAVE = 8
NICS_IN_A_WAVE = 6
WAVES_MAX = 200
DELETED = "deleted"


@pytest.fixture(scope="module")
def cluster(images: tuple[Path, ...]) -> Iterator[Cluster]:
    with Cluster("azure-ndv5.nccl-topo.xml", "best-effort", images=images) as made:
        Deployment(made).apply()
        Deployment(made).wait_registered()
        yield made


@pytest.fixture(autouse=True)
def emptied(cluster: Cluster) -> Iterator[None]:
    yield
    delete_all(cluster)


def share(draw: random.Random, nics: int = 0) -> dict[str, int]:
    wanted = {CORE: draw.choice([5, 10, 15, 20]), MEMORY: draw.choice([4, 8, 16])}
    return {**wanted, NIC: nics} if nics else wanted


def wave(draw: random.Random, number: int) -> list[dict[str, Any]]:
    """Pods of one to three containers; together they fit the machine, and there is a NIC for each that asks."""
    nics, made = NICS_IN_A_WAVE, []
    for index in range(PODS_IN_A_WAVE):
        name, shape = f"w{number}-{index}", draw.random()
        takes = min(nics, draw.choice([0, 1, 1]))
        nics -= takes
        app = share(draw, takes)
        if shape < 0.4:
            made.append(pod(name, [container("c", app)]))
        elif shape < 0.7:
            others = [container(f"d{place}", share(draw)) for place in range(draw.choice([1, 2]))]
            made.append(pod(name, [container("c", app), *others]))
        elif shape < 0.85:
            made.append(pod(name, [container("c", app)], [container("i", app, ["0.05"])]))
        else:
            made.append(pod(name, [container("c", app)], [container("s", share(draw), sidecar=True)]))
    return made


def test_halves_meet_on_one_gpu_with_the_nearest_nic(
    cluster: Cluster, record_property: Callable[[str, object], None]
) -> None:
    draw, node, log = random.Random(4), cluster.nodes[0], AgentLog(cluster.nodes[0])
    seen, with_nic, number = 0, 0, 0
    while seen < CONTAINERS and number < WAVES_MAX:
        number += 1
        pods = wave(draw, number)
        create(cluster, *pods)
        judged = verdicts(cluster, [item["metadata"]["name"] for item in pods])

        assert [name for name, verdict in judged.items() if not verdict.admitted] == []
        assert [str(fault) for fault in faults(cluster, node)] == []
        assert [text for devices in devices_by_container(node).values() for text in apart(devices)] == []
        listed = PodResourcesOf(node.pod_resources).listed()
        full = [held.devices for held in listed.values() if CORE in held.devices and MEMORY in held.devices]
        seen += len(full)
        with_nic += sum(NIC in devices for devices in full)
        delete_all(cluster)

    first = Counter(log.first_resources())
    text = f"{seen} containers, {with_nic} with a NIC, {number} waves; asked first: {dict(first)}"
    record_property("containers with both halves on one GPU", text)
    print(text)
    assert seen >= CONTAINERS
    assert set(first) == {CORE, MEMORY, NIC}


def test_pods_deleted_in_the_middle_of_their_admission_part_no_halves(cluster: Cluster) -> None:
    draw, node = random.Random(5), cluster.nodes[0]
    for number in range(20 if os.environ.get("TOPOALLOC_SLOW") else 4):
        doomed = [pod(f"{DELETED}{number}-{index}", [container("c", share(draw, index % 2))]) for index in range(4)]
        pods = wave(draw, 1000 + number)[:5]
        for item in (*doomed, *pods):
            create(cluster, item)
            if item in doomed:
                time.sleep(draw.uniform(0, 0.08))
                delete(cluster, item["metadata"]["name"], grace_s=0)
        judged = verdicts(cluster, [item["metadata"]["name"] for item in pods])

        assert [name for name, verdict in judged.items() if not verdict.admitted] == []
        assert [str(fault) for fault in faults(cluster, node, nics_near=False)] == []
        delete_all(cluster)


def test_a_container_that_asks_for_one_half_only_is_refused_and_disturbs_no_other(cluster: Cluster) -> None:
    halves = [pod(f"half-{index}", [container("c", {(CORE, MEMORY)[index % 2]: 8})]) for index in range(6)]
    whole = [pod(f"whole-{index}", [container("c", {CORE: 20, MEMORY: 8, NIC: 1})]) for index in range(6)]

    create(cluster, *(item for pair in zip(halves, whole, strict=True) for item in pair))

    judged = verdicts(cluster, [item["metadata"]["name"] for item in (*halves, *whole)])
    assert {name for name, seen in judged.items() if seen.admitted} == {item["metadata"]["name"] for item in whole}
    assert all("topoalloc: " in judged[item["metadata"]["name"]].message for item in halves)
    assert [str(fault) for fault in faults(cluster, cluster.nodes[0]) if fault.pod.startswith("whole")] == []
