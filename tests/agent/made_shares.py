"""Directories of shares as the agent makes them, and processes that hold slots of them."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.sharing.made_usage import share_bytes, slot_bytes, usage_bytes

NAME = "0000:3b:00.0-c07"
OTHER = "0000:3b:00.0-c50"
UID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"


@dataclass(frozen=True)
class RunDir:
    """A run_dir with shares that a test makes and changes."""

    path: Path

    def leaf(self, name: str = NAME) -> Path:
        return self.path / "shares" / name

    def make(self, name: str = NAME, share: bytes | None = None, usage: bytes | None = None) -> Path:
        leaf = self.leaf(name)
        leaf.mkdir(parents=True)
        (leaf / "share").write_bytes(share_bytes() if share is None else share)
        (leaf / "usage").write_bytes(usage_bytes() if usage is None else usage)
        return leaf

    def remove(self, name: str = NAME) -> None:
        leaf = self.leaf(name)
        for path in leaf.iterdir():
            path.unlink()
        leaf.rmdir()

    def inode(self, name: str = NAME) -> int:
        return self.leaf(name).stat().st_ino


class Slot:
    """What the library does in a process: a slot of the usage file filled and its lock held, until `end`."""

    def __init__(self, leaf: Path, number: int, **figures: int) -> None:
        self._fd = os.open(leaf / "usage", os.O_RDWR)
        self._number = number
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0x40000000 + number, 1, 0)
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, lock)
        self.write(**figures)

    def write(self, **figures: int) -> None:
        os.pwrite(self._fd, slot_bytes(**{"pid": os.getpid(), **figures}), 128 + 128 * self._number)

    def end(self) -> None:
        os.close(self._fd)


def connected(leaf: Path) -> socket.socket:
    """Connect as a process of the container would; the path may be longer than a socket's address."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(20.0)
    fd = os.open(leaf, os.O_RDONLY | os.O_DIRECTORY)
    try:
        connection.connect(f"/proc/self/fd/{fd}/agent.sock")
    except OSError:
        connection.close()
        raise
    finally:
        os.close(fd)
    return connection


def accepts(leaf: Path) -> bool:
    """Whether the socket is listened to, which it is a moment after it can be seen."""
    try:
        connected(leaf).close()
    except OSError:
        return False
    return True


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    """For the whole process; what is open stays so."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def answer(connection: socket.socket, request: bytes = b"measure\n") -> bytes:
    """What comes back, nothing when the connection was closed."""
    try:
        connection.sendall(request)
        return connection.recv(200)
    except (BrokenPipeError, ConnectionResetError):
        return b""
