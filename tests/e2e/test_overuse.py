"""What the agent learns from the driver about tenants that pass by their limits: whose it is, and that nobody else is
blamed. The node is made up (made_up_node.py) with one GPU of NVIDIA's, and the agent asks the fake driver's NVML.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.cluster import keeper
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.namespaces import wait_for
from tests.e2e.deployment import Deployment
from tests.e2e.made_up_node import write_sysfs
from tests.e2e.pods import create, delete, events_on
from tests.e2e.tenants import PROGRAMS, STATE, GpuNode, Share, ended, said
from tests.shim.container import CONTEXT_BYTES, MIB
from tests.topology.trees import Tree, numa_tree, pci_tree, tar_of

GPU = "0000:11:00.0"
METRICS_PORT = 9400
EVENT = "GpuShareOveruse"
FOUND_S = 20.0
ANSWERED = 'topoalloc_agent_socket_total{outcome="answered"}'
FOREIGN = 'topoalloc_agent_socket_total{outcome="foreign"}'
VICTIM = Share(30, 16)
MALLORY = Share(20, 8)
PIECE = "256M"

Record = Callable[[str, object], None]


def tree() -> Tree:
    bridge = "pci0000:10/0000:10:00.0"
    made = dict(numa_tree("0-15", "16-31"))
    made |= pci_tree(bridge, "0x060400", "0x1022", numa_node="0")
    made |= pci_tree(f"{bridge}/{GPU}", "0x030200", "0x10de", device="0x2330", numa_node="0")
    return made


@pytest.fixture(scope="module")
def gpu(images: tuple[Path, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    machine = tmp_path_factory.mktemp("machine") / "one-gpu.sysfs.tar"
    machine.write_bytes(tar_of(tree()))
    with Cluster(str(machine), "best-effort", gpu_memory="16GiB", images=images) as cluster:
        made = GpuNode(cluster)
        agent = {
            "name": "agent",
            "env": [{"name": "FAKE_GPU_STATE", "value": STATE}],
            "volumeMounts": made.driver_mounts(),
        }
        publish = {
            "name": "publish",
            "volumeMounts": [{"name": "run", "mountPath": "/run/topoalloc", "readOnly": True}],
        }
        volumes = [*write_sysfs(made.node, tree()), *made.driver_volumes()]
        patch = {"template": {"spec": {"hostPID": True, "volumes": volumes, "containers": [agent, publish]}}}
        config = {
            "shim": "builtin",
            "injection": "none",
            "metrics": f"127.0.0.1:{METRICS_PORT}",
            "context": f"{CONTEXT_BYTES // MIB}MiB",
        }
        deployment = Deployment(cluster, config, overlay="", patch=patch)
        deployment.apply()
        deployment.wait_registered()
        create(cluster, made.pod("victim", {"c": VICTIM}))
        made.wait_running("victim")
        yield made


@pytest.fixture
def mallory(gpu: GpuNode) -> Iterator[str]:
    create(gpu.cluster, gpu.pod("mallory", {"c": MALLORY}))
    gpu.wait_running("mallory")
    yield "mallory/c"
    delete(gpu.cluster, "mallory")
    gpu.cluster.kubectl("wait", "--for=delete", "pod/mallory", "--timeout=60s")


@contextmanager
def holding(gpu: GpuNode, where: str, *before: str, piece: str = PIECE) -> Iterator[int]:
    """A program that takes all it can and keeps it; how much that was."""
    process: subprocess.Popen[str] = gpu.start(where, *before, f"{PROGRAMS}/memory", "linked", "hold", piece)
    try:
        yield said(process, "held")
    finally:
        ended(process, check=False)


def overuse(gpu: GpuNode) -> dict[str, float]:
    """Which pods the watchdog finds to take more than they were granted."""
    figures = gpu.metrics(METRICS_PORT)
    pods = {
        name.partition('pod="')[2].partition('"')[0]: name
        for name in figures
        if name.startswith("topoalloc_share_overuse{")
    }
    return {pod: figures[name] for pod, name in pods.items()}


def seconds_until_found(gpu: GpuNode) -> float:
    began_s = time.monotonic()
    wait_for(lambda: overuse(gpu).get("mallory") == 1.0, FOUND_S, "the watchdog finds it", 0.1)
    return time.monotonic() - began_s


def found(gpu: GpuNode, kind: str) -> float:
    return gpu.metrics(METRICS_PORT)[f'topoalloc_overuse_found_total{{kind="{kind}"}}']


def test_contexts_are_charged_as_the_driver_counts_them_and_no_process_is_told_of_another(gpu: GpuNode) -> None:
    before = gpu.metrics(METRICS_PORT)
    with holding(gpu, "victim/c"):
        is_measured = lambda: gpu.metrics(METRICS_PORT)[ANSWERED] > before.get(ANSWERED, 0)  # noqa: E731
        wait_for(is_measured, FOUND_S, "a process was told its own figure", 0.2)
        # Beside it another process of the same container, which holds nothing.
        assert gpu.attack("victim/c", "measure", "measure") == {"answer": "unknown"}
        for request in ("measure 1", f"measure {GPU}", "measure victim", "bytes 0"):
            assert gpu.attack("victim/c", "measure", request) == {"answer": "closed"}
        assert overuse(gpu) == {"victim": 0.0}
    assert gpu.metrics(METRICS_PORT)[FOREIGN] == 0


def test_a_program_with_a_loader_of_its_own_is_found_within_seconds(
    gpu: GpuNode, mallory: str, record_property: Record
) -> None:
    """A static program is the same to the agent: no preloaded library, no slot in the account."""
    memory, unlimited = found(gpu, "memory"), found(gpu, "unlimited")
    loader = gpu.attack(mallory, "own_loader")["made"]
    with holding(gpu, mallory, loader) as held:
        assert held > 2 * MALLORY.memory_bytes  # nothing held it back
        took_s = seconds_until_found(gpu)
        assert overuse(gpu) == {"victim": 0.0, "mallory": 1.0}
        wait_for(lambda: found(gpu, "unlimited") == unlimited + 1, FOUND_S, "both kinds found", 0.2)
        assert found(gpu, "memory") == memory + 1
        told = lambda: [e["message"] for e in events_on(gpu.cluster, "mallory") if e["reason"] == EVENT]  # noqa: E731
        wait_for(lambda: len(told()) == 2, FOUND_S, "events on the pod", 0.5)
        print(told())
    record_property("watchdog: a program without the library found after, seconds", round(took_s, 1))


def test_a_tenant_that_lies_in_its_account_is_found_by_what_the_driver_counts(gpu: GpuNode, mallory: str) -> None:
    memory = found(gpu, "memory")
    with holding(gpu, mallory) as first:
        assert first + CONTEXT_BYTES <= MALLORY.memory_bytes
        assert gpu.attack(mallory, "lie") == {"lie": "done"}
        with holding(gpu, mallory) as second:
            print(f"a second process after the lie: {second} bytes")
            assert first + second + 2 * CONTEXT_BYTES > MALLORY.memory_bytes
            seconds_until_found(gpu)
            assert overuse(gpu)["victim"] == 0.0
            assert found(gpu, "memory") == memory + 1


def test_a_group_named_like_another_containers_hides_nobody(gpu: GpuNode, mallory: str) -> None:
    """As if it might write in its own control groups: a group below its own that bears the victim's names."""
    loader = gpu.attack(mallory, "own_loader")["made"]
    victim = min(groups_of(gpu, "victim"))
    with (
        holding(gpu, mallory, loader) as held,
        moved_into(gpu, f"kubepods/{victim.parent.name}/{victim.name}") as moved,
    ):
        assert held > MALLORY.memory_bytes
        assert moved > 0
        seconds_until_found(gpu)
        seen = overuse(gpu)
    assert seen == {"victim": 0.0, "mallory": 1.0}


def groups_of(gpu: GpuNode, pod: str) -> list[Path]:
    """The groups of a pod's only container, in every hierarchy but that of CPUs, whose new groups take no process."""
    uid = gpu.pod_uid(pod)
    tops = [root / gpu.node.cgroup for root in keeper.cgroup_hierarchies() if root.name != "cpuset"]
    pods = [group for top in tops for group in top.glob(f"kubepods/**/pod{uid}")]
    return [group / gpu.container_id(pod) for group in pods]


@contextmanager
def moved_into(gpu: GpuNode, name: str) -> Iterator[int]:
    """Every process of mallory's container in a group of this name below its own; how many moves that was."""
    groups = groups_of(gpu, "mallory")
    count = sum(move_all(group, group / name) for group in groups)
    yield count
    for group in groups:
        move_all(group / name, group)
        for parent in (group / name, *(group / name).parents[: name.count("/")]):
            parent.rmdir()


def move_all(group: Path, other: Path) -> int:
    other.mkdir(parents=True, exist_ok=True)
    pids = (group / "cgroup.procs").read_text().split()
    for pid in pids:
        (other / "cgroup.procs").write_text(pid)
    return len(pids)
