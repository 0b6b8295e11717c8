"""Two nodes and the real scheduler: pods go where the resources are, and the scheduler can ask an extender."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster.cluster import EXTENDER_PORT, Cluster
from tests.e2e.cluster.namespaces import wait_for
from tests.e2e.deployment import Deployment
from tests.e2e.judge import faults
from tests.e2e.pods import all_pods, create, delete_all, verdicts
from tests.e2e.workloads import CORE, MEMORY, NIC, container, pod

PLACED_S = 60.0


class Asked(BaseHTTPRequestHandler):
    """An extender that keeps what it is asked and lets every pod onto the last node only."""

    questions: list[dict[str, Any]] = []  # noqa: RUF012 - shared by all requests of the one server

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.questions.append(question)
        names = question["NodeNames"] or [node["metadata"]["name"] for node in question["Nodes"]["items"]]
        refused = dict.fromkeys(sorted(names)[:-1], "the extender keeps this node free")
        answer = json.dumps({"NodeNames": sorted(names)[-1:], "FailedNodes": refused, "Error": ""}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Says nothing on stderr."""


@pytest.fixture(scope="module")
def cluster(images: tuple[Path, ...]) -> Iterator[Cluster]:
    extender = {
        "filterVerb": "filter",
        "nodeCacheCapable": True,
        "ignorable": True,  # until the extender of this test listens, pods are placed without it
        "httpTimeout": "2s",
        "managedResources": [{"name": NIC}],
    }
    made = Cluster("azure-ndv5.nccl-topo.xml", "best-effort", nodes=2, images=images, extender=extender)
    with made:
        Deployment(made).apply()
        for node in made.nodes:
            Deployment(made).wait_registered(node)
        yield made


@pytest.fixture(autouse=True)
def emptied(cluster: Cluster) -> Iterator[None]:
    yield
    delete_all(cluster)


def nodes_of(cluster: Cluster) -> Counter[str]:
    return Counter(item["spec"].get("nodeName", "") for item in all_pods(cluster).values())


def test_pods_spread_over_two_nodes_by_what_is_free(cluster: Cluster) -> None:
    """Sixteen pods of one GPU each fit only if each node gets eight."""
    pods = [pod(f"g{number}", [container("c", {CORE: 100})], node=None) for number in range(16)]

    create(cluster, *pods)

    assert all(seen.admitted for seen in verdicts(cluster, [item["metadata"]["name"] for item in pods]).values())
    assert nodes_of(cluster) == {"node-0": 8, "node-1": 8}
    assert [str(fault) for node in cluster.nodes for fault in faults(cluster, node)] == []


def test_a_pod_that_fits_no_node_stays_pending_with_the_scheduler_s_reason(cluster: Cluster) -> None:
    create(cluster, pod("wide", [container("c", {CORE: 900})], node=None))

    def reason() -> str | None:
        conditions = all_pods(cluster)["wide"]["status"].get("conditions", [])
        return next((item["message"] for item in conditions if item.get("reason") == "Unschedulable"), None)

    assert f"Insufficient {CORE}" in wait_for(reason, PLACED_S, "the scheduler's reason", 0.2)


def test_the_scheduler_asks_an_extender_about_pods_with_our_resources(cluster: Cluster) -> None:
    Asked.questions.clear()
    server = ThreadingHTTPServer((cluster.outside, EXTENDER_PORT), Asked)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        pods = [pod(f"n{number}", [container("c", {CORE: 20, MEMORY: 8, NIC: 1})], node=None) for number in range(4)]
        create(cluster, *pods)
        assert all(seen.admitted for seen in verdicts(cluster, [item["metadata"]["name"] for item in pods]).values())
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

    assert {question["Pod"]["metadata"]["name"] for question in Asked.questions} == {"n0", "n1", "n2", "n3"}
    assert nodes_of(cluster) == {"node-1": 4}
