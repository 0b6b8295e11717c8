"""What the agent makes of kubelet sockets that answer, fail, are late or are away: real servers, real sockets."""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from topoalloc.allocation.ledger import Owner
from topoalloc.kubelet.evidence import Evidence
from topoalloc.pb import pods_v1alpha1_pb2 as pods_pb
from topoalloc.pb.core_v1_pod_pb2 import Container, ObjectMeta, Pod, PodSpec, PodStatus, Quantity, ResourceRequirements
from topoalloc.pb.podresources_v1_pb2 import (
    ContainerDevices,
    ContainerResources,
    GetPodResourcesRequest,
    GetPodResourcesResponse,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
    PodResources,
)
from topoalloc.pb.podresources_v1_pb2_grpc import PodResourcesListerServicer, add_PodResourcesListerServicer_to_server
from topoalloc.pb.pods_v1alpha1_pb2_grpc import PodsServicer, add_PodsServicer_to_server

CORE = "topoalloc.io/vgpu-core"
OURS = frozenset({CORE})
APP = Owner("ns", "pod", "app")
HELD = PodResources(
    name="pod",
    namespace="ns",
    containers=[ContainerResources(name="app", devices=[ContainerDevices(resource_name=CORE, device_ids=["a", "b"])])],
)
POD = Pod(
    metadata=ObjectMeta(name="pod", namespace="ns", uid="uid"),
    spec=PodSpec(
        containers=[Container(name="app", resources=ResourceRequirements(limits={CORE: Quantity(string="30")}))]
    ),
    status=PodStatus(phase="Pending"),
)


class Kubelet(PodResourcesListerServicer, PodsServicer):
    """Both interfaces: answers, or fails with a code, or is silent until `freed`."""

    def __init__(self) -> None:
        self.failing: grpc.StatusCode | None = None
        self.silent = False
        self.freed = threading.Event()

    def _meet(self, context: grpc.ServicerContext) -> None:
        if self.silent:
            self.freed.wait()
        if self.failing is not None:
            context.abort(self.failing, "out of order")

    def List(self, request: ListPodResourcesRequest, context: grpc.ServicerContext) -> ListPodResourcesResponse:
        self._meet(context)
        return ListPodResourcesResponse(pod_resources=[HELD])

    def Get(self, request: GetPodResourcesRequest, context: grpc.ServicerContext) -> GetPodResourcesResponse:
        self._meet(context)
        return GetPodResourcesResponse(pod_resources=HELD)

    def ListPods(self, request: pods_pb.ListPodsRequest, context: grpc.ServicerContext) -> pods_pb.ListPodsResponse:
        self._meet(context)
        return pods_pb.ListPodsResponse(pods=[POD.SerializeToString()])


@contextmanager
def node(kubelet: Kubelet | None) -> Iterator[Evidence]:
    """Evidence on one socket that serves both interfaces, or (None) has no server."""
    with tempfile.TemporaryDirectory(prefix="ta-", dir="/tmp") as name:
        socket = Path(name) / "k.sock"
        server = grpc.server(ThreadPoolExecutor(4))
        if kubelet is not None:
            add_PodResourcesListerServicer_to_server(kubelet, server)
            add_PodsServicer_to_server(kubelet, server)
            server.add_insecure_port(f"unix:{socket}")
            server.start()
        evidence = Evidence(socket, socket, Path(name), OURS)
        try:
            yield evidence
        finally:
            evidence.close()
            if kubelet is not None:
                kubelet.freed.set()
            server.stop(None).wait()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_kubelet_that_answers_tells_pods_and_holders() -> None:
    with node(Kubelet()) as evidence:
        roster = evidence.roster()
        listed = evidence.listed_containers(patient=True)

    assert roster is not None
    assert [(pod.name, pod.containers[0].amounts) for pod in roster] == [("pod", ((CORE, 30),))]
    assert listed is not None
    assert [(item.container, item.ids) for item in listed] == [("app", {"a", "b"})]


def test_an_interface_that_is_not_configured_answers_none_and_nothing_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evidence = Evidence(None, None, tmp_path, OURS)

    assert (evidence.roster(), evidence.listed_containers(patient=True)) == (None, None)
    assert evidence.holds(APP, frozenset({"a"}))
    assert warnings(caplog) == []


@pytest.mark.parametrize("trouble", ["fails", "is silent", "is away"])
def test_a_kubelet_in_trouble_answers_none_and_each_interface_is_complained_of_once(
    trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    kubelet = Kubelet()
    kubelet.failing = grpc.StatusCode.INTERNAL if trouble == "fails" else None
    kubelet.silent = trouble == "is silent"
    with node(None if trouble == "is away" else kubelet) as evidence:
        for _ in range(2):
            assert evidence.roster() is None
            assert evidence.listed_containers(patient=True) is None

    assert len(warnings(caplog)) == 2


def test_an_interface_that_failed_is_asked_again_and_may_be_complained_of_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kubelet = Kubelet()
    with node(kubelet) as evidence:
        for failing in (grpc.StatusCode.INTERNAL, None, grpc.StatusCode.INTERNAL):
            kubelet.failing = failing
            assert (evidence.roster() is None) == (failing is not None)

    assert len(warnings(caplog)) == 2


def test_a_container_holds_what_the_kubelet_says_and_no_more() -> None:
    with node(Kubelet()) as evidence:
        assert evidence.holds(APP, frozenset({"b", "z"}))
        assert not evidence.holds(APP, frozenset({"z"}))
        assert not evidence.holds(Owner("ns", "pod", "other"), frozenset({"a"}))


def test_a_pod_is_there_whatever_its_containers_hold() -> None:
    with node(Kubelet()) as evidence:
        assert evidence.has_pod(Owner("ns", "pod", "finished-init"))


@pytest.mark.parametrize("code", [grpc.StatusCode.UNKNOWN, grpc.StatusCode.NOT_FOUND])
def test_a_pod_that_the_kubelet_does_not_know_holds_nothing(code: grpc.StatusCode) -> None:
    kubelet = Kubelet()
    kubelet.failing = code
    with node(kubelet) as evidence:
        assert not evidence.holds(APP, frozenset({"a"}))
        assert not evidence.has_pod(APP)


@pytest.mark.parametrize("trouble", ["fails", "is silent", "is away"])
def test_without_an_answer_a_container_is_taken_to_hold_its_devices(trouble: str) -> None:
    kubelet = Kubelet()
    kubelet.failing = grpc.StatusCode.INTERNAL if trouble == "fails" else None
    kubelet.silent = trouble == "is silent"
    with node(None if trouble == "is away" else kubelet) as evidence:
        assert evidence.holds(APP, frozenset({"z"}))


def test_a_container_without_a_name_cannot_be_asked_about_and_is_taken_to_hold_its_devices() -> None:
    with node(Kubelet()) as evidence:
        assert evidence.holds(Owner(serial=1), frozenset({"z"}))


def test_after_its_end_the_agent_gets_none_and_no_exception() -> None:
    with node(Kubelet()) as evidence:
        evidence.close()

        assert (evidence.roster(), evidence.listed_containers(patient=False)) == (None, None)
