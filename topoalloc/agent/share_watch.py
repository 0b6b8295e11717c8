"""The threads that look after shares while they run. They begin with the first share, so that a node without any pays
nothing, and what goes wrong in them is said and costs the kubelet's side nothing: they serve people and tenants."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from topoalloc.sharing.share_file import gpu_of

if TYPE_CHECKING:
    from topoalloc.agent.share_board import ShareBoard
    from topoalloc.agent.share_sockets import ShareSockets
    from topoalloc.sharing.share import Share
    from topoalloc.sharing.share_owners import ShareOwner

log = logging.getLogger(__name__)

FIRST_SHARE_PERIOD_S = 1.0
RESTARTS_MAX = 5
RESTART_PAUSE_S = 5.0  # doubles each time
RAN_WELL_S = 600.0
THREAD_JOIN_MAX_S = 2.0

Memory = Callable[[str], Mapping[int, int | None] | None]


@dataclass(frozen=True, slots=True)
class ShareWatchSettings:
    """`metrics` None: no endpoint. `kills`: whether processes of a container that holds too much memory are ended.
    `live`: there may be a driver to ask. `cgroup_root`: the kubelet's, below which it makes the groups of pods.
    `gives_turns`: whether shares that fill a GPU are told whose turn it is."""

    run_dir: str
    metrics: tuple[str, int] | None
    kills: bool
    tolerance_bytes: int
    live: bool
    cgroup_root: str = ""
    gives_turns: bool = True


class ShareWatch:
    """`run` blocks until its event is set and `wake` was called, and ends what it began. An observer of the shares'
    directories, where our own library is what enforces them: it opens each one's socket, so that the first question of
    its container is answered."""

    def __init__(
        self,
        settings: ShareWatchSettings,
        owners: Callable[[], Mapping[str, ShareOwner]],
        memory_bytes: Memory | None = None,
        restart_pause_s: float = RESTART_PAUSE_S,
    ) -> None:
        """`owners`: who holds which share now. `memory_bytes` in the place of the driver's word."""
        self._settings = settings
        self._owners = owners
        self._memory_bytes = memory_bytes
        self._restart_pause_s = restart_pause_s
        self._awake = threading.Event()
        self._lock = threading.Lock()
        self._sockets: ShareSockets | None = None

    def opened(self, share: Share, directory_fd: int) -> None:
        """Have the share's socket in its directory."""
        from topoalloc.agent.share_sockets import SocketOwner

        owner = SocketOwner(os.fstat(directory_fd).st_ino, gpu_of(share.name, share.gpu_uuid), share.pod_uid)
        self._served_sockets().opened(share.name, owner, directory_fd)
        self._awake.set()

    def closed(self, name: str) -> None:
        """Serve the share's socket no more."""
        with self._lock:
            sockets = self._sockets
        if sockets is not None:
            sockets.closed(name)

    def wake(self) -> None:
        """Have `run` look at its event now."""
        self._awake.set()

    def run(self, stop: threading.Event) -> None:
        """Wait for the first share, then look after all; never raises."""
        try:
            shares = Path(self._settings.run_dir) / "shares"
            while self._settings.metrics is None and not self._awake.is_set() and not _has_entries(shares):
                self._awake.wait(FIRST_SHARE_PERIOD_S)
            if stop.is_set():
                self._close_sockets()
            else:
                self._watch(stop)
        except Exception:  # the device plugin goes on without
            log.exception("shares are not looked after any more")

    def _watch(self, stop: threading.Event) -> None:
        from topoalloc.agent.overuse_rounds import OveruseRounds
        from topoalloc.agent.peers import container_process, kill
        from topoalloc.agent.share_board import ShareBoard
        from topoalloc.agent.share_rounds import ShareRounds

        settings, board = self._settings, ShareBoard()
        sockets = self._served_sockets()
        rounds = ShareRounds(settings.run_dir, self._owners, sockets, board, gives_turns=settings.gives_turns)
        watchdog = OveruseRounds(
            settings.run_dir,
            board,
            self._memory(),
            sockets.containers,
            tolerance_bytes=settings.tolerance_bytes,
            kills=settings.kills,
            find=partial(container_process, root=settings.cgroup_root),
            end=partial(kill, root=settings.cgroup_root),
        )
        work: dict[str, Callable[[], None]] = {
            "share sockets": sockets.run,
            "shares": lambda: rounds.run(stop),
            "overuse": lambda: watchdog.run(stop),
        }
        if settings.metrics is not None:
            work["metrics"] = lambda: self._serve_metrics(board, stop)
        self._run_all(work, sockets, stop)

    def _run_all(self, work: Mapping[str, Callable[[], None]], sockets: ShareSockets, stop: threading.Event) -> None:
        threads = [
            threading.Thread(target=self._kept, args=(name, run, stop), name=name, daemon=True)
            for name, run in work.items()
        ]
        for thread in threads:
            thread.start()
        stop.wait()
        sockets.stop()
        for thread in threads:
            thread.join(THREAD_JOIN_MAX_S)
        if not any(thread.is_alive() for thread in threads):
            self._close_sockets()

    def _served_sockets(self) -> ShareSockets:
        from topoalloc.agent.share_sockets import ShareSockets

        with self._lock:
            if self._sockets is None:
                self._sockets = ShareSockets(
                    self._settings.run_dir, self._memory(), cgroup_root=self._settings.cgroup_root
                )
            return self._sockets

    def _close_sockets(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, None
        if sockets is not None:
            sockets.close()

    def _memory(self) -> Memory:
        if self._memory_bytes is None:
            self._memory_bytes = _driver_memory(live=self._settings.live)
        return self._memory_bytes

    def _serve_metrics(self, board: ShareBoard, stop: threading.Event) -> None:
        from topoalloc.agent.metrics_server import MetricsServer
        from topoalloc.agent.metrics_text import CONTENT_TYPE, metrics_text

        assert self._settings.metrics is not None
        host, port = self._settings.metrics
        server = MetricsServer(host, port, lambda: metrics_text(board), CONTENT_TYPE)
        log.info("metrics at %s port %d", host, server.port)
        server.run(stop)

    def _kept(self, name: str, run: Callable[[], None], stop: threading.Event) -> None:
        """Run it, and again after a fault, a few times; what ran well for a while has not failed before."""
        attempt = 0
        while attempt <= RESTARTS_MAX:
            began_at_s = time.monotonic()
            try:
                run()
                return
            except OSError as error:  # an address that is taken, no more descriptors: one line says it
                log.warning("%s: %s", name, error)
            except Exception:  # whatever it is, the rest of the agent goes on
                log.exception("%s ended by a fault", name)
            attempt = 0 if time.monotonic() - began_at_s > RAN_WELL_S else attempt
            if stop.wait(self._restart_pause_s * 2**attempt):
                return
            attempt += 1
        log.error("%s failed %d times and is not tried again", name, RESTARTS_MAX + 1)


def _driver_memory(*, live: bool) -> Memory:
    """What the driver says of processes; a recorded machine has none to ask."""
    if not live:
        return lambda gpu: None
    from topoalloc.topology.readers.nvml_processes import GpuProcesses

    return GpuProcesses().memory_bytes


def _has_entries(folder: Path) -> bool:
    try:
        return next(folder.iterdir(), None) is not None
    except OSError:
        return False
