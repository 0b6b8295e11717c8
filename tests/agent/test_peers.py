"""Who a process is: real processes, pids that went to another one, and namespaces."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from topoalloc.agent import peers
from topoalloc.agent.peers import (
    Peer,
    Process,
    boottime_ns,
    container_process,
    kill,
    opened_peer,
    peer_of,
    read_cgroup,
    read_started,
)
from topoalloc.sharing.cgroup_path import PodCgroup

POD = PodCgroup("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", "ab" * 32)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_the_process_at_the_other_end_is_named_while_it_lives(tmp_path: Path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    code = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); sys.stdin.read()"
    client = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "s")], stdin=subprocess.PIPE)
    connection, _ = listener.accept()

    peer = peer_of(connection, boottime_ns())

    assert peer is not None
    assert (peer.pid, peer.alive) == (client.pid, True)
    client.communicate()
    assert not peer.alive
    peer.close()
    connection.close()
    listener.close()


def test_without_a_pidfd_of_the_peer_a_pid_counts_only_if_it_is_older_than_the_connection(
    child: subprocess.Popen[bytes],
):
    later = opened_peer(child.pid, boottime_ns() + 1_000_000_000)

    assert isinstance(later, Peer)
    later.close()
    assert opened_peer(child.pid, boottime_ns() - 3_600_000_000_000) is None


def test_where_any_process_of_the_container_will_do_its_age_is_no_matter(child: subprocess.Popen[bytes]):
    peer = opened_peer(child.pid, None)

    assert isinstance(peer, Peer)
    peer.close()


def test_a_pid_of_nobody_is_no_peer(child: subprocess.Popen[bytes]):
    child.kill()
    child.wait()

    assert opened_peer(child.pid, boottime_ns() + 1_000_000_000) is None


def test_a_peer_that_this_pid_namespace_does_not_have_is_unknown(tmp_path: Path):
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("making a PID namespace needs root and unshare")
    code = (
        "import socket, sys; from topoalloc.agent.peers import peer_of, boottime_ns\n"
        "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print('ready', flush=True)\n"
        "print(peer_of(s.accept()[0], boottime_ns()), flush=True)"
    )
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", code, str(tmp_path / "s")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        if server.stdout.readline() != "ready\n":
            pytest.skip("PID namespaces cannot be made here")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "s"))
            assert server.stdout.readline() == "None\n"


def test_the_start_of_a_process_is_read_whatever_it_is_called(tmp_path: Path):
    program = tmp_path / ") Z 1 2 3"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    process = subprocess.Popen([str(program), "60"])
    started = read_started(process.pid)

    assert started is not None
    assert abs(started / os.sysconf("SC_CLK_TCK") - boottime_ns() / 1e9) < 60
    process.kill()
    process.wait()
    assert read_started(process.pid) is None


def test_a_process_that_ended_and_was_not_waited_for_is_gone(child: subprocess.Popen[bytes]):
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert read_started(child.pid) is None
    assert container_process(child.pid) is None


def test_this_process_is_in_no_container_of_a_pod():
    assert read_cgroup(os.getpid()) is None


def test_only_the_process_that_was_seen_is_ended(child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peers, "read_cgroup", lambda pid, root: POD)
    found = container_process(child.pid)
    assert found is not None
    process, group = found

    assert not kill(Process(process.pid, process.started + 1), group)
    assert not kill(process, PodCgroup(group.pod_uid, "cd" * 32))
    assert child.poll() is None
    assert kill(process, group)
    assert child.wait() == -9
    assert not kill(process, group)


def test_a_process_outside_of_every_container_is_never_ended(child: subprocess.Popen[bytes]):
    started = read_started(child.pid)
    assert started is not None

    assert not kill(Process(child.pid, started), POD)
    assert child.poll() is None
