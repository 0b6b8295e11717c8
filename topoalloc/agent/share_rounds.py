"""Looks at the shares that there are, once a second: who has them, what they use, what each is told of its neighbours
and of its turn, which sockets to serve; and paces those that may use idle time, five times a second."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from topoalloc.agent.share_board import ShareBoard
from topoalloc.agent.share_files import (
    OWNERS,
    SHARES,
    read_shares,
    share_names,
    write_list,
    write_neighbours,
    write_pace,
    write_turn,
)
from topoalloc.agent.share_sockets import ShareSockets, SocketOwner
from topoalloc.sharing.neighbours import Looks, neighbours, with_look
from topoalloc.sharing.pace import PACE_PERIOD_S, PaceState, forgetting, pace, pace_share
from topoalloc.sharing.share_file import CORES_FULL, ShareLimits, gpu_of, shown_gpu
from topoalloc.sharing.share_owners import ShareOwner, owners_text
from topoalloc.sharing.share_sample import ShareSample, rates_of
from topoalloc.sharing.told_files import Turn
from topoalloc.sharing.turns import TurnShare, TurnsState, turn_share, turns_after

T = TypeVar("T")
log = logging.getLogger(__name__)

LOOK_PERIOD_S = 1.0


class ShareRounds:
    """Used by one thread."""

    def __init__(
        self,
        run_dir: str,
        owners: Callable[[], Mapping[str, ShareOwner]],
        sockets: ShareSockets,
        board: ShareBoard,
        *,
        gives_turns: bool = True,
    ) -> None:
        self._run_dir = run_dir
        self._owners = owners
        self._sockets = sockets
        self._board = board
        self._gives_turns = gives_turns
        self._before: dict[str, ShareSample] = {}
        self._paced_before: dict[str, ShareSample] = {}
        self._pace_states: dict[str, PaceState] = {}
        self._looks: dict[str, Looks] = {}
        self._turns: dict[str, TurnsState] = {}
        self._told = ""
        self._was_there = False
        self._complaints: dict[str, str] = {}

    def run(self, stop: threading.Event) -> None:
        """Go on until `stop`."""
        next_look_s = 0.0
        while True:
            now_s = time.monotonic()
            if now_s >= next_look_s:
                next_look_s = now_s + LOOK_PERIOD_S
                self.look()
            is_pacing = self.pace()
            pause_s = max(0.0, next_look_s - time.monotonic())
            if stop.wait(min(pause_s, PACE_PERIOD_S) if is_pacing else pause_s):
                return

    def look(self) -> None:
        """Read every share, hand on what was found."""
        try:
            samples = read_shares(self._run_dir, share_names(self._run_dir))
        except OSError as error:
            # Where nothing is enforced nobody makes it; metrics are answered all the same.
            if self._was_there or not isinstance(error, FileNotFoundError):
                self._complain("read", f"{self._run_dir} cannot be read: {error.strerror}")
            return
        self._was_there = True
        self._complaints.pop("read", None)
        owners = self._owners()
        board = self._board
        board.rates = rates_of(self._before, samples)
        board.samples, board.owners = samples, owners
        board.socket_counts = self._sockets.counts.copy()
        self._tell_neighbours(samples)
        self._tell_turns(samples)
        self._before = {sample.name: sample for sample in samples}
        # Other libraries than our own have directories of other files, and talk to somebody else.
        ours = [sample for sample in samples if isinstance(sample.limits, ShareLimits)]
        self._sockets.reconcile({sample.name: _socket_owner(sample, owners) for sample in ours})
        self._tell_owners(owners)

    def _tell_neighbours(self, samples: tuple[ShareSample, ...]) -> None:
        by_gpu: dict[str, dict[str, int]] = {}
        for sample in samples:
            limits = sample.limits if isinstance(sample.limits, ShareLimits) else None
            rate = self._board.rates.get(sample.name)
            granted = CORES_FULL if limits is None else limits.cores
            taken = granted if rate is None else rate.cores
            by_gpu.setdefault(shown_gpu(sample.name, limits), {})[sample.name] = taken
        self._looks = {gpu: with_look(self._looks.get(gpu, Looks()), taken) for gpu, taken in by_gpu.items()}
        told = {name: cores for looks in self._looks.values() for name, cores in neighbours(looks).items()}
        seen_at_ns = min((sample.at_ns for sample in samples), default=0)
        self._write("neighbours", told, partial(write_neighbours, self._run_dir, seen_at_ns=seen_at_ns))

    def _tell_turns(self, samples: tuple[ShareSample, ...]) -> None:
        by_gpu: dict[str, list[TurnShare]] = {}
        for sample in samples if self._gives_turns else ():
            if isinstance(sample.limits, ShareLimits):
                cores = self._board.paced.get(sample.name, sample.limits.cores)
                share = turn_share(sample, cores, self._board.rates.get(sample.name))
                by_gpu.setdefault(shown_gpu(sample.name, sample.limits), []).append(share)
        before = frozenset(name for state in self._turns.values() for name in state.held)
        given: dict[str, Turn] = {}
        states, self._turns = self._turns, {}
        for gpu, shares in by_gpu.items():
            self._turns[gpu], of_gpu = turns_after(states.get(gpu, TurnsState()), shares)
            given |= of_gpu
        told = {name: given.get(name) for name in sorted(before | given.keys())}
        done = self._write("turn", told, partial(write_turn, self._run_dir))
        self._board.turns = {name: turn for name, turn in done.items() if turn is not None}

    def pace(self) -> bool:
        """Set what elastic shares may take now; whether there are any."""
        by_gpu: dict[str, list[str]] = {}
        elastic: set[str] = set()
        for sample in self._board.samples:
            gpu = shown_gpu(sample.name, sample.limits if isinstance(sample.limits, ShareLimits) else None)
            by_gpu.setdefault(gpu, []).append(sample.name)
            if isinstance(sample.limits, ShareLimits) and sample.limits.elastic:
                elastic.add(gpu)
        before, paced = self._paced_before, dict[str, int]()
        self._paced_before = {}
        self._pace_states = {gpu: self._pace_states.get(gpu, PaceState()) for gpu in elastic}
        for gpu in sorted(elastic):
            samples = read_shares(self._run_dir, by_gpu[gpu])
            shares = [share for one in samples if (share := pace_share(before.get(one.name), one)) is not None]
            anew = {one.name for one in samples if one.name in before and before[one.name].inode != one.inode}
            self._pace_states[gpu], allowed = pace(forgetting(self._pace_states[gpu], anew), shares)
            paced |= self._write("pace", allowed, partial(write_pace, self._run_dir))
            self._paced_before |= {sample.name: sample for sample in samples}
        self._board.paced = paced
        return bool(elastic)

    def _write(self, file: str, told: Mapping[str, T], write: Callable[[str, T], bool]) -> dict[str, T]:
        """What could be told to the shares that have the file, by their names."""
        done: dict[str, T] = {}
        problem = ""
        for name, word in told.items():
            try:
                if write(name, word):
                    done[name] = word
            except OSError as error:
                path = f"{self._run_dir}/{SHARES}/{name}/{file}"
                problem = f"{path} cannot be written: {error.strerror}; it has to be a file of the agent's, mode 0644"
        if not problem:
            self._complaints.pop(file, None)
        elif file not in self._complaints:
            self._complain(file, problem)
        return done

    def _tell_owners(self, owners: Mapping[str, ShareOwner]) -> None:
        text = owners_text(owners)
        if text == self._told:
            return
        try:
            write_list(self._run_dir, OWNERS, text)
        except OSError as error:
            self._complain("owners", f"the owners of shares cannot be written: {error.strerror}")
            return
        self._told = text
        self._complaints.pop("owners", None)

    def _complain(self, about: str, words: str) -> None:
        """Once, until it works again or fails in another way."""
        if self._complaints.get(about) != words:
            self._complaints[about] = words
            log.warning("%s", words)


def _socket_owner(sample: ShareSample, owners: Mapping[str, ShareOwner]) -> SocketOwner:
    gpu = gpu_of(sample.name, sample.limits.gpu) if isinstance(sample.limits, ShareLimits) else None
    owner = owners.get(sample.name)
    return SocketOwner(sample.inode, gpu, "" if owner is None else owner.uid)
