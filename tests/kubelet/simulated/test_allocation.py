"""Allocate and its failures, init containers, scopes, and what becomes of devices afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NoReturn

import grpc
import pytest

from tests.kubelet.simulated.toy_plugin import CALL_LIMIT_S, Asked, RefusedCallError, ToyPlugin, device
from tests.kubelet.simulated.world import (
    BEST_EFFORT,
    CORE,
    MEM,
    NIC,
    NONE,
    RESTRICTED,
    SINGLE,
    SINGLE_POD,
    World,
    container,
    given,
    node_of,
    on_two_nodes,
    pod,
    until,
)
from topoalloc.admission.pod import Pod
from topoalloc.admission.policy import Policy
from topoalloc.errors import KubeletError
from topoalloc.kubelet.simulated.kubelet import Admission, SimulatedKubelet
from topoalloc.kubelet.simulated.pod_store import Phase
from topoalloc.kubelet.simulated.settings import (
    EVICTION_MEMORY_BYTES,
    Behaviour,
    CpuSettings,
    KubeletSettings,
    MemorySettings,
)
from topoalloc.pb.deviceplugin_v1beta1_pb2 import ContainerAllocateResponse

RESOURCES = (CORE, MEM, NIC)


def refusing(code: grpc.StatusCode, text: str) -> Callable[[object], NoReturn]:
    """An answer that is an RPC error."""

    def answer(asked: object) -> NoReturn:
        raise RefusedCallError(code, text)

    return answer


def granted(ids: frozenset[str]) -> ContainerAllocateResponse:
    return ContainerAllocateResponse()


def core_and_mem(world: World, kubelet: SimulatedKubelet) -> tuple[ToyPlugin, ToyPlugin]:
    core, mem = world.plugin(CORE), world.plugin(MEM)
    world.served(kubelet, core, mem)
    return core, mem


def message_of(admission: Admission) -> tuple[str, str]:
    assert admission.refusal is not None
    return admission.refusal.reason, admission.refusal.status_message


def unexpected(error: str) -> tuple[str, str]:
    return "UnexpectedAdmissionError", f"Pod was rejected: Allocate failed due to {error}, which is unexpected"


def test_the_order_of_a_containers_resources_is_random_and_comes_from_the_seed(world: World) -> None:
    orders = []
    for seed in (1, 1, 2):
        kubelet = world.kubelet(NONE, seed=seed)
        world.served(kubelet, *(world.plugin(name, socket_name=f"{name[9:]}-{len(orders)}.sock") for name in RESOURCES))
        calls = [kubelet.admit(pod(f"p{number}", core=1, mem=1, nic=1)).calls for number in range(8)]
        orders.append([[(call.method, call.resource, call.ids) for call in of_pod] for of_pod in calls])
        kubelet.stop()
        (world.root / "device-plugins" / "kubelet_internal_checkpoint").unlink()
    assert orders[0] == orders[1] != orders[2]
    assert len({tuple(resource for _, resource, _ in of_pod) for of_pod in orders[0]}) > 1


def test_the_calls_of_one_container_come_in_one_run_of_pairs(world: World) -> None:
    kubelet = world.kubelet(NONE)
    core_and_mem(world, kubelet)
    admission = kubelet.admit(pod("a", container("c", core=1, mem=1), container("d", core=1)))
    said = [(call.container, call.method) for call in admission.calls]
    pair = ["GetPreferredAllocation", "Allocate"]
    assert said == [(name, method) for name in ("c", "c", "d") for method in pair]


def test_a_preference_error_fails_the_pod_with_the_plugins_text(world: World) -> None:
    kubelet, plugin = world.kubelet(NONE), world.plugin()
    plugin.prefer = refusing(grpc.StatusCode.RESOURCE_EXHAUSTED, "no fit")
    world.served(kubelet, plugin)
    why = "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = ResourceExhausted desc = no fit"
    assert message_of(kubelet.admit(pod("a", core=1))) == unexpected(why)


def test_an_allocate_error_fails_the_pod_and_undoes_the_reservation(world: World) -> None:
    kubelet, plugin = world.kubelet(), world.plugin()
    plugin.grant = refusing(grpc.StatusCode.FAILED_PRECONDITION, "GPU busy")
    world.served(kubelet, plugin)
    why = "rpc error: code = FailedPrecondition desc = GPU busy"
    assert message_of(kubelet.admit(pod("a", core=10))) == unexpected(why)
    assert kubelet.devices.tables.allocated.get(CORE, frozenset()) == frozenset()


def test_a_refused_pod_is_failed_and_no_longer_active(world: World) -> None:
    kubelet = world.kubelet()
    core_and_mem(world, kubelet)
    refused = kubelet.admit(pod("a", core=11))
    stored = kubelet.pods.find("uid-a")
    assert stored is not None
    assert (stored.phase, stored.refusal) == (Phase.FAILED, refused.refusal)
    assert kubelet.pods.active() == ()


def half_failed(world: World, kubelet: SimulatedKubelet) -> Admission:
    """A pod whose first resource was recorded before its second was refused, by whichever order the seed gives."""
    _, mem = core_and_mem(world, kubelet)
    for number in range(20):
        mem.grant = refusing(grpc.StatusCode.FAILED_PRECONDITION, "no")
        admission = kubelet.admit(pod(f"half-{number}", core=10, mem=1))
        if given(admission, CORE):
            return admission
    raise AssertionError("the seed never asked for core first")


def test_of_a_half_failed_container_the_first_resource_is_reported(world: World) -> None:
    kubelet = world.kubelet()
    admission = half_failed(world, kubelet)
    assert not admission.admitted
    assert len(given(admission, CORE)) == 10
    assert given(admission, MEM) == frozenset()


def test_the_half_of_a_refused_pod_is_gone_from_the_first_list_afterwards(world: World) -> None:
    kubelet = world.kubelet()
    admission = half_failed(world, kubelet)
    assert world.listed() == {}
    assert admission.pod.uid not in {owner.pod_uid for owner in kubelet.devices.tables.recorded}


def test_the_half_of_a_refused_pod_is_free_for_the_next_pod_without_any_list(world: World) -> None:
    kubelet = world.kubelet()
    half_failed(world, kubelet)
    assert [kubelet.admit(pod(name, core=10)).admitted for name in ("b", "c")] == [True, True]


def test_allocate_without_a_container_response_leaks_until_another_pod_with_devices_ends(world: World) -> None:
    kubelet, plugin = world.kubelet(), world.plugin(devices=on_two_nodes("core")[:10])
    world.served(kubelet, plugin, world.plugin(NIC))
    assert kubelet.admit(pod("other", nic=1)).admitted
    plugin.grant = lambda ids: None
    reason, text = message_of(kubelet.admit(pod("zero", core=7)))
    assert reason == "UnexpectedAdmissionError"
    assert "no containers return in allocation response" in text
    assert message_of(kubelet.admit(pod("all", core=10)))[0] == "TopologyAffinityError"
    kubelet.finish("uid-other")
    plugin.grant = granted
    assert kubelet.admit(pod("all-again", core=10)).admitted


def test_after_a_preference_error_devices_taken_as_must_include_leak(world: World) -> None:
    kubelet = world.kubelet(BEST_EFFORT)
    two_and_ten = [device(f"core-0-{number}", 0) for number in range(2)] + on_two_nodes("core")[10:]
    core, nic = world.plugin(CORE, two_and_ten), world.plugin(NIC, [device("nic-0-0", 0), device("nic-0-1", 0)])
    world.served(kubelet, core, nic)
    core.prefer = refusing(grpc.StatusCode.UNKNOWN, "no")
    for number in range(20):
        admission = kubelet.admit(pod(f"leak-{number}", core=4, nic=1))
        if not given(admission, NIC):
            break
        # The NIC had been recorded first: that leak heals at the next admission.
    _, text = message_of(kubelet.admit(pod("all", core=12)))
    assert "requested number of devices unavailable for toy.test/core. Requested: 12, Available: 10" in text


def test_an_init_containers_devices_are_must_include_for_the_app_container(world: World) -> None:
    kubelet, plugin = world.kubelet(), world.plugin()
    world.served(kubelet, plugin)
    kubelet.admit(pod("a", container("i", init=True, core=2), container("main", core=6)))
    init_devices, app_devices = plugin.allocated
    free = frozenset(f"core-0-{number}" for number in range(10))
    assert plugin.asked[1] == Asked(free, init_devices, 6)
    assert init_devices < app_devices


def test_an_init_container_that_had_more_is_reused_without_a_question(world: World) -> None:
    kubelet, plugin = world.kubelet(), world.plugin()
    world.served(kubelet, plugin)
    admission = kubelet.admit(pod("a", container("i", init=True, core=6), container("main", core=2)))
    assert len(plugin.asked) == 1
    assert given(admission) < given(admission, container_name="i")
    assert world.listed() == {"a": {f"main/{CORE}": given(admission)}}


def test_left_overs_of_an_init_container_stay_taken_until_the_pod_ends(world: World) -> None:
    kubelet, plugin = world.kubelet(), world.plugin()
    world.served(kubelet, plugin)
    kubelet.admit(pod("a", container("i", init=True, core=6), container("main", core=2)))
    assert len(kubelet.devices.tables.allocated[CORE]) == 6
    kubelet.finish("uid-a")
    assert world.listed() == {}
    assert kubelet.devices.tables.allocated.get(CORE, frozenset()) == frozenset()


def test_a_sidecar_keeps_the_devices_it_took_over_from_an_init_container(world: World) -> None:
    kubelet, plugin = world.kubelet(), world.plugin()
    world.served(kubelet, plugin)
    kubelet.admit(
        pod(
            "a",
            container("i1", init=True, core=2),
            container("sidecar", init=True, restartable=True, core=2),
            container("i2", init=True, core=3),
            container("main", core=3),
        )
    )
    first, sidecar, second, app = plugin.allocated
    assert sidecar == first
    assert second == app
    assert not sidecar & second
    assert len(plugin.asked) == 2


def test_pod_scope_refuses_before_the_first_call_what_container_scope_admits(world: World) -> None:
    two = container("c1", core=6), container("c2", core=6)
    kubelet, plugin = world.kubelet(SINGLE_POD), world.plugin()
    world.served(kubelet, plugin)
    assert message_of(kubelet.admit(pod("a", *two)))[0] == "TopologyAffinityError"
    assert (plugin.asked, plugin.allocated) == ([], [])
    kubelet.stop()
    kubelet = world.kubelet(SINGLE)
    world.served(kubelet, world.plugin(socket_name="other.sock"))
    admission = kubelet.admit(pod("b", *two))
    nodes = [node_of(given(admission, container_name=name)) for name in ("c1", "c2")]
    assert nodes == [{"0"}, {"1"}]


def test_container_scope_refuses_half_way_and_reports_what_was_given_before(world: World) -> None:
    kubelet, plugin = world.kubelet(SINGLE), world.plugin()
    world.served(kubelet, plugin)
    admission = kubelet.admit(pod("a", container("c1", core=4), container("c2", core=11)))
    assert message_of(admission) == (
        "TopologyAffinityError",
        "Pod was rejected: Resources cannot be allocated with Topology locality",
    )
    assert len(given(admission, container_name="c1")) == 4
    assert len(plugin.allocated) == 1


@pytest.mark.parametrize(
    ("settings", "admitted"),
    [(SINGLE, False), (RESTRICTED, True), (BEST_EFFORT, True), (NONE, True)],
    ids=["single-numa-node", "restricted", "best-effort", "none"],
)
def test_a_request_that_needs_both_nodes(world: World, settings: KubeletSettings, admitted: bool) -> None:
    kubelet = world.kubelet(settings)
    core_and_mem(world, kubelet)
    assert kubelet.admit(pod("a", core=12)).admitted is admitted


def test_restricted_refuses_two_nodes_of_core_with_a_little_memory(world: World) -> None:
    kubelet = world.kubelet(RESTRICTED)
    core_and_mem(world, kubelet)
    assert message_of(kubelet.admit(pod("a", core=12, mem=2)))[0] == "TopologyAffinityError"


def test_a_refusal_by_the_topology_manager_is_explained(world: World) -> None:
    kubelet = world.kubelet(SINGLE)
    core_and_mem(world, kubelet)
    explanation = kubelet.admit(pod("a", core=12)).explanation
    assert explanation is not None
    assert CORE in explanation.sentence + explanation.remedy


def test_a_device_that_vanishes_during_its_allocate_crashes_the_kubelet(world: World) -> None:
    kubelet, plugin = world.kubelet(NONE), world.plugin()
    world.served(kubelet, plugin)

    def vanish(ids: frozenset[str]) -> ContainerAllocateResponse:
        plugin.send([one for one in plugin.devices if one.ID not in ids])
        until(kubelet, lambda: len(kubelet.devices.tables.listed[CORE].nodes) == 20 - len(ids))
        return granted(ids)

    plugin.grant = vanish
    with pytest.raises(KubeletError, match="crash"):
        kubelet.admit(pod("a", core=2))


def test_a_device_that_turns_unhealthy_during_its_allocate_is_given_all_the_same(world: World) -> None:
    kubelet, plugin = world.kubelet(NONE), world.plugin()
    world.served(kubelet, plugin)

    def sicken(ids: frozenset[str]) -> ContainerAllocateResponse:
        plugin.send([device(one.ID, 0, healthy=one.ID not in ids) for one in plugin.devices])
        until(kubelet, lambda: len(kubelet.devices.tables.listed[CORE].healthy) == 20 - len(ids))
        return granted(ids)

    plugin.grant = sicken
    assert len(given(kubelet.admit(pod("a", core=2)))) == 2


def test_while_a_plugin_is_slow_every_other_pod_waits(world: World) -> None:
    kubelet, plugin = world.kubelet(NONE), world.plugin()
    world.served(kubelet, plugin)
    in_call, go_on, order = threading.Event(), threading.Event(), []

    def slowly(ids: frozenset[str]) -> ContainerAllocateResponse:
        in_call.set()
        assert go_on.wait(CALL_LIMIT_S)
        order.append("slow call answered")
        return granted(ids)

    def admit_other() -> None:
        kubelet.admit(pod("without-devices"))
        order.append("other pod judged")

    plugin.grant = slowly
    threads = [threading.Thread(target=lambda: kubelet.admit(pod("a", core=1))), threading.Thread(target=admit_other)]
    threads[0].start()
    assert in_call.wait(CALL_LIMIT_S)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(CALL_LIMIT_S)
    assert order == ["slow call answered", "other pod judged"]


def test_a_resource_that_nobody_registered_is_admitted_without_devices(world: World) -> None:
    kubelet = world.kubelet()
    admission = kubelet.admit(pod("a", core=3))
    assert admission.admitted
    assert admission.devices == {}


def test_the_answers_of_allocate_are_kept_for_the_container(world: World) -> None:
    kubelet, plugin = world.kubelet(NONE), world.plugin()
    world.served(kubelet, plugin)
    admission = kubelet.admit(pod("a", core=1))
    (device_id,) = given(admission)
    (answer,) = admission.answers.values()
    assert device_id.encode() in answer


def test_a_pod_over_the_nodes_cpus_is_refused_after_its_devices_were_allocated(world: World) -> None:
    kubelet, plugin = world.kubelet(NONE), world.plugin()
    world.served(kubelet, plugin)
    admission = kubelet.admit(pod("a", core=1, cpu=17))
    assert message_of(admission) == (
        "OutOfcpu",
        "Pod was rejected: Node didn't have enough resource: cpu, requested: 17000, used: 0, capacity: 16000",
    )
    assert len(plugin.allocated) == 1
    assert world.listed() == {}


def test_the_static_cpu_manager_gives_whole_cpus_on_the_devices_node_and_refuses_when_they_are_out(
    world: World,
) -> None:
    kubelet = world.kubelet(KubeletSettings(policy=Policy.SINGLE_NUMA_NODE, cpu=CpuSettings(reserved=1)))
    world.served(kubelet, world.plugin())
    first = kubelet.admit(pod("a", core=1, cpu=8, memory="1Gi"))
    assert (str(first.cpus["main"]), node_of(given(first))) == ("8-15", {"1"})
    second = kubelet.admit(pod("b", core=1, cpu=8, memory="1Gi"))
    assert message_of(second)[0] == "TopologyAffinityError"


def test_without_a_policy_too_few_cpus_are_an_unexpected_error_after_the_devices(world: World) -> None:
    kubelet, plugin = world.kubelet(KubeletSettings(cpu=CpuSettings(reserved=2))), world.plugin()
    world.served(kubelet, plugin)
    reason, text = message_of(kubelet.admit(pod("a", core=1, cpu=15, memory="1Gi")))
    assert reason == "UnexpectedAdmissionError"
    assert "not enough cpus available to satisfy request: requested=15, available=14" in text
    assert len(plugin.allocated) == 1


@pytest.mark.parametrize("loses", [True, False], ids=["as in 1.37", "repaired"])
def test_a_list_during_allocate_while_another_pod_ends_can_give_a_device_twice(world: World, loses: bool) -> None:
    behaviour = Behaviour(limits_requests=False, loses_reservations=loses)
    kubelet = world.kubelet(NONE, behaviour)
    plugin = world.plugin(devices=on_two_nodes("core")[:8])
    world.served(kubelet, plugin)
    kubelet.admit(pod("ending", core=4))
    in_call, go_on = threading.Event(), threading.Event()

    def slowly(ids: frozenset[str]) -> ContainerAllocateResponse:
        in_call.set()
        assert go_on.wait(CALL_LIMIT_S)
        return granted(ids)

    plugin.grant = slowly
    results: list[Admission] = []
    admitting = threading.Thread(target=lambda: results.append(kubelet.admit(pod("first", core=4))))
    admitting.start()
    assert in_call.wait(CALL_LIMIT_S)
    kubelet.finish("uid-ending")
    world.listed()
    go_on.set()
    admitting.join(CALL_LIMIT_S)
    assert (len(given(results[0])), kubelet.devices.view(CORE).free >= given(results[0])) == (4, loses)


def test_without_a_list_in_that_window_nothing_is_lost(world: World) -> None:
    kubelet, plugin = world.kubelet(NONE), world.plugin(devices=on_two_nodes("core")[:8])
    world.served(kubelet, plugin)
    kubelet.admit(pod("ending", core=4))

    def end_other(ids: frozenset[str]) -> ContainerAllocateResponse:
        kubelet.finish("uid-ending")
        return granted(ids)

    plugin.grant = end_other
    first = kubelet.admit(pod("first", core=4))
    assert not kubelet.devices.view(CORE).free & given(first)


def test_the_same_pod_names_may_come_again_after_deletion(world: World) -> None:
    kubelet = world.kubelet()
    core_and_mem(world, kubelet)
    kubelet.admit(pod("a", core=10))
    kubelet.finish("uid-a")
    kubelet.delete("uid-a")
    again = Pod("a", "default", "uid-a-2", (container("main", core=10),))
    assert kubelet.admit(again).admitted


def test_what_an_ended_init_container_had_beyond_the_app_containers_is_free_as_memory_and_taken_as_cpus(
    world: World,
) -> None:
    reserved = {0: {"memory": EVICTION_MEMORY_BYTES}}
    settings = KubeletSettings(
        policy=Policy.SINGLE_NUMA_NODE, cpu=CpuSettings(reserved=1), memory=MemorySettings(reserved)
    )
    kubelet = world.kubelet(settings)
    kubelet.admit(
        pod("a", container("i", init=True, cpu=3, memory="50Gi"), container("main", cpu="500m", memory="1Gi"))
    )
    after = kubelet.admit(pod("b", cpu=2, memory="50Gi"))
    assert (after.admitted, str(after.cpus["main"])) == (True, "4-5")
