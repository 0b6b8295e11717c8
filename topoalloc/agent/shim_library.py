"""The library on the node: put there from the package, one directory for each version, and looked at before it is
handed out."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from topoalloc.agent.private_files import (
    OTHERS_WRITE,
    FileFault,
    open_directory,
    read_file,
    told_as_fault,
    write_file,
)
from topoalloc.sharing.builtin_shim import LIBRARY_NAME

PACKAGED = Path(__file__).parents[1] / "sharing" / "shim" / LIBRARY_NAME
LIBRARY_BYTES_MAX = 16 * 1024**2
DIRECTORY_MODE = 0o755  # every user of a container reads the library
LIBRARY_MODE = 0o555
DIGEST_SHOWN = 16  # hex digits in the directory's name


@dataclass(frozen=True, slots=True)
class ShimLibrary:
    """The library in its place. `directory` holds nothing else, since it is shown to containers as a whole."""

    directory: Path
    digest: str

    def check(self) -> None:
        """Raises FileFault unless the library is what was put there; a container would run without it otherwise, or
        with another one."""
        fd = open_directory(self.directory, DIRECTORY_MODE)
        try:
            content = read_file(fd, LIBRARY_NAME, LIBRARY_BYTES_MAX)
        finally:
            os.close(fd)
        if content is None:
            raise FileFault(f"{self.directory / LIBRARY_NAME}: is gone; a restart of the agent puts it there again")
        if _digest(content) != self.digest:
            raise FileFault(
                f"{self.directory / LIBRARY_NAME}: is not what the agent put there; find out who changed it, then "
                "restart the agent"
            )


def packaged_library(path: Path = PACKAGED) -> bytes | None:
    """The library that this installation brought; None where it was built without one (no C compiler)."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return content if content.startswith(b"\x7fELF") else None


def install_library(content: bytes, lib_dir: Path) -> ShimLibrary:
    """Put the library below `lib_dir` unless it is there. Other versions stay: containers that were started with them
    use them to their end, and are started again with them. Raises FileFault."""
    digest = _digest(content)
    directory = lib_dir / digest[:DIGEST_SHOWN]
    os.close(open_directory(lib_dir, DIRECTORY_MODE))
    fd = open_directory(directory, DIRECTORY_MODE)
    try:
        with told_as_fault(str(directory / LIBRARY_NAME)):
            if read_file(fd, LIBRARY_NAME, LIBRARY_BYTES_MAX) != content:
                write_file(fd, LIBRARY_NAME, content, LIBRARY_MODE)
            _put_mode_right(fd)
    finally:
        os.close(fd)
    return ShimLibrary(directory, digest)


def _put_mode_right(directory_fd: int) -> None:
    fd = os.open(LIBRARY_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        os.fchmod(fd, LIBRARY_MODE)
        os.fsync(fd)
        os.fsync(directory_fd)
    finally:
        os.close(fd)


def check_foreign_shim(directory: Path, name: str) -> None:
    """Check that a file of somebody else's library lies below a directory that nobody but root can change; raises
    FileFault."""
    path = directory / name
    fd = open_directory(path.parent, None)
    try:
        with told_as_fault(str(path)):
            status = os.stat(path.name, dir_fd=fd)
    finally:
        os.close(fd)
    if status.st_uid not in {0, os.geteuid()} or status.st_mode & OTHERS_WRITE:
        raise FileFault(f"{path}: others than root can change it")


def _digest(content: bytes) -> str:
    """SHA-256 in hex. hashlib would load OpenSSL, 3.6 MB that stay; the modules behind it are Python's own."""
    for module in ("_sha2", "_sha256"):  # from 3.12 on; before
        try:
            return str(import_module(module).sha256(content).hexdigest())
        except ImportError:
            continue
    return str(import_module("hashlib").sha256(content).hexdigest())
