"""The library on the node: put there from the package, one directory for each version, and looked at before it is
handed out. Beside it lies the program with which a container sees for itself whether its limits are active."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from topoalloc.agent.private_files import (
    NOT_THERE,
    OTHERS_WRITE,
    FileFault,
    open_directory,
    read_file,
    told_as_fault,
    write_file,
)
from topoalloc.sharing.builtin_shim import LIBRARY_NAME, VERIFY_NAME

PACKAGED = Path(__file__).parents[1] / "sharing" / "shim"
LIBRARY_BYTES_MAX = 16 * 1024**2
DIRECTORY_MODE = 0o755  # every user of a container reads the library
LIBRARY_MODE = 0o555
POLICY_NAME = "without-share"  # read by the library when it is loaded, topoalloc/sharing/shim/process.c
POLICY_MODE = 0o444
DIGEST_SHOWN = 16  # hex digits in the directory's name


@dataclass(frozen=True, slots=True)
class ShimLibrary:
    """The library in its place. `directory` holds nothing but these files, since it is shown to containers as a whole;
    `digests` by their names."""

    directory: Path
    digests: Mapping[str, str]

    def check(self) -> None:
        """Raises FileFault unless everything is as it was put there; a container would run without the library
        otherwise, or with another one."""
        fd = open_directory(self.directory, DIRECTORY_MODE)
        try:
            found = {name: read_file(fd, name, LIBRARY_BYTES_MAX) for name in self.digests}
        finally:
            os.close(fd)
        for name, content in found.items():
            if content is None:
                raise FileFault(f"{self.directory / name}: is gone; a restart of the agent puts it there again")
            if _digest(content) != self.digests[name]:
                raise FileFault(
                    f"{self.directory / name}: is not what the agent put there; find out who changed it, then "
                    "restart the agent"
                )


def packaged_library(folder: Path = PACKAGED) -> Mapping[str, bytes] | None:
    """The library and the program that this installation brought; None where it was built without the library (no C
    compiler)."""
    found = {name: content for name in (LIBRARY_NAME, VERIFY_NAME) if (content := _program(folder / name)) is not None}
    return found if LIBRARY_NAME in found else None


def install_library(files: Mapping[str, bytes], lib_dir: Path, without_share: str = "refuse") -> ShimLibrary:
    """Put these files below `lib_dir` unless they are there, and beside them what the library does where a container
    has no share (`refuse` or `allow`). Other versions stay: containers that were started with
    them use them to their end, and are started again with them (shim_versions.py). Raises FileFault."""
    digests = {name: _digest(content) for name, content in sorted(files.items())}
    version = digests[LIBRARY_NAME] if len(digests) == 1 else _digest("".join(digests.values()).encode())
    directory = lib_dir / version[:DIGEST_SHOWN]
    os.close(open_directory(lib_dir, DIRECTORY_MODE))
    fd = open_directory(directory, DIRECTORY_MODE)
    try:
        for name, content in files.items():
            with told_as_fault(str(directory / name)):
                _put(fd, name, content, LIBRARY_MODE)
        policy = f"{without_share}\n".encode()
        with told_as_fault(str(directory / POLICY_NAME)):
            _put(fd, POLICY_NAME, policy, POLICY_MODE)
    finally:
        os.close(fd)
    return ShimLibrary(directory, digests | {POLICY_NAME: _digest(policy)})


def _program(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return content if content.startswith(b"\x7fELF") else None


def _put(directory_fd: int, name: str, content: bytes, mode: int) -> None:
    if read_file(directory_fd, name, LIBRARY_BYTES_MAX) != content:
        write_file(directory_fd, name, content, mode)
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        os.fchmod(fd, mode)
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
            try:
                status = os.stat(path.name, dir_fd=fd)
            except FileNotFoundError:
                raise FileFault(f"{path}: {NOT_THERE}") from None
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
