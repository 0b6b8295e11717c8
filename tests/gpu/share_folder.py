"""A container's share directory as the agent makes it, written by hand: the library is tried without the agent."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from topoalloc.sharing.turns import TurnShare, turns

USAGE_MAGIC = 0x3145474153554154
USAGE_VERSION = 1
USAGE_SLOTS = 1000
USAGE_FILE_BYTES = 131072
PACE_MAGIC = 0x3145434150415401
NEIGHBOURS_MAGIC = 0x3148474941544101
TURN_MAGIC = 0x314E525554415401
TOLD_PERIOD_S = 1.0
CONTEXT_BYTES = 600 << 20
NO_CORE_LIMIT = 10000
_REQUEST_BYTES_MAX = 128
_DEADLINE_S = 2.0


def write_share(
    folder: Path,
    *,
    gpu: str = "-",
    cores: int = NO_CORE_LIMIT,
    cores_max: int | None = None,
    memory: int | None = None,
    context: int = CONTEXT_BYTES,
    generation: int = 1,
) -> None:
    """The `share` file, replaced atomically. `cores` in hundredths of a percent, `memory` None: not limited."""
    lines = (
        "topoalloc-share 1",
        f"generation {generation}",
        f"gpu {gpu}",
        f"cores {cores}",
        f"cores-max {cores if cores_max is None else cores_max}",
        f"memory {'none' if memory is None else memory}",
        f"context {context}",
        "without-usage refuse",
        "end",
    )
    part = folder / "share.part"
    part.write_text("\n".join(lines) + "\n")
    part.chmod(0o444)
    part.rename(folder / "share")


def write_pace(folder: Path, cores_now: int) -> None:
    """What the agent of an elastic share says every so often: in place, each field in one write."""
    fd = os.open(folder / "pace", os.O_WRONLY | os.O_CREAT, 0o444)
    try:
        for offset, value in ((8, cores_now), (16, time.monotonic_ns()), (0, PACE_MAGIC)):
            os.pwrite(fd, struct.pack("<Q", value), offset)
    finally:
        os.close(fd)


def make_folder(folder: Path, *, gpu: str, cores: int, cores_max: int | None, memory: int | None) -> Path:
    """A fresh directory with `share` and `usage`, and `pace` if it is elastic."""
    folder.mkdir(parents=True)
    header = struct.pack("<QII", USAGE_MAGIC, USAGE_VERSION, USAGE_SLOTS)
    usage = folder / "usage"
    usage.write_bytes(header.ljust(USAGE_FILE_BYTES, b"\0"))
    usage.chmod(0o666)
    write_share(folder, gpu=gpu, cores=cores, cores_max=cores_max, memory=memory)
    if cores_max is not None:
        write_pace(folder, cores)
    return folder


@contextmanager
def _told_each_second(words: Callable[[int], Mapping[Path, bytes]]) -> Iterator[None]:
    """What the agent writes once a second into files of shares, while it lasts; `words` at a time."""
    over = threading.Event()

    def tell() -> None:
        while True:
            for path, word in words(time.monotonic_ns()).items():
                fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o444)
                try:
                    os.pwrite(fd, word, 0)
                finally:
                    os.close(fd)
            if over.wait(TOLD_PERIOD_S):
                return

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def told_alone(folder: Path) -> AbstractContextManager[None]:
    """A share whose neighbours are idle."""
    return _told_each_second(lambda now_ns: {folder / "neighbours": struct.pack("<QQQ", NEIGHBOURS_MAGIC, 0, now_ns)})


def told_turns(folders: Sequence[Path], cores: Sequence[int]) -> AbstractContextManager[None]:
    """Shares that are all at work. `cores` in hundredths of a percent."""
    shares = [TurnShare(str(folder), each, True) for folder, each in zip(folders, cores, strict=True)]
    given = {Path(name): turn.word for name, turn in turns(shares).items()}
    return _told_each_second(
        lambda now_ns: {
            folder / "turn": struct.pack("<QQQ", TURN_MAGIC, word, now_ns) for folder, word in given.items()
        }
    )


@contextmanager
def measuring(folder: Path, bytes_of: Callable[[int], int | None]) -> Iterator[None]:
    """Answers `measure` on the directory's agent.sock while it lasts; `bytes_of` tells what a process holds."""
    path = folder / "agent.sock"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    path.chmod(0o666)
    server.listen(128)

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=_answer, args=(connection, bytes_of), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        path.unlink(missing_ok=True)


def _answer(connection: socket.socket, bytes_of: Callable[[int], int | None]) -> None:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid = struct.unpack("3i", credentials)[0]
    connection.settimeout(_DEADLINE_S)
    try:
        with connection, connection.makefile("rb") as requests:
            while requests.readline(_REQUEST_BYTES_MAX) == b"measure\n":
                held = bytes_of(pid)
                connection.sendall(b"unknown\n" if held is None else b"bytes %d\n" % held)
    except OSError:
        return  # the process ended, or said nothing for the deadline


def temporary_root() -> Path:
    """A tmpfs where there is one: the usage file is mapped by every process."""
    for name in ("/dev/shm", "/run"):
        if os.access(name, os.W_OK):
            return Path(name)
    return Path("/tmp")
