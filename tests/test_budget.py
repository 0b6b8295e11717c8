"""What the agent may cost: memory, and modules it must not pull in. Never a time: a loaded machine is no fault."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.agent.served import agent_process, kubelet_on, node_directory, pod, serving

RSS_KIB_MAX = 48 * 1024
FORBIDDEN = ("kubernetes", "rich", "pydantic", "networkx", "aiohttp", "hypothesis", "prometheus_client", "pynvml")


def rss_kib(pid: int) -> int:
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match.group(1))


def test_a_registered_agent_that_has_admitted_pods_stays_below_48_mib():
    with node_directory() as sockets, kubelet_on(sockets) as kubelet, agent_process(sockets) as agent:
        assert serving(kubelet)
        for number in range(10):
            assert kubelet.admit(pod(f"p{number}", vgpu_core=40, vgpu_memory=64)).admitted

        assert rss_kib(agent.process.pid) <= RSS_KIB_MAX


def test_the_agent_does_not_import_what_it_does_not_need():
    code = (
        f"import sys; from topoalloc.cli import agent; print([name for name in {FORBIDDEN!r} if name in sys.modules])"
    )

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert loaded.strip() == "[]"
