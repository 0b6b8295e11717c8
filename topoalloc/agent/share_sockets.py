"""Answers the processes of limited containers: one socket for each share, so that whoever connects to it is in that
share's container. One thread serves them all; what a container does wrong costs it its own connections and no other's.

The protocol is one line each way: `measure` gets `bytes <n>` or `unknown` (docs/SHARING.md).
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import selectors
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from topoalloc.agent.peers import Peer, boottime_ns, peer_of
from topoalloc.agent.private_files import remove
from topoalloc.agent.share_files import leaf
from topoalloc.sharing.builtin_shim import AGENT_SOCKET

log = logging.getLogger(__name__)

SOCKET_MODE = 0o666  # programs in a container run as any user; the directory above is closed to the node's
REQUEST_BYTES_MAX = 128
DEADLINE_S = 2.0  # for the rest of a request that has begun
IDLE_MAX_S = 30.0  # of a connection that asks nothing
BACKLOG = 128  # a container may start that many processes at once, and a connect that finds it full fails
CONNECTIONS_PER_SHARE_MAX = 128  # each process keeps one; beyond it the one that has been silent longest goes
CONNECTIONS_MAX = 1024  # of all; then it is one of the share that has most
DESCRIPTORS_KEPT = 256  # for the rest of the agent, where the process may open few: a connection takes two
ACCEPTS_AT_ONCE_MAX = 8  # of one socket, before the others have their turn
# New connections and requests of one share. Its processes ask about once a second each, and a few times when they
# begin; beyond it the share is not listened to until it may go on, and its processes do without an answer.
RATE_PER_S, BURST = 400.0, 400.0
SWEEP_S = 0.5
WAIT_MAX_S = 0.5


@dataclass(frozen=True, slots=True)
class SocketOwner:
    """What is known of a share whose socket is served: its directory, GPU as a driver is asked, and pod."""

    inode: int
    gpu: str | None
    pod_uid: str = ""


@dataclass(frozen=True, slots=True)
class _Opened:
    """A share's socket as it was opened by another thread. `listener` None: the one that is served goes on."""

    owner: SocketOwner
    listener: socket.socket | None


@dataclass(eq=False, slots=True)
class _Connection:
    """One process's. `begun_s`: since when a request is incomplete; None: it is silent."""

    socket: socket.socket
    share: _Served
    peer: Peer | None
    last_s: float
    begun_s: float | None = None
    received: bytearray = field(default_factory=bytearray)


@dataclass(eq=False, slots=True)
class _Served:
    """One share's socket. `connections`: the one that has been silent longest first."""

    name: str
    owner: SocketOwner
    listener: socket.socket
    allowance: float = BURST
    refilled_s: float = 0.0
    paused_until_s: float | None = None
    quiet_since_ns: int = 0
    connections: dict[_Connection, None] = field(default_factory=dict)
    container: str | None = None  # the runtime's id of it, as its first process showed


