"""A publisher beside a fake API server and a simulated node (a real agent in it), all over real sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.fake_api import LIMIT_S, NODE, FakeApi, kubeconfig, served
from topoalloc.admission.pod import Pod, checked_container
from topoalloc.admission.policy import Policy
from topoalloc.agent.config import Config
from topoalloc.agent.process import inventory_for
from topoalloc.cli.simulation.rehearsal import Node, running_node
from topoalloc.cluster.api_server import ApiServer
from topoalloc.cluster.node_view import NodeView
from topoalloc.cluster.pacing import Pace
from topoalloc.cluster.publisher import Paces, Publisher, Wanted
from topoalloc.kubelet.simulated.settings import Behaviour, KubeletSettings
from topoalloc.sharing.overuse_record import OveruseRecord
from topoalloc.topology.machine import Machine
from topoalloc.topology.sources import load_machine

MACHINE = "tests/machines/azure-ndv5.nccl-topo.xml"
QUICK = Pace(quiet_s=0.05, delay_max_s=0.5, period_min_s=0.05, backoff_min_s=0.02, backoff_max_s=0.2)
PACES = Paces(node=QUICK, events=QUICK, watch=QUICK, verify_s=60.0, explain_wait_s=1.0)


def machine() -> Machine:
    return load_machine([MACHINE], 80 * 1024**3)


def asking(name: str, **amounts: int | str) -> Pod:
    """One container `a`; amounts by resource, ours without their domain (`vgpu_core=30`)."""
    limits = {}
    for key, amount in amounts.items():
        resource = key if key in ("cpu", "memory") else f"topoalloc.io/{key.replace('_', '-')}"
        limits[resource] = str(amount)
    return Pod(name=name, namespace="default", uid=f"uid-{name}", containers=(checked_container("a", {}, limits),))


def spec_of(pod: Pod) -> dict[str, object]:
    """The spec of such a pod as the API server has it."""
    return {
        "containers": [
            {"name": c.name, "resources": {"limits": {name: str(quantity) for name, quantity in c.limits.items()}}}
            for c in pod.containers
        ]
    }


@contextmanager
def simulated_node(settings: KubeletSettings | None = None) -> Iterator[Node]:
    settings = settings or KubeletSettings(policy=Policy.SINGLE_NUMA_NODE)
    with running_node(machine(), Config(), settings, Behaviour(limits_requests=False), 0) as node:
        yield node


def pod_resources_of(node: Node) -> Path:
    return next(node.directory.glob("**/pod-resources/*.sock"))


@dataclass
class Published:
    """A publisher that runs in a thread."""

    publisher: Publisher
    thread: threading.Thread

    def end(self) -> None:
        self.publisher.stop()
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive()


@contextmanager
def publishing(
    config: Path,
    pod_resources: Path | None = None,
    kubelet_config: Path | None = None,
    *,
    paces: Paces = PACES,
    wanted: Wanted | None = None,
    wall_s: float | None = None,
    overuses: Callable[[], tuple[OveruseRecord, ...]] | None = None,
) -> Iterator[Published]:
    """Publish for NODE until the block ends; a fault of the publisher fails the test."""
    faults: list[BaseException] = []
    view = NodeView(inventory_for(Config(), machine()), pod_resources, kubelet_config, QUICK, health_period_s=0.1)
    clocks = {} if wall_s is None else {"wall_s": lambda: wall_s}
    publisher = Publisher(ApiServer(config), NODE, view, wanted, paces, **clocks, overuses=overuses)

    def run() -> None:
        try:
            publisher.run()
        except BaseException as fault:
            faults.append(fault)

    published = Published(publisher, threading.Thread(target=run, daemon=True))
    published.thread.start()
    try:
        yield published
    finally:
        published.end()
        view.close()
        assert faults == []


@contextmanager
def fake_api(directory: Path) -> Iterator[tuple[FakeApi, Path]]:
    """A fake API server and the kubeconfig that leads to it."""
    api = FakeApi()
    with served(api) as port:
        yield api, kubeconfig(directory, port)
