"""The threads that look after shares while they run. They begin with the first share, so that a node without any pays
nothing, and what goes wrong in them is said and costs the kubelet's side nothing: they serve people and tenants."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topoalloc.agent.share_board import ShareBoard
    from topoalloc.agent.share_sockets import ShareSockets
    from topoalloc.sharing.share_owners import ShareOwner

log = logging.getLogger(__name__)

FIRST_SHARE_PERIOD_S = 1.0
RESTARTS_MAX = 5
RESTART_PAUSE_S = 5.0  # doubles each time
THREAD_JOIN_MAX_S = 2.0

Memory = Callable[[str], Mapping[int, int | None] | None]


@dataclass(frozen=True, slots=True)
class ShareWatchSettings:
    """`metrics` None: no endpoint. `kills`: whether processes of a container that holds too much memory are ended.
    `live`: there may be a driver to ask."""

    run_dir: str
    metrics: tuple[str, int] | None
    kills: bool
    tolerance_bytes: int
    live: bool


class ShareWatch:
    """`run` blocks until its event is set, and ends what it began."""

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

    def run(self, stop: threading.Event) -> None:
        """Wait for the first share, then look after all; never raises."""
        try:
            shares = Path(self._settings.run_dir) / "shares"
            while self._settings.metrics is None and not _has_entries(shares):
                if stop.wait(FIRST_SHARE_PERIOD_S):
                    return
            self._watch(stop)
        except Exception:  # the device plugin goes on without
            log.exception("shares are not looked after any more")

    def _watch(self, stop: threading.Event) -> None:
        from topoalloc.agent.overuse_rounds import OveruseRounds
        from topoalloc.agent.share_board import ShareBoard
        from topoalloc.agent.share_rounds import ShareRounds
        from topoalloc.agent.share_sockets import ShareSockets

        settings, board = self._settings, ShareBoard()
        memory_bytes = self._memory_bytes or _driver_memory(live=settings.live)
        sockets = ShareSockets(settings.run_dir, memory_bytes)
        rounds = ShareRounds(settings.run_dir, self._owners, sockets, board)
        watchdog = OveruseRounds(
            settings.run_dir,
            board,
            memory_bytes,
            sockets.containers,
            tolerance_bytes=settings.tolerance_bytes,
            kills=settings.kills,
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
            sockets.close()

    def _serve_metrics(self, board: ShareBoard, stop: threading.Event) -> None:
        from topoalloc.agent.metrics_server import MetricsServer
        from topoalloc.agent.metrics_text import CONTENT_TYPE, metrics_text

        assert self._settings.metrics is not None
        host, port = self._settings.metrics
        server = MetricsServer(host, port, lambda: metrics_text(board), CONTENT_TYPE)
        log.info("metrics at %s port %d", host, server.port)
        server.run(stop)

    def _kept(self, name: str, run: Callable[[], None], stop: threading.Event) -> None:
        """Run it, and again after a fault, a few times."""
        for attempt in range(RESTARTS_MAX + 1):
            try:
                run()
                return
            except OSError as error:  # an address that is taken, no more descriptors: one line says it
                log.warning("%s: %s", name, error)
            except Exception:  # whatever it is, the rest of the agent goes on
                log.exception("%s ended by a fault", name)
            if stop.wait(self._restart_pause_s * 2**attempt):
                return
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
