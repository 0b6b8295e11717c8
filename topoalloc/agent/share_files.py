"""Reads the directories of shares below `run_dir`, and writes what of them is the agent's to write; decides nothing.

What a tenant can write is read with `pread` into a buffer of a fixed size: a mapping of a file that is cut short
meanwhile would end this process. No link is followed anywhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from topoalloc.sharing.share import is_share_name
from topoalloc.sharing.share_file import SHARE_BYTES_MAX, ShareLimits, ShareRefusal, parse_share
from topoalloc.sharing.share_sample import ShareSample
from topoalloc.sharing.told_files import (
    NEIGHBOURS_CORES_AT,
    NEIGHBOURS_MAGIC,
    NEIGHBOURS_SEEN_AT,
    PACE_CORES_AT,
    PACE_MAGIC,
    PACE_WRITTEN_AT,
    TURN,
    TURN_AT,
    TURN_MAGIC,
    TURN_WRITTEN_AT,
    Turn,
    parse_turn,
)
from topoalloc.sharing.usage import USAGE_FILE_BYTES, USAGE_LOCKS_AT, USAGE_SLOTS_MAX, Usage, UsageRefusal, parse_usage

SHARES_MAX = 4096  # far above the containers of a node
LIST_BYTES_MAX = 2 * 1024**2
SHARES = "shares"
OWNERS, OVERUSE = "owners", "overuse"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux
_WORD = struct.Struct("=Q")


def share_names(run_dir: str) -> tuple[str, ...]:
    """The shares that there are, sorted; raises OSError where `run_dir` cannot be read. No shares yet: none."""
    with _opened(run_dir, None) as run_fd:
        try:
            shares_fd = os.open(SHARES, _DIRECTORY, dir_fd=run_fd)
        except FileNotFoundError:
            return ()
        try:
            with os.scandir(shares_fd) as entries:
                names = [entry.name for entry, _ in zip(entries, range(SHARES_MAX), strict=False)]
        finally:
            os.close(shares_fd)
    return tuple(sorted(name for name in names if is_share_name(name)))


@contextmanager
def leaf(run_dir: str, name: str) -> Iterator[int]:
    """A descriptor of a share's directory; raises OSError."""
    with _opened(run_dir, None) as run_fd, _opened(SHARES, run_fd) as shares_fd, _opened(name, shares_fd) as fd:
        yield fd


def read_share(run_dir: str, name: str) -> ShareSample | None:
    """One share; None where it is gone."""
    try:
        with leaf(run_dir, name) as fd:
            inode, limits = os.fstat(fd).st_ino, _limits(fd)
            usage, at_ns = _usage(fd)
            return ShareSample(name, inode, limits, usage, at_ns)
    except OSError:
        return None


def read_shares(run_dir: str, names: Iterable[str]) -> tuple[ShareSample, ...]:
    """Those of these shares that are there."""
    return tuple(sample for name in names if (sample := read_share(run_dir, name)) is not None)


def _limits(leaf_fd: int) -> ShareLimits | ShareRefusal:
    try:
        with _regular("share", os.O_RDONLY, leaf_fd) as fd:
            return parse_share(os.pread(fd, SHARE_BYTES_MAX + 1, 0))
    except OSError as error:
        return ShareRefusal(f"share cannot be read: {error.strerror}")


def _usage(leaf_fd: int) -> tuple[Usage | UsageRefusal, int]:
    try:
        with _regular("usage", os.O_RDONLY, leaf_fd) as fd:
            alive = live_slots(fd)
            at_ns = time.monotonic_ns()
            return parse_usage(os.pread(fd, USAGE_FILE_BYTES, 0), alive), at_ns
    except OSError as error:
        return UsageRefusal(f"usage cannot be read: {error.strerror}"), time.monotonic_ns()


