"""PodResources and the local pods API: what other programs on the node see, also from inside a call."""

from __future__ import annotations

import grpc
import pytest

from tests.kubelet.simulated.toy_plugin import CALL_LIMIT_S, device
from tests.kubelet.simulated.world import CORE, NONE, World, by_container, container, given, on_two_nodes, pod
from topoalloc.admission.policy import Policy
from topoalloc.kubelet.simulated.process import Sockets
from topoalloc.kubelet.simulated.settings import Behaviour, CpuSettings, KubeletSettings, MemorySettings
from topoalloc.pb import core_v1_pod_pb2 as core
from topoalloc.pb import podresources_v1_pb2 as wire
from topoalloc.pb import pods_v1alpha1_pb2 as pods_wire
from topoalloc.pb import pods_v1alpha1_pb2_grpc as pods_grpc
from topoalloc.pb.deviceplugin_v1beta1_pb2 import ContainerAllocateResponse


def pods_api(world: World) -> pods_grpc.PodsStub:
    return pods_grpc.PodsStub(grpc.insecure_channel(f"unix:{Sockets.below(world.root).pods_api}"))


def seen_pods(world: World) -> dict[str, core.Pod]:
    response = pods_api(world).ListPods(pods_wire.ListPodsRequest(), timeout=CALL_LIMIT_S)
    return {one.metadata.name: one for one in map(core.Pod.FromString, response.pods)}


def test_list_shows_each_device_of_running_pods_with_its_numa_node(world: World) -> None:
    kubelet = world.kubelet()
    world.served(kubelet, world.plugin())
    admission = kubelet.admit(pod("a", core=2))
    (entry,) = world.pod_resources().List(wire.ListPodResourcesRequest(), timeout=CALL_LIMIT_S).pod_resources
    (one,) = entry.containers
    assert (entry.namespace, entry.name, one.name) == ("default", "a", "main")
    shown = [(tuple(d.device_ids), [node.ID for node in d.topology.nodes]) for d in one.devices]
    assert shown == [((device_id,), [0]) for device_id in sorted(given(admission))]


def test_a_device_on_two_nodes_has_one_entry_per_node(world: World) -> None:
    kubelet = world.kubelet(NONE)
    world.served(kubelet, world.plugin(devices=[device("core-x-0", 0, 1)]))
    kubelet.admit(pod("a", core=1))
    (entry,) = world.pod_resources().List(wire.ListPodResourcesRequest(), timeout=CALL_LIMIT_S).pod_resources
    nodes = [node.ID for devices in entry.containers[0].devices for node in devices.topology.nodes]
    assert nodes == [0, 1]


def test_inside_allocate_list_and_get_show_the_pod_and_what_its_earlier_containers_got(world: World) -> None:
    kubelet, plugin = world.kubelet(), world.plugin()
    world.served(kubelet, plugin)
    seen: list[tuple[dict[str, frozenset[str]], dict[str, frozenset[str]]]] = []

    def look(ids: frozenset[str]) -> ContainerAllocateResponse:
        request = wire.GetPodResourcesRequest(pod_name="a", pod_namespace="default")
        got = world.pod_resources().Get(request, timeout=CALL_LIMIT_S)
        seen.append((world.listed()["a"], by_container(got.pod_resources)))
        return ContainerAllocateResponse()

    plugin.grant = look
    first = kubelet.admit(pod("a", container("i", init=True, core=1), container("c", core=2), container("d", core=1)))
    earlier = {f"c/{CORE}": given(first, container_name="c")}
    assert seen == [({}, {}), ({}, {}), (earlier, earlier)]


def test_inside_a_preference_the_pods_api_shows_the_whole_spec_of_the_pod_under_admission(world: World) -> None:
    kubelet, plugin = world.kubelet(), world.plugin()
    world.served(kubelet, plugin)
    seen: list[dict[str, core.Pod]] = []

    def look(asked: object) -> None:
        seen.append(seen_pods(world))

    plugin.prefer = look
    kubelet.admit(pod("before", core=1))
    kubelet.admit(
        pod("a", container("s", init=True, restartable=True), container("c", core=2, cpu="500m"), container("d"))
    )
    shown = seen[1]["a"]
    assert (seen[1]["before"].status.phase, shown.status.phase) == ("Running", "Pending")
    assert shown.metadata.uid == "uid-a"
    assert [(one.name, one.restartPolicy) for one in shown.spec.initContainers] == [("s", "Always")]
    assert [one.name for one in shown.spec.containers] == ["c", "d"]
    limits = shown.spec.containers[0].resources.limits
    assert {name: limits[name].string for name in limits} == {CORE: "2", "cpu": "0.5"}


