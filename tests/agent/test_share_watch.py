"""The threads around shares begin with the first one, end cleanly, and never take the agent with them."""

from __future__ import annotations

import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.agent.made_shares import NAME, RunDir, accepts, answer, connected
from tests.agent.served import MACHINE, agent_process, kubelet_on, node_directory, pod, serving
from topoalloc.agent import share_watch
from topoalloc.agent.config import Config
from topoalloc.agent.process import Sockets, running_agent, share_owners
from topoalloc.agent.share_rounds import ShareRounds
from topoalloc.agent.share_watch import RESTARTS_MAX, ShareWatch, ShareWatchSettings
from topoalloc.agent.shim_library import packaged_library
from topoalloc.topology.sources import load_machine

LIMIT_S = 60.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Running:
    """A watch in a thread."""

    def __init__(self, path: Path, port: int | None = None) -> None:
        settings = ShareWatchSettings(
            str(path), None if port is None else ("127.0.0.1", port), kills=False, tolerance_bytes=0, live=False
        )
        watch = ShareWatch(settings, dict, everybody, restart_pause_s=0.0)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=watch.run, args=(self.stop,), daemon=True)
        self.thread.start()

    def end(self) -> None:
        self.stop.set()
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive()


def everybody(gpu: str) -> Mapping[int, int | None]:
    import os

    return {os.getpid(): 42}


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.01)


def ours() -> set[str]:
    return {thread.name for thread in threading.enumerate()} & {"shares", "share sockets", "overuse", "metrics"}


def test_nothing_runs_before_the_first_share_and_nothing_after_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(share_watch, "FIRST_SHARE_PERIOD_S", 0.01)
    run_dir = RunDir(tmp_path)
    running = Running(tmp_path)
    assert ours() == set()
    run_dir.make()
    wait_for(lambda: accepts(run_dir.leaf()))
    assert ours() == {"shares", "share sockets", "overuse"}

    with connected(run_dir.leaf()) as connection:
        assert answer(connection) == b"bytes 42\n"
    running.end()

    assert ours() == set()


def test_a_thread_that_fails_is_begun_again_a_few_times_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(self: ShareRounds, stop: threading.Event) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(ShareRounds, "run", fail)
    RunDir(tmp_path).make()
    running = Running(tmp_path)
    wait_for(lambda: f"shares failed {RESTARTS_MAX + 1} times" in caplog.text)

    assert ours() == {"share sockets", "overuse"}
    running.end()
    assert caplog.text.count("shares ended by a fault") == RESTARTS_MAX + 1


def test_a_port_that_is_taken_is_one_line_and_no_traceback(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        running = Running(tmp_path, int(taken.getsockname()[1]))
        wait_for(lambda: "metrics failed" in caplog.text)
        running.end()
    assert "Address already in use" in caplog.text
    assert "Traceback" not in caplog.text


def test_the_agents_process_serves_sockets_metrics_and_owners_of_its_shares():
    with node_directory() as sockets, kubelet_on(sockets) as kubelet:
        run_dir, port = RunDir(sockets.plugin_directory.parent / "run"), free_port()
        config = sockets.plugin_directory.parent / "config.yaml"
        config.write_text(f"run_dir: {run_dir.path}\nmetrics: 127.0.0.1:{port}\n")
        with agent_process(sockets, "--config", str(config)) as agent:
            assert serving(kubelet)
            assert kubelet.admit(pod("a", vgpu_core=40, vgpu_memory=64)).admitted
            name = next(iter(run_dir.path.glob("shares/*")), None)
            leaf = run_dir.make() if name is None else name
            wait_for(lambda: accepts(leaf) and (run_dir.path / "owners").exists())
            wait_for(lambda: b" ns a app " in (run_dir.path / "owners").read_bytes())

            with connected(leaf) as connection:
                assert answer(connection) == b"unknown\n"  # of a recorded machine no driver tells
            url = f"http://127.0.0.1:{port}/metrics"
            wait_for(lambda: f'share="{leaf.name}"'.encode() in urllib.request.urlopen(url, timeout=20).read())
            assert agent.end() == 0


@pytest.mark.skipif(packaged_library() is None, reason="built without the library (make shim)")
def test_a_share_has_its_socket_when_its_pod_is_admitted_and_the_first_question_is_answered():
    with node_directory() as sockets, kubelet_on(sockets) as kubelet:
        folder = sockets.plugin_directory.parent
        config = folder / "config.yaml"
        config.write_text(f"shim: builtin\nrun_dir: {folder}/run\nlib_dir: {folder}/lib\n")
        with agent_process(sockets, "--config", str(config)):
            assert serving(kubelet)
            for number in range(3):
                assert kubelet.admit(pod(f"p{number}", vgpu_core=40, vgpu_memory=64)).admitted
                for leaf in (folder / "run" / "shares").iterdir():
                    with connected(leaf) as connection:
                        assert answer(connection) == b"unknown\n"


@pytest.mark.parametrize("enforces", [True, False])
def test_an_agent_that_enforces_nothing_on_this_node_watches_no_shares(tmp_path: Path, enforces: bool):
    """A simulated one: what it grants is nowhere here, and shares that lie here are another agent's."""
    config = Config(run_dir=str(tmp_path / "run"), shim="none")
    with node_directory() as sockets:
        for_agent = Sockets(sockets.plugin_directory, None, None)
        with running_agent(config, load_machine([MACHINE], 80 * 1024**3), for_agent, enforces=enforces):
            names = {thread.name for thread in threading.enumerate()}

    assert ("share watch" in names) == enforces


@pytest.mark.parametrize("live", [True, False])
def test_limits_that_an_earlier_agent_left_are_nobodys_on_a_live_node_that_enforces_none(live: bool):
    """A share of today can have the name of one of then."""
    with node_directory() as sockets, kubelet_on(sockets) as kubelet:
        folder, port = sockets.plugin_directory.parent, free_port()
        config = Config(run_dir=str(folder / "run"), shim="none", injection="none", metrics=f"127.0.0.1:{port}")
        for_agent = Sockets(sockets.plugin_directory, sockets.pod_resources, sockets.pods_api)
        with running_agent(config, load_machine([MACHINE], 80 * 1024**3), for_agent, live=live) as agent:
            assert serving(kubelet)
            assert kubelet.admit(pod("a", vgpu_core=40, vgpu_memory=64)).admitted
            (name,) = share_owners(agent.desk, agent.inventory)
            RunDir(folder / "run").make(name)
            url = f"http://127.0.0.1:{port}/metrics"
            wait_for(lambda: f'share="{name}"'.encode() in urllib.request.urlopen(url, timeout=20).read())
            text = urllib.request.urlopen(url, timeout=20).read().decode()

    assert ('pod="a"' in text) == (not live)


def test_what_shares_need_is_not_imported_before_there_is_one():
    import subprocess

    code = (
        "import sys; from topoalloc.cli import agent; "
        "print([name for name in sys.modules if 'share_' in name or 'metrics' in name or 'overuse' in name])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert "share_sockets" not in loaded
    assert "share_rounds" not in loaded
    assert "metrics" not in loaded
    assert NAME not in loaded
