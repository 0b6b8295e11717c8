"""Rejected pods get one event each, whatever happens to the watch, the API server or the publisher."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.fake_api import LIMIT_S, NODE, FakeApi, Fault
from tests.cluster.published import (
    PACES,
    QUICK,
    asking,
    fake_api,
    machine,
    pod_resources_of,
    publishing,
    simulated_node,
    spec_of,
)
from topoalloc.agent.config import Config
from topoalloc.agent.process import inventory_for
from topoalloc.cli.simulation.rehearsal import Node
from topoalloc.cluster.allowance import EVENTS_PER_MINUTE_MAX, MINUTE_S
from topoalloc.cluster.api_objects import Changed, SeenPod, watch_line
from topoalloc.cluster.api_server import ApiServer
from topoalloc.cluster.node_view import NodeView
from topoalloc.cluster.publisher import EXPLAIN_WAIT_MAX_S, Publisher
from topoalloc.cluster.rejection import Rejection

REJECTED = {
    "phase": "Failed",
    "reason": "TopologyAffinityError",
    "message": "Pod was rejected: Resources cannot be allocated with Topology locality",
    "began": "2999-01-01T00:00:00Z",
}


def messages(api: FakeApi) -> dict[str, str]:
    """Text of the event by pod."""
    return {str(e["involvedObject"]["name"]): str(e["message"]) for e in api.events.values()}  # type: ignore[index]


def fill(node: Node, api: FakeApi) -> None:
    """Leave one GPU of the four of NUMA node 0 and two of the four of node 1, and tell of the pods."""
    for name, cores in (("a", 300), ("b", 200)):
        assert node.kubelet.admit(asking(name, vgpu_core=cores)).admitted
        api.put_pod(name, phase="Running")


def test_a_pod_that_the_kubelet_rejected_is_told_the_binding_reason(tmp_path: Path):
    with fake_api(tmp_path) as (api, config), simulated_node() as node:
        with publishing(config, pod_resources_of(node), node.directory / "config.yaml"):
            fill(node, api)
            pod = asking("c", vgpu_core=300)
            admission = node.kubelet.admit(pod)
            assert admission.refusal is not None
            api.put_pod("c", spec=spec_of(pod), **REJECTED)

            assert api.wait_for(lambda: "c" in messages(api))
        assert admission.explanation is not None
        assert admission.explanation.sentence in messages(api)["c"]
        assert admission.explanation.remedy in messages(api)["c"]
        assert "topoalloc.io/vgpu-core 100/400 on 0, 200/400 on 1" in messages(api)["c"]


def test_an_event_is_a_warning_on_the_pod_with_its_uid(tmp_path: Path):
    with fake_api(tmp_path) as (api, config), publishing(config):
        api.put_pod("c", **REJECTED)
        assert api.wait_for(lambda: api.events)

    (event,) = api.events.values()
    assert (event["type"], event["reason"]) == ("Warning", "TopologyRejected")
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "c",
        "uid": "uid-c",
    }


def test_a_pod_that_would_fit_now_is_told_so(tmp_path: Path):
    with (
        fake_api(tmp_path) as (api, config),
        simulated_node() as node,
        publishing(config, pod_resources_of(node), node.directory / "config.yaml"),
    ):
        api.put_pod("c", spec=spec_of(asking("c", vgpu_core=100)), **REJECTED)
        assert api.wait_for(lambda: "c" in messages(api))

        assert messages(api)["c"].startswith("It would fit now")


def test_what_was_in_the_way_is_told_though_it_is_gone_by_now(tmp_path: Path):
    with (
        fake_api(tmp_path) as (api, config),
        simulated_node() as node,
        publishing(config, pod_resources_of(node), node.directory / "config.yaml"),
    ):
        fill(node, api)
        assert api.wait_for(lambda: "300/800 cores" in api.picture())
        node.kubelet.finish("uid-a")
        node.kubelet.finish("uid-b")
        api.put_pod("c", spec=spec_of(asking("c", vgpu_core=300)), **REJECTED)
        assert api.wait_for(lambda: "c" in messages(api))

        assert "vgpu-core" in messages(api)["c"]
        assert "It would fit now" in messages(api)["c"]


def test_a_publisher_that_starts_again_writes_no_second_event(tmp_path: Path):
    with fake_api(tmp_path) as (api, config):
        api.put_pod("c", **REJECTED)
        with publishing(config):
            assert api.wait_for(lambda: api.events)
        with publishing(config):
            posts = [r for r in api.requests if r.method == "POST"]
            assert api.wait_for(lambda: len([r for r in api.requests if r.method == "POST"]) > len(posts) - 1)
            api.put_pod("d", **REJECTED)
            assert api.wait_for(lambda: "d" in messages(api))

        assert sorted(messages(api)) == ["c", "d"]


def test_a_rejection_of_long_before_the_start_is_left_alone(tmp_path: Path):
    with fake_api(tmp_path) as (api, config):
        api.put_pod("old", **{**REJECTED, "began": "2001-01-01T00:00:00Z"})
        with publishing(config):
            api.put_pod("new", **REJECTED)
            assert api.wait_for(lambda: "new" in messages(api))

        assert sorted(messages(api)) == ["new"]


def test_a_rejection_of_long_before_the_start_is_left_alone_when_it_is_touched_and_deleted(tmp_path: Path):
    old = {**REJECTED, "began": "2001-01-01T00:00:00Z"}
    with fake_api(tmp_path) as (api, config):
        api.put_pod("touched", **old)
        api.put_pod("deleted", **old)
        with publishing(config):
            assert api.wait_for(lambda: api.watches)
            api.put_pod("touched", **old)
            api.delete_pod("deleted")
            api.put_pod("new", **REJECTED)
            assert api.wait_for(lambda: "new" in messages(api))

        assert sorted(messages(api)) == ["new"]


@pytest.mark.parametrize(("kind", "is_told"), [("ADDED", True), ("MODIFIED", True), ("DELETED", False)])
def test_a_watch_tells_of_a_rejection_unless_the_pod_is_deleted(kind: str, is_told: bool):
    status = {key: value for key, value in REJECTED.items() if key != "began"}
    pod = {"metadata": {"name": "c", "namespace": "default", "uid": "u"}, "status": status}
    told = watch_line(json.dumps({"type": kind, "object": pod}).encode())

    assert isinstance(told, Changed)
    assert (told.pod.rejection is not None) is is_told


def test_a_clock_that_is_years_behind_hides_no_rejection(tmp_path: Path):
    with fake_api(tmp_path) as (api, config), publishing(config, wall_s=1.0):
        assert api.wait_for(lambda: api.watches)
        api.put_pod("c", **REJECTED)

        assert api.wait_for(lambda: "c" in messages(api))


def test_a_refusal_in_our_own_words_needs_no_second_event(tmp_path: Path):
    ours = "Pod was rejected: Allocate failed due to rpc error: code = Unknown desc = topoalloc: no, which is odd"
    theirs = (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for topoalloc.io/nic. "
        "Requested: 3, Available: 2, which is unexpected"
    )
    with fake_api(tmp_path) as (api, config), publishing(config):
        for name, message in (("ours", ours), ("theirs", theirs)):
            api.put_pod(name, **{**REJECTED, "reason": "UnexpectedAdmissionError", "message": message})
        assert api.wait_for(lambda: "theirs" in messages(api))

        assert list(messages(api)) == ["theirs"]
        assert "1 more of topoalloc.io/nic would have had to be free" in messages(api)["theirs"]


def test_no_more_than_so_many_events_are_written_in_a_minute(tmp_path: Path):
    with fake_api(tmp_path) as (api, config):
        for number in range(EVENTS_PER_MINUTE_MAX + 7):
            api.put_pod(f"p{number}", **REJECTED)
        with publishing(config):
            assert api.wait_for(lambda: len(api.events) == EVENTS_PER_MINUTE_MAX)
            api.put_pod("last", phase="Running")
            assert api.wait_for(api.picture)

        assert len(api.events) == EVENTS_PER_MINUTE_MAX


def test_a_rejection_in_a_new_minute_is_written_though_the_last_one_was_used_up(tmp_path: Path):
    now_s = 0.0
    with fake_api(tmp_path) as (api, config):
        view = NodeView(inventory_for(Config(), machine()), None, None)
        publisher = Publisher(ApiServer(config), NODE, view, clock_s=lambda: now_s)
        names = [f"p{number}" for number in range(EVENTS_PER_MINUTE_MAX + 3)]
        for at_s, heard in ((0.0, names), (MINUTE_S, ["next"]), (MINUTE_S + EXPLAIN_WAIT_MAX_S, [])):
            now_s = at_s
            for name in heard:
                rejection = Rejection("default", name, f"uid-{name}", REJECTED["reason"], REJECTED["message"], None)
                publisher._heard(SeenPod(rejection.uid, None, rejection), False)
            publisher._turn()

        assert list(messages(api)) == [*names[:EVENTS_PER_MINUTE_MAX], "next"]


def test_only_the_pods_of_this_node_are_asked_for(tmp_path: Path):
    with fake_api(tmp_path) as (api, config), publishing(config):
        assert api.wait_for(lambda: api.watches)

        asked = [request.query for request in api.requests if request.path.endswith("/pods")]
        assert asked
        assert all(query["fieldSelector"] == "spec.nodeName=n1" for query in asked)


@pytest.mark.parametrize(
    "fault",
    [
        *(Fault(code=code, watch=True) for code in (401, 403, 410, 429, 500, 503)),
        Fault(reset=True, watch=True),
        Fault(code=200, body=b"garbage\n", watch=True),
        Fault(code=200, body=b'{"type":"ERROR","object":{"code":410}}\n', watch=True),
        Fault(code=200, body=b'{"type":"ERROR","object":{"code":500,"message":"no"}}\n', watch=True),
        Fault(code=200, body=b'{"type":"ADDED","object":7}\n', watch=True),
        Fault(code=200, body=b"", watch=True),
    ],
    ids=str,
)
def test_a_watch_that_fails_is_begun_again(tmp_path: Path, fault: Fault):
    with fake_api(tmp_path) as (api, config):
        api.faults.extend([fault] * 3)
        with publishing(config):
            assert api.wait_for(lambda: not api.faults)
            api.put_pod("c", **REJECTED)

            assert api.wait_for(lambda: "c" in messages(api))


def test_a_watch_that_breaks_loses_no_rejection(tmp_path: Path):
    with fake_api(tmp_path) as (api, config), publishing(config):
        for number in range(5):
            assert api.wait_for(lambda number=number: api.watches > number)
            api.break_watches()
            api.put_pod(f"p{number}", **REJECTED)

        assert api.wait_for(lambda: len(api.events) == 5)


def test_a_history_that_is_gone_is_listed_anew(tmp_path: Path):
    with fake_api(tmp_path) as (api, config), publishing(config):
        assert api.wait_for(lambda: api.watches)
        api.forget_history()
        api.put_pod("c", **REJECTED)

        assert api.wait_for(lambda: "c" in messages(api))


@pytest.mark.parametrize("code", [401, 403, 429, 500, 503])
def test_an_event_that_is_refused_for_now_is_written_later(tmp_path: Path, code: int):
    with fake_api(tmp_path) as (api, config), publishing(config):
        assert api.wait_for(lambda: api.watches and api.picture())
        with api.changed:
            api.faults.extend([Fault(code=code)] * 2)
        api.put_pod("c", **REJECTED)

        assert api.wait_for(lambda: "c" in messages(api))


def test_an_event_that_will_never_be_taken_does_not_hold_up_the_next(tmp_path: Path):
    with fake_api(tmp_path) as (api, config), publishing(config):
        assert api.wait_for(lambda: api.watches and api.picture())
        with api.changed:
            api.faults.append(Fault(code=404))
        api.put_pod("c", **REJECTED)
        api.put_pod("d", **REJECTED)

        assert api.wait_for(lambda: messages(api))


def test_an_event_that_is_refused_for_long_does_not_hold_up_the_others(tmp_path: Path):
    """A namespace that is being deleted answers 403."""
    patient = replace(PACES, events=replace(QUICK, backoff_min_s=20 * LIMIT_S, backoff_max_s=20 * LIMIT_S))
    with fake_api(tmp_path) as (api, config), publishing(config, paces=patient):
        assert api.wait_for(lambda: api.watches and api.picture())
        with api.changed:
            api.faults.append(Fault(code=403, pod="c"))
        api.put_pod("c", **REJECTED)
        assert api.wait_for(lambda: not api.faults)
        api.put_pod("d", **REJECTED)
        assert api.wait_for(lambda: "d" in messages(api))

        assert sorted(messages(api)) == ["d"]


def test_an_event_that_was_refused_is_written_when_its_own_wait_is_over(tmp_path: Path):
    with fake_api(tmp_path) as (api, config), publishing(config):
        assert api.wait_for(lambda: api.watches and api.picture())
        with api.changed:
            api.faults.extend([Fault(code=403, pod="c")] * 3)
        api.put_pod("c", **REJECTED)

        assert api.wait_for(lambda: "c" in messages(api))


def test_a_publisher_ends_at_once_while_a_watch_is_open(tmp_path: Path):
    with fake_api(tmp_path) as (api, config), publishing(config) as published:
        assert api.wait_for(lambda: api.watches and api.picture())

        published.end()


def test_a_server_that_never_answers_does_not_keep_the_publisher_from_ending(tmp_path: Path):
    with fake_api(tmp_path) as (api, config):
        api.faults.extend([Fault(slow=True), Fault(slow=True)])
        with publishing(config) as published:
            assert api.wait_for(lambda: not api.faults)
            published.publisher.stop()
            with api.changed:
                api.ending = True
                api.changed.notify_all()


def test_without_events_no_pod_is_looked_at(tmp_path: Path):
    from topoalloc.cluster.publisher import Wanted

    with fake_api(tmp_path) as (api, config), publishing(config, wanted=Wanted(events=False), paces=replace(PACES)):
        assert api.wait_for(api.picture)

        assert not any(request.path.endswith("/pods") for request in api.requests)
