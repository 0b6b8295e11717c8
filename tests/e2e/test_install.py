"""The commands of docs/INSTALL.md, run as they stand there, on a cluster that has nothing of topoalloc yet."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.deploy.test_install_page import console_commands
from tests.e2e.cluster.binaries import binary
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.deployment import IMAGE, KUSTOMIZE

TEN_MINUTES_S = 600.0
# What the page tells its reader to fill in, and the answer here.
FILLED_IN = {"IMAGE=": f"IMAGE={IMAGE}", "OVERLAY=": "OVERLAY=recorded-machine"}


@pytest.fixture(scope="module")
def cluster(images: tuple[Path, ...]) -> Iterator[Cluster]:
    with Cluster("azure-ndv5.nccl-topo.xml", "best-effort", images=images) as made:
        yield made


def filled_in(command: str) -> str:
    return next((answer for start, answer in FILLED_IN.items() if command.startswith(start)), command)


def test_an_operator_s_ten_minutes_go_as_the_page_says(
    cluster: Cluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    shutil.copytree(KUSTOMIZE, tmp_path / "deploy" / "kustomize")
    commands = [filled_in(command) for command in console_commands()]
    path = f"{binary('kubectl').parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "KUBECONFIG": str(cluster.control_plane.kubeconfig)}
    began_s = time.monotonic()

    # -x writes each command before its output, so that a failure names the one at fault.
    done = subprocess.run(
        ["bash", "-eux"],
        input="\n".join(commands) + "\n",
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TEN_MINUTES_S,
    )

    assert done.returncode == 0, done.stdout[-3000:]
    took_s = time.monotonic() - began_s
    record_property("the install page", f"{len(commands)} commands in {took_s:.0f} s")
    for shown in ("Allocatable:", "topoalloc.io/topology:", "TOPOALLOC_CORES=", "150 is neither a share"):
        assert shown in done.stdout
    left = cluster.kubectl("get", "daemonsets,clusterroles,clusterrolebindings", "-A", "-o", "name")
    assert "topoalloc" not in left
