"""A container as the shim sees it: a share directory, a usage file, and programs that run under the preloaded shim."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.shim.built import Built

MIB = 1 << 20
GIB = 1 << 30
CONTEXT_BYTES = 500 * MIB  # what the fake driver takes for one
UNIT_BYTES = 256 * MIB
MARGIN_BYTES = 32 * MIB  # the shim keeps half of this for what the driver takes unasked
USAGE_FILE_BYTES = 131072
USAGE_HEADER = struct.Struct("<QIIQII" + "Q" * 12)
USAGE_SLOT = struct.Struct("<" + "Q" * 8 + "IIII" + "Q" * 6)
USAGE_MAGIC = 0x3145474153554154
USAGE_SLOTS_MAX = 1000
PROGRAM_TIMEOUT_S = 60

Facts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Share:
    cores: int = 10000
    memory: int | None = 4 * GIB
    context: int = CONTEXT_BYTES
    without_usage: str = "refuse"
    generation: int = 1

    def text(self) -> str:
        memory = "none" if self.memory is None else str(self.memory)
        return (
            f"topoalloc-share 1\ngeneration {self.generation}\ngpu -\ncores {self.cores}\ncores-max {self.cores}\n"
            f"memory {memory}\ncontext {self.context}\nwithout-usage {self.without_usage}\nend\n"
        )


def empty_usage() -> bytes:
    header = USAGE_HEADER.pack(USAGE_MAGIC, 1, USAGE_SLOTS_MAX, *([0] * 15))
    return header.ljust(USAGE_FILE_BYTES, b"\0")


def facts_of(output: str) -> dict[str, int]:
    pairs = (line.partition("=") for line in output.splitlines() if "=" in line)
    return {key: int(value) for key, _, value in pairs if value.lstrip("-").isdigit()}


@dataclass(slots=True)
class Container:
    """One share directory; programs started in it share its limits and (through `gpu`) one device."""

    built: Built
    directory: Path
    gpu: Path
    environment: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    wrapper: tuple[str, ...] = ()  # a command that starts the programs

    def grant(self, share: Share) -> None:
        self.directory.mkdir(exist_ok=True)
        fresh = self.directory / "share.new"
        fresh.write_text(share.text())
        fresh.rename(self.directory / "share")
        if not (self.directory / "usage").exists():
            (self.directory / "usage").write_bytes(empty_usage())

    def variables(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(self.built.driver),
            "LD_PRELOAD": str(self.built.shim),
            "TOPOALLOC_SHARE_DIR": str(self.directory),
            "FAKE_GPU_STATE": str(self.gpu),
        } | self.environment

    def start(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*self.wrapper, str(self.built.programs / program), *arguments],
            env=self.variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, program: str, *arguments: str) -> dict[str, int]:
        """The facts a program printed; an unexpected end of it is an error here."""
        return finished(self.start(program, *arguments))

    def close(self) -> None:
        """Ends what a failed test left running."""
        for process in self.started:
            process.kill()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream:
                    with suppress(BrokenPipeError):
                        stream.close()
            process.wait(PROGRAM_TIMEOUT_S)

    def usage(self) -> tuple[int, ...]:
        return USAGE_HEADER.unpack((self.directory / "usage").read_bytes()[: USAGE_HEADER.size])

    def total_bytes(self) -> int:
        return self.usage()[3]


def finished(process: subprocess.Popen[str]) -> dict[str, int]:
    output, errors = process.communicate(timeout=PROGRAM_TIMEOUT_S)
    assert process.returncode == 0, f"{process.args!r} ended with {process.returncode}\n{output}{errors}"
    return facts_of(output)


def line_of(stream: IO[str] | None) -> dict[str, int]:
    assert stream is not None
    return facts_of(stream.readline())


class Truth:
    """What the device really holds, asked past the shim."""

    def __init__(self, container: Container) -> None:
        environment = container.variables()
        del environment["LD_PRELOAD"]
        self._process = subprocess.Popen(
            [*container.wrapper, str(container.built.programs / "truth")],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def of(self, pid: int = 0) -> tuple[int, int, int]:
        """Bytes taken, bytes managed, busy nanoseconds, of one process or all."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{pid}\n")
        self._process.stdin.flush()
        taken, managed, busy = self._process.stdout.readline().split()
        return int(taken), int(managed), int(busy)

    def close(self) -> None:
        self._process.communicate(timeout=PROGRAM_TIMEOUT_S)


def _answer(client: socket.socket, truth: Truth, lock: threading.Lock) -> None:
    pid, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    with client, suppress(OSError, ValueError):  # the test is over
        while client.recv(128) == b"measure\n":
            with lock:
                taken = truth.of(pid)[0]
            client.sendall(b"bytes %d\n" % taken if taken else b"unknown\n")


@contextmanager
def agent_of(container: Container) -> Iterator[None]:
    """Serves agent.sock of the container from the device's own figures, as the node's agent does from NVML's."""
    truth, lock = Truth(container), threading.Lock()
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(container.directory / "agent.sock"))
    server.listen(64)

    def serve() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=_answer, args=(client, truth, lock), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(PROGRAM_TIMEOUT_S)
        truth.close()
