"""The kernel's word that something changed in a directory: inotify(7), by the C library alone.

Packages for it look the C library up with `ctypes.util`, which starts `ldconfig` and loads modules of a megabyte.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path

# sys/inotify.h
ATTRIB, MOVED_FROM, MOVED_TO, CREATE, DELETE, DELETE_SELF, MOVE_SELF = 0x4, 0x40, 0x80, 0x100, 0x200, 0x400, 0x800
IGNORED = 0x8000
WATCHED = ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF | MOVE_SELF
EVENT_BYTES = 16  # and as many of a name as its last word says
READ_BYTES = 65536


class Inotify:
    """One instance, without waiting; raises OSError where the user has none left."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def watch(self, directory: Path) -> None:
        """Watch what appears and vanishes in a directory, and the directory itself; raises OSError."""
        self._checked(self._libc.inotify_add_watch(self.fd, os.fsencode(directory), ctypes.c_uint32(WATCHED)))

    def read(self) -> int:
        """What happened since the last time, all kinds in one mask; 0: nothing."""
        content = b""
        with contextlib.suppress(BlockingIOError):
            content = os.read(self.fd, READ_BYTES)
        seen, at = 0, 0
        while at + EVENT_BYTES <= len(content):
            seen |= int.from_bytes(content[at + 4 : at + 8], sys.byteorder)
            at += EVENT_BYTES + int.from_bytes(content[at + 12 : at + 16], sys.byteorder)
        return seen

    def close(self) -> None:
        os.close(self.fd)

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result
