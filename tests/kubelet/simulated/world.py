"""A node of two NUMA nodes, a simulated kubelet on it, toy plugins, and pods in one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from tests.kubelet.simulated.toy_plugin import CALL_LIMIT_S, ToyPlugin, device
from topoalloc.admission.devices import Owner
from topoalloc.admission.pod import Container, Pod, checked_container
from topoalloc.admission.policy import Policy, Scope
from topoalloc.kubelet.simulated.kubelet import Admission, SimulatedKubelet
from topoalloc.kubelet.simulated.process import Sockets
from topoalloc.kubelet.simulated.settings import Behaviour, KubeletSettings
from topoalloc.pb import deviceplugin_v1beta1_pb2 as wire
from topoalloc.pb import podresources_v1_pb2 as resources_wire
from topoalloc.pb import podresources_v1_pb2_grpc as resources_grpc
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Machine, NumaNode

CORE, MEM, NIC = "toy.test/core", "toy.test/mem", "toy.test/nic"
NODE_MEMORY_BYTES = 64 * 1024**3
SINGLE = KubeletSettings(policy=Policy.SINGLE_NUMA_NODE)
SINGLE_POD = KubeletSettings(policy=Policy.SINGLE_NUMA_NODE, scope=Scope.POD)
RESTRICTED = KubeletSettings(policy=Policy.RESTRICTED)
BEST_EFFORT = KubeletSettings(policy=Policy.BEST_EFFORT)
NONE = KubeletSettings()


def two_nodes() -> Machine:
    """Two NUMA nodes of eight CPUs; the devices are the toy plugins' own invention."""
    nodes = tuple(
        NumaNode(number, CpuSet.from_list(cpus), NODE_MEMORY_BYTES, distances)
        for number, cpus, distances in ((0, "0-7", (10, 21)), (1, "8-15", (21, 10)))
    )
    return Machine(nodes, (), (), (), (), (), ("test",), ())


def on_two_nodes(prefix: str, count: int = 10) -> list[wire.Device]:
    """`count` devices on node 0 and as many on node 1: `core-0-3`."""
    return [device(f"{prefix}-{node}-{number}", node) for node in (0, 1) for number in range(count)]


def container(name: str, init: bool = False, restartable: bool = False, **amounts: str | int) -> Container:
    """Resources by the last part of their name: container("c", core=4, cpu=2, memory="1Gi")."""
    known = {"core": CORE, "mem": MEM, "nic": NIC, "cpu": "cpu", "memory": "memory"}
    limits = {known.get(key, key): str(amount) for key, amount in amounts.items()}
    return checked_container(name, limits, limits, init=init, restartable=restartable)


def pod(name: str, *containers: Container, **amounts: str | int) -> Pod:
    """A pod of these containers, or of one called `main`."""
    return Pod(name, "default", f"uid-{name}", containers or (container("main", **amounts),))


def given(admission: Admission, resource: str = CORE, container_name: str = "main") -> frozenset[str]:
    """The devices of one container."""
    return admission.devices.get(Owner(admission.pod.uid, container_name, resource), frozenset())


def node_of(ids: frozenset[str]) -> set[str]:
    return {device_id.split("-")[1] for device_id in ids}


@dataclass
class World:
    """Starts what a test needs and stops it at the end."""

    root: Path
    kubelets: list[SimulatedKubelet] = field(default_factory=list)
    plugins: list[ToyPlugin] = field(default_factory=list)
    now_s: float = 1000.0

    def kubelet(
        self, settings: KubeletSettings = SINGLE, behaviour: Behaviour | None = None, seed: int = 0
    ) -> SimulatedKubelet:
        behaviour = behaviour or Behaviour(limits_requests=False)
        sockets = Sockets.below(self.root)
        made = SimulatedKubelet(sockets, two_nodes(), settings, behaviour, seed, lambda: self.now_s)
        made.start()
        self.kubelets.append(made)
        return made

    def plugin(
        self, resource: str = CORE, devices: list[wire.Device] | None = None, socket_name: str | None = None
    ) -> ToyPlugin:
        """A plugin that is not serving yet."""
        prefix = resource.rpartition("/")[2]
        made = ToyPlugin(
            self.root / "device-plugins",
            resource,
            on_two_nodes(prefix) if devices is None else devices,
            socket_name or f"{prefix}.sock",
        )
        self.plugins.append(made)
        return made

    def served(self, kubelet: SimulatedKubelet, *plugins: ToyPlugin) -> None:
        """Start the plugins, register them, and wait for their lists."""
        for plugin in plugins:
            plugin.serve()
        assert kubelet.wait_for(frozenset(plugin.resource for plugin in plugins), CALL_LIMIT_S)

    def pod_resources(self) -> resources_grpc.PodResourcesListerStub:
        path = Sockets.below(self.root).pod_resources
        return resources_grpc.PodResourcesListerStub(grpc.insecure_channel(f"unix:{path}"))

    def listed(self) -> dict[str, dict[str, frozenset[str]]]:
        """PodResources List: pod -> container/resource -> device ids."""
        response = self.pod_resources().List(resources_wire.ListPodResourcesRequest(), timeout=CALL_LIMIT_S)
        return {entry.name: by_container(entry) for entry in response.pod_resources}

    def close(self) -> None:
        for plugin in self.plugins:
            plugin.stop()
        for kubelet in self.kubelets:
            kubelet.stop()


def by_container(entry: resources_wire.PodResources) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for one in entry.containers:
        for devices in one.devices:
            key = f"{one.name}/{devices.resource_name}"
            found[key] = found.get(key, frozenset()) | frozenset(devices.device_ids)
    return found


def until(kubelet: SimulatedKubelet, condition: Callable[[], bool]) -> None:
    """Wait for what the kubelet makes of a plugin's list or of its end."""
    assert kubelet.devices.wait_until(lambda _: condition(), CALL_LIMIT_S), "did not happen in time"


def allocatable(kubelet: SimulatedKubelet, resource: str = CORE) -> tuple[int, int]:
    """(capacity, allocatable) in the node's status."""
    capacity: Mapping[str, tuple[int, int]] = kubelet.devices.capacity()
    return capacity.get(resource, (0, 0))
