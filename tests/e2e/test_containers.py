"""What a real container sees from inside is what Allocate said, and CPU updates take none of it away.

The node is made up (made_up_node.py): the agent discovers it as it does a live one and hands out real device nodes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.checkpoint import entries
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.namespaces import wait_for
from tests.e2e.deployment import Deployment
from tests.e2e.judge import faults
from tests.e2e.made_up_node import OPENED, RENDER_NODES, SHARED_NODES, VERBS_NODES, archive, furnish
from tests.e2e.pods import all_pods, create, delete_all, verdict
from tests.e2e.workloads import CORE, MEMORY, NIC, container, pod

SAID_S = 30.0
UPDATED_S = 30.0
UPDATES = 10
TRIES_AFTER = 3
WATCH_S = "0.1"
CDI_KIND = "example.com/gpu"


@pytest.fixture(scope="module")
def cluster(images: tuple[Path, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    machine = archive(tmp_path_factory.mktemp("machine"))
    with Cluster(str(machine), "best-effort", cpu_manager="static", images=images) as made:
        made.patch = furnish(made.nodes[0])  # type: ignore[attr-defined]
        yield made


def deploy(cluster: Cluster, **config: str) -> None:
    patch: Mapping[str, Any] = cluster.patch  # type: ignore[attr-defined]
    deployment = Deployment(cluster, config, overlay="", patch=patch)
    deployment.apply()
    deployment.wait_registered()


@pytest.fixture(autouse=True)
def emptied(cluster: Cluster) -> Iterator[None]:
    yield
    delete_all(cluster)


def said(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    """The JSON lines that a container printed, once it has printed all."""

    def whole() -> list[dict[str, Any]] | None:
        lines = [json.loads(line) for line in cluster.kubectl("logs", name, check=False).splitlines()]
        return lines if {"kind": "end"} in lines else None

    return wait_for(whole, SAID_S, f"the output of {name}", 0.2)


def of_kind(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["kind"] == kind]


def answers(cluster: Cluster, name: str) -> list[Any]:
    """What the agent answered in Allocate for the only container of a pod, as the kubelet keeps it."""
    uid = all_pods(cluster)[name]["metadata"]["uid"]
    return [entry.answer for entry in entries(cluster.nodes[0]) if entry.pod_uid == uid]


def test_device_nodes_and_variables_inside_are_those_of_the_answer(cluster: Cluster) -> None:
    deploy(cluster)
    create(cluster, pod("p", [container("c", {CORE: 30, MEMORY: 16, NIC: 1}, ["inspect"])]))
    assert verdict(cluster, "p").admitted
    lines = said(cluster, "p")

    told = answers(cluster, "p")
    variables = {key: value for answer in told for key, value in answer.envs.items()}
    nodes = {device.container_path for answer in told for device in answer.devices}
    inside = {line["path"]: line for line in of_kind(lines, "device")}
    number = Path(OPENED).stat().st_rdev
    assert variables
    assert variables.items() <= {line["name"]: line["value"] for line in of_kind(lines, "env")}.items()
    assert nodes == {RENDER_NODES[0], VERBS_NODES[0], *SHARED_NODES} or nodes == {
        RENDER_NODES[1],
        VERBS_NODES[1],
        *SHARED_NODES,
    }
    for path in nodes:
        seen = inside[path]
        assert (seen["major"], seen["minor"], seen["open"]) == (os.major(number), os.minor(number), "ok")
    assert not {*RENDER_NODES, *VERBS_NODES} - nodes & inside.keys()


def test_a_container_without_a_request_gets_no_device_node(cluster: Cluster) -> None:
    deploy(cluster)
    create(cluster, pod("p", [container("c", {"cpu": "100m"}, ["inspect"])]))

    lines = said(cluster, "p")

    assert not {*RENDER_NODES, *VERBS_NODES, *SHARED_NODES} & {line["path"] for line in of_kind(lines, "device")}
    assert not [line for line in of_kind(lines, "env") if line["name"].startswith("TOPOALLOC")]


def test_edits_of_a_cdi_specification_reach_the_container(cluster: Cluster) -> None:
    """Names are given by the agent, what they stand for by a specification that is not the agent's."""
    node = cluster.nodes[0]
    (node.base / "cdi").mkdir(exist_ok=True)
    mounted = node.base / "cdi-mounted"
    mounted.write_text("by CDI\n")
    edits = {
        "env": ["E2E_CDI_GPU={index}"],
        "deviceNodes": [{"path": "/dev/e2e-gpu{index}", "hostPath": RENDER_NODES[0]}],
        "mounts": [{"hostPath": str(mounted), "containerPath": "/e2e/gpu{index}", "options": ["ro", "bind"]}],
    }
    devices = [
        {"name": str(index), "containerEdits": json.loads(json.dumps(edits).replace("{index}", str(index)))}
        for index in range(2)
    ]
    specification = {"cdiVersion": "0.5.0", "kind": CDI_KIND, "devices": devices}
    (node.base / "cdi" / "e2e.json").write_text(json.dumps(specification))
    deploy(cluster, injection="cdi", cdi_kind=CDI_KIND)
    create(cluster, pod("p", [container("c", {CORE: 30, MEMORY: 16}, ["inspect"])]))
    assert verdict(cluster, "p").admitted
    lines = said(cluster, "p")

    names = {device.name for answer in answers(cluster, "p") for device in answer.cdi_devices}
    assert len(names) == 1
    index = names.pop().removeprefix(f"{CDI_KIND}=")
    assert {"kind": "env", "name": "E2E_CDI_GPU", "value": index} in lines
    assert f"/dev/e2e-gpu{index}" in {line["path"] for line in of_kind(lines, "device") if line["open"] == "ok"}
    assert any(f"/e2e/gpu{index} ro" in line["line"] for line in of_kind(lines, "mount"))


def test_cpu_updates_take_no_device_from_a_running_container(cluster: Cluster) -> None:
    """Every Guaranteed pod that comes or goes makes the kubelet rewrite the cgroups of the others."""
    deploy(cluster)
    node = cluster.nodes[0]
    create(cluster, pod("watched", [container("c", {CORE: 30, MEMORY: 16}, ["watch", WATCH_S, *RENDER_NODES])]))
    assert verdict(cluster, "watched").admitted
    (mine,) = {path for answer in answers(cluster, "watched") for path in paths(answer)} & {*RENDER_NODES}

    for number in range(UPDATES):
        before = node.updates_of("watched")
        if number % 2 == 0:
            create(cluster, pod("guaranteed", [container("c", {"cpu": 2, "memory": "64Mi"})]))
        else:
            cluster.kubectl("delete", "pod", "guaranteed", "--wait=true")
        wait_for(lambda before=before: node.updates_of("watched") > before, UPDATED_S, f"update {number + 1}", 0.2)
        tries = len(tries_of(cluster, "watched", mine))
        wait_for(lambda tries=tries: len(tries_of(cluster, "watched", mine)) >= tries + TRIES_AFTER, SAID_S, "tries")

    opened = tries_of(cluster, "watched", mine)
    assert node.updates_of("watched") >= UPDATES
    assert {line["open"] for line in opened} == {"ok"}
    assert faults(cluster, node) == []


def paths(answer: Any) -> set[str]:
    return {device.container_path for device in answer.devices}


def tries_of(cluster: Cluster, name: str, path: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in cluster.kubectl("logs", name, check=False).splitlines() if line]
    return [line for line in of_kind(lines, "device") if line["path"] == path]
