"""The sockets of shares: real sockets and processes; what one container does costs no other one anything."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.made_shares import NAME, OTHER, UID, RunDir, accepts, answer, connected, no_descriptors_left
from topoalloc.agent import share_sockets
from topoalloc.agent.share_sockets import (
    CONNECTIONS_PER_SHARE_MAX,
    DEADLINE_S,
    IDLE_MAX_S,
    REQUEST_BYTES_MAX,
    ShareSockets,
    SocketOwner,
)

GPU = "GPU-8e"
LIMIT_S = 30.0
# Connects to argv[1]/agent.sock below a descriptor, then does as argv[2] says.
CLIENT = """
import os, socket, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
s = socket.socket(socket.AF_UNIX)
s.connect(f"/proc/self/fd/{fd}/agent.sock")
if sys.argv[2] == "child" and os.fork():
    os._exit(0)
if sys.argv[2] == "child":
    while os.getppid() == int(sys.argv[3]): pass
s.sendall(b"measure\\n")
print(s.recv(100).decode(), end="", flush=True)
"""


@dataclass
class Served:
    """A server in a thread, and the figures that it is to tell."""

    run_dir: RunDir
    figures: dict[str, dict[int, int | None]] = field(default_factory=dict)
    everybody: int | None = None
    ahead_s: float = 0.0  # of the real clock

    def __post_init__(self) -> None:
        self.sockets = ShareSockets(str(self.run_dir.path), self.memory_bytes, lambda: time.monotonic() + self.ahead_s)
        self.thread = threading.Thread(target=self.sockets.run, daemon=True)
        self.thread.start()

    def memory_bytes(self, gpu: str) -> Mapping[int, int | None] | None:
        everybody = self.everybody
        return self.figures.get(gpu) if everybody is None else Everybody(everybody)

    def serve(self, *names: str, uid: str = "", gpu: str | None = GPU) -> None:
        self.sockets.reconcile({name: SocketOwner(self.run_dir.inode(name), gpu, uid) for name in names})
        for name in names:
            wait_for(lambda name=name: accepts(self.run_dir.leaf(name)))

    def end(self) -> None:
        self.sockets.stop()
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive()
        self.sockets.close()


class Everybody(dict[int, int | None]):
    """A driver that lists every process with the same figure."""

    def __init__(self, figure: int) -> None:
        self._figure = figure

    def get(self, key: int, default: object = None) -> int:  # type: ignore[override]
        return self._figure


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.005)


@contextmanager
def serving(path: Path, *names: str, everybody: int | None = 42) -> Iterator[Served]:
    served = Served(RunDir(path), everybody=everybody)
    for name in names:
        served.run_dir.make(name)
    served.serve(*names)
    try:
        yield served
    finally:
        served.end()


def asked_by_a_process(leaf: Path, how: str = "itself") -> tuple[int, str]:
    with subprocess.Popen([sys.executable, "-c", CLIENT, str(leaf), how], stdout=subprocess.PIPE, text=True) as client:
        return client.pid, client.communicate(timeout=LIMIT_S)[0]


def test_a_process_is_told_what_the_driver_says_of_it(tmp_path: Path):
    with serving(tmp_path, NAME, everybody=None) as served:
        code = "import sys; sys.stdin.readline();" + CLIENT
        command = [sys.executable, "-c", code, str(served.run_dir.leaf()), "itself"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            served.figures = {GPU: {client.pid: 12345, 1: 99}}
            assert client.communicate("go\n", timeout=LIMIT_S)[0] == "bytes 12345\n"


@pytest.mark.parametrize("figures", [{}, {GPU: {}}, {GPU: {1: 5}}])
def test_a_process_that_the_driver_does_not_list_is_unknown(tmp_path: Path, figures: dict[str, dict[int, int | None]]):
    with serving(tmp_path, NAME, everybody=None) as served:
        served.figures = figures

        assert asked_by_a_process(served.run_dir.leaf())[1] == "unknown\n"


def test_where_no_gpu_is_known_all_is_unknown(tmp_path: Path):
    with serving(tmp_path, NAME) as served:
        served.serve(NAME, gpu=None)
        with connected(served.run_dir.leaf()) as connection:
            wait_for(lambda: answer(connection) == b"unknown\n")


def test_what_is_asked_after_the_process_has_ended_is_not_answered_in_its_name(tmp_path: Path):
    """Its child holds the connection, and the pid may be anybody's by then."""
    with serving(tmp_path, NAME) as served:
        code = f"import os, sys; sys.argv.append(str(os.getpid()));{CLIENT}"
        command = [sys.executable, "-c", code, str(served.run_dir.leaf()), "child"]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout

        assert said == "unknown\n"


