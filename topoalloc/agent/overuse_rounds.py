"""Compares once a second what the driver says of processes with what their containers were granted; says what it finds,
and ends the processes where it is told to. `overuse` decides, here is only asked and done."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from topoalloc.agent.peers import Process, container_process, kill
from topoalloc.agent.share_board import ShareBoard
from topoalloc.agent.share_files import OVERUSE, read_share, write_list
from topoalloc.sharing.cgroup_path import PodCgroup
from topoalloc.sharing.overuse import (
    SAMPLE_PERIOD_S,
    Finding,
    GpuProcess,
    Overuse,
    OveruseState,
    WatchedShare,
    overuse,
)
from topoalloc.sharing.overuse_record import RECORDS_MAX, OveruseRecord, record_of, records_text
from topoalloc.sharing.share_file import ShareLimits, gpu_of
from topoalloc.sharing.share_sample import ShareSample
from topoalloc.sharing.usage import Usage

log = logging.getLogger(__name__)


class OveruseRounds:
    """Used by one thread; a driver can hang."""

    def __init__(
        self,
        run_dir: str,
        board: ShareBoard,
        memory_bytes: Callable[[str], Mapping[int, int | None] | None],
        containers: Callable[[], Mapping[str, str]],
        *,
        tolerance_bytes: int,
        kills: bool,
        find: Callable[[int], tuple[Process, PodCgroup] | None] = container_process,
        end: Callable[[Process, PodCgroup], bool] = kill,
    ) -> None:
        """`memory_bytes`: device memory by pid on a GPU; `containers`: the runtime's ids of shares' containers."""
        self._run_dir = run_dir
        self._board = board
        self._memory_bytes = memory_bytes
        self._containers = containers
        self._tolerance_bytes = tolerance_bytes
        self._kills = kills
        self._find = find
        self._end = end
        self._state: OveruseState = {}
        self._records: deque[OveruseRecord] = deque(maxlen=RECORDS_MAX)
        self._complained = False
        self._denied = False

    def run(self, stop: threading.Event) -> None:
        """Go on until `stop`."""
        while not stop.wait(SAMPLE_PERIOD_S):
            self.look()

    def look(self) -> None:
        """One sample."""
        named = {
            sample.name: gpu
            for sample in self._board.samples
            if isinstance(sample.limits, ShareLimits) and (gpu := gpu_of(sample.name, sample.limits.gpu)) is not None
        }
        # The driver first, then the locks, then whether the process is still there: one that comes or goes meanwhile
        # is not taken for one without limits.
        answers = {gpu: self._memory_bytes(gpu) for gpu in sorted(set(named.values()))}
        listed = {gpu: figures for gpu, figures in answers.items() if figures is not None}
        containers = self._containers()
        samples = (read_share(self._run_dir, name) for name in named)
        shares = [self._watched(sample, containers) for sample in samples if sample is not None]
        watched = [share for share in shares if share is not None]
        processes = self._processes(listed) if watched else []
        silent = answers.keys() - listed.keys()
        judgement = overuse(self._state, watched, processes, self._tolerance_bytes, silent)
        self._state = judgement.state
        self._board.findings, self._board.judged = judgement.findings, judgement.judged
        for finding in judgement.findings:
            self._tell(finding)
            if self._kills and finding.kind is Overuse.MEMORY:
                self._stop(finding)

    def _watched(self, sample: ShareSample, containers: Mapping[str, str]) -> WatchedShare | None:
        owner = self._board.owners.get(sample.name)
        if owner is None or not owner.uid or not isinstance(sample.limits, ShareLimits):
            return None
        gpu = gpu_of(sample.name, sample.limits.gpu)
        assert gpu is not None, "only shares whose GPU the driver was asked about are watched"
        live = len(sample.usage.processes) if isinstance(sample.usage, Usage) else None
        memory_bytes = sample.limits.memory_bytes
        return WatchedShare(sample.name, gpu, owner.uid, memory_bytes, live, containers.get(sample.name))

    def _processes(self, listed: Mapping[str, Mapping[int, int | None]]) -> list[GpuProcess]:
        found: list[GpuProcess] = []
        for gpu, figures in listed.items():
            for pid, memory_bytes in figures.items():
                known = self._find(pid)
                if known is not None:
                    process, group = known
                    found.append(GpuProcess(gpu, pid, process.started, memory_bytes, group.pod_uid, group.container))
        return found

    def _tell(self, finding: Finding) -> None:
        if finding.new:
            self._board.found[str(finding.kind)] += 1
            log.warning("overuse (%s): %s", finding.kind, finding)
            self._record(finding)

    def _record(self, finding: Finding) -> None:
        """For whoever makes events of it."""
        owners = [self._board.owners[name] for name in finding.shares if name in self._board.owners]
        if not owners:
            return
        self._records.append(record_of(finding, owners, int(time.time())))
        try:
            write_list(self._run_dir, OVERUSE, records_text(self._records))
            self._complained = False
        except OSError as error:
            if not self._complained:
                log.warning("findings cannot be written for topoalloc publish: %s", error.strerror)
            self._complained = True

    def _stop(self, finding: Finding) -> None:
        for one in finding.processes:
            try:
                ended = self._end(Process(one.pid, one.started), PodCgroup(one.pod_uid, one.container))
            except PermissionError:  # of another user than the agent's: the watchdog goes on and reports
                if not self._denied:
                    log.warning(
                        "overuse: process %d may not be ended; overuse: stop needs CAP_KILL (docs/SHARING.md)", one.pid
                    )
                self._denied = True
                continue
            if ended:
                self._board.killed += 1
                log.warning("overuse: process %d of container %s was ended", one.pid, one.container[:12])
