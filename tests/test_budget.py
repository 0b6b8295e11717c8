"""What the agent may cost: memory, and modules it must not pull in. Never a time: a loaded machine is no fault."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.agent.served import LIMIT_S, agent_process, kubelet_on, node_directory, pod, serving
from topoalloc.agent.shim_library import packaged_library

RSS_KIB_MAX = 48 * 1024
FORBIDDEN = (
    *("kubernetes", "rich", "pydantic", "networkx", "aiohttp", "hypothesis", "prometheus_client", "pynvml"),
    *("asyncio", "ssl", "hashlib", "subprocess", "tempfile", "fractions", "http.server", "json"),
)
LIBRARY = pytest.mark.skipif(packaged_library() is None, reason="built without the library (make shim)")


def rss_kib(pid: int) -> int:
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match.group(1))


def is_answered(share: Path) -> bool:
    """Whether the agent answers at the socket of a share, or could not yet."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(LIMIT_S)
        try:
            asking.connect(str(share / "agent.sock"))
        except OSError:
            return False
        asking.sendall(b"measure\n")
        return asking.recv(128).endswith(b"\n")


def wait_until_watched(run_dir: Path, shares: int) -> None:
    """Until the agent has looked at that many shares and answers at each."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        leaves = list((run_dir / "shares").glob("[!.]*"))
        owners = run_dir / "owners"
        told = owners.read_text().count("\n") if owners.exists() else 0
        if len(leaves) == told == shares and all(map(is_answered, leaves)):
            return
        time.sleep(0.1)
    raise AssertionError(f"the agent does not look after {shares} shares")


@pytest.mark.parametrize("shim", ["none", pytest.param("builtin", marks=LIBRARY)])
def test_a_registered_agent_that_has_admitted_pods_stays_below_48_mib(shim: str, tmp_path: Path):
    config = tmp_path / "config.yaml"
    config.write_text(f"shim: {shim}\nlib_dir: {tmp_path}/lib\n")
    with node_directory() as sockets, kubelet_on(sockets) as kubelet:
        run_dir = sockets.plugin_directory.parent / "run"
        config.write_text(f"{config.read_text()}run_dir: {run_dir}\n")
        with agent_process(sockets, "--config", str(config)) as agent:
            assert serving(kubelet)
            for number in range(10):
                assert kubelet.admit(pod(f"p{number}", vgpu_core=40, vgpu_memory=64)).admitted
            if shim == "builtin":
                wait_until_watched(run_dir, 10)

            assert rss_kib(agent.process.pid) <= RSS_KIB_MAX


def test_the_agent_does_not_import_what_it_does_not_need():
    code = (
        f"import sys; from topoalloc.cli import agent; print([name for name in {FORBIDDEN!r} if name in sys.modules])"
    )

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert loaded.strip() == "[]"
