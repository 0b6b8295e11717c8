"""The Node object: written when something changes, and whatever the API server does meanwhile."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.fake_api import NODE, FakeApi, Fault, kubeconfig, served
from tests.cluster.published import PACES, QUICK, asking, fake_api, pod_resources_of, publishing, simulated_node
from topoalloc.cluster.publisher import Wanted

SLOW = replace(QUICK, quiet_s=1.0, delay_max_s=60.0)


def test_a_node_gets_labels_and_a_picture(tmp_path: Path):
    with fake_api(tmp_path) as (api, config), publishing(config):
        assert api.wait_for(lambda: api.label("gpu-count") == "8" and api.picture())

        assert api.label("numa-nodes") == "2"
        assert api.label("gpu-memory") == "80Gi"


def test_nothing_is_written_where_the_node_says_it_all_already(tmp_path: Path):
    with fake_api(tmp_path) as (api, config):
        with publishing(config):
            assert api.wait_for(api.patches)
        with publishing(config):
            assert api.wait_for(lambda: sum(r.path.endswith(NODE) and r.method == "GET" for r in api.requests) == 2)

        assert len(api.patches()) == 1


def test_a_label_of_ours_that_is_no_longer_true_is_removed_and_others_stay(tmp_path: Path):
    with fake_api(tmp_path) as (api, config):
        assert api.node is not None
        api.node["labels"] = {"topoalloc.io/topology-policy": "restricted", "topoalloc.io/pool": "a", "x": "y"}
        with publishing(config):
            assert api.wait_for(lambda: api.label("gpu-count"))

        assert api.label("topology-policy") is None
        assert api.node["labels"]["topoalloc.io/pool"] == "a"
        assert api.node["labels"]["x"] == "y"


def test_what_is_not_to_be_published_is_removed(tmp_path: Path):
    with fake_api(tmp_path) as (api, config):
        with publishing(config):
            assert api.wait_for(api.picture)
        with publishing(config, wanted=Wanted(labels=True, annotation=False)):
            assert api.wait_for(lambda: not api.picture())

        assert api.label("gpu-count") == "8"


def test_a_picture_that_somebody_changed_is_repaired(tmp_path: Path):
    with fake_api(tmp_path) as (api, config), publishing(config, paces=replace(PACES, verify_s=0.2)):
        assert api.wait_for(api.picture)
        with api.changed:
            assert api.node is not None
            api.node["annotations"]["topoalloc.io/topology"] = "mine"

        assert api.wait_for(lambda: api.picture() != "mine")


def test_a_picture_that_is_always_changed_back_is_repaired_at_a_bounded_rate(tmp_path: Path):
    verify_s = 0.4
    began_s = time.monotonic()
    with fake_api(tmp_path) as (api, config), publishing(config, paces=replace(PACES, verify_s=verify_s)):
        for _ in range(4):
            count = len(api.patches())
            assert api.wait_for(lambda count=count: len(api.patches()) > count)
            with api.changed:
                assert api.node is not None
                api.node["annotations"]["topoalloc.io/topology"] = "mine"

        # The span is the test's own, so that a slow machine can only make it longer.
        repairs = len(api.patches()) - 1
        assert repairs >= 3
        assert repairs <= (time.monotonic() - began_s) / (0.75 * verify_s)


def test_pods_that_start_together_become_few_writes(tmp_path: Path):
    with (
        fake_api(tmp_path) as (api, config),
        simulated_node() as node,
        publishing(
            config, pod_resources_of(node), paces=replace(PACES, node=replace(QUICK, quiet_s=1.0, delay_max_s=60.0))
        ),
    ):
        assert api.wait_for(lambda: "GPU0  100/100 cores" in api.picture())
        count = len(api.patches())

        for number in range(8):
            assert node.kubelet.admit(asking(f"p{number}", vgpu_core=30, vgpu_memory=8)).admitted
            api.put_pod(f"p{number}", phase="Running")

        assert api.wait_for(lambda: "560/800 cores" in api.picture())
        assert len(api.patches()) - count < 4


def test_a_node_that_is_not_there_yet_is_told_later(tmp_path: Path):
    with fake_api(tmp_path) as (api, config):
        api.node = None
        with publishing(config):
            assert api.wait_for(lambda: len(api.requests) > 3)
            with api.changed:
                api.node = {"labels": {}, "annotations": {}}

            assert api.wait_for(api.picture)


def test_an_api_server_that_is_not_there_at_the_start_is_waited_for(tmp_path: Path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    api = FakeApi()
    with publishing(kubeconfig(tmp_path, port)), served(api, port):
        assert api.wait_for(api.picture)


def test_an_api_server_that_comes_back_is_told_what_changed_meanwhile(tmp_path: Path):
    with fake_api(tmp_path) as (api, config), simulated_node() as node, publishing(config, pod_resources_of(node)):
        assert api.wait_for(lambda: "800/800 cores" in api.picture())
        with api.changed:
            api.faults.extend([Fault(reset=True)] * 10_000)
        assert node.kubelet.admit(asking("p", vgpu_core=100)).admitted
        api.put_pod("p", phase="Running")
        assert api.wait_for(lambda: len(api.faults) < 9_995)
        with api.changed:
            api.faults.clear()

        assert api.wait_for(lambda: "700/800 cores" in api.picture())


@pytest.mark.parametrize(
    "fault",
    [
        *(Fault(code=code) for code in (400, 403, 409, 422, 500, 502, 503, 504)),
        Fault(code=429, headers=(("Retry-After", "1"),)),
        Fault(code=503, headers=(("Retry-After", "99999999999"),), body=b""),
        Fault(code=503, headers=(("Retry-After", "soon"),), body=b"<html>"),
        Fault(code=302, headers=(("Location", "/elsewhere"),)),
        Fault(code=200, body=b"not JSON"),
        Fault(code=200, body=b"[]"),
        Fault(reset=True),
    ],
    ids=str,
)
def test_a_failing_api_server_is_tried_again(tmp_path: Path, fault: Fault):
    with fake_api(tmp_path) as (api, config):
        api.faults.extend([fault] * 4)
        with publishing(config):
            assert api.wait_for(api.picture)


def test_a_new_token_is_read_after_the_old_one_was_refused(tmp_path: Path):
    with fake_api(tmp_path) as (api, config), publishing(config, paces=replace(PACES, verify_s=0.3)):
        assert api.wait_for(api.picture)
        with api.changed:
            api.tokens = {"newer"}
            assert api.node is not None
            api.node["annotations"].clear()
        (tmp_path / "token").write_text("newer")

        assert api.wait_for(api.picture)


def test_without_pod_resources_the_picture_says_that_what_is_free_is_unknown(tmp_path: Path):
    with fake_api(tmp_path) as (api, config), publishing(config, tmp_path / "none.sock"):
        assert api.wait_for(lambda: "free: unknown" in api.picture())


def test_pod_resources_that_appear_later_are_used(tmp_path: Path):
    with fake_api(tmp_path) as (api, config), simulated_node() as node:
        node.kubelet.stop()
        path = node.directory / "pod-resources" / "kubelet.sock"
        with publishing(config, path):
            assert api.wait_for(lambda: "free: unknown" in api.picture())
            node.kubelet.start()

            assert api.wait_for(lambda: "100/100 cores" in api.picture())


def test_a_kubelet_that_restarts_is_followed(tmp_path: Path):
    with fake_api(tmp_path) as (api, config), simulated_node() as node, publishing(config, pod_resources_of(node)):
        assert api.wait_for(lambda: "100/100 cores" in api.picture())

        node.kubelet.restart()
        assert node.kubelet.wait_for(frozenset({"topoalloc.io/vgpu-core", "topoalloc.io/vgpu-memory"}), 30.0)
        assert node.kubelet.admit(asking("p", vgpu_core=100)).admitted
        api.put_pod("p", phase="Running")

        assert api.wait_for(lambda: "0/100 cores" in api.picture().replace("100/100", ""))


def test_a_gpu_that_turns_unhealthy_is_marked_and_unmarked(tmp_path: Path):
    with fake_api(tmp_path) as (api, config), simulated_node() as node, publishing(config, pod_resources_of(node)):
        key = node.agent.inventory.gpu_keys[3]
        assert api.wait_for(lambda: "GPU3  100/100 cores" in api.picture())

        node.agent.lists.set_unhealthy(frozenset({key}))
        assert api.wait_for(lambda: "GPU3   UNHEALTHY" in api.picture())
        node.agent.lists.set_unhealthy(frozenset())
        assert api.wait_for(lambda: "GPU3  100/100 cores" in api.picture())