def test_a_process_of_another_pod_than_the_owners_is_told_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with serving(tmp_path, NAME) as served:
        served.serve(NAME, uid=UID)
        with connected(served.run_dir.leaf()) as connection:
            wait_for(lambda: accepts(served.run_dir.leaf()) and served.sockets.counts["foreign"] > 0)
            assert answer(connection) in {b"unknown\n", b"bytes 42\n"}  # it came before the owner was known
        with connected(served.run_dir.leaf()) as connection:
            assert answer(connection) == b"unknown\n"
    assert "another pod" in caplog.text


def test_any_number_of_questions_is_answered_on_one_connection(tmp_path: Path):
    with serving(tmp_path, NAME) as served, connected(served.run_dir.leaf()) as connection:
        assert [answer(connection) for _ in range(50)] == [b"bytes 42\n"] * 50


def test_a_question_may_come_in_pieces(tmp_path: Path):
    with serving(tmp_path, NAME) as served, connected(served.run_dir.leaf()) as connection:
        for piece in (b"mea", b"su", b"re"):
            connection.sendall(piece)

        assert answer(connection, b"\n") == b"bytes 42\n"


@pytest.mark.parametrize(
    "request_bytes", [b"\n", b"measure \n", b"MEASURE\n", b"\0\n", b"x" * 1000, b"measure\r\n", b"\xff" * 200 + b"\n"]
)
def test_what_is_no_question_ends_the_connection_and_no_other(tmp_path: Path, request_bytes: bytes):
    with serving(tmp_path, NAME) as served, connected(served.run_dir.leaf()) as good:
        with connected(served.run_dir.leaf()) as bad:
            assert answer(bad, request_bytes) == b""
        assert answer(good) == b"bytes 42\n"


def test_any_bytes_at_all_leave_the_others_served(tmp_path: Path):
    with serving(tmp_path, NAME, OTHER) as served, connected(served.run_dir.leaf(OTHER)) as good:

        @given(st.lists(st.binary(min_size=1, max_size=2 * REQUEST_BYTES_MAX), max_size=4))
        def some(pieces: list[bytes]) -> None:
            with connected(served.run_dir.leaf()) as bad:
                for piece in pieces:
                    try:
                        bad.sendall(piece)
                    except OSError:
                        break
            assert answer(good) == b"bytes 42\n"

        some()


def test_a_writer_that_does_not_finish_is_cut_off(tmp_path: Path):
    with serving(tmp_path, NAME) as served, connected(served.run_dir.leaf()) as slow:
        slow.sendall(b"meas")
        with connected(served.run_dir.leaf()) as other:
            assert answer(other) == b"bytes 42\n"  # so the first piece has been read
        served.ahead_s = DEADLINE_S + 1

        assert slow.recv(10) == b""
        assert served.sockets.counts["late"] == 1


def test_a_connection_that_asks_nothing_is_closed_later_than_one_that_begins(tmp_path: Path):
    with serving(tmp_path, NAME) as served, connected(served.run_dir.leaf()) as idle:
        assert answer(idle) == b"bytes 42\n"
        served.ahead_s = DEADLINE_S + 1
        assert answer(idle) == b"bytes 42\n"
        served.ahead_s += IDLE_MAX_S + 1

        assert idle.recv(10) == b""


def test_a_reader_that_does_not_read_costs_its_own_connection(tmp_path: Path):
    with serving(tmp_path, NAME) as served:
        with connected(served.run_dir.leaf()) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            deaf.settimeout(LIMIT_S)
            with pytest.raises(OSError):
                while True:
                    deaf.sendall(b"measure\n" * 16)
                    served.ahead_s += 1  # the rate is not what ends it
        with connected(served.run_dir.leaf()) as good:
            assert answer(good) == b"bytes 42\n"


