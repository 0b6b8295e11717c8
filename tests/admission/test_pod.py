"""Pods: defaulting and refusals as the API server does, quality of service, effective requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.admission.spelling import CORE, app, init, pod, sidecar
from topoalloc.admission.pod import (
    Container,
    Pod,
    Qos,
    checked_container,
    device_requests,
    is_extended,
    pod_limits,
    pod_requests,
    qos,
)
from topoalloc.admission.quantity import Quantity, parse_quantity
from topoalloc.errors import InputError


def amounts(found: dict[str, Quantity]) -> dict[str, str]:
    return {name: str(quantity) for name, quantity in found.items()}


def test_requests_are_defaulted_from_limits() -> None:
    found = checked_container("app", {"memory": "1"}, {"cpu": "2", "memory": "3", CORE: "1"})

    assert amounts(dict(found.requests)) == {"cpu": "2", "memory": "1", CORE: "1"}
    assert amounts(dict(found.limits)) == {"cpu": "2", "memory": "3", CORE: "1"}


@pytest.mark.parametrize(
    ("requests", "limits", "reason"),
    [
        ({"cpu": "two"}, {}, "container 'app', requests.cpu: not a quantity: 'two'"),
        ({}, {"cpu": "-1"}, "limits.cpu: -1 must be greater than or equal to 0"),
        ({"cpu": "2"}, {"cpu": "1"}, "the request 2 must be less than or equal to the limit 1"),
        ({}, {CORE: "1.5"}, f"{CORE}: must be an integer"),
        ({CORE: "1"}, {}, "Limit must be set for non overcommitable resources"),
        ({CORE: "1"}, {CORE: "2"}, "the request 1 must equal the limit 2"),
        ({"hugepages-2Mi": "2Mi"}, {"hugepages-2Mi": "4Mi"}, "the request 2097152 must equal the limit 4194304"),
    ],
)
def test_what_the_api_server_refuses_is_refused_with_the_place(
    requests: dict[str, str], limits: dict[str, str], reason: str
) -> None:
    with pytest.raises(InputError) as refused:
        checked_container("app", requests, limits)

    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("name", "extended"),
    [
        (CORE, True),
        ("tencent.com/vcuda-core", True),
        ("cpu", False),
        ("kubernetes.io/batch", False),
        ("x.kubernetes.io/y", False),
        ("requests.example.org/x", False),
    ],
)
def test_extended_resources_are_those_a_plugin_may_serve(name: str, extended: bool) -> None:
    assert is_extended(name) is extended


GUARANTEED = {"cpu": "1", "memory": "1Gi"}


def classed(*containers: tuple[dict[str, str], dict[str, str]]) -> Qos:
    return qos(pod(*(checked_container(f"c{i}", asked, capped) for i, (asked, capped) in enumerate(containers))))


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([({}, GUARANTEED)], Qos.GUARANTEED),
        ([({}, GUARANTEED), ({}, GUARANTEED)], Qos.GUARANTEED),
        ([({}, {"cpu": "1000m", "memory": "1024Mi"})], Qos.GUARANTEED),
        ([({}, GUARANTEED), ({}, {})], Qos.BURSTABLE),
        ([({}, {"cpu": "1"})], Qos.BURSTABLE),
        ([({"cpu": "1"}, {"cpu": "2", "memory": "1"})], Qos.BURSTABLE),
        ([({}, {})], Qos.BEST_EFFORT),
        ([({}, {CORE: "1"})], Qos.BEST_EFFORT),
        ([({"cpu": "0"}, {})], Qos.BEST_EFFORT),
        ([], Qos.BEST_EFFORT),
    ],
)
def test_quality_of_service_follows_cpu_and_memory_of_every_container(
    containers: list[tuple[dict[str, str], dict[str, str]]], expected: Qos
) -> None:
    assert classed(*containers) is expected


def test_pod_level_resources_decide_the_class_alone() -> None:
    bare = Container("c")
    whole = {name: parse_quantity(text) for name, text in GUARANTEED.items()}

    assert qos(Pod("p", "d", "p", (bare,), whole, whole)) is Qos.GUARANTEED
    assert qos(Pod("p", "d", "p", (bare,), {}, whole)) is Qos.BURSTABLE


def test_effective_requests_are_the_worst_moment_of_the_pods_life() -> None:
    whole = pod(init("i1", core="5"), sidecar("s", core="2"), init("i2", core="4"), app("a", core="1"), app("b"))

    assert amounts(pod_limits(whole)) == {CORE: "6"}


def test_running_containers_add_up_with_their_sidecars() -> None:
    assert amounts(pod_requests(pod(sidecar(core="2"), app("a", core="3"), app("b", core="4")))) == {CORE: "9"}


def test_a_resource_that_only_init_containers_want_counts() -> None:
    assert amounts(pod_limits(pod(init(core="3"), app(cpu="1")))) == {CORE: "3", "cpu": "1"}


def test_pod_level_cpu_replaces_the_sum_and_extended_resources_do_not() -> None:
    inner = app(cpu="1", core="2")
    level = {"cpu": parse_quantity("4"), CORE: parse_quantity("9")}

    assert amounts(pod_limits(Pod("p", "d", "p", (inner,), level, level))) == {"cpu": "4", CORE: "2"}


def test_device_requests_are_whole_numbers_of_the_limits() -> None:
    assert device_requests(app(core="3", cpu="500m")) == {CORE: 3, "cpu": 1}


containers = st.builds(
    lambda name, kind, count: {"app": app, "init": init, "sidecar": sidecar}[kind](name, core=str(count)),
    st.sampled_from("abc"),
    st.sampled_from(("app", "init", "sidecar")),
    st.integers(0, 9),
)


@given(st.lists(containers, min_size=1, max_size=6))
def test_effective_requests_equal_the_maximum_over_all_moments(found: list[Container]) -> None:
    ordered = sorted(found, key=lambda container: not container.init)
    moments: list[int] = []
    running = 0
    for container in ordered:
        wanted = container.limits[CORE].value
        if container.init and not container.restartable:
            moments.append(running + wanted)
        else:
            running += wanted
    moments.append(running)

    assert pod_limits(pod(*ordered))[CORE].value == max(moments)
