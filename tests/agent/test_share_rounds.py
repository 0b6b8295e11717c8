"""What one look at the shares hands on: owners, rates, sockets; and the pace that elastic shares are set."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.agent.made_shares import NAME, OTHER, UID, RunDir, Slot, answer, connected
from tests.sharing.made_usage import share_bytes, usage_bytes
from topoalloc.agent.metrics_text import metrics_text
from topoalloc.agent.share_board import ShareBoard
from topoalloc.agent.share_files import OWNERS, read_list
from topoalloc.agent.share_rounds import ShareRounds
from topoalloc.agent.share_sockets import ShareSockets
from topoalloc.sharing.neighbours import LOOKS_KEPT
from topoalloc.sharing.pace import PERIODS_KEPT
from topoalloc.sharing.share_owners import ShareOwner, parse_owners
from topoalloc.sharing.told_files import Turn
from topoalloc.sharing.turns import CHANGE_US, WORK_LOOKS

OWNER = ShareOwner("ns", "pod", "app", UID)


class Node:
    """A run_dir, and the rounds that look at it."""

    def __init__(self, path: Path) -> None:
        self.run_dir = RunDir(path)
        self.board = ShareBoard()
        self.owners = {NAME: OWNER}
        self.sockets = ShareSockets(str(path), lambda gpu: None)
        self.rounds = ShareRounds(str(path), lambda: self.owners, self.sockets, self.board)

    def pace_of(self, name: str) -> int:
        return int(struct.unpack("=8sQQ", (self.run_dir.leaf(name) / "pace").read_bytes())[1])

    def turn_of(self, name: str) -> Turn:
        word = int(struct.unpack("=8sQQ", (self.run_dir.leaf(name) / "turn").read_bytes())[1])
        return Turn(word >> 32, word & 0xFFFFFFFF)

    def elastic(self, name: str, **figures: int) -> Slot:
        leaf = self.run_dir.make(name, share_bytes(cores=3000, cores_max=10000))
        (leaf / "pace").write_bytes(struct.pack("=8sQQ", b"\x01TAPACE1", 3000, 0))
        return Slot(leaf, 0, **figures)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.sockets.close()


def want(leaf: Path) -> None:
    """What a launch that is held back leaves in the header: wanting_at_ns."""
    content = usage_bytes(wanting_at_ns=time.monotonic_ns())
    with (leaf / "usage").open("r+b") as file:
        file.write(content[:128])


def test_two_looks_give_what_was_used_in_between(node: Node):
    slot = Slot(node.run_dir.make(), 0)
    node.rounds.look()
    slot.write(explicit=77, gpu_time_ns=10**12)
    node.rounds.look()
    slot.end()

    assert node.board.rates[NAME].cores == 10000  # more than there was time for is all there was
    assert [sample.name for sample in node.board.samples] == [NAME]


def test_a_new_grant_of_the_same_name_does_not_continue_the_old_one(node: Node):
    slot = Slot(node.run_dir.make(), 0)
    node.rounds.look()
    slot.end()
    node.run_dir.leaf().rename(node.run_dir.path / "gone")
    slot = Slot(node.run_dir.make(), 0, gpu_time_ns=10**12)
    node.rounds.look()
    slot.end()

    assert NAME not in node.board.rates
    assert "topoalloc_share_cores_used_ratio{" not in metrics_text(node.board)


def test_owners_are_told_when_they_change(node: Node):
    node.run_dir.make()
    node.rounds.look()
    assert parse_owners(read_list(str(node.run_dir.path), OWNERS)) == {NAME: OWNER}
    node.owners = {}
    node.rounds.look()

    assert read_list(str(node.run_dir.path), OWNERS) == ""


def test_a_run_dir_that_cannot_be_read_is_said_once_each_time_that_it_happens(
    node: Node, caplog: pytest.LogCaptureFixture
):
    """The owners do not change meanwhile, so that nothing is written in between."""
    node.owners = {}
    for times in (1, 2):
        node.rounds.look()
        node.run_dir.path.rmdir()
        for _ in range(3):
            node.rounds.look()

        assert caplog.text.count("cannot be read") == times
        node.run_dir.path.mkdir()


def test_owners_that_cannot_be_written_are_said_once_each_time_that_it_happens(
    node: Node, caplog: pytest.LogCaptureFixture
):
    for times in (1, 2):
        (node.run_dir.path / ".owners.new").mkdir()
        node.owners = {NAME: replace(OWNER, pod=f"pod-{times}")}
        for _ in range(3):
            node.rounds.look()
        assert caplog.text.count("owners of shares cannot be written") == times
        (node.run_dir.path / ".owners.new").rmdir()

        node.rounds.look()
        assert parse_owners(read_list(str(node.run_dir.path), OWNERS)) == node.owners


def test_a_run_dir_that_nobody_ever_made_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Metrics are wanted, and nothing is enforced here."""
    node = Node(tmp_path / "never")
    node.rounds.look()

    assert not node.rounds.pace()
    assert caplog.text == ""
    assert "topoalloc_overuse_killed_total 0\n" in metrics_text(node.board)
    node.sockets.close()