def test_ten_thousand_connects_of_one_container_leave_the_others_served(tmp_path: Path):
    with serving(tmp_path, NAME, OTHER) as served, connected(served.run_dir.leaf(OTHER)) as good:
        stop, made = threading.Event(), [0]

        def storm() -> None:
            held: list[socket.socket] = []
            while made[0] < 10_000 and not stop.is_set():
                connection = socket.socket(socket.AF_UNIX)
                connection.setblocking(False)
                try:
                    connection.connect(str(served.run_dir.leaf() / "agent.sock"))
                except OSError:
                    connection.close()
                else:
                    held.append(connection)
                made[0] += 1
                if len(held) > 200:
                    held.pop(0).close()
            for connection in held:
                connection.close()

        thread = threading.Thread(target=storm)
        thread.start()
        answers = [answer(good)]
        while thread.is_alive():
            answers.append(answer(good))
            with connected(served.run_dir.leaf(OTHER)) as fresh:
                answers.append(answer(fresh))
            stop.wait(0.02)
        thread.join()

        assert made[0] == 10_000
        assert set(answers) == {b"bytes 42\n"}
        assert served.sockets.counts["paused"] + served.sockets.counts["evicted"] > 0


def test_a_container_with_too_many_connections_loses_the_one_that_was_silent_longest(tmp_path: Path):
    with serving(tmp_path, NAME) as served:
        connections = [connected(served.run_dir.leaf()) for _ in range(CONNECTIONS_PER_SHARE_MAX)]
        assert all(answer(one) == b"bytes 42\n" for one in [*connections[1:], connections[0]])
        with connected(served.run_dir.leaf()) as one_more:
            assert answer(one_more) == b"bytes 42\n"

        assert answer(connections[1]) == b""
        assert answer(connections[0]) == b"bytes 42\n"
        for one in connections:
            one.close()


def test_a_container_that_asks_without_end_is_refused_and_later_served_again(tmp_path: Path):
    with serving(tmp_path, NAME) as served:
        with connected(served.run_dir.leaf()) as greedy:
            for _ in range(int(2 * share_sockets.BURST)):
                if answer(greedy) == b"":
                    break
            else:
                pytest.fail("it was answered without end")
        served.ahead_s += 10
        with connected(served.run_dir.leaf()) as again:
            assert answer(again) == b"bytes 42\n"


def test_a_share_that_is_gone_is_closed_and_a_new_one_of_its_name_gets_a_new_socket(tmp_path: Path):
    with serving(tmp_path, NAME) as served:
        run_dir = served.run_dir
        old = connected(run_dir.leaf())
        assert answer(old) == b"bytes 42\n"
        run_dir.leaf().rename(tmp_path / "gone")
        run_dir.make()
        served.serve(NAME)

        assert answer(old) == b""
        with connected(run_dir.leaf()) as new:
            assert answer(new) == b"bytes 42\n"
        old.close()
        served.sockets.reconcile({})
        wait_for(lambda: not accepts(run_dir.leaf()))


def test_a_directory_that_changes_while_it_is_bound_is_bound_next_time(tmp_path: Path):
    with serving(tmp_path, NAME) as served:
        served.run_dir.make(OTHER)
        served.sockets.reconcile({NAME: SocketOwner(served.run_dir.inode(), GPU), OTHER: SocketOwner(1, GPU)})
        with connected(served.run_dir.leaf()) as connection:
            assert answer(connection) == b"bytes 42\n"
        assert not (served.run_dir.leaf(OTHER) / "agent.sock").exists()
        served.serve(NAME, OTHER)


def test_an_agent_that_starts_again_takes_the_place_of_its_old_socket(tmp_path: Path):
    with serving(tmp_path, NAME) as served:
        run_dir = served.run_dir
    assert (run_dir.leaf() / "agent.sock").is_socket()
    again = Served(run_dir, everybody=7)
    again.serve(NAME)
    with connected(run_dir.leaf()) as connection:
        assert answer(connection) == b"bytes 7\n"
    assert (run_dir.leaf() / "agent.sock").stat().st_mode & 0o777 == 0o666
    again.end()


def opened(sockets: ShareSockets, run_dir: RunDir, name: str = NAME, uid: str = "") -> None:
    """As whoever makes the directories of shares does."""
    fd = os.open(run_dir.leaf(name), os.O_RDONLY | os.O_DIRECTORY)
    try:
        sockets.opened(name, SocketOwner(run_dir.inode(name), GPU, uid), fd)
    finally:
        os.close(fd)