class ShareSockets:
    """`run` serves in one thread; everything else is called from any other."""

    def __init__(
        self,
        run_dir: str,
        memory_bytes: Callable[[str], Mapping[int, int | None] | None],
        clock_s: Callable[[], float] = time.monotonic,
        cgroup_root: str = "",
    ) -> None:
        """`memory_bytes`: device memory by pid on a GPU, None where no driver tells. `cgroup_root`: the kubelet's."""
        self._run_dir = run_dir
        self._memory_bytes = memory_bytes
        self._clock_s = clock_s
        self._cgroup_root = cgroup_root
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._wanted: deque[Mapping[str, SocketOwner]] = deque(maxlen=1)
        self._served: dict[str, _Served] = {}
        self._lock = threading.Lock()  # of what others tell `run`: the last word of each share, None: closed
        self._told: dict[str, _Opened | None] = {}
        self._listening: dict[str, int] = {}  # inodes of the directories that have a socket by `opened`
        self._held: set[str] = set()  # names whose last word was that they are open
        self._stopping = threading.Event()
        self._complaints: set[str] = set()
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._connections_max = min(CONNECTIONS_MAX, max(1, (descriptors - DESCRIPTORS_KEPT) // 2))
        self._swept_s = 0.0
        self.counts: Counter[str] = Counter()

    def opened(self, name: str, owner: SocketOwner, directory_fd: int) -> None:
        """Have a socket in this directory when this returns; whoever connects waits there until `run` takes it.

        Without one a container runs all the same and its contexts are charged as configured, so a fault is said and
        left to `reconcile`.
        """
        with self._lock:
            before = self._told.get(name)
            listener = None if before is None else before.listener
            if self._listening.get(name) != owner.inode:
                if listener is not None:
                    listener.close()
                try:
                    listener = _listening(directory_fd)
                except OSError as error:
                    self._complain(name, f"the socket of share {name} cannot be made: {error.strerror or error}")
                    self._told.pop(name, None)
                    return
            self._told[name] = _Opened(owner, listener)
            self._listening[name] = owner.inode
        self._wake()

    def closed(self, name: str) -> None:
        """Serve this share no more; its directory is about to go."""
        with self._lock:
            before = self._told.get(name)
            if before is not None and before.listener is not None:
                before.listener.close()
            self._told[name] = None
            self._listening.pop(name, None)
        self._wake()

    def reconcile(self, wanted: Mapping[str, SocketOwner]) -> None:
        """Serve these shares and those that are `opened`, and no others. A share whose directory is a new one gets a
        new socket. What is wanted may have been seen a moment ago, so what was opened since stays."""
        self._wanted.append(dict(wanted))
        self._wake()

    def stop(self) -> None:
        """End `run` soon."""
        self._stopping.set()
        self._wake()

    def containers(self) -> Mapping[str, str]:
        """The runtime's id of a share's container, by the name of the share, as far as it has shown itself."""
        return {name: served.container for name, served in list(self._served.items()) if served.container}

    def run(self) -> None:
        """Serve until `stop`."""
        try:
            while not self._stopping.is_set():
                for key, _ in self._selector.select(WAIT_MAX_S):
                    self._ready(key.data)
                self._take_told()
                if self._wanted:
                    self._rebind(self._wanted.pop())
                self._sweep()
        finally:
            for served in list(self._served.values()):
                self._unserve(served)

    def close(self) -> None:
        """Let go of what is held open, once `run` has ended."""
        with self._lock:
            for opened in self._told.values():
                if opened is not None and opened.listener is not None:
                    opened.listener.close()
            self._told.clear()
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake already
            self._wake_write.send(b"\0")

    def _ready(self, what: _Served | _Connection | None) -> None:
        if what is None:
            with contextlib.suppress(BlockingIOError):
                self._wake_read.recv(4096)
        elif isinstance(what, _Served):
            if what.paused_until_s is None and self._served.get(what.name) is what:
                self._accept(what)
        elif what in what.share.connections and what.share.paused_until_s is None:
            self._receive(what)

    # Sockets.

    def _take_told(self) -> None:
        with self._lock:
            told, self._told = self._told, {}
        for name, opened in told.items():
            served = self._served.get(name)
            if served is not None and (opened is None or opened.listener is not None):
                self._unserve(served)
            elif served is not None and opened is not None:
                served.owner = opened.owner
            self._held.discard(name)
            if opened is not None:
                self._held.add(name)
                if opened.listener is not None:
                    self._serve_at(opened.listener, name, opened.owner)

    def _rebind(self, wanted: Mapping[str, SocketOwner]) -> None:
        for name, served in list(self._served.items()):
            owner = wanted.get(name)
            if owner is not None and owner.inode == served.owner.inode:
                served.owner = owner
            elif name not in self._held:
                self._unserve(served)
        for name, owner in wanted.items():
            if name not in self._served:
                self._serve(name, owner)

    def _serve(self, name: str, owner: SocketOwner) -> None:
        try:
            listener = _bound(self._run_dir, name, owner.inode)
        except OSError as error:
            self._complain(name, f"the socket of share {name} cannot be made: {error.strerror or error}")
            return
        self._serve_at(listener, name, owner)

    def _serve_at(self, listener: socket.socket, name: str, owner: SocketOwner) -> None:
        self._complaints.discard(name)
        served = _Served(name, owner, listener, refilled_s=self._clock_s(), quiet_since_ns=boottime_ns())
        self._served[name] = served
        self._selector.register(listener, selectors.EVENT_READ, served)

    def _unserve(self, served: _Served) -> None:
        self._complaints.discard(f"{served.name} foreign")
        for connection in list(served.connections):
            self._drop(connection)
        if served.paused_until_s is None:
            self._selector.unregister(served.listener)
        served.listener.close()
        del self._served[served.name]
        self._held.discard(served.name)
        with self._lock:
            if self._told.get(served.name) is None and self._listening.get(served.name) == served.owner.inode:
                del self._listening[served.name]

    def _complain(self, kind: str, words: str) -> None:
        """Once, until it works again."""
        if kind not in self._complaints:
            self._complaints.add(kind)
            log.warning("%s", words)

    # Connections.

    def _accept(self, served: _Served) -> None:
        for _ in range(ACCEPTS_AT_ONCE_MAX):
            if not self._allowed(served):
                return
            before_ns = boottime_ns()
            try:
                accepted, _ = served.listener.accept()
            except BlockingIOError:
                served.allowance += 1
                served.quiet_since_ns = before_ns
                return
            except OSError as error:  # no more descriptors, or the peer is gone already
                self._complain("accept", f"connections of shares cannot be taken: {error.strerror}")
                self._pause(served)
                return
            self._complaints.discard("accept")
            accepted.setblocking(False)
            self._make_room(served)
            peer = self._peer(served, accepted)
            connection = _Connection(accepted, served, peer, self._clock_s())
            served.connections[connection] = None
            self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _peer(self, served: _Served, accepted: socket.socket) -> Peer | None:
        """Who it is, None where that is not known or it is of another pod than the share's."""
        try:
            peer = peer_of(accepted, None if served.owner.pod_uid else served.quiet_since_ns)
        except OSError:
            return None
        if peer is None or not served.owner.pod_uid:
            return peer
        group = peer.cgroup(self._cgroup_root)
        if group is None or group.pod_uid != served.owner.pod_uid:
            self.counts["foreign"] += 1
            self._complain(f"{served.name} foreign", f"share {served.name}: a process of another pod asked; not told")
            peer.close()
            return None
        served.container = served.container or group.container
        return peer

    def _make_room(self, served: _Served) -> None:
        if len(served.connections) >= CONNECTIONS_PER_SHARE_MAX:
            self._evict(served)
        elif sum(len(one.connections) for one in self._served.values()) >= self._connections_max:
            self._evict(max(self._served.values(), key=lambda one: len(one.connections)))

    def _evict(self, served: _Served) -> None:
        self.counts["evicted"] += 1
        self._drop(next(iter(served.connections)))

    def _drop(self, connection: _Connection) -> None:
        del connection.share.connections[connection]
        if connection.share.paused_until_s is None:
            self._selector.unregister(connection.socket)
        connection.socket.close()
        if connection.peer is not None:
            connection.peer.close()

    def _receive(self, connection: _Connection) -> None:
        try:
            content = connection.socket.recv(REQUEST_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            content = b""
        if not content:
            self._drop(connection)
            return
        connection.received += content
        *requests, rest = connection.received.split(b"\n")
        connection.received = bytearray(rest)
        now_s = self._clock_s()
        connection.last_s = now_s
        connection.begun_s = (
            None if not rest else now_s if requests or connection.begun_s is None else connection.begun_s
        )
        del connection.share.connections[connection]
        connection.share.connections[connection] = None
        if len(rest) > REQUEST_BYTES_MAX or not all(self._answer(connection, bytes(one)) for one in requests):
            self.counts["refused"] += 1
            self._drop(connection)

    def _answer(self, connection: _Connection, request: bytes) -> bool:
        """Whether the connection may go on."""
        if request != b"measure":
            return False
        if not self._allowed(connection.share, pauses=False):
            return False
        reply = self._measured(connection)
        self.counts["unknown" if reply is None else "answered"] += 1
        try:  # a peer that does not read gets no buffer of ours
            text = b"unknown\n" if reply is None else b"bytes %d\n" % reply
            return connection.socket.send(text) == len(text)
        except OSError:
            return False

    def _measured(self, connection: _Connection) -> int | None:
        peer, gpu = connection.peer, connection.share.owner.gpu
        if peer is None or gpu is None:
            return None
        known = self._memory_bytes(gpu)
        figure = None if known is None else known.get(peer.pid)
        return figure if peer.alive else None

    # Limits.

    def _allowed(self, served: _Served, *, pauses: bool = True) -> bool:
        """Whether the share may have one more connection or request now; it is paused if not."""
        now_s = self._clock_s()
        served.allowance = min(BURST, served.allowance + (now_s - served.refilled_s) * RATE_PER_S)
        served.refilled_s = now_s
        if served.allowance >= 1:
            served.allowance -= 1
            return True
        if pauses:
            self._pause(served)
        return False

    def _pause(self, served: _Served) -> None:
        self.counts["paused"] += 1
        self._selector.unregister(served.listener)
        for connection in served.connections:
            self._selector.unregister(connection.socket)
        served.paused_until_s = self._clock_s() + WAIT_MAX_S / 2

    def _sweep(self) -> None:
        """Go on with shares that were paused; close connections that waited too long. Twice a second."""
        now_s = self._clock_s()
        for served in self._served.values():
            if served.paused_until_s is not None and now_s >= served.paused_until_s:
                served.paused_until_s = None
                self._selector.register(served.listener, selectors.EVENT_READ, served)
                for connection in served.connections:
                    self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        if now_s - self._swept_s < SWEEP_S:
            return
        self._swept_s = now_s
        for served in self._served.values():
            for connection in list(served.connections):
                is_late = connection.begun_s is not None and now_s - connection.begun_s > DEADLINE_S
                if is_late or now_s - connection.last_s > IDLE_MAX_S:
                    self.counts["late"] += is_late
                    self._drop(connection)


def _bound(run_dir: str, name: str, inode: int) -> socket.socket:
    """A listening socket in a share's directory, in the place of an earlier one; raises OSError."""
    with leaf(run_dir, name) as fd:
        if os.fstat(fd).st_ino != inode:
            raise OSError(0, "its directory was replaced a moment ago")
        return _listening(fd)


def _listening(directory_fd: int) -> socket.socket:
    remove(directory_fd, AGENT_SOCKET)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        # A socket's path has at most 107 bytes, and no call binds relative to a descriptor; this one is both.
        listener.bind(f"/proc/self/fd/{directory_fd}/{AGENT_SOCKET}")
        os.chmod(AGENT_SOCKET, SOCKET_MODE, dir_fd=directory_fd)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
