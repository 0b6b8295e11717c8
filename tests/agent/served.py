"""A real agent process beside a simulated kubelet, both on sockets in one directory."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from topoalloc.admission.pod import Pod, checked_container
from topoalloc.kubelet.simulated.kubelet import SimulatedKubelet
from topoalloc.kubelet.simulated.process import Sockets
from topoalloc.kubelet.simulated.settings import Behaviour, KubeletSettings
from topoalloc.topology.sources import load_machine

MACHINE = "tests/machines/azure-ndv5.nccl-topo.xml"
RESOURCES = frozenset({"topoalloc.io/vgpu-core", "topoalloc.io/vgpu-memory", "topoalloc.io/nic"})
LIMIT_S = 60.0  # far above what anything here needs, so that a loaded machine does not fail a test


def pod(name: str, **amounts: int) -> Pod:
    """One container `app`; amounts by the last part of the resource name, `vgpu_core=30`."""
    limits = {f"topoalloc.io/{key.replace('_', '-')}": str(amount) for key, amount in amounts.items()}
    return Pod(name=name, namespace="ns", uid=f"uid-{name}", containers=(checked_container("app", {}, limits),))


@dataclass
class AgentProcess:
    """`topoalloc agent` as a child; what it says is read from its standard error."""

    process: subprocess.Popen[str]
    said: str = ""

    def wait_for_words(self, words: str) -> str:
        """Read what the agent says until these words come; fails when it ends or says nothing for long."""
        stream = self.process.stderr
        assert stream is not None
        deadline_s = time.monotonic() + LIMIT_S
        while words not in self.said:
            ready, _, _ = select.select([stream], [], [], max(0.0, deadline_s - time.monotonic()))
            assert ready, f"the agent never said {words!r}: {self.said}"
            chunk = os.read(stream.fileno(), 65536).decode()
            assert chunk, f"the agent ended without saying {words!r}: {self.said}"
            self.said += chunk
        return self.said

    def end(self, signum: int = signal.SIGTERM) -> int:
        self.process.send_signal(signum)
        return self.process.wait(LIMIT_S)


def start_agent(sockets: Sockets, *arguments: str, machine: str = MACHINE) -> AgentProcess:
    command = [
        *(sys.executable, "-m", "topoalloc", "agent", "--machine", machine, "--gpu-memory", "80GiB"),
        *("--plugin-dir", str(sockets.plugin_directory), "--pod-resources", str(sockets.pod_resources)),
        *("--pods-api", str(sockets.pods_api), *arguments),
    ]
    return AgentProcess(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))


@contextmanager
def agent_process(sockets: Sockets, *arguments: str, machine: str = MACHINE) -> Iterator[AgentProcess]:
    agent = start_agent(sockets, *arguments, machine=machine)
    try:
        yield agent
    finally:
        if agent.process.poll() is None:
            agent.end(signal.SIGKILL)
        assert agent.process.stderr is not None
        agent.process.stderr.close()


def serving(kubelet: SimulatedKubelet) -> bool:
    """Wait until every resource has healthy devices."""
    return kubelet.devices.wait_until(
        lambda listed: all(name in listed and listed[name].healthy for name in RESOURCES), LIMIT_S
    )


def gone(kubelet: SimulatedKubelet) -> bool:
    """Wait until the kubelet has noticed that no resource is served any more."""
    return kubelet.devices.wait_until(lambda listed: not any(view.healthy for view in listed.values()), LIMIT_S)


@contextmanager
def node_directory() -> Iterator[Sockets]:
    """A short path: a socket's has at most 107 bytes, pytest's own directories are deeper."""
    with tempfile.TemporaryDirectory(prefix="ta-", dir="/tmp") as name:
        yield Sockets.below(Path(name))


@contextmanager
def kubelet_on(sockets: Sockets, behaviour: Behaviour | None = None) -> Iterator[SimulatedKubelet]:
    machine = load_machine([MACHINE], 80 * 1024**3)
    with SimulatedKubelet(sockets, machine, KubeletSettings(), behaviour) as kubelet:
        yield kubelet