def test_directories_of_other_libraries_get_no_socket_of_ours(node: Node):
    node.run_dir.make(NAME)
    node.run_dir.make(OTHER, share=b"something else")
    thread = threading.Thread(target=node.sockets.run)
    thread.start()
    node.owners = {}
    node.rounds.look()
    deadline_s = time.monotonic() + 20
    while not (node.run_dir.leaf() / "agent.sock").exists():
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.01)

    assert not (node.run_dir.leaf(OTHER) / "agent.sock").exists()
    with connected(node.run_dir.leaf()) as connection:
        assert answer(connection) == b"unknown\n"
    node.sockets.stop()
    thread.join()


def test_each_share_is_told_what_the_others_of_its_gpu_took(node: Node):
    slot = Slot(node.run_dir.make(NAME, share_bytes(cores=3000, cores_max=3000)), 0)
    other = Slot(node.run_dir.make(OTHER, share_bytes(cores=5000, cores_max=5000)), 0)
    for name in (NAME, OTHER):
        (node.run_dir.leaf(name) / "neighbours").touch()
    for count in range(LOOKS_KEPT):
        before_ns = time.monotonic_ns()
        other.write(gpu_time_ns=count * 10**12)
        node.rounds.look()
    slot.end()
    other.end()

    _, cores, seen_at_ns = struct.unpack("=8sQQ", (node.run_dir.leaf(NAME) / "neighbours").read_bytes())
    assert cores == 10000  # more than there was time for is all there was
    assert before_ns <= seen_at_ns <= time.monotonic_ns()
    # Of the first look nothing is known yet: all of its cores count.
    assert struct.unpack("=8sQQ", (node.run_dir.leaf(OTHER) / "neighbours").read_bytes())[1] == 3000


def both_want(node: Node) -> tuple[Slot, Slot]:
    slots = [
        Slot(node.run_dir.make(name, share_bytes(cores=cores, cores_max=cores)), 0)
        for name, cores in ((NAME, 3000), (OTHER, 5000))
    ]
    for name in (NAME, OTHER):
        (node.run_dir.leaf(name) / "turn").touch()
        want(node.run_dir.leaf(name))
    return slots[0], slots[1]


def test_shares_that_want_more_than_there_is_take_turns_until_one_of_them_is_done(node: Node):
    slots = both_want(node)
    node.rounds.look()
    first = (node.turn_of(NAME), node.turn_of(OTHER))
    shown = [line for line in metrics_text(node.board).splitlines() if line.startswith("topoalloc_share_turn_seconds{")]
    (node.run_dir.leaf(OTHER) / "usage").write_bytes(usage_bytes())
    for _ in range(WORK_LOOKS):
        node.rounds.look()
    for slot in slots:
        slot.end()

    assert first == (Turn(0, 37_500 - CHANGE_US), Turn(37_500, 62_500 - CHANGE_US))
    assert [float(line.rpartition(" ")[2]) for line in shown] == [turn.length_us / 1e6 for turn in first]
    assert "topoalloc_share_turn_seconds{" not in metrics_text(node.board)
    assert (node.turn_of(NAME), node.turn_of(OTHER)) == (Turn(0, 0), Turn(0, 0))


def test_a_file_that_cannot_be_written_is_told_once_and_again_after_it_could(
    node: Node, caplog: pytest.LogCaptureFixture
):
    slots = both_want(node)
    turn = node.run_dir.leaf(NAME) / "turn"
    for is_folder in (True, True, False, True):
        if is_folder and turn.is_file():
            turn.unlink()
            turn.mkdir()
        elif not is_folder:
            turn.rmdir()
            turn.touch()
        node.rounds.look()
    for slot in slots:
        slot.end()

    complaint = f"{turn} cannot be written: Is a directory; it has to be a file of the agent's, mode 0644"
    assert [record.message for record in caplog.records] == [complaint] * 2


