"""What the kernel says of processes of tenants: who is at the other end of a socket, which container a pid is in.

A pid is a number that goes to the next process; a pidfd stays with one. Of /proc only `cgroup` and `stat` are read.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import time
from dataclasses import dataclass

from topoalloc.sharing.cgroup_path import CGROUP_BYTES_MAX, PodCgroup, pod_cgroup

SO_PEERPIDFD = 77  # asm-generic/socket.h, Linux 6.5
STAT_BYTES_MAX = 4096
_CREDENTIALS = struct.Struct("iII")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STARTED_FIELD = 22  # of /proc/<pid>/stat, counted from 1; the second one is in brackets and may hold anything

_ENDED = (b"Z", b"X")  # states of a process that nobody has waited for yet


@dataclass(frozen=True, slots=True)
class Process:
    """One process for good: its pid and the clock tick since boot at which it began."""

    pid: int
    started: int


@dataclass(slots=True)
class Peer:
    """The process that connected a socket. Held open until `close`."""

    pid: int
    _pidfd: int

    @property
    def alive(self) -> bool:
        """Whether it has not ended: then its pid is still its own."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    def cgroup(self, root: str = "") -> PodCgroup | None:
        """Its container, None for one in none; read while it lived. `root`: the kubelet's cgroupRoot."""
        found = read_cgroup(self.pid, root)
        return found if self.alive else None

    def close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def peer_of(connection: socket.socket, quiet_since_ns: int | None) -> Peer | None:
    """Who connected; None where this namespace has no pid for it, or nobody can tell any more.

    `quiet_since_ns`: a CLOCK_BOOTTIME time before which it was not yet connected. Kernels that give no pidfd of a peer
    leave only the pid, and that may be somebody else's by now: of one that began later than this it cannot be told.
    None: that is no matter, since the caller looks at its cgroup and any process of that container will do.
    """
    content = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid = int(_CREDENTIALS.unpack(content)[0])
    if pid <= 0:
        return None
    try:
        return Peer(pid, connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD))
    except OSError:
        return opened_peer(pid, quiet_since_ns)


def opened_peer(pid: int, quiet_since_ns: int | None) -> Peer | None:
    """The process of this pid if it is older than that (of any age: None); None otherwise."""
    try:
        peer = Peer(pid, os.pidfd_open(pid))
    except OSError:
        return None
    started = read_started(pid)
    is_old = quiet_since_ns is None or (started or 0) * 1_000_000_000 < quiet_since_ns * _TICKS_PER_S
    if started is not None and is_old and peer.alive:
        return peer
    peer.close()
    return None


def boottime_ns() -> int:
    """The clock by which the kernel tells when processes began."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def read_cgroup(pid: int, root: str = "") -> PodCgroup | None:
    """The container that this pid is in now."""
    content = _proc(pid, "cgroup", CGROUP_BYTES_MAX + 1)
    return None if content is None else pod_cgroup(content, root)


def read_started(pid: int) -> int | None:
    """The clock tick since boot at which this pid's process began; None where there is none, or only its remains."""
    content = _proc(pid, "stat", STAT_BYTES_MAX)
    fields = (content or b"").rpartition(b") ")[2].split()
    if len(fields) <= _STARTED_FIELD - 3 or fields[0] in _ENDED or not fields[_STARTED_FIELD - 3].isdigit():
        return None
    return int(fields[_STARTED_FIELD - 3])


def container_process(pid: int, root: str = "") -> tuple[Process, PodCgroup] | None:
    """A pid's process and container, both of the same process; None where it is in no container or gone."""
    started, found = read_started(pid), read_cgroup(pid, root)
    if started is None or found is None or read_started(pid) != started:
        return None
    return Process(pid, started), found


def kill(process: Process, container: PodCgroup, root: str = "") -> bool:
    """SIGKILL to this process if it is still there and in that container; whether it was sent. Raises
    PermissionError where it is another user's and the agent lacks CAP_KILL."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        # Read after the pidfd was taken, so that both are of its process or it has ended and gets no signal.
        if container_process(process.pid, root) != (process, container):
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            return True
        return False
    finally:
        os.close(pidfd)


def _proc(pid: int, name: str, bytes_max: int) -> bytes | None:
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return os.read(fd, bytes_max)
    except OSError:
        return None
    finally:
        os.close(fd)
