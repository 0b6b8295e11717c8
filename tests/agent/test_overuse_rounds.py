"""The watchdog on real processes and files; only what the driver and the cgroups would say of them is given."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.made_shares import NAME, UID, RunDir, Slot
from topoalloc.agent import peers
from topoalloc.agent.metrics_text import metrics_text
from topoalloc.agent.overuse_rounds import OveruseRounds
from topoalloc.agent.share_board import ShareBoard
from topoalloc.agent.share_files import OVERUSE, read_list, read_shares
from topoalloc.sharing.cgroup_path import PodCgroup
from topoalloc.sharing.overuse_record import parse_records
from topoalloc.sharing.share_owners import ShareOwner

GPU, GIB = "GPU-8e", 1024**3
CONTAINER = PodCgroup(UID, "ab" * 32)


class Node:
    """One share of 8 GiB, and a process that the driver lists on its GPU."""

    def __init__(self, path: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        self.process = process
        self.monkeypatch = monkeypatch
        self.run_dir = RunDir(path)
        self.slot = Slot(self.run_dir.make(), 0)
        self.board = ShareBoard(owners={NAME: ShareOwner("ns", "pod", "app", UID)})
        self.board.samples = read_shares(str(path), [NAME])
        self.listed: dict[int, int | None] = {process.pid: 9 * GIB}
        self.group: PodCgroup | None = CONTAINER
        self.containers: dict[str, str] = {}
        monkeypatch.setattr(peers, "read_cgroup", lambda pid, root: self.group)

    def rounds(self, *, kills: bool = False) -> OveruseRounds:
        return OveruseRounds(
            str(self.run_dir.path),
            self.board,
            lambda gpu: self.listed if gpu == GPU else None,
            lambda: self.containers,
            tolerance_bytes=GIB // 4,
            kills=kills,
        )


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    made = Node(tmp_path, process, monkeypatch)
    yield made
    made.slot.end()
    process.kill()
    process.communicate()


def test_too_much_memory_is_said_once_and_counted(node: Node, caplog: pytest.LogCaptureFixture):
    rounds = node.rounds()
    for _ in range(5):
        rounds.look()

    assert caplog.text.count(f"{NAME} (pod {UID}) holds {9 * GIB} bytes of {GPU}, granted {8 * GIB}") == 1
    assert node.board.found == {"memory": 1}
    assert node.process.poll() is None
    written = parse_records(read_list(str(node.run_dir.path), OVERUSE))
    assert [(one.pod, one.uid, one.containers) for one in written] == [("pod", UID, "app")]
    text = metrics_text(node.board)
    assert 'topoalloc_overuse_found_total{kind="memory"} 1\n' in text
    assert (
        f'topoalloc_share_overuse{{share="{NAME}",gpu="0000:3b:00.0",namespace="ns",pod="pod",container="app"}} 1'
        in text
    )


def test_the_processes_are_ended_where_that_is_wanted(node: Node, caplog: pytest.LogCaptureFixture):
    rounds = node.rounds(kills=True)
    for _ in range(3):
        rounds.look()

    assert node.process.wait() == -9
    assert node.board.killed == 1
    rounds.look()
    assert node.board.findings == ()


def test_a_process_that_may_not_be_ended_is_said_once_and_the_watchdog_goes_on(
    node: Node, caplog: pytest.LogCaptureFixture
):
    def denied(pidfd: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    node.monkeypatch.setattr("signal.pidfd_send_signal", denied)
    rounds = node.rounds(kills=True)
    for _ in range(5):
        rounds.look()

    assert node.process.poll() is None
    assert caplog.text.count("CAP_KILL") == 1
    assert node.board.killed == 0
    assert len(node.board.findings) == 1


def test_a_process_without_limits_is_reported_and_never_ended(node: Node, caplog: pytest.LogCaptureFixture):
    node.listed = {node.process.pid: GIB}
    node.slot.end()
    rounds = node.rounds(kills=True)
    for _ in range(4):
        rounds.look()

    assert node.board.found == {"unlimited": 1}
    assert node.process.poll() is None
    node.slot = Slot(node.run_dir.leaf(), 0)


@pytest.mark.parametrize("group", [None, PodCgroup("ffffffff-4b5a-6978-8796-a5b4c3d2e1f0", "ab" * 32)])
def test_a_process_outside_of_the_pod_is_left_alone(node: Node, group: PodCgroup | None):
    node.group = group
    rounds = node.rounds(kills=True)
    for _ in range(4):
        rounds.look()

    assert node.board.findings == ()
    assert node.process.poll() is None


def test_a_process_of_another_container_of_the_pod_is_left_alone(node: Node):
    node.containers = {NAME: "cd" * 32}
    rounds = node.rounds(kills=True)
    for _ in range(4):
        rounds.look()

    assert node.board.findings == ()


def test_a_share_whose_owner_is_not_known_is_not_judged(node: Node):
    node.board.owners = {}
    rounds = node.rounds(kills=True)
    for _ in range(4):
        rounds.look()

    assert node.board.findings == ()


def test_a_driver_that_tells_nothing_finds_nothing(node: Node):
    node.listed = {}
    rounds = node.rounds(kills=True)
    for _ in range(4):
        rounds.look()

    assert node.board.findings == ()


def test_a_driver_that_keeps_a_figure_back_ends_no_finding_and_no_process(node: Node):
    rounds = node.rounds()
    for _ in range(3):
        rounds.look()
    assert node.board.judged == {NAME}
    node.listed = {node.process.pid: None}
    killing = node.rounds(kills=True)
    for _ in range(4):
        rounds.look()
        killing.look()

    assert node.process.poll() is None
    assert node.board.findings == ()
    assert "topoalloc_share_overuse{" not in metrics_text(node.board)
    node.listed = {node.process.pid: 9 * GIB}
    rounds.look()
    assert node.board.found == {"memory": 1}  # it is the one that was found before
    assert len(node.board.findings) == 1


def test_a_driver_that_is_silent_for_a_moment_does_not_begin_the_count_anew(node: Node):
    answers = iter([{node.process.pid: 9 * GIB}, None] * 3)
    rounds = OveruseRounds(
        str(node.run_dir.path), node.board, lambda gpu: next(answers), dict, tolerance_bytes=GIB // 4, kills=False
    )
    for _ in range(4):
        rounds.look()
        assert node.board.findings == ()
    rounds.look()

    assert node.board.found == {"memory": 1}


def test_a_gpu_that_nobody_uses_holds_nobody_over_its_grant(node: Node):
    node.listed = {}
    node.rounds().look()

    assert 'topoalloc_share_overuse{share="' in metrics_text(node.board)
    assert node.board.judged == {NAME}


def test_findings_that_cannot_be_written_are_said_once_each_time_that_it_happens(
    node: Node, caplog: pytest.LogCaptureFixture
):
    rounds, over = node.rounds(), {node.process.pid: 9 * GIB}
    blocked = node.run_dir.path / ".overuse.new"

    def find_anew() -> None:
        node.listed = {}
        rounds.look()
        node.listed = dict(over)
        for _ in range(3):
            rounds.look()

    for times in (1, 2):
        blocked.mkdir()
        find_anew()
        find_anew()
        assert caplog.text.count("findings cannot be written") == times
        blocked.rmdir()
        find_anew()
    assert len(parse_records(read_list(str(node.run_dir.path), OVERUSE))) == 6
