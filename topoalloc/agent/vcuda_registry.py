"""Where the vcuda library registers: one socket in each share's directory, and the host's pids of its container written
beside it. Which container it is, the socket says; what the caller sends about itself has to agree."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.message import DecodeError

from topoalloc.agent.peers import Peer, boottime_ns, peer_of, read_cgroup
from topoalloc.agent.private_files import FileFault, open_directory, remove, write_file
from topoalloc.pb.vcuda_pb2 import VDeviceRequest
from topoalloc.sharing.cgroup_path import PodCgroup
from topoalloc.sharing.grpc_unary import ProtocolFault, UnaryConnection, answer, refusal
from topoalloc.sharing.share import Share
from topoalloc.sharing.vcuda_shim import PIDS_FILE, PIDS_MAX, SOCKET, pids_bytes, registered_name

log = logging.getLogger(__name__)

SOCKET_MODE = 0o666  # whatever user a container runs as
DEADLINE_S = 2.0  # from connecting to having asked
ACCEPTS_AT_ONCE_MAX = 8  # of one socket, before the others have their turn
CONNECTIONS_PER_SHARE_MAX = 16  # a process forks a client when it starts; the oldest connection gives way
READ_BYTES = 16 * 1024
PROCESSES_MAX = 100_000  # looked at on a registration
ROUND_S = 0.5
PAUSE_S = 0.25  # of a socket whose connections cannot be taken; they wait in its queue meanwhile
PERMISSION_DENIED, FAILED_PRECONDITION, UNAVAILABLE = 7, 9, 14


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """Why a registration is refused, with gRPC's status code."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(slots=True)
class _Connection:
    client: socket.socket
    share_name: str
    peer: Peer | None
    until_s: float
    talk: UnaryConnection = field(default_factory=UnaryConnection)


@dataclass(slots=True)
class _Door:
    """The socket of one share."""

    share: Share
    inode: int
    listener: socket.socket
    quiet_since_ns: int  # nobody waited to be taken then
    paused_until_s: float | None = None
    connections: list[_Connection] = field(default_factory=list)


