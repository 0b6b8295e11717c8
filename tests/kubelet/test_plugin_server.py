"""The DevicePlugin server over a real socket: lists, health, answers, refusals, hostile requests, its end."""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from tests.handmade import machine
from topoalloc.kubelet.channel import unix_channel
from topoalloc.kubelet.plugin_server import STREAMS_MAX, DeviceList, PluginServer, Refused
from topoalloc.pb import deviceplugin_v1beta1_pb2 as pb
from topoalloc.pb.deviceplugin_v1beta1_pb2_grpc import DevicePluginStub
from topoalloc.sharing.edits import ContainerEdits, Mount
from topoalloc.sharing.inventory import Inventory, Resource, inventory_of
from topoalloc.sharing.settings import SharingSettings

LIMIT_S = 30.0


class LastComeFirst:
    """A desk that answers the last candidates and refuses whatever holds a certain id."""

    def prefer(
        self, resource: Resource, available: tuple[str, ...], must_include: frozenset[str], size: int
    ) -> tuple[str, ...]:
        return available[-size:]

    def allocate(self, resource: Resource, ids: frozenset[str]) -> ContainerEdits:
        if "bad" in ids:
            raise Refused("topoalloc: bad is no device of this node")
        return ContainerEdits((("KEY", ",".join(sorted(ids))),), ("/dev/null",), ("example.com/gpu=0",), MOUNTS)


MOUNTS = (Mount("/run/x", "/etc/x"), Mount("/run/x/y", "/etc/x/y", read_only=False))


def core_resource(numa_known: bool = True) -> Resource:
    inventory = inventory_of(machine(numa_known=numa_known), SharingSettings())
    assert isinstance(inventory, Inventory)
    return inventory.resources[0]


@contextmanager
def served(resource: Resource, devices: DeviceList) -> Iterator[tuple[PluginServer, DevicePluginStub]]:
    with tempfile.TemporaryDirectory(prefix="ta-", dir="/tmp") as name:
        server = PluginServer(Path(name) / "p.sock", resource, devices, LastComeFirst(), lambda: None)
        with unix_channel(server.path) as channel:
            yield server, DevicePluginStub(channel)
        server.stop()


def lists_of(stub: DevicePluginStub) -> queue.Queue[pb.ListAndWatchResponse | None]:
    """What a stream delivers, None at its end."""
    lists: queue.Queue[pb.ListAndWatchResponse | None] = queue.Queue()

    def read() -> None:
        try:
            for message in stub.ListAndWatch(pb.Empty()):
                lists.put(message)
        except grpc.RpcError:
            pass
        finally:
            lists.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lists


def test_the_options_offer_preferred_allocation_and_no_pre_start():
    resource = core_resource()
    with served(resource, DeviceList(resource)) as (_, stub):
        options = stub.GetDevicePluginOptions(pb.Empty(), timeout=LIMIT_S)

    assert options.get_preferred_allocation_available
    assert not options.pre_start_required


def test_the_whole_list_comes_at_once_with_numa_nodes():
    resource = core_resource()
    with served(resource, DeviceList(resource)) as (_, stub):
        first = lists_of(stub).get(timeout=LIMIT_S)

    assert first is not None
    assert [device.ID for device in first.devices] == [device.id for device in resource.devices]
    assert {device.health for device in first.devices} == {"Healthy"}
    assert [node.ID for node in first.devices[-1].topology.nodes] == [1]


def test_a_resource_without_numa_reporting_sends_no_topology_at_all():
    resource = core_resource(numa_known=False)
    with served(resource, DeviceList(resource)) as (_, stub):
        first = lists_of(stub).get(timeout=LIMIT_S)

    assert first is not None
    assert not any(device.HasField("topology") for device in first.devices)


def test_a_lost_gpu_is_reported_unhealthy_and_never_dropped():
    resource = core_resource()
    devices = DeviceList(resource)
    with served(resource, devices) as (_, stub):
        lists = lists_of(stub)
        before = lists.get(timeout=LIMIT_S)
        devices.set_unhealthy(frozenset({resource.devices[0].key}))
        after = lists.get(timeout=LIMIT_S)

    assert before is not None
    assert after is not None
    assert [device.ID for device in after.devices] == [device.ID for device in before.devices]
    assert [device.health for device in after.devices].count("Unhealthy") == 100


@pytest.mark.parametrize("of_others", [frozenset(), frozenset({"not a key of this resource"})])
def test_health_that_does_not_change_makes_no_new_list(of_others: frozenset[str]):
    resource = core_resource()
    devices = DeviceList(resource)
    devices.set_unhealthy(frozenset({resource.devices[0].key}))
    version, _ = devices.current()

    devices.set_unhealthy(frozenset({resource.devices[0].key}) | of_others)

    assert devices.current()[0] == version


