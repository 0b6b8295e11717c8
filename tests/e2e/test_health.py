"""A GPU that turns unhealthy, and back: what can be asked for changes within seconds, and no running pod is touched."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.namespaces import wait_for
from tests.e2e.deployment import Deployment
from tests.e2e.judge import faults, key_of
from tests.e2e.pod_resources import PodResourcesOf
from tests.e2e.pods import all_pods, create, delete_all, verdict
from tests.e2e.workloads import CORE, container, pod

NOTICED_S = 10.0
PUBLISHED_S = 30.0  # the kubelet reports to the API server every ten seconds
CORES, GONE_CORES = 800, 100
WHOLE_PODS = 8


@pytest.fixture(scope="module")
def cluster(images: tuple[Path, ...]) -> Iterator[Cluster]:
    """The agent reads its machine from a folder of the node, which the test changes under it."""
    with Cluster("azure-ndv5.nccl-topo.xml", "best-effort", images=images) as made:
        folder = made.nodes[0].base / "machine"
        folder.mkdir()
        shutil.copyfile(made.machine_path, folder / "machine")
        host_path = {"path": str(folder), "type": "Directory"}
        volume = {"name": "machine", "configMap": None, "hostPath": host_path}
        deployment = Deployment(made, patch={"template": {"spec": {"volumes": [volume]}}})
        deployment.apply()
        deployment.wait_registered()
        yield made


@pytest.fixture(autouse=True)
def emptied(cluster: Cluster) -> Iterator[None]:
    yield
    delete_all(cluster)


def write_machine(cluster: Cluster, without: str | None = None) -> None:
    """The recorded machine, or the same without the GPU at an address; replaced at once, as an editor saves."""
    tree = ElementTree.parse(cluster.machine_path)
    for parent in list(tree.iter()):
        for child in list(parent):
            if child.tag == "pci" and child.get("busid") == without:
                parent.remove(child)
    fresh = cluster.nodes[0].base / "machine" / "fresh"
    tree.write(fresh)
    fresh.rename(fresh.with_name("machine"))


def running(cluster: Cluster) -> dict[str, Any]:
    return {
        name: [(item["containerID"], item["restartCount"]) for item in seen["status"]["containerStatuses"]]
        for name, seen in all_pods(cluster).items()
        if seen["status"]["phase"] == "Running"
    }


def test_a_gpu_out_of_order_leaves_allocatable_within_seconds_and_its_pods_alone(
    cluster: Cluster, record_property: Callable[[str, object], None]
) -> None:
    node = cluster.nodes[0]
    kubelet = PodResourcesOf(node.pod_resources)
    for number in range(WHOLE_PODS):  # one on every GPU
        create(cluster, pod(f"p{number}", [container("c", {CORE: 100})]))
        assert verdict(cluster, f"p{number}").admitted
    before = running(cluster)
    held = kubelet.listed()["p3", "c"].devices
    broken = key_of(held[CORE][0])

    write_machine(cluster, without=broken)
    began_s = time.monotonic()
    wait_for(lambda: broken not in keys_of(kubelet), NOTICED_S, "the kubelet has the GPU's ids as unhealthy")
    kubelet_s = time.monotonic() - began_s
    wait_for(lambda: cluster.allocatable(CORE) == CORES - GONE_CORES, PUBLISHED_S, "allocatable without the GPU", 0.2)
    published_s = time.monotonic() - began_s

    assert cluster.get("node", "node-0")["status"]["capacity"][CORE] == str(CORES)
    assert running(cluster) == before
    assert kubelet.listed()["p3", "c"].devices == held

    write_machine(cluster)
    wait_for(lambda: cluster.allocatable(CORE) == CORES, PUBLISHED_S, "allocatable with the GPU again", 0.2)
    assert running(cluster) == before
    assert faults(cluster, node) == []
    text = f"unhealthy at the kubelet after {kubelet_s:.1f} s, in allocatable after {published_s:.1f} s"
    record_property("a GPU out of order", text)
    print(text)


def keys_of(kubelet: PodResourcesOf) -> set[str]:
    """The GPUs that the kubelet has healthy cores of."""
    return {key_of(device) for device in kubelet.allocatable().get(CORE, frozenset())}


def test_no_new_pod_gets_a_gpu_that_is_out_of_order(cluster: Cluster) -> None:
    broken = str(cluster.machine.gpus[0].bdf)
    kubelet = PodResourcesOf(cluster.nodes[0].pod_resources)
    write_machine(cluster, without=broken)
    wait_for(lambda: broken not in keys_of(kubelet), NOTICED_S, "the kubelet has the GPU's ids as unhealthy")

    create(cluster, *(pod(f"w{number}", [container("c", {CORE: 100})]) for number in range(WHOLE_PODS)))
    admitted = [name for name in (f"w{number}" for number in range(WHOLE_PODS)) if verdict(cluster, name).admitted]

    given = {key_of(device) for held in kubelet.listed().values() for device in held.devices.get(CORE, ())}
    write_machine(cluster)
    wait_for(lambda: broken in keys_of(kubelet), NOTICED_S, "the GPU is back")
    assert len(admitted) == WHOLE_PODS - 1
    assert broken not in given