def test_where_turns_are_never_wanted_nobody_is_given_one(node: Node):
    node.rounds = ShareRounds(str(node.run_dir.path), dict, node.sockets, node.board, gives_turns=False)
    slots = both_want(node)
    node.rounds.look()
    for slot in slots:
        slot.end()

    assert (node.run_dir.leaf(NAME) / "turn").read_bytes() == b""


def test_without_elastic_shares_nothing_is_paced(node: Node):
    node.run_dir.make()
    node.rounds.look()

    assert not node.rounds.pace()


def test_an_elastic_share_that_wants_more_gets_what_the_other_leaves_and_gives_it_back(node: Node):
    mine = node.elastic(NAME)
    other = Slot(node.run_dir.make(OTHER, share_bytes(cores=5000, cores_max=5000)), 0)
    want(node.run_dir.leaf(NAME))
    node.rounds.look()

    assert node.rounds.pace()
    assert node.pace_of(NAME) == 9800
    assert node.board.paced == {NAME: 9800}
    want(node.run_dir.leaf(OTHER))
    want(node.run_dir.leaf(NAME))
    node.rounds.pace()
    assert node.pace_of(NAME) == 5000
    mine.end()
    other.end()


def test_a_share_on_another_gpu_has_nothing_to_lend_or_ask(node: Node):
    mine = node.elastic(NAME)
    far = "0000:5e:00.0-c00"
    node.run_dir.make(far, share_bytes(gpu="GPU-9f", cores=9000, cores_max=9000))
    want(node.run_dir.leaf(NAME))
    want(node.run_dir.leaf(far))
    node.rounds.look()
    node.rounds.pace()

    assert node.pace_of(NAME) == 10000
    mine.end()


def test_a_neighbour_whose_usage_cannot_be_read_keeps_all_of_its_cores(node: Node):
    mine = node.elastic(NAME)
    (node.run_dir.make(OTHER, share_bytes(cores=5000, cores_max=5000)) / "usage").unlink()
    want(node.run_dir.leaf(NAME))
    node.rounds.look()
    node.rounds.pace()

    assert node.pace_of(NAME) == 5000
    mine.end()


def test_a_share_that_ran_before_the_agent_did_lends_nothing_before_its_use_is_known(node: Node):
    mine = node.elastic(NAME)
    leaf = node.run_dir.make(OTHER, share_bytes(cores=5000, cores_max=5000))
    other = Slot(leaf, 0, launches=10**6, gpu_time_ns=10**12)
    want(node.run_dir.leaf(NAME))
    node.rounds.look()
    given = []
    for _ in range(PERIODS_KEPT + 1):
        node.rounds.pace()
        given.append(node.pace_of(NAME))

    assert given == [5000] * PERIODS_KEPT + [9800]
    mine.end()
    other.end()


def test_a_share_whose_account_could_not_be_read_lends_nothing_before_its_use_is_known_again(node: Node):
    mine = node.elastic(NAME)
    leaf = node.run_dir.make(OTHER, share_bytes(cores=5000, cores_max=5000))
    other = Slot(leaf, 0, launches=10**6, gpu_time_ns=10**12)
    want(node.run_dir.leaf(NAME))
    node.rounds.look()
    for _ in range(PERIODS_KEPT + 1):
        node.rounds.pace()
    assert node.pace_of(NAME) == 9800
    (leaf / "usage").rename(leaf / "away")
    node.rounds.pace()
    (leaf / "away").rename(leaf / "usage")
    node.rounds.pace()

    assert node.pace_of(NAME) == 5000
    mine.end()
    other.end()


def test_an_elastic_share_whose_account_cannot_be_read_is_back_at_its_own_cores_at_once(node: Node):
    mine = node.elastic(NAME)
    want(node.run_dir.leaf(NAME))
    node.rounds.look()
    node.rounds.pace()
    assert node.pace_of(NAME) == 10000
    (node.run_dir.leaf(NAME) / "usage").unlink()
    node.rounds.pace()

    assert node.pace_of(NAME) == 3000
    assert node.board.paced == {NAME: 3000}
    mine.end()
