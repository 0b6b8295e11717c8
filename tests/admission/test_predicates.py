"""The fit check: which resource is named, what is counted, what is left out."""

from __future__ import annotations

from tests.admission.spelling import CORE, NIC, app, init, pod
from topoalloc.admission.pod import Pod
from topoalloc.admission.predicates import fit
from topoalloc.admission.quantity import parse_quantity
from topoalloc.admission.refusal import Refusal
from topoalloc.topology.machine import Unknown

ROOMY = {"cpu": 4000, "memory": 1 << 30, CORE: 8}


def test_a_pod_that_fits_is_let_through() -> None:
    assert fit(pod(app(cpu="4", memory="1Gi", core="8")), [], ROOMY) is None


def test_cpu_counts_in_thousandths_beside_what_others_use() -> None:
    refusal = fit(pod(app(cpu="2500m")), [pod(app(cpu="2"), uid="other")], ROOMY)

    assert refusal == Refusal(
        "OutOfcpu", "Node didn't have enough resource: cpu, requested: 2500, used: 2000, capacity: 4000"
    )


def test_cpu_is_named_before_memory_and_both_before_devices() -> None:
    everything = pod(app(cpu="9", memory="9Gi", core="9"))

    assert (fit(everything, [], ROOMY) or Refusal("", "")).reason == "OutOfcpu"
    assert (fit(pod(app(memory="9Gi", core="9")), [], ROOMY) or Refusal("", "")).reason == "OutOfmemory"
    assert (fit(pod(app(core="9")), [], ROOMY) or Refusal("", "")).reason == f"OutOf{CORE}"


def test_init_containers_count_at_their_worst_moment() -> None:
    assert fit(pod(init(core="8"), app(core="8")), [], ROOMY) is None
    assert fit(pod(init(core="9"), app(core="1")), [], ROOMY) is not None


def test_the_overhead_of_a_pod_counts() -> None:
    heavy = Pod("p", "d", "p", (app(cpu="4"),), overhead={"cpu": parse_quantity("1m")})

    assert fit(heavy, [], ROOMY) == Refusal(
        "OutOfcpu", "Node didn't have enough resource: cpu, requested: 4001, used: 0, capacity: 4000"
    )


def test_an_extended_resource_that_the_node_lacks_is_not_checked() -> None:
    assert fit(pod(app(nic="1")), [], ROOMY) is None


def test_a_native_resource_that_the_node_lacks_is_refused() -> None:
    assert fit(pod(app(huge="2Mi")), [], ROOMY) is not None


def test_devices_given_out_raise_what_the_node_offers() -> None:
    gone = {**ROOMY, CORE: 0}

    assert fit(pod(app(core="2")), [], gone) is not None
    assert fit(pod(app(core="2")), [], gone, devices_allocated={CORE: 2}) is None
    assert fit(pod(app(core="2", nic="1")), [], gone, devices_allocated={CORE: 2, NIC: 0}) is not None


def test_too_many_pods_are_refused_first() -> None:
    refusal = fit(pod(app(cpu="9")), [pod(uid="a"), pod(uid="b")], ROOMY, pods_max=2)

    assert refusal == Refusal("OutOfpods", "Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2")


def test_an_amount_that_is_unknown_is_not_checked_whatever_is_asked() -> None:
    node = {**ROOMY, "cpu": Unknown("not told")}

    assert fit(pod(app(cpu="9999999999", memory="1Gi")), [], node) is None
    assert fit(pod(app(cpu="9999999999", memory="9Gi")), [], node) == fit(pod(app(memory="9Gi")), [], ROOMY)
