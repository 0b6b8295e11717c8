"""What a node looked like before: told in one answer, and kept while nothing is told."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from tests.cluster.published import QUICK, machine
from topoalloc.agent.config import Config
from topoalloc.agent.process import inventory_for
from topoalloc.cluster.node_view import NodeView
from topoalloc.pb import podresources_v1_pb2 as pb
from topoalloc.pb.podresources_v1_pb2_grpc import PodResourcesListerServicer, add_PodResourcesListerServicer_to_server

INVENTORY = inventory_for(Config(), machine())
CORE = INVENTORY.settings.core_resource
IDS = tuple(device.id for device in INVENTORY.resources[0].devices)


@dataclass
class Kubelet(PodResourcesListerServicer):
    """Says that so many devices of the core resource are healthy and so many in use; `List` may fail."""

    healthy: int
    used: int = 0
    fails: bool = False

    def List(self, request: object, context: grpc.ServicerContext) -> pb.ListPodResourcesResponse:
        if self.fails:
            context.abort(grpc.StatusCode.UNAVAILABLE, "on purpose")
        devices = [pb.ContainerDevices(resource_name=CORE, device_ids=IDS[: self.used])]
        container = pb.ContainerResources(name="a", devices=devices)
        return pb.ListPodResourcesResponse(pod_resources=[pb.PodResources(name="p", containers=[container])])

    def GetAllocatableResources(
        self, request: object, context: grpc.ServicerContext
    ) -> pb.AllocatableResourcesResponse:
        devices = [pb.ContainerDevices(resource_name=CORE, device_ids=IDS[: self.healthy])]
        return pb.AllocatableResourcesResponse(devices=devices)


@contextmanager
def viewed(kubelet: Kubelet, directory: Path) -> Iterator[NodeView]:
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        add_PodResourcesListerServicer_to_server(kubelet, server)
        socket = directory / "kubelet.sock"
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        view = NodeView(INVENTORY, socket, None, QUICK)
        try:
            yield view
        finally:
            view.close()
            server.stop(None).wait()


def looked(view: NodeView, now_s: float) -> None:
    """A pod has changed, and a while later the node is looked at."""
    view.pods_changed(now_s - 1.0)
    view.look(now_s)


def before(view: NodeView) -> tuple[int, int] | None:
    """How many were healthy and how many in use."""
    state = view.state_before()
    if state is None:
        return None
    return len(state.devices.listed[CORE].healthy), len(state.devices.allocated[CORE])


def test_what_was_before_is_of_one_moment(tmp_path: Path) -> None:
    kubelet = Kubelet(healthy=300, used=1)
    with viewed(kubelet, tmp_path) as view:
        looked(view, 0.0)
        assert before(view) is None
        kubelet.healthy, kubelet.used = 200, 2
        looked(view, 10.0)

        assert before(view) == (300, 1)


def test_what_was_before_stays_while_the_kubelet_does_not_tell(tmp_path: Path) -> None:
    kubelet = Kubelet(healthy=300, used=1)
    with viewed(kubelet, tmp_path) as view:
        looked(view, 0.0)
        kubelet.healthy, kubelet.used = 200, 2
        looked(view, 10.0)
        kubelet.healthy, kubelet.fails = 100, True
        looked(view, 20.0)
        assert before(view) == (300, 1)
        kubelet.fails = False
        looked(view, 40.0)

        assert before(view) == (200, 2)
