"""Mount, process and network namespaces that end, with all that runs in them, when this process does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.e2e.cluster import keeper

T = TypeVar("T")
POLL_S = 0.05
STOP_S = 20.0
CABLE_NETWORK = "10.201"  # not link-local: a kubelet does not report such an address as its node's


def wait_for(look: Callable[[], T | None], timeout_s: float, what: str, pause_s: float = POLL_S) -> T:
    """The first true answer of `look`; raises TimeoutError naming what was waited for."""
    end_s = time.monotonic() + timeout_s
    while True:
        answer = look()
        if answer:
            return answer
        if time.monotonic() > end_s:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(pause_s)


@dataclass
class Process:
    """A program inside. `pid` is its number outside; the child here is the nsenter that waits for it."""

    name: str
    log: Path
    pid: int
    entered: subprocess.Popen[bytes]
    started_s: float

    def alive(self) -> bool:
        return self.entered.poll() is None

    def end(self, kind: signal.Signals = signal.SIGTERM, timeout_s: float = STOP_S) -> int:
        """Its exit status; killed where the signal does not end it in time."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, kind)
        try:
            return self.entered.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.kill(self.pid, signal.SIGKILL)
            return self.entered.wait(timeout_s)

    def tail(self, characters: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-characters:]


@dataclass
class Room:
    """A mount namespace of one node; processes and network are shared by the house."""

    holder: int
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)  # of the whole house, waited for at its end

    def command(self, arguments: Sequence[str]) -> list[str]:
        return ["nsenter", "--target", str(self.holder), "--mount", "--net", "--pid", "--", *arguments]

    def run(self, *arguments: str, env: Mapping[str, str] | None = None, check: bool = True) -> str:
        """Run to its end; the output. Raises RuntimeError with what it said."""
        done = subprocess.run(
            self.command(arguments),
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=env and {**os.environ, **env},
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def start(self, name: str, arguments: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> Process:
        with log.open("ab") as output:
            entered = subprocess.Popen(
                self.command(arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )
        self.children.append(entered)
        return Process(name, log, keeper.child_of(entered.pid), entered, time.time())

    def mount(self, source: Path | str, target: Path | str) -> None:
        self.run("mount", "--bind", str(source), str(target))

    def mount_empty(self, target: str) -> None:
        self.run("mount", "-t", "tmpfs", "tmpfs", target)


@dataclass
class House:
    """Everything of one cluster: namespaces, a folder, control groups called `name*`, a cable to this machine."""

    base: Path
    name: str
    _keeper: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list, init=False)
    first: int = field(default=0, init=False)

    def __enter__(self) -> House:
        self.base.mkdir(mode=0o700)  # keys and tokens of an administrator are below
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", keeper.__file__, str(self.base), self.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._keeper.stdout is not None
        first = self._keeper.stdout.readline()
        if not first:
            raise RuntimeError("no namespaces (see above); the tests of a real cluster need root and iproute2")
        self.first = int(first)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._keeper is not None and self._keeper.stdin is not None and self._keeper.stdout is not None
        self._keeper.stdin.close()
        self._keeper.stdout.close()
        self._keeper.wait()
        for child in self._children:
            child.wait()

    def hall(self) -> Room:
        """The mount namespace that every room begins as a copy of."""
        return Room(self.first, self._children)

    def room(self) -> Room:
        """A new mount namespace, a copy of the house's."""
        hold = ["unshare", "--mount", "--propagation", "private", "sleep", "infinity"]
        entered = subprocess.Popen(self.hall().command(hold), stdin=subprocess.DEVNULL, start_new_session=True)
        self._children.append(entered)
        holder = keeper.child_of(entered.pid)
        wait_for(lambda: Path(f"/proc/{holder}/comm").read_text().strip() == "sleep", 10, "a mount namespace")
        return Room(holder, self._children)

    def cable(self) -> tuple[str, str]:
        """Join the house's network to this machine's; the addresses of (this machine, the house)."""
        third, fourth = divmod(os.getpid() % (254 * 64), 64)
        near, far = (f"{CABLE_NETWORK}.{third + 1}.{4 * fourth + host}" for host in (1, 2))
        outside = self.name[:15]
        inside = self.hall()
        for command in (
            ["ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", str(self.first)],
            ["ip", "addr", "add", f"{near}/30", "dev", outside],
            ["ip", "link", "set", outside, "up"],
        ):
            subprocess.run(command, check=True)
        inside.run("ip", "addr", "add", f"{far}/30", "dev", "eth0")
        inside.run("ip", "link", "set", "eth0", "up")
        inside.run("ip", "route", "add", "default", "via", near)
        return near, far