class VcudaRegistry:
    """An observer of the shares' directories with a thread of its own, which starts with the first share."""

    def __init__(
        self,
        shares: Path,
        placed: Callable[[int], PodCgroup | None] = read_cgroup,
        pids: Callable[[], Iterable[int]] | None = None,
    ) -> None:
        """`placed` and `pids` tell the container of a process and all processes; the node's, unless given."""
        self._shares = shares
        self._placed = placed
        self._pids = pids or _all_pids
        self._lock = threading.Lock()
        self._doors: dict[str, _Door] = {}
        self._selector = selectors.DefaultSelector()
        self._thread: threading.Thread | None = None
        self._is_failing = False  # to take connections, which is said once
        self.refused: Counter[str] = Counter()  # by share

    def opened(self, share: Share, directory_fd: int) -> None:
        inode = os.fstat(directory_fd).st_ino
        with self._lock:
            known = self._doors.get(share.name)
            if known is not None and known.inode == inode:
                known.share = share
                return
            if known is not None:
                self._close(share.name)
            remove(directory_fd, SOCKET)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                # By way of the descriptor: a path could have been led elsewhere since, and has no length to spare.
                path = f"/proc/self/fd/{directory_fd}/{SOCKET}"
                listener.bind(path)
                Path(path).chmod(SOCKET_MODE)
                listener.listen(CONNECTIONS_PER_SHARE_MAX)
                listener.setblocking(False)
            except BaseException:
                listener.close()
                raise
            self._doors[share.name] = _Door(share, inode, listener, boottime_ns())
            self._selector.register(listener, selectors.EVENT_READ, share.name)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="vcuda", daemon=True)
                self._thread.start()

    def closed(self, name: str) -> None:
        with self._lock:
            if name in self._doors:
                self._close(name)

    def _close(self, name: str) -> None:
        door = self._doors.pop(name)
        for connection in list(door.connections):
            self._end(door, connection)
        if door.paused_until_s is None:
            self._selector.unregister(door.listener)
        door.listener.close()

    def _run(self) -> None:
        """Until the last share is closed; the next one starts another thread."""
        while True:
            ready = self._selector.select(ROUND_S)
            with self._lock:
                if not self._doors:
                    self._thread = None
                    return
                for key, _ in ready:
                    self._serve(key.data, key.fileobj)
                self._end_overdue()
                self._go_on()

    def _serve(self, data: str | _Connection, source: object) -> None:
        if isinstance(data, str):
            door = self._doors.get(data)
            if door is not None and door.listener is source:
                self._accept(door)
        elif (door := self._doors.get(data.share_name)) is not None and data in door.connections:
            self._hear(door, data)

    def _accept(self, door: _Door) -> None:
        for _ in range(ACCEPTS_AT_ONCE_MAX):
            before_ns = boottime_ns()
            try:
                client, _ = door.listener.accept()
            except BlockingIOError:
                door.quiet_since_ns = before_ns
                return
            except OSError as error:  # gone already, or no descriptor left
                self._pause(door, error)
                return
            self._is_failing = False
            client.setblocking(False)
            if len(door.connections) >= CONNECTIONS_PER_SHARE_MAX:
                self._end(door, door.connections[0])
            peer = _peer(client, None if door.share.pod_uid else door.quiet_since_ns)
            connection = _Connection(client, door.share.name, peer, time.monotonic() + DEADLINE_S)
            door.connections.append(connection)
            self._selector.register(client, selectors.EVENT_READ, connection)

    def _pause(self, door: _Door, error: OSError) -> None:
        if not self._is_failing:
            log.warning("vcuda: registrations cannot be taken: %s", error.strerror)
        self._is_failing = True
        self._selector.unregister(door.listener)
        door.paused_until_s = time.monotonic() + PAUSE_S

    def _go_on(self) -> None:
        """Listen again where it was paused."""
        now_s = time.monotonic()
        for door in self._doors.values():
            if door.paused_until_s is not None and now_s >= door.paused_until_s:
                door.paused_until_s = None
                self._selector.register(door.listener, selectors.EVENT_READ, door.share.name)

    def _hear(self, door: _Door, connection: _Connection) -> None:
        try:
            data = connection.client.recv(READ_BYTES)
            out, requests = connection.talk.take(data) if data else (b"", ())
            for stream, message in requests:
                out += self._answered(door, connection, stream, message)
            if out:
                connection.client.sendall(out)  # a few hundred bytes: a peer that does not read loses its connection
        except (ProtocolFault, OSError):
            data = b""
        if not data:
            self._end(door, connection)

    def _answered(self, door: _Door, connection: _Connection, stream: int, message: bytes) -> bytes:
        try:
            self._register(door, connection, VDeviceRequest.FromString(message))
        except DecodeError:
            return refusal(stream, PERMISSION_DENIED, "no VDeviceRequest")
        except Refusal as why:
            self.refused[door.share.name] += 1
            log.warning("vcuda: a registration of share %s is refused: %s", door.share.name, why)
            return refusal(stream, why.status, str(why))
        except (OSError, FileFault) as error:
            log.warning("vcuda: the pids of share %s cannot be written: %s", door.share.name, error)
            return refusal(stream, UNAVAILABLE, "topoalloc cannot write the pids of this container")
        return answer(stream, b"")

    def _register(self, door: _Door, connection: _Connection, request: VDeviceRequest) -> None:
        """Write the pids of the caller's container, once it is known to be the one this socket belongs to."""
        peer = connection.peer
        if peer is None:
            raise Refusal(FAILED_PRECONDITION, "the agent cannot see the caller; it needs hostPID")
        caller = self._placed(peer.pid)
        if caller is None or not peer.alive:  # read while it lived, so of no other process
            raise Refusal(PERMISSION_DENIED, "the caller is in no container of a pod")
        share = door.share
        if share.pod_uid not in {"", caller.pod_uid}:
            raise Refusal(PERMISSION_DENIED, "the caller is in another pod than this share's")
        if request.pod_uid not in {"", caller.pod_uid} or request.container_id not in {"", caller.container}:
            raise Refusal(PERMISSION_DENIED, "the caller says it is another container than it is")
        if request.container_name not in {"", registered_name(share)}:
            raise Refusal(PERMISSION_DENIED, "the caller says it is another container than this share's")
        pids = [each for each in self._pids() if each == peer.pid or self._placed(each) == caller]
        if len(pids) > PIDS_MAX:
            log.warning("vcuda: share %s has %d processes, the library reads %d", share.name, len(pids), PIDS_MAX)
        fd = open_directory(self._shares / share.name, None)
        try:
            if os.fstat(fd).st_ino != door.inode:
                raise Refusal(UNAVAILABLE, "this share has been given to another container")
            write_file(fd, PIDS_FILE, pids_bytes(pids), 0o444)
        finally:
            os.close(fd)

    def _end(self, door: _Door, connection: _Connection) -> None:
        door.connections.remove(connection)
        self._selector.unregister(connection.client)
        connection.client.close()
        if connection.peer is not None:
            connection.peer.close()

    def _end_overdue(self) -> None:
        now_s = time.monotonic()
        for door in self._doors.values():
            for connection in [each for each in door.connections if each.until_s < now_s]:
                self._end(door, connection)


def _peer(client: socket.socket, quiet_since_ns: int | None) -> Peer | None:
    try:
        return peer_of(client, quiet_since_ns)
    except OSError:
        return None


def _all_pids() -> list[int]:
    with os.scandir("/proc") as entries:
        return [
            int(entry.name) for _, entry in zip(range(PROCESSES_MAX), entries, strict=False) if entry.name.isdigit()
        ]
