"""Keeps every resource registered: looks at the directory, asks `session_state` what to do, and does it."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from topoalloc.errors import TopoallocError
from topoalloc.kubelet import session_state
from topoalloc.kubelet.plugin_directory import KUBELET_SOCKET, DirectoryWatch, mark_of, new_socket_path
from topoalloc.kubelet.plugin_server import Desk, DeviceList, DeviceLists, PluginServer
from topoalloc.kubelet.registration import register
from topoalloc.kubelet.session_state import Seen, Session, Step
from topoalloc.sharing.inventory import Resource

log = logging.getLogger(__name__)

# The watch is only a hint (its directory can be replaced); a missed event costs this long.
LOOK_PERIOD_S = 1.0
# Steps taken in a row before the directory is looked at anew; BIND, then REGISTER is the longest useful run.
STEPS_IN_A_ROW_MAX = 3
# A kubelet that is away for long is no news at every try.
FAILURES_SAID = frozenset({1, 8, 64, 512, 4096})


@dataclass(slots=True)
class _Served:
    """One resource with its session and the server that carries it."""

    resource: Resource
    devices: DeviceList
    session: Session = field(default_factory=Session)
    server: PluginServer | None = None


class Sessions:
    """All resources' sessions, driven by one thread that calls `run`."""

    def __init__(self, directory: Path, lists: DeviceLists, desk: Desk) -> None:
        self._directory = directory
        self._desk = desk
        self._served = [_Served(resource, devices) for resource, devices in lists.by_resource]
        self._watch = DirectoryWatch(directory)
        self._stopping = threading.Event()

    def run(self) -> None:
        """Keep everything registered until `stop`; then close every server and remove its socket."""
        if mark_of(self._directory / KUBELET_SOCKET) is None:
            missing = "" if self._directory.is_dir() else ", which does not exist"
            log.info("waiting for the kubelet: no %s in %s yet%s", KUBELET_SOCKET, self._directory, missing)
        workers = ThreadPoolExecutor(max(1, len(self._served)), thread_name_prefix="session")
        try:
            while not self._stopping.is_set():
                pause_s = self._advance(workers)
                self._watch.wait(pause_s)
        finally:
            for closing in [workers.submit(self._close, served) for served in self._served]:
                wait([closing])
            workers.shutdown()
            self._watch.close()

    def stop(self) -> None:
        """Ask `run` to end; safe in a signal handler."""
        self._stopping.set()
        self._watch.wake()

    def _advance(self, workers: ThreadPoolExecutor) -> float:
        """Take the steps that are due; returns how long nothing new can be due without an event.

        All resources go side by side: a Register waits for the kubelet's device manager, and pods that are judged in
        the meantime fail for every resource that is not there yet.
        """
        for _ in range(STEPS_IN_A_ROW_MAX):
            if not any(list(workers.map(self._take_due_step, self._served))):
                break
        waits_s = [session_state.backoff_s(served.session.failures) for served in self._served]
        return min([LOOK_PERIOD_S, *(wait_s for wait_s in waits_s if wait_s)])

    def _take_due_step(self, served: _Served) -> bool:
        seen = self._seen(served)
        served.session = session_state.observed(served.session, seen)
        step = session_state.next_step(served.session, seen)
        if step is Step.WAIT or self._stopping.is_set():
            return False
        served.session = self._taken(served, step, seen)
        return True

    def _seen(self, served: _Served) -> Seen:
        server = served.server
        return Seen(
            kubelet=mark_of(self._directory / KUBELET_SOCKET),
            own_socket=server is not None and mark_of(server.path) is not None,
            streams=server.streams if server is not None else 0,
            now_s=time.monotonic(),
        )

    def _taken(self, served: _Served, step: Step, seen: Seen) -> Session:
        """Carry out one step; returns the session after it."""
        name = served.resource.name
        try:
            if step is Step.BIND:
                self._close(served)
                path = new_socket_path(self._directory, name)
                served.server = PluginServer(path, served.resource, served.devices, self._desk, self._watch.wake)
                return session_state.bound(served.session, seen)
            assert served.server is not None
            register(self._directory / KUBELET_SOCKET, served.server.path.name, name, self._stopping.is_set)
            log.info("registered %s with %d devices on %s", name, len(served.resource.devices), served.server.path.name)
            return session_state.registered(served.session, seen)
        except (TopoallocError, OSError) as error:
            session = session_state.failed(served.session, seen)
            retry_s = session_state.backoff_s(session.failures)
            level = logging.WARNING if session.failures in FAILURES_SAID else logging.DEBUG
            log.log(level, "%s; trying again in %.2f s on a new socket", error, retry_s)
            return session

    def _close(self, served: _Served) -> None:
        if served.server is not None:
            served.server.stop()
            served.server = None
