"""Reading and writing the directories of shares: real files and locks, whatever a tenant makes of its own."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import pytest

from tests.agent.made_shares import NAME, OTHER, RunDir, Slot
from tests.sharing.made_usage import slot_bytes, usage_bytes
from topoalloc.agent.share_files import (
    OWNERS,
    live_slots,
    read_list,
    read_share,
    read_turn,
    share_names,
    write_list,
    write_neighbours,
    write_pace,
    write_turn,
)
from topoalloc.sharing.share_file import ShareLimits, ShareRefusal
from topoalloc.sharing.told_files import TURN, TURN_MAGIC, Turn
from topoalloc.sharing.usage import Usage, UsageRefusal


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def test_shares_are_listed_by_name_and_nothing_else_is(run_dir: RunDir):
    run_dir.make(OTHER)
    run_dir.make(NAME)
    for other in (".gone", "UPPER"):
        (run_dir.path / "shares" / other).mkdir()

    assert share_names(str(run_dir.path)) == (NAME, OTHER)


def test_a_run_dir_without_shares_has_none_and_one_that_is_missing_is_an_error(run_dir: RunDir):
    assert share_names(str(run_dir.path)) == ()
    with pytest.raises(FileNotFoundError):
        share_names(str(run_dir.path / "absent"))


def test_a_share_is_read_with_its_limits_and_its_live_processes(run_dir: RunDir):
    leaf = run_dir.make()
    alive = Slot(leaf, 5, explicit=100)
    Slot(leaf, 6, explicit=200).end()

    sample = read_share(str(run_dir.path), NAME)
    alive.end()

    assert sample is not None
    assert sample.inode == run_dir.inode()
    assert isinstance(sample.limits, ShareLimits)
    assert isinstance(sample.usage, Usage)
    assert [process.slot for process in sample.usage.processes] == [5]
    assert sample.usage.used_bytes == 100


def test_locks_are_found_wherever_they_are(run_dir: RunDir):
    leaf = run_dir.make()
    numbers = {0, 1, 2, 17, 500, 998, 999}
    slots = [Slot(leaf, number) for number in numbers]
    fd = os.open(leaf / "usage", os.O_RDONLY)

    assert live_slots(fd) == numbers
    for slot in slots:
        slot.end()
    assert live_slots(fd) == frozenset()
    os.close(fd)


def test_a_lock_over_everything_is_every_slot_and_ends(run_dir: RunDir):
    leaf = run_dir.make()
    import fcntl

    held = os.open(leaf / "usage", os.O_RDWR)
    fcntl.fcntl(held, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    fd = os.open(leaf / "usage", os.O_RDONLY)

    assert live_slots(fd) == frozenset(range(1000))
    os.close(fd)
    os.close(held)


def test_a_lock_to_read_makes_nobody_alive(run_dir: RunDir):
    leaf = run_dir.make()
    import fcntl

    held = os.open(leaf / "usage", os.O_RDWR)
    fcntl.fcntl(held, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0x40000000, 1000, 0))
    fd = os.open(leaf / "usage", os.O_RDONLY)

    assert live_slots(fd) == frozenset()
    os.close(fd)
    os.close(held)


@pytest.mark.parametrize("size", [0, 1, 128, 131071])
def test_a_usage_file_that_was_cut_short_is_refused(run_dir: RunDir, size: int):
    leaf = run_dir.make(usage=usage_bytes({0: slot_bytes()}))
    os.truncate(leaf / "usage", size)

    sample = read_share(str(run_dir.path), NAME)

    assert sample is not None
    assert isinstance(sample.usage, UsageRefusal)


@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "absent"])
@pytest.mark.parametrize("file", ["share", "usage"])
def test_nothing_but_a_regular_file_is_read(run_dir: RunDir, file: str, kind: str):
    path = run_dir.make() / file
    content = path.read_bytes()
    path.unlink()
    if kind == "link":
        (run_dir.path / "canary").write_bytes(content)
        path.symlink_to(run_dir.path / "canary")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()

    sample = read_share(str(run_dir.path), NAME)

    assert sample is not None
    assert isinstance(getattr(sample, "limits" if file == "share" else file), ShareRefusal | UsageRefusal)


def test_a_share_that_is_a_link_is_none(run_dir: RunDir):
    run_dir.make(OTHER)
    run_dir.leaf().symlink_to(run_dir.leaf(OTHER))

    assert read_share(str(run_dir.path), NAME) is None


def test_the_pace_is_written_in_place(run_dir: RunDir):
    path = run_dir.make() / "pace"
    path.write_bytes(struct.pack("=8sQQ", b"\x01TAPACE1", 3000, 0))
    inode, before_ns = path.stat().st_ino, time.monotonic_ns()

    assert write_pace(str(run_dir.path), NAME, 4500)

    magic, cores, written_ns = struct.unpack("=8sQQ", path.read_bytes())
    assert (magic, cores, path.stat().st_ino) == (b"\x01TAPACE1", 4500, inode)
    assert before_ns <= written_ns <= time.monotonic_ns()


def test_an_empty_pace_file_is_begun_and_none_is_made(run_dir: RunDir):
    leaf = run_dir.make()

    assert not write_pace(str(run_dir.path), NAME, 4500)
    assert not (leaf / "pace").exists()
    (leaf / "pace").touch()
    assert write_pace(str(run_dir.path), NAME, 4500)
    assert struct.unpack("=8sQQ", (leaf / "pace").read_bytes())[:2] == (b"\x01TAPACE1", 4500)


@pytest.mark.parametrize("before", [struct.pack("=8sQQ", b"\x01ATAIGH1", 10, 20), b""])
def test_what_neighbours_took_is_written_in_place(run_dir: RunDir, before: bytes):
    path = run_dir.make() / "neighbours"
    path.write_bytes(before)
    inode = path.stat().st_ino

    write_neighbours(str(run_dir.path), NAME, 4500, 77)

    assert (struct.unpack("=8sQQ", path.read_bytes()), path.stat().st_ino) == ((b"\x01ATAIGH1", 4500, 77), inode)


@pytest.mark.parametrize("before", [struct.pack("=8sQQ", b"\x01TATURN1", 10, 20), b""])
@pytest.mark.parametrize(("turn", "word"), [(Turn(30_000, 49_500), 30_000 << 32 | 49_500), (None, 0)])
def test_a_turn_is_written_in_place(run_dir: RunDir, before: bytes, turn: Turn | None, word: int):
    path = run_dir.make() / "turn"
    path.write_bytes(before)
    inode, before_ns = path.stat().st_ino, time.monotonic_ns()

    write_turn(str(run_dir.path), NAME, turn)

    magic, written, written_ns = struct.unpack("=8sQQ", path.read_bytes())
    assert (magic, written, path.stat().st_ino) == (b"\x01TATURN1", word, inode)
    assert before_ns <= written_ns <= time.monotonic_ns()


def test_the_turn_that_was_written_is_the_turn_that_is_read(run_dir: RunDir):
    (run_dir.make() / "turn").touch()
    write_turn(str(run_dir.path), NAME, Turn(37_500, 49_250))

    assert read_turn(str(run_dir.path), NAME) == Turn(37_500, 49_250)


def test_a_share_without_a_turn_file_or_with_a_link_in_its_place_has_no_turn_to_read(run_dir: RunDir, tmp_path: Path):
    turn = run_dir.make() / "turn"
    assert read_turn(str(run_dir.path), NAME) is None

    (tmp_path / "elsewhere").write_bytes(TURN.pack(TURN_MAGIC, Turn(0, 1000).word, time.monotonic_ns()))
    turn.symlink_to(tmp_path / "elsewhere")
    assert read_turn(str(run_dir.path), NAME) is None


def test_a_share_of_another_library_has_no_turn(run_dir: RunDir):
    leaf = run_dir.make()

    assert not write_turn(str(run_dir.path), NAME, Turn(1, 2))
    assert not write_turn(str(run_dir.path), OTHER, Turn(1, 2))
    assert not (leaf / "turn").exists()


def test_a_share_of_another_library_is_told_of_no_neighbours(run_dir: RunDir):
    leaf = run_dir.make()

    assert not write_neighbours(str(run_dir.path), NAME, 4500, 77)
    assert not write_neighbours(str(run_dir.path), OTHER, 4500, 77)
    assert not (leaf / "neighbours").exists()


def test_owners_are_for_root_alone_and_replaced_as_a_whole(run_dir: RunDir):
    write_list(str(run_dir.path), OWNERS, "first\n")
    write_list(str(run_dir.path), OWNERS, "second\n")

    assert read_list(str(run_dir.path), OWNERS) == "second\n"
    assert (run_dir.path / "owners").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in run_dir.path.iterdir()) == ["owners"]


def test_owners_do_not_go_where_a_link_leads(run_dir: RunDir):
    canary = run_dir.path / "canary"
    canary.write_text("whole")
    (run_dir.path / ".owners.new").symlink_to(canary)
    (run_dir.path / "owners").symlink_to(canary)

    assert read_list(str(run_dir.path), OWNERS) == ""
    write_list(str(run_dir.path), OWNERS, "mine\n")

    assert canary.read_text() == "whole"
    assert read_list(str(run_dir.path), OWNERS) == "mine\n"
