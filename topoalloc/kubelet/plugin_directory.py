"""The kubelet's device plugin directory: whose sockets are there, and a watch that wakes when they change."""

from __future__ import annotations

import logging
import os
import select
import stat
import threading
from pathlib import Path

from topoalloc.errors import MachineError
from topoalloc.kubelet.inotify import DELETE_SELF, IGNORED, MOVE_SELF, Inotify
from topoalloc.kubelet.session_state import SocketMark

log = logging.getLogger(__name__)

KUBELET_SOCKET = "kubelet.sock"
SOCKET_PREFIX = "topoalloc-"
SOCKET_PATH_BYTES_MAX = 107  # sun_path without its final zero, unix(7)
EVENTS_DRAINED_MAX = 1024  # per wake-up; more only means another wake-up at once


def mark_of(path: Path) -> SocketMark | None:
    """Which incarnation of a socket is at this path; None when there is none or it is no socket."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return SocketMark(status.st_ino, status.st_ctime_ns) if stat.S_ISSOCK(status.st_mode) else None


def new_socket_path(directory: Path, resource: str) -> Path:
    """A path no process has used before: a path the kubelet was told of is never served twice.

    Raises MachineError when the directory's own name leaves no room for a socket path.
    """
    slug = "".join(c if c.isalnum() else "-" for c in resource)
    room = SOCKET_PATH_BYTES_MAX - len(os.fsencode(directory)) - len(f"/{SOCKET_PREFIX}-12345678.sock")
    if room < 0:
        raise MachineError(f"{directory}: too long for a unix socket path (at most {SOCKET_PATH_BYTES_MAX} bytes)")
    return directory / f"{SOCKET_PREFIX}{slug[:room]}-{os.urandom(4).hex()}.sock"


def remove_stale_sockets(directory: Path) -> tuple[str, ...]:
    """Delete sockets of ours that nobody serves any more (a killed agent's); returns their names.

    Only one agent runs per node (the DaemonSet never surges), so every socket with our prefix is a dead one.
    """
    removed = []
    for path in sorted(directory.glob(f"{SOCKET_PREFIX}*.sock")):
        if mark_of(path) is not None:
            path.unlink(missing_ok=True)
            removed.append(path.name)
    return tuple(removed)


def _inotify() -> Inotify | None:
    """A watch, or None where the node has no inotify instance left: then time-outs are the only wake-ups."""
    try:
        return Inotify()
    except OSError as error:
        log.warning("no inotify watch (%s): the kubelet's directory is looked at every second only", error)
        return None


class DirectoryWatch:
    """Wakes a waiting thread when a file appears or vanishes in a directory; a hint to look, never the truth.

    The directory may be missing or be made anew: then the watch is set again at the next wait.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._inotify = _inotify()
        self._is_watched = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # Whoever wakes may come after the waiting thread has closed; reentrant, since a signal can come in between.
        self._open = threading.RLock()
        self._closed = False

    def wait(self, timeout_s: float) -> None:
        """Return when something changed, `wake` was called or the time is over."""
        self._set()
        watched = [] if self._inotify is None else [self._inotify.fd]
        ready, _, _ = select.select([*watched, self._wake_read], [], [], timeout_s)
        if self._wake_read in ready:
            os.read(self._wake_read, EVENTS_DRAINED_MAX)
        happened = self._inotify.read() if self._inotify is not None and self._inotify.fd in ready else 0
        if happened & (IGNORED | DELETE_SELF | MOVE_SELF):
            self._is_watched = False

    def wake(self) -> None:
        """Make `wait` return at once; safe from any thread and from a signal handler, and after `close`."""
        with self._open:
            if self._closed:
                return
            try:
                os.write(self._wake_write, b"w")
            except BlockingIOError:
                return  # the pipe is full of wake-ups already

    def close(self) -> None:
        with self._open:
            self._closed = True
            if self._inotify is not None:
                self._inotify.close()
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _set(self) -> None:
        if self._is_watched or self._inotify is None:
            return
        try:
            self._inotify.watch(self._directory)
        except OSError:
            return  # not there yet: the caller's time-out is the poll
        self._is_watched = True
