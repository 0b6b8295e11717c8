"""The one window through which readers look at a file tree: a folder on disk or an archive held in memory.

Every read is bounded, never blocks and never leaves the tree, whatever links the tree holds.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

# A sysfs attribute is at most one page; the largest useful proc file (meminfo, information) is smaller still.
CONTENT_BYTES_MAX = 64 * 1024
# Names taken from one folder. The largest real ones (cpuN and PCI functions of the biggest servers) stay below 10,000.
NAMES_MAX = 100_000


class Files(Protocol):
    """Paths are relative to the tree's root, with `/` between and no leading `/`."""

    def read(self, path: str) -> bytes | None:
        """Content of a regular file; None where it is missing, denied, no file, or above CONTENT_BYTES_MAX."""

    def names(self, path: str) -> Sequence[str]:
        """What a folder holds, sorted, at most NAMES_MAX names; empty where there is no such folder."""

    def real_path(self, path: str) -> str | None:
        """The path with every link followed; None where that leaves the tree or runs in a circle.

        The target need not exist: dumps keep links to what they left out.
        """

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder, links followed."""


class FolderFiles:
    """A folder on disk, such as /sys or an unpacked dump."""

    def __init__(self, root: str | Path) -> None:
        self._root = os.path.realpath(root).rstrip("/")

    def read(self, path: str) -> bytes | None:
        real = self._inside(path)
        if real is None:
            return None
        try:
            # Opening a device or a FIFO that poses as an attribute could hang the reader or have an effect.
            if not stat.S_ISREG(os.stat(real).st_mode):  # noqa: PTH116 - one system call on a hot path
                return None
            descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return None
        try:
            content = _read_up_to(descriptor, CONTENT_BYTES_MAX + 1)
        except OSError:  # drivers answer EINVAL, EIO or EACCES at read time
            return None
        finally:
            os.close(descriptor)
        return content if len(content) <= CONTENT_BYTES_MAX else None

    def names(self, path: str) -> Sequence[str]:
        real = self._inside(path)
        if real is None:
            return ()
        try:
            with os.scandir(real) as entries:
                return sorted(entry.name for entry in islice(entries, NAMES_MAX))
        except (OSError, ValueError):
            return ()

    def real_path(self, path: str) -> str | None:
        real = self._inside(path)
        return None if real is None else real[len(self._root) + 1 :]

    def is_folder(self, path: str) -> bool:
        real = self._inside(path)
        return real is not None and Path(real).is_dir()

    def _inside(self, path: str) -> str | None:
        try:
            real = os.path.realpath(f"{self._root}/{path}")
        except (OSError, ValueError):
            return None
        return real if real == self._root or real.startswith(self._root + "/") else None


def _read_up_to(descriptor: int, limit: int) -> bytes:
    parts: list[bytes] = []
    missing = limit
    while missing > 0:
        part = os.read(descriptor, missing)
        if not part:
            break
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


class FilesBelow:
    """The part of a tree below one of its folders, seen as a tree of its own."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder

    def read(self, path: str) -> bytes | None:
        return self._files.read(self._outer(path))

    def names(self, path: str) -> Sequence[str]:
        return self._files.names(self._outer(path))

    def is_folder(self, path: str) -> bool:
        return self._files.is_folder(self._outer(path))

    def real_path(self, path: str) -> str | None:
        # The folder itself may be reached through a link (a dump's `sys` that points elsewhere inside it).
        base = self._files.real_path(self._folder)
        real = self._files.real_path(self._outer(path))
        if base is None or real is None:
            return None
        if not base:
            return real
        return real[len(base) + 1 :] if real == base or real.startswith(base + "/") else None

    def _outer(self, path: str) -> str:
        return f"{self._folder}/{path}" if self._folder and path else self._folder or path


def text_of(files: Files, path: str) -> str | None:
    """Content of a file as stripped text; None where it cannot be read. Bytes that are no UTF-8 show as `�`."""
    content = files.read(path)
    if content is None:
        return None
    # Some kernels count the terminator into an attribute's length (cpumap on arm64, 4.1x).
    return content.partition(b"\0")[0].decode("utf-8", "replace").strip()
