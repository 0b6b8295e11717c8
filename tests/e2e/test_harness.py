"""The test cluster itself: what its kubelet sees, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.keeper import cgroup_hierarchies
from tests.e2e.cluster.namespaces import wait_for
from tests.e2e.cluster.numa_layout import MEMORY_MADE_UP_BYTES
from tests.e2e.pod_resources import PodResourcesOf

MACHINE = "dgx-a100-epyc-nps4-10nic.topo-m.txt"
FIRST_CPUS = (16, 48, 80, 112, 144, 176, 208, 240)
LEFT_S = 30.0
KILLED_PROGRAM = f"""
from tests.e2e.cluster.cluster import Cluster
with Cluster({MACHINE!r}) as cluster:
    print(cluster.base, flush=True)
    input()
"""


def left_of(base: Path) -> list[str]:
    """Folder, processes, control groups, mounts and network interfaces that belong to a cluster."""
    found = [str(base)] if base.exists() else []
    found += [str(path) for root in cgroup_hierarchies() for path in root.glob(f"{base.name}*")]
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if base.name in line]
    found += [str(path) for path in Path("/run/netns").glob("*")] + [str(path) for path in Path("/run/nri").glob("*")]
    found += [path.name for path in Path("/sys/class/net").iterdir() if path.name == base.name]
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                words = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if base.name.encode() in words:
                found.append(words.replace(b"\0", b" ").decode())
    return found


def test_the_kubelet_sees_the_numa_layout_of_the_recorded_machine() -> None:
    """The table of this machine names the nodes that have GPUs: 1, 3, 5 and 7, with 32 CPUs each."""
    with Cluster(MACHINE, "restricted", cpu_manager="static", memory_manager="Static") as cluster:
        kubelet = PodResourcesOf(cluster.nodes[0].pod_resources)
        cpus, memory = kubelet.allocatable_cpus(), kubelet.memory_by_node()

    reserved_cpu, reserved_bytes = 16, 2**30
    assert cpus == {first + step for first in FIRST_CPUS for step in range(16)} - {reserved_cpu}
    assert memory == {1: MEMORY_MADE_UP_BYTES - reserved_bytes} | dict.fromkeys((3, 5, 7), MEMORY_MADE_UP_BYTES)


def test_nothing_of_a_cluster_stays_after_it() -> None:
    with Cluster(MACHINE) as cluster:
        assert left_of(cluster.base) != []

    assert left_of(cluster.base) == []


def test_nothing_of_a_cluster_stays_when_its_test_fails() -> None:
    with pytest.raises(ZeroDivisionError), Cluster(MACHINE) as cluster:
        raise ZeroDivisionError

    assert left_of(cluster.base) == []


def test_nothing_of_a_cluster_stays_when_its_test_is_killed() -> None:
    program = subprocess.Popen([sys.executable, "-c", KILLED_PROGRAM], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert program.stdout is not None
    base = Path(program.stdout.readline().decode().strip())
    assert left_of(base) != []

    program.send_signal(signal.SIGKILL)
    program.communicate()

    wait_for(lambda: left_of(base) == [], LEFT_S, "nothing left of the cluster")
