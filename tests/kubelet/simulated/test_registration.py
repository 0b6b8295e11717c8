"""Register, the device list, the end of a stream, several instances, and a kubelet that restarts."""

from __future__ import annotations

import grpc
import pytest

from tests.kubelet.simulated.toy_plugin import CALL_LIMIT_S, ToyPlugin, device
from tests.kubelet.simulated.world import (
    CORE,
    NONE,
    World,
    allocatable,
    container,
    given,
    on_two_nodes,
    pod,
    until,
)
from topoalloc.kubelet.simulated.endpoints import STOP_GRACE_PERIOD_S
from topoalloc.kubelet.simulated.kubelet import SimulatedKubelet
from topoalloc.kubelet.simulated.plugin_client import PluginCallError, PluginClient
from topoalloc.kubelet.simulated.registration import is_extended_resource_name
from topoalloc.kubelet.simulated.settings import CpuSettings, KubeletSettings

NO_DEVICES = "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices"


def refusal_of(plugin: ToyPlugin, **changes: str) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        plugin.register(**changes)
    return caught.value.code(), caught.value.details()


def test_register_calls_back_for_the_options_before_it_returns(world: World) -> None:
    world.kubelet()
    plugin = world.plugin().serve()
    assert plugin.options_asked == 1


def test_a_dial_that_nobody_answers_ends_in_a_kubelets_words(world: World) -> None:
    world.kubelet()
    client = PluginClient(CORE, world.root / "device-plugins" / "nobody.sock")
    with pytest.raises(PluginCallError, match="failed to dial device plugin: context deadline exceeded"):
        client.connect(limit_s=0.2)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"version": "v1"}, 'requested API version "v1" is not supported by kubelet. Supported version is "v1beta1"'),
        ({"resource_name": "plain"}, 'the ResourceName "plain" is invalid'),
    ],
)
def test_register_refuses_a_wrong_version_or_name(world: World, changes: dict[str, str], text: str) -> None:
    world.kubelet()
    plugin = world.plugin().start()
    assert refusal_of(plugin, **changes) == (grpc.StatusCode.UNKNOWN, text)


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("toy.test/core", True),
        ("toy.test/Core_1.x", True),
        ("core", False),
        ("kubernetes.io/core", False),
        ("x.kubernetes.io/core", False),
        ("requests.toy.test/core", False),
        ("Toy.test/core", False),
        ("toy.test/", False),
        ("toy.test/a/b", False),
        ("toy.test/" + "a" * 63, True),
        ("toy.test/" + "a" * 64, False),
    ],
)
def test_extended_resource_names_follow_the_kubelet(name: str, accepted: bool) -> None:
    assert is_extended_resource_name(name) is accepted


def test_a_second_register_of_a_connected_path_is_refused_and_makes_the_end_of_the_stream_unnoticed(
    world: World,
) -> None:
    kubelet, plugin = world.kubelet(NONE), world.plugin()
    world.served(kubelet, plugin)
    path = plugin.directory / plugin.socket_name
    assert refusal_of(plugin) == (grpc.StatusCode.UNKNOWN, f"device plugin already connected: {path}")
    plugin.stop()
    refused = kubelet.admit(pod("a", core=1)).refusal
    assert refused is not None
    assert refused.message.startswith("Allocate failed due to device plugin GetPreferredAllocation rpc failed")
    assert allocatable(kubelet) == (20, 20)
    again = world.plugin()
    again.start()
    assert refusal_of(again)[1] == f"device plugin already connected: {path}"


def test_only_a_restart_of_the_kubelet_frees_a_path_that_was_registered_twice(world: World) -> None:
    kubelet, plugin = world.kubelet(NONE), world.plugin()
    world.served(kubelet, plugin)
    refusal_of(plugin)
    plugin.stop()
    kubelet.restart()
    world.served(kubelet, world.plugin())
    assert kubelet.admit(pod("a", core=1)).admitted


def test_when_the_stream_ends_the_devices_are_unhealthy_and_hints_refuse(world: World) -> None:
    kubelet, plugin = world.kubelet(), world.plugin()
    world.served(kubelet, plugin)
    plugin.stop()
    until(kubelet, lambda: allocatable(kubelet) == (20, 0))
    refused = kubelet.admit(pod("a", core=1)).refusal
    assert refused is not None and refused.reason == "TopologyAffinityError"


def test_when_the_stream_ends_without_a_policy_allocation_refuses(world: World) -> None:
    kubelet, plugin = world.kubelet(NONE), world.plugin()
    world.served(kubelet, plugin)
    plugin.stop()
    until(kubelet, lambda: allocatable(kubelet) == (20, 0))
    refused = kubelet.admit(pod("a", core=1)).refusal
    assert refused is not None and refused.message == f"{NO_DEVICES} {CORE}, which is unexpected"


def test_five_minutes_after_the_stream_ended_the_node_shows_nothing(world: World) -> None:
    kubelet, plugin = world.kubelet(), world.plugin()
    world.served(kubelet, plugin)
    plugin.stop()
    until(kubelet, lambda: allocatable(kubelet) == (20, 0))
    world.now_s += STOP_GRACE_PERIOD_S + 1
    assert kubelet.devices.capacity()[CORE] == (0, 0)


