"""Elastic shares under the real kubelet and containerd, with the DaemonSet's agent, which has no capabilities: what
others leave idle is lent, and taken back. The GPU is the fake driver's, as in test_enforcement.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster.cluster import Cluster
from tests.e2e.deployment import Deployment
from tests.e2e.pods import create
from tests.e2e.tenants import PROGRAMS, GpuNode, Share, ended

MACHINE, GPU_MEMORY = "h100-pcie-kvm-1gpu-1nic.topo-m.txt", "16GiB"
CEILING = 90
KERNEL_NS = "1000000"
SECONDS = 5.0  # after two of them nothing more is learned, and what is idle is lent
POINTS = 30  # permille either way; the agent counts what a share used five times a second
TENANTS = {"borrower": Share(20, 16), "owner": Share(60, 16)}

Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def gpu(images: tuple[Path, ...]) -> Iterator[GpuNode]:
    with Cluster(MACHINE, "best-effort", gpu_memory=GPU_MEMORY, images=images) as cluster:
        deployment = Deployment(cluster, {"shim": "builtin", "elastic": CEILING})
        deployment.apply()
        deployment.wait_registered()
        made = GpuNode(cluster)
        create(cluster, *(made.pod(name, {"c": share}) for name, share in TENANTS.items()))
        made.wait_running(*TENANTS)
        yield made


def permille(gpu: GpuNode, *names: str) -> dict[str, int]:
    """What each gets of the GPU's time while all of them launch what they can."""
    words = (f"{PROGRAMS}/launches", "linked", "plain", KERNEL_NS, str(SECONDS))
    running = {name: gpu.start(f"{name}/c", *words) for name in names}
    return {name: ended(process).facts["permille"] for name, process in running.items()}


def test_a_share_is_lent_what_nobody_uses_up_to_the_ceiling(gpu: GpuNode, record_property: Record) -> None:
    alone = permille(gpu, "borrower")
    record_property("GPU time of an elastic share of 20 % with a ceiling of 90 %, alone, permille", alone)

    assert CEILING * 10 - 100 <= alone["borrower"] <= CEILING * 10 + POINTS, alone


def test_an_owner_who_wants_his_time_has_it_and_what_is_left_is_lent_to_both(
    gpu: GpuNode, record_property: Record
) -> None:
    both = permille(gpu, *TENANTS)
    record_property("GPU time of elastic shares of 20 and 60 % that both want more, permille", both)

    assert both["owner"] >= TENANTS["owner"].cores * 10 - POINTS, both
    assert both["borrower"] >= TENANTS["borrower"].cores * 10 - POINTS, both
    assert sum(both.values()) >= 900, both