def test_a_refused_pod_is_failed_for_the_pods_api_and_gone_from_pod_resources(world: World) -> None:
    kubelet = world.kubelet()
    world.served(kubelet, world.plugin())
    kubelet.admit(pod("a", core=11))
    assert seen_pods(world)["a"].status.phase == "Failed"
    assert world.listed() == {}


def test_get_pod_finds_by_uid_and_says_when_there_is_none(world: World) -> None:
    kubelet = world.kubelet()
    kubelet.admit(pod("a"))
    found = pods_api(world).GetPod(pods_wire.GetPodRequest(podUID="uid-a"), timeout=CALL_LIMIT_S)
    assert core.Pod.FromString(found.pod).metadata.name == "a"
    with pytest.raises(grpc.RpcError) as caught:
        pods_api(world).GetPod(pods_wire.GetPodRequest(podUID="nobody"), timeout=CALL_LIMIT_S)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_get_of_an_unknown_pod_is_an_error_without_a_code_of_its_own(world: World) -> None:
    world.kubelet()
    with pytest.raises(grpc.RpcError) as caught:
        world.pod_resources().Get(wire.GetPodResourcesRequest(pod_name="x", pod_namespace="y"), timeout=CALL_LIMIT_S)
    assert (caught.value.code(), caught.value.details()) == (
        grpc.StatusCode.UNKNOWN,
        "pod x in namespace y not found",
    )


def test_allocatable_means_healthy_used_or_not(world: World) -> None:
    kubelet = world.kubelet()
    devices = [*on_two_nodes("core", 2)[1:], device("core-0-0", 0, healthy=False)]
    world.served(kubelet, world.plugin(devices=devices))
    kubelet.admit(pod("a", core=1))
    response = world.pod_resources().GetAllocatableResources(wire.AllocatableResourcesRequest(), timeout=CALL_LIMIT_S)
    assert sorted(one.device_ids[0] for one in response.devices) == ["core-0-1", "core-1-0", "core-1-1"]


def test_exclusive_cpus_and_memory_are_listed(world: World) -> None:
    settings = KubeletSettings(
        policy=Policy.SINGLE_NUMA_NODE,
        cpu=CpuSettings(reserved=1),
        memory=MemorySettings({0: {"memory": 2**30}}),
    )
    kubelet = world.kubelet(settings)
    kubelet.admit(pod("a", cpu=2, memory="1Gi"))
    (entry,) = world.pod_resources().List(wire.ListPodResourcesRequest(), timeout=CALL_LIMIT_S).pod_resources
    (one,) = entry.containers
    (block,) = one.memory
    assert list(one.cpu_ids) == [1, 2]
    assert (block.memory_type, block.size, [node.ID for node in block.topology.nodes]) == ("memory", 2**30, [0])


def test_more_than_a_hundred_requests_a_second_are_rejected(world: World) -> None:
    world.kubelet(behaviour=Behaviour(limits_requests=True))
    stub = world.pod_resources()
    for _ in range(10):
        stub.List(wire.ListPodResourcesRequest(), timeout=CALL_LIMIT_S)
    with pytest.raises(grpc.RpcError) as caught:
        stub.List(wire.ListPodResourcesRequest(), timeout=CALL_LIMIT_S)
    assert (caught.value.code(), caught.value.details()) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "rejected by rate limit",
    )
    world.now_s += 0.02
    stub.List(wire.ListPodResourcesRequest(), timeout=CALL_LIMIT_S)


def test_an_older_node_has_neither_socket(world: World) -> None:
    world.kubelet(behaviour=Behaviour(pods_api=False, pod_resources=False))
    sockets = Sockets.below(world.root)
    assert not sockets.pods_api.exists()
    assert not sockets.pod_resources.exists()