def test_a_plugin_that_comes_back_with_the_same_path_after_its_stream_ended_is_fine(world: World) -> None:
    kubelet, plugin = world.kubelet(), world.plugin()
    world.served(kubelet, plugin)
    plugin.stop()
    until(kubelet, lambda: allocatable(kubelet) == (20, 0))
    world.served(kubelet, world.plugin())
    until(kubelet, lambda: allocatable(kubelet) == (20, 20))


def test_of_two_instances_the_newest_is_called_and_the_last_list_counts(world: World) -> None:
    kubelet = world.kubelet(NONE)
    old = world.plugin(socket_name="old.sock")
    world.served(kubelet, old)
    new = world.plugin(socket_name="new.sock", devices=on_two_nodes("core", 6))
    new.serve()
    until(kubelet, lambda: allocatable(kubelet) == (12, 12))
    kubelet.admit(pod("a", core=1))
    assert (len(old.allocated), len(new.allocated)) == (0, 1)
    new.stop()
    until(kubelet, lambda: bool(kubelet.notes) and "ListAndWatch ended" in kubelet.notes[-1])
    kubelet.admit(pod("b", core=1))
    assert (len(old.allocated), allocatable(kubelet)) == (1, (12, 12))


def test_a_list_over_4_mib_ends_the_stream(world: World) -> None:
    kubelet = world.kubelet(NONE)
    plugin = world.plugin(devices=[device(f"core-0-{number:018d}", 1) for number in range(100_000)])
    plugin.serve()
    until(kubelet, lambda: bool(kubelet.notes))
    assert "ResourceExhausted" in kubelet.notes[-1]
    assert allocatable(kubelet) == (0, 0)


def test_an_unhealthy_device_lowers_allocatable_only(world: World) -> None:
    kubelet, plugin = world.kubelet(), world.plugin()
    world.served(kubelet, plugin)
    plugin.send([device("core-0-0", 0, healthy=False), *plugin.devices[1:]])
    until(kubelet, lambda: allocatable(kubelet) == (20, 19))


def test_a_restart_deletes_every_socket_but_keeps_other_files(world: World) -> None:
    kubelet, plugin = world.kubelet(), world.plugin()
    world.served(kubelet, plugin)
    own = plugin.directory / plugin.socket_name
    (plugin.directory / "note.txt").write_text("kept")
    kubelet.restart()
    assert not own.exists()
    assert (plugin.directory / "note.txt").exists()
    assert (plugin.directory / "kubelet.sock").is_socket()


def test_after_a_restart_pods_keep_their_devices_without_another_allocate(world: World) -> None:
    kubelet, plugin = world.kubelet(), world.plugin()
    world.served(kubelet, plugin)
    first = kubelet.admit(pod("a", core=4))
    back = world.plugin(socket_name="back.sock")

    def plugin_returns(restarted: SimulatedKubelet) -> None:
        world.served(restarted, back)

    (again,) = kubelet.restart(plugin_returns)
    assert again.admitted
    assert given(again) == given(first)
    assert again.answers == first.answers
    assert back.allocated == []


def test_after_a_restart_without_the_plugin_a_plain_pod_survives_and_one_with_a_finished_init_container_fails(
    world: World,
) -> None:
    kubelet, plugin = world.kubelet(), world.plugin()
    world.served(kubelet, plugin)
    kubelet.admit(pod("plain", core=2))
    kubelet.admit(pod("with-init", container("i", init=True, core=2), container("main", core=2)))
    plain, with_init = kubelet.restart()
    assert plain.admitted
    assert with_init.refusal is not None
    assert with_init.refusal.reason == "UnexpectedAdmissionError"
    assert with_init.refusal.message == f"{NO_DEVICES} {CORE}, which is unexpected"
    assert kubelet.devices.capacity()[CORE] == (0, 0)


def test_after_a_restart_containers_keep_their_cpus(world: World) -> None:
    kubelet = world.kubelet(KubeletSettings(cpu=CpuSettings(reserved=1)))
    first = [kubelet.admit(pod(name, cpu=2, memory="1Gi")) for name in ("a", "b")]
    again = kubelet.restart()
    assert [one.cpus for one in again] == [one.cpus for one in first]
    assert str(kubelet.admit(pod("c", cpu=2, memory="1Gi")).cpus["main"]) == "5-6"


def test_a_damaged_checkpoint_means_empty_tables(world: World) -> None:
    kubelet, plugin = world.kubelet(NONE), world.plugin()
    world.served(kubelet, plugin)
    kubelet.admit(pod("a", core=2))
    file = plugin.directory / "kubelet_internal_checkpoint"
    kubelet.stop()
    file.write_bytes(file.read_bytes()[:-5])
    kubelet.start()
    assert kubelet.devices.tables.recorded == {}


def test_wait_for_says_when_a_resource_never_came(world: World) -> None:
    kubelet = world.kubelet()
    assert not kubelet.wait_for(frozenset({CORE}), 0.01)
    world.served(kubelet, world.plugin())
    assert kubelet.wait_for(frozenset({CORE}), CALL_LIMIT_S)
