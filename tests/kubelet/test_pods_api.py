"""What is read of a pod: requests, order, ordinary init containers and sidecars, canonical quantities."""

from __future__ import annotations

import pytest

from topoalloc.kubelet.pods_api import pod_demand
from topoalloc.pb.core_v1_pod_pb2 import Container, ObjectMeta, Pod, PodSpec, PodStatus, Quantity, ResourceRequirements

OURS = frozenset({"topoalloc.io/vgpu-core", "topoalloc.io/nic"})


def container(name: str, restart: str = "", **limits: str) -> Container:
    quantities = {f"topoalloc.io/{key.replace('_', '-')}": Quantity(string=text) for key, text in limits.items()}
    quantities["cpu"] = Quantity(string="2500m")
    return Container(name=name, resources=ResourceRequirements(limits=quantities), restartPolicy=restart)


def pod(phase: str, containers: list[Container], inits: list[Container] | None = None) -> Pod:
    return Pod(
        metadata=ObjectMeta(name="p", namespace="ns", uid="uid"),
        spec=PodSpec(containers=containers, initContainers=inits or []),
        status=PodStatus(phase=phase),
    )


def test_only_our_resources_are_read():
    demand = pod_demand(pod("Pending", [container("app", vgpu_core="30", other="1")]), OURS)

    assert demand.containers[0].amounts == (("topoalloc.io/vgpu-core", 30),)


def test_init_containers_come_first_and_sidecars_are_no_ordinary_ones():
    demand = pod_demand(
        pod("Pending", [container("app")], [container("init", nic="1"), container("sidecar", "Always", nic="1")]), OURS
    )

    assert [(c.name, c.init) for c in demand.containers] == [("init", True), ("sidecar", False), ("app", False)]


@pytest.mark.parametrize(("text", "amount"), [("1k", 1000), ("1024", 1024), ("2Ki", 2048), ("1M", 1_000_000)])
def test_amounts_arrive_in_canonical_form(text: str, amount: int):
    demand = pod_demand(pod("Pending", [container("app", vgpu_core=text)]), OURS)

    assert demand.containers[0].amounts == (("topoalloc.io/vgpu-core", amount),)


@pytest.mark.parametrize("text", ["0", "", "-1", "1500m", "x"])
def test_what_is_no_amount_asks_for_nothing(text: str):
    assert pod_demand(pod("Pending", [container("app", vgpu_core=text)]), OURS).containers[0].amounts == ()


def test_containers_of_a_running_pod_are_past_admission():
    assert pod_demand(pod("Running", [container("app", nic="1")]), OURS).containers[0].past_admission
    assert not pod_demand(pod("Pending", [container("app", nic="1")]), OURS).containers[0].past_admission
