"""A real agent process that enforces shares, beside a simulated kubelet: kill -9, reboot, pods that end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.served import LIMIT_S, MACHINE, agent_process, kubelet_on, node_directory, pod, serving, start_agent
from topoalloc.agent.shim_library import packaged_library
from topoalloc.kubelet.simulated.process import Sockets

MIB = 1024**2
brings_library = pytest.mark.skipif(packaged_library() is None, reason="built without the library (make shim)")


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    with node_directory() as made:
        yield made


class Node:
    """Where an agent is told to put things."""

    def __init__(self, folder: Path, shim: str) -> None:
        self.run, self.config = folder / "run", folder / "config.yaml"
        (folder / "shim").mkdir()
        (folder / "shim" / "libvgpu.so").touch(mode=0o755)
        keys = {"shim": shim, "run_dir": self.run, "lib_dir": folder / "lib", "shim_dir": folder / "shim"}
        self.config.write_text("".join(f"{key}: {value}\n" for key, value in keys.items()))

    @property
    def arguments(self) -> tuple[str, str]:
        return "--config", str(self.config)

    def shares(self) -> dict[str, list[str]]:
        leaves = (self.run / "shares").iterdir() if (self.run / "shares").exists() else iter(())
        return {leaf.name: sorted(path.name for path in leaf.iterdir()) for leaf in leaves if leaf.name[0] != "."}

    def wait_for(self, count: int) -> dict[str, list[str]]:
        """The shares, once there are so many."""
        deadline_s = time.monotonic() + LIMIT_S
        while len(self.shares()) != count:
            assert time.monotonic() < deadline_s, self.shares()
            threading.Event().wait(0.05)
        return self.shares()


@pytest.fixture
def folder(sockets: Sockets) -> Path:
    """Beside the sockets: its path is short."""
    return sockets.plugin_directory.parent


FILES = ["ld.so.preload", "lock", "share.cache"]


def test_every_share_has_its_directory_when_its_pod_is_admitted(sockets: Sockets, folder: Path) -> None:
    node = Node(folder, "hami-core")
    with kubelet_on(sockets) as kubelet, agent_process(sockets, *node.arguments):
        assert serving(kubelet)
        for number in range(3):
            assert kubelet.admit(pod(f"share{number}", vgpu_core=40, vgpu_memory=64)).admitted
        assert kubelet.admit(pod("whole", vgpu_core=100)).admitted

        assert list(node.shares().values()) == [FILES] * 3


def test_after_kill_9_and_an_emptied_run_directory_the_shares_are_there_again(sockets: Sockets, folder: Path) -> None:
    node = Node(folder, "hami-core")
    with kubelet_on(sockets) as kubelet:
        first = start_agent(sockets, *node.arguments)
        assert serving(kubelet)
        for number in range(2):
            assert kubelet.admit(pod(f"p{number}", vgpu_core=40, vgpu_memory=64)).admitted
        before = node.shares()
        first.end(signal.SIGKILL)
        assert first.process.stderr is not None
        first.process.stderr.close()
        node.run.rename(folder / "before the reboot")

        with agent_process(sockets, *node.arguments):
            assert node.wait_for(2) == before


def test_the_directory_goes_when_the_pod_has_ended(sockets: Sockets, folder: Path) -> None:
    node = Node(folder, "hami-core")
    with kubelet_on(sockets) as kubelet, agent_process(sockets, *node.arguments):
        assert serving(kubelet)
        assert kubelet.admit(pod("a", vgpu_core=40, vgpu_memory=64)).admitted
        assert kubelet.admit(pod("b", vgpu_core=40, vgpu_memory=64)).admitted

        kubelet.delete("uid-a")

        assert list(node.wait_for(1).values()) == [FILES]


def test_a_share_whose_library_was_changed_is_refused_in_words_for_the_pods_user(
    sockets: Sockets, folder: Path
) -> None:
    node = Node(folder, "hami-core")
    with kubelet_on(sockets) as kubelet, agent_process(sockets, *node.arguments):
        assert serving(kubelet)
        (folder / "shim" / "libvgpu.so").chmod(0o777)

        admission = kubelet.admit(pod("a", vgpu_core=40, vgpu_memory=64))

        assert not admission.admitted
        assert "the limits of this share cannot be set on the node" in str(admission)
        assert "others than root can change it" in str(admission)
        assert kubelet.admit(pod("whole", vgpu_core=100)).admitted
        assert node.shares() == {}


def test_what_cannot_be_enforced_from_the_start_ends_the_agent_with_one_line(sockets: Sockets, folder: Path) -> None:
    node = Node(folder, "hami-core")
    (folder / "shim" / "libvgpu.so").unlink()

    with agent_process(sockets, *node.arguments) as agent:
        said = agent.wait_for_words("libvgpu.so: No such file or directory")

        assert agent.process.wait(LIMIT_S) == 1
        assert "Traceback" not in said


@pytest.mark.parametrize("exists", [False, True], ids=["to be made", "there"])
def test_a_run_dir_on_a_read_only_file_system_ends_the_agent_with_what_to_do(
    sockets: Sockets, folder: Path, exists: bool
) -> None:
    """As below the read-only root of a pod that has no volume there."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting needs root and unshare")
    node, below = Node(folder, "hami-core"), folder / "read-only"
    below.mkdir()
    node.config.write_text(node.config.read_text().replace(f"run_dir: {node.run}", f"run_dir: {below}/run"))
    script = 'mount -t tmpfs none "$0"'
    script += ' && mkdir -m 750 "$0/run"' if exists else ""
    script += ' && mount -o remount,ro "$0" && echo mounted && exec "$@"'
    agent = [sys.executable, "-m", "topoalloc", "agent", "--machine", MACHINE, "--plugin-dir", str(folder)]
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(below), *agent]
    done = subprocess.run([*command, *node.arguments], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if done.stdout != "mounted\n":
        pytest.skip("no mount namespaces here")

    place = f"{below}/run" + ("/shares" if exists else "")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"topoalloc agent: run_dir: {place}: Read-only file system; mount a writable file system there (in a pod: a "
        "hostPath volume), or name another place"
    )


@brings_library
def test_the_builtin_library_is_on_the_node_with_the_first_share(sockets: Sockets, folder: Path) -> None:
    node = Node(folder, "builtin")
    with kubelet_on(sockets) as kubelet, agent_process(sockets, *node.arguments):
        assert serving(kubelet)
        assert kubelet.admit(pod("a", vgpu_core=40, vgpu_memory=64)).admitted

        (leaf,) = (node.run / "shares").iterdir()
        assert f"memory {64 * 256 * MIB}\n" in (leaf / "share").read_text()
        (library,) = (folder / "lib").rglob("*.so")
        there = {each.name: each.read_bytes() for each in library.parent.iterdir()}
        assert there == {**(packaged_library() or {}), "without-share": b"refuse\n"}
