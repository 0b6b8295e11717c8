"""The programs that use the GPU: how they are built, started under the library, read and ended. Nothing here waits
without a deadline."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

SOURCES = Path(__file__).with_name("programs")
BUILD_TIMEOUT_S = 120.0


class TooLateError(Exception):
    """A program did not say in time what it was asked for."""


class EndedError(Exception):
    """A program ended before it said what it was asked for."""


def build_probe(out: Path) -> Path:
    probe = out / "probe"
    sources = sorted(str(path) for path in SOURCES.glob("*.c"))
    _compile(["gcc", "-std=gnu11", "-O2", "-Wall", "-o", str(probe), *sources, "-ldl", "-lpthread"])
    return probe


def build_static_runtime(out: Path) -> Path | None:
    """None where there is no nvcc."""
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        return None
    program = out / "static-runtime"
    _compile([nvcc, "-O1", "-cudart", "static", "-o", str(program), str(SOURCES / "static_runtime.cu")])
    return program


def _compile(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


def environment(library: Path | None, folder: Path | None, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """`library` None: without the library."""
    env = {key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", "TOPOALLOC_SHARE_DIR")}
    if library is not None:
        env["LD_PRELOAD"] = str(library)
        env["TOPOALLOC_SHARE_DIR"] = str(folder)
    env["PYTHONUNBUFFERED"] = "1"
    env.update(more or {})
    return env


@dataclass
class Program:
    """A started program; its output arrives line by line, its complaints are kept."""

    command: Sequence[str]
    env: Mapping[str, str]
    process: subprocess.Popen[str] = field(init=False)
    complaints: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            self.command,
            env=dict(self.env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._read_complaints, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _read_complaints(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if len(self.complaints) < 200:
                self.complaints.append(line.rstrip("\n"))

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self, word: str, timeout_s: float) -> list[str]:
        """The words of the next line that begins with `word`."""
        until = time.monotonic() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise TooLateError(f"no `{word}` within {timeout_s:g} s; {self.tail()}") from None
            if line is None:
                raise EndedError(f"ended with {self._code()} before `{word}`; {self.tail()}")
            self.said.append(line)
            words = line.split()
            if words and words[0] == word:
                return words

    def rest(self, timeout_s: float) -> list[list[str]]:
        """Every further line, until the program ends its output."""
        until = time.monotonic() + timeout_s
        lines: list[list[str]] = []
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise TooLateError(f"not done within {timeout_s:g} s; {self.tail()}") from None
            if line is None:
                if self._code() != 0:
                    raise EndedError(f"ended with {self._code()}; {self.tail(lines)}")
                return lines
            lines.append(line.split() or [""])

    def tell(self, text: str = "go\n") -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(text)
            self.process.stdin.flush()
        except BrokenPipeError:
            return  # it has ended: the reader will say so

    def finish(self, timeout_s: float = 10.0) -> None:
        """Ends its input and waits; kills it when that does not help."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            print(f"pid {self.pid} does not die", file=sys.stderr, flush=True)

    def _code(self) -> int | None:
        try:
            return self.process.wait(5)
        except subprocess.TimeoutExpired:
            return None

    def tail(self, lines: Iterable[Sequence[str]] = ()) -> str:
        last = [*self.said[-2:], *(" ".join(line) for line in list(lines)[-2:])]
        return " | ".join([*last, *self.complaints[-4:]]) or "it said nothing"