def live_slots(usage_fd: int) -> frozenset[int]:
    """Slots whose lock some process holds, asked for in ranges: two questions for each lock and one more."""
    alive: set[int] = set()
    ranges = [(0, USAGE_SLOTS_MAX)]
    while ranges:  # every answer takes at least one slot out, so it ends
        begin, end = ranges.pop()
        question = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, USAGE_LOCKS_AT + begin, end - begin, 0)
        kind, _, start, length, _ = _FLOCK.unpack(fcntl.fcntl(usage_fd, fcntl.F_OFD_GETLK, question))
        if kind == fcntl.F_UNLCK:
            continue
        first = max(begin, start - USAGE_LOCKS_AT)
        last = end if length == 0 else min(end, start + length - USAGE_LOCKS_AT)
        alive.update(range(first, last))
        ranges.extend((low, high) for low, high in ((begin, first), (last, end)) if low < high)
    return frozenset(alive)


def read_turn(run_dir: str, name: str) -> Turn | None:
    """The turn that a share has now; None where it has none, or there is nothing to read."""
    try:
        with leaf(run_dir, name) as leaf_fd, _regular("turn", os.O_RDONLY, leaf_fd) as fd:
            return parse_turn(os.pread(fd, TURN.size, 0), time.monotonic_ns())
    except OSError:
        return None


def write_pace(run_dir: str, name: str, cores_now: int) -> bool:
    """Set what an elastic share may take now; False where it has no pace file. Raises OSError, as the next two."""
    # What is allowed before since when: a stale time with the new figure counts as no figure at all.
    words = {PACE_CORES_AT: cores_now, PACE_WRITTEN_AT: time.monotonic_ns()}
    return _write_in_place(run_dir, name, "pace", PACE_MAGIC, words)


def write_neighbours(run_dir: str, name: str, cores: int, seen_at_ns: int) -> bool:
    """Tell a share what the others of its GPU took at most until then; False where it has no such file."""
    # The figure before its time: an old time with the new figure says no more than was known then.
    words = {NEIGHBOURS_CORES_AT: cores, NEIGHBOURS_SEEN_AT: seen_at_ns}
    return _write_in_place(run_dir, name, "neighbours", NEIGHBOURS_MAGIC, words)


def write_turn(run_dir: str, name: str, turn: Turn | None) -> bool:
    """Set a share's turn, or that there are none; False where it has no such file."""
    # As with the pace: an old time with the new turn is no turn.
    word = 0 if turn is None else turn.word
    return _write_in_place(run_dir, name, "turn", TURN_MAGIC, {TURN_AT: word, TURN_WRITTEN_AT: time.monotonic_ns()})


def _write_in_place(run_dir: str, name: str, file: str, magic: int, words: Mapping[int, int]) -> bool:
    """One word after the other, each in one write, for those who have the file mapped; an empty file is begun."""
    try:
        with leaf(run_dir, name) as leaf_fd, _regular(file, os.O_RDWR, leaf_fd) as fd:
            if os.pread(fd, _WORD.size, 0) != _WORD.pack(magic):
                os.pwrite(fd, _WORD.pack(magic).ljust(max(words) + _WORD.size, b"\0"), 0)
            for at, word in words.items():
                os.pwrite(fd, _WORD.pack(word), at)
    except FileNotFoundError:  # the share is gone, or is another library's
        return False
    return True


def write_list(run_dir: str, name: str, text: str) -> None:
    """Replace a list of the agent's (OWNERS, OVERUSE), which root alone can read; raises OSError."""
    with _opened(run_dir, None) as fd:
        temporary = f".{name}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=fd)
        made = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=fd)
        with open(made, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
            file.write(text)
        os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)


def read_list(run_dir: str, name: str) -> str:
    """Such a list; empty where there is none to read."""
    try:
        with _opened(run_dir, None) as run_fd, _regular(name, os.O_RDONLY, run_fd) as fd:
            return os.pread(fd, LIST_BYTES_MAX, 0).decode("utf-8", "replace")
    except OSError:
        return ""


@contextmanager
def _opened(path: str, dir_fd: int | None) -> Iterator[int]:
    fd = os.open(path, _DIRECTORY, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _regular(name: str, mode: int, dir_fd: int) -> Iterator[int]:
    fd = os.open(name, mode | _FILE, dir_fd=dir_fd)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, "no regular file")
        yield fd
    finally:
        os.close(fd)