def test_who_connects_before_the_server_runs_is_answered_when_it_does(tmp_path: Path):
    run_dir = RunDir(tmp_path)
    run_dir.make()
    sockets = ShareSockets(str(tmp_path), lambda gpu: Everybody(42))
    opened(sockets, run_dir)
    with connected(run_dir.leaf()) as connection:
        thread = threading.Thread(target=sockets.run)
        thread.start()

        assert answer(connection) == b"bytes 42\n"
    sockets.stop()
    thread.join(LIMIT_S)
    sockets.close()


def test_a_share_that_was_opened_is_not_closed_by_a_look_from_before(tmp_path: Path):
    with serving(tmp_path) as served:
        served.run_dir.make()
        opened(served.sockets, served.run_dir)
        served.sockets.reconcile({})
        served.sockets.reconcile({NAME: SocketOwner(1, GPU)})
        with connected(served.run_dir.leaf()) as connection:
            assert [answer(connection) for _ in range(2)] == [b"bytes 42\n"] * 2

        served.sockets.closed(NAME)
        wait_for(lambda: not accepts(served.run_dir.leaf()))


def test_a_share_that_is_opened_again_keeps_its_connections(tmp_path: Path):
    with serving(tmp_path) as served:
        served.run_dir.make()
        opened(served.sockets, served.run_dir)
        with connected(served.run_dir.leaf()) as connection:
            assert answer(connection) == b"bytes 42\n"
            opened(served.sockets, served.run_dir, uid=UID)
            opened(served.sockets, served.run_dir)

            assert answer(connection) == b"bytes 42\n"


def test_of_a_share_that_goes_through_many_directories_the_last_one_has_the_socket(tmp_path: Path):
    with serving(tmp_path) as served:
        for number in range(20):
            served.run_dir.make()
            opened(served.sockets, served.run_dir)
            if number < 19:
                served.sockets.closed(NAME)
                served.run_dir.leaf().rename(tmp_path / f"old{number}")
        with connected(served.run_dir.leaf()) as connection:
            assert answer(connection) == b"bytes 42\n"
        wait_for(lambda: not any(accepts(tmp_path / f"old{number}") for number in range(19)))


def test_a_socket_that_cannot_be_made_is_said_once_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with serving(tmp_path) as served:
        served.run_dir.make()
        owner = SocketOwner(served.run_dir.inode(), GPU)
        with (tmp_path / "no directory").open("w") as file:
            for _ in range(3):
                served.sockets.opened(NAME, owner, file.fileno())
        assert caplog.text.count("cannot be made") == 1

        served.serve(NAME)


def test_connections_that_cannot_be_taken_are_said_once_each_time_that_it_happens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with serving(tmp_path, NAME) as served:
        directory = os.open(served.run_dir.leaf(), os.O_RDONLY | os.O_DIRECTORY)
        for times in (1, 2):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(LIMIT_S)
                with no_descriptors_left():
                    paused = served.sockets.counts["paused"]
                    connection.connect(f"/proc/self/fd/{directory}/agent.sock")
                    wait_for(lambda paused=paused: served.sockets.counts["paused"] >= paused + 2)
                assert caplog.text.count("connections of shares cannot be taken") == times
                assert answer(connection) == b"bytes 42\n"
        os.close(directory)


def test_a_process_of_another_pod_is_said_again_where_the_share_is_a_new_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with serving(tmp_path, NAME) as served:
        for times in (1, 2):
            served.serve(NAME, uid=UID)
            for _ in range(2):
                with connected(served.run_dir.leaf()) as connection:
                    answer(connection)
            wait_for(lambda times=times: caplog.text.count("another pod asked") == times)
            served.run_dir.leaf().rename(tmp_path / f"gone{times}")
            served.run_dir.make()


def test_sockets_that_nobody_came_to_serve_are_let_go(tmp_path: Path):
    run_dir = RunDir(tmp_path)
    run_dir.make()
    sockets = ShareSockets(str(tmp_path), lambda gpu: None)
    opened(sockets, run_dir)

    sockets.close()

    assert not accepts(run_dir.leaf())