def test_ids_that_are_kept_back_are_unhealthy_beside_those_of_a_lost_gpu():
    resource = core_resource()
    devices = DeviceList(resource)
    kept = frozenset(device.id for device in resource.devices[200:240])

    devices.set_unhealthy(frozenset({resource.devices[0].key}))
    devices.set_withheld(kept | {"of another resource"})

    lost = {device.id for device in resource.devices if device.key == resource.devices[0].key}
    shown = {device.ID: device.health for device in devices.current()[1].devices}
    assert {name for name, health in shown.items() if health == "Unhealthy"} == lost | kept
    assert devices.healthy() == shown.keys() - lost - kept
    assert list(shown) == [device.id for device in resource.devices]


def test_ids_of_other_resources_that_are_kept_back_make_no_new_list():
    resource = core_resource()
    devices = DeviceList(resource)
    version, _ = devices.current()

    devices.set_withheld(frozenset({"of another resource"}))

    assert devices.current()[0] == version


def test_a_stream_that_is_woken_without_a_new_list_sends_nothing():
    resource = core_resource()
    devices = DeviceList(resource)
    with served(resource, devices) as (server, stub):
        lists = lists_of(stub)
        lists.get(timeout=LIMIT_S)
        devices.wake()
        server.stop()

        assert lists.get(timeout=LIMIT_S) is None


def test_a_second_stream_gets_the_list_while_the_first_still_lives():
    resource = core_resource()
    with served(resource, DeviceList(resource)) as (server, stub):
        first, second = lists_of(stub), lists_of(stub)

        assert first.get(timeout=LIMIT_S) is not None
        assert second.get(timeout=LIMIT_S) is not None
        assert server.streams == 2


def test_streams_that_nobody_closes_keep_no_call_waiting():
    resource = core_resource()
    with served(resource, DeviceList(resource)) as (server, stub):
        streams = [lists_of(stub) for _ in range(3 * STREAMS_MAX)]
        for stream in streams:
            assert stream.get(timeout=LIMIT_S) is not None

        assert stub.GetDevicePluginOptions(pb.Empty(), timeout=LIMIT_S).get_preferred_allocation_available
        assert streams[0].get(timeout=LIMIT_S) is None
        assert server.streams <= STREAMS_MAX + 1


def test_calls_are_answered_beside_open_streams():
    resource = core_resource()
    with served(resource, DeviceList(resource)) as (_, stub):
        lists_of(stub).get(timeout=LIMIT_S)
        request = pb.PreferredAllocationRequest()
        item = request.container_requests.add(allocation_size=2)
        item.available_deviceIDs.extend(["a", "b", "c"])

        answer = stub.GetPreferredAllocation(request, timeout=LIMIT_S)

    assert list(answer.container_responses[0].deviceIDs) == ["b", "c"]


def test_allocate_answers_each_container_request_with_its_edits():
    resource = core_resource()
    with served(resource, DeviceList(resource)) as (_, stub):
        request = pb.AllocateRequest()
        request.container_requests.add().devices_ids.extend(["b", "a"])
        request.container_requests.add().devices_ids.append("c")

        answer = stub.Allocate(request, timeout=LIMIT_S)

    assert [response.envs["KEY"] for response in answer.container_responses] == ["a,b", "c"]
    assert answer.container_responses[0].devices[0].host_path == "/dev/null"
    assert answer.container_responses[0].cdi_devices[0].name == "example.com/gpu=0"
    mounts = [(m.host_path, m.container_path, m.read_only) for m in answer.container_responses[0].mounts]
    assert mounts == [("/run/x", "/etc/x", True), ("/run/x/y", "/etc/x/y", False)]


def test_a_refusal_is_a_failed_precondition_with_our_words():
    resource = core_resource()
    with served(resource, DeviceList(resource)) as (_, stub):
        request = pb.AllocateRequest()
        request.container_requests.add().devices_ids.append("bad")

        with pytest.raises(grpc.RpcError) as refused:
            stub.Allocate(request, timeout=LIMIT_S)

    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert refused.value.details() == "topoalloc: bad is no device of this node"


def test_a_request_with_a_hundred_thousand_ids_is_answered():
    resource = core_resource()
    ids = [f"{number:063d}" for number in range(100_000)]
    with served(resource, DeviceList(resource)) as (_, stub):
        request = pb.PreferredAllocationRequest()
        request.container_requests.add(allocation_size=1).available_deviceIDs.extend(ids)

        answer = stub.GetPreferredAllocation(request, timeout=LIMIT_S)

    assert list(answer.container_responses[0].deviceIDs) == ids[-1:]


def test_stopping_ends_the_streams_and_removes_the_socket():
    resource = core_resource()
    with served(resource, DeviceList(resource)) as (server, stub):
        lists = lists_of(stub)
        lists.get(timeout=LIMIT_S)

        server.stop()

        assert lists.get(timeout=LIMIT_S) is None
        assert not server.path.exists()
