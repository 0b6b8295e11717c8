"""Files and directories of the agent's own on the node, written so that nobody can lead it elsewhere.

Everything is relative to a descriptor of a directory that has been looked at, no link is followed, and a file appears
whole or not at all. What is in the way of a file (a link, a directory) is removed, never entered or written to.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from topoalloc.errors import MachineError

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# One removal takes so many entries and goes so deep; a directory that a container may write in could hold any number.
REMOVED_MAX = 4096
DEPTH_MAX = 16
NOT_THERE = "No such file or directory; put it there, or name the place where it is"
_IN_THE_WAY = "a link or a file lies where a directory should be"
_DENIED = "the agent has to run as root, and as a root that may write there"
_REMEDIES = {
    errno.EROFS: "mount a writable file system there (in a pod: a hostPath volume), or name another place",
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.ENOSPC: "make room on the file system of the node",
    errno.EDQUOT: "make room on the file system of the node",
}
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class FileFault(MachineError):  # noqa: N818 - the node's, as its text says
    """The node denies the agent a file of its own, or something hostile lies in its place."""


@contextmanager
def told_as_fault(what: str) -> Iterator[None]:
    """Turn what the system says into one line about `what`."""
    try:
        yield
    except OSError as error:
        raise FileFault(f"{what}: {_reason(error)}") from error


@contextmanager
def told_of_key(key: str) -> Iterator[None]:
    """Name the key of the configuration by which a path at fault was chosen."""
    try:
        yield
    except FileFault as fault:
        raise FileFault(f"{key}: {fault}") from fault


def open_directory(path: Path, mode: int | None) -> int:
    """A descriptor of this directory, made where it is missing; the caller closes it. `mode` None: it belongs to
    somebody else, so it is neither made nor changed.

    Each directory on the way is a real one, belongs to root (or to the user the agent runs as) and nobody else can
    write into it, unless its sticky bit keeps others from what is not theirs. Raises FileFault otherwise.
    """
    if not path.is_absolute() or ".." in path.parts:
        raise FileFault(f"{path}: not an absolute path without `..`")
    fd = os.open("/", _DIRECTORY)
    walked = Path("/")
    try:
        for part in path.parts[1:]:
            walked /= part
            made_with = mode if walked == path or mode is None else 0o755
            below = _step(fd, part, walked, made_with)
            os.close(fd)
            fd = below
        with told_as_fault(str(path)):
            if mode is not None and stat.S_IMODE(os.fstat(fd).st_mode) != mode:
                os.fchmod(fd, mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_below(directory_fd: int, name: str) -> int:
    """A descriptor of a directory in that one; raises OSError where it is none, a link included."""
    return os.open(name, _DIRECTORY, dir_fd=directory_fd)


def make_directory(directory_fd: int, name: str) -> int:
    """Make a new directory that only we can enter and open it; what lay under the name is removed first."""
    remove(directory_fd, name)
    os.mkdir(name, 0o700, dir_fd=directory_fd)
    return open_below(directory_fd, name)


def write_file(directory_fd: int, name: str, content: bytes, mode: int, size_bytes: int | None = None) -> None:
    """Put a file in its place, whole or not at all; raises OSError. `size_bytes`: longer than its content by zeros."""
    fresh = f".{name}.new"
    remove(directory_fd, fresh)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(fresh, flags, 0o600, dir_fd=directory_fd)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(fd, rest) :]
        if size_bytes is not None:
            os.ftruncate(fd, size_bytes)
        os.fchmod(fd, mode)
    except BaseException:
        os.unlink(fresh, dir_fd=directory_fd)
        raise
    finally:
        os.close(fd)
    if is_directory(directory_fd, name):
        remove(directory_fd, name)
    os.replace(fresh, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)


def read_file(directory_fd: int, name: str, bytes_max: int) -> bytes | None:
    """The content of a regular file, at most so many bytes of it; None where there is none (a link is none)."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory_fd)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        content = b""
        while len(content) < bytes_max and (piece := os.read(fd, bytes_max - len(content))):
            content += piece
        return content
    finally:
        os.close(fd)


def status_of(directory_fd: int, name: str) -> os.stat_result | None:
    """What lies under a name, itself and not what it may point to; None: nothing."""
    try:
        return os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def is_directory(directory_fd: int, name: str) -> bool:
    """Whether a real directory lies under a name."""
    status = status_of(directory_fd, name)
    return status is not None and stat.S_ISDIR(status.st_mode)


def remove(directory_fd: int, name: str, entries_max: int = REMOVED_MAX) -> int:
    """Remove what lies under a name, if anything does, with all below it; how many entries that were.

    Links are removed and not followed, other file systems are not entered. What lies deeper than DEPTH_MAX is moved
    beside the name (as `.deep-<inode>`), to be removed from there. Raises OSError, with E2BIG when there is more than
    `entries_max`, which are gone then.
    """
    removal = _Removal(directory_fd, os.fstat(directory_fd).st_dev, entries_max)
    removal.take(directory_fd, name, DEPTH_MAX)
    return entries_max - removal.left


@dataclass(slots=True)
class _Removal:
    top_fd: int
    device: int
    left: int

    def take(self, directory_fd: int, name: str, depth: int) -> None:
        status = status_of(directory_fd, name)
        if status is None:
            return
        if self.left <= 0:
            raise OSError(errno.E2BIG, "more lies below it than is removed at a time")
        self.left -= 1
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=directory_fd)
            return
        if status.st_dev != self.device:
            raise OSError(errno.EXDEV, "another file system is mounted there")
        if depth <= 0:
            os.rename(name, f".deep-{status.st_ino}", src_dir_fd=directory_fd, dst_dir_fd=self.top_fd)
            return
        fd = open_below(directory_fd, name)
        try:
            with os.scandir(fd) as entries:
                names = [entry.name for _, entry in zip(range(self.left + 1), entries, strict=False)]
            for each in names:
                self.take(fd, each, depth - 1)
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=directory_fd)


def _step(directory_fd: int, part: str, walked: Path, mode: int | None) -> int:
    with told_as_fault(str(walked)):
        try:
            fd = open_below(directory_fd, part)
        except FileNotFoundError:
            if mode is None:
                raise FileFault(f"{walked}: {NOT_THERE}") from None
            os.mkdir(part, 0o700, dir_fd=directory_fd)
            fd = open_below(directory_fd, part)
            os.fchmod(fd, mode)
    try:
        _check_owner(fd, walked)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_owner(fd: int, path: Path) -> None:
    status = os.fstat(fd)
    if status.st_uid not in {0, os.geteuid()}:
        raise FileFault(f"{path}: belongs to user {status.st_uid} and not to root, who could change what lies in it")
    if status.st_mode & OTHERS_WRITE and not status.st_mode & stat.S_ISVTX:
        raise FileFault(f"{path}: others than its owner can write into it (mode {stat.S_IMODE(status.st_mode):04o})")


def _reason(error: OSError) -> str:
    why = error.strerror or str(error)
    if error.errno in {errno.ELOOP, errno.ENOTDIR}:
        return f"{_IN_THE_WAY}; name a path that goes through no link, or remove it"
    remedy = _REMEDIES.get(error.errno or 0)
    return why if remedy is None else f"{why}; {remedy}"
