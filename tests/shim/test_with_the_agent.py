"""The library and the agent's side together, on the fake driver: what one writes the other reads."""

from __future__ import annotations

import os
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agent.made_shares import NAME, OTHER, RunDir
from tests.sharing.made_usage import share_bytes
from tests.shim.built import Built
from tests.shim.container import CONTEXT_BYTES, GIB, MIB, Container, Truth, finished
from topoalloc.agent.share_board import ShareBoard
from topoalloc.agent.share_files import read_share
from topoalloc.agent.share_rounds import ShareRounds
from topoalloc.agent.share_sockets import ShareSockets
from topoalloc.sharing.share_sample import ShareSample, rate_of
from topoalloc.sharing.told_files import TURN
from topoalloc.sharing.usage import Usage

LIMIT_S = 30.0
KERNEL_NS = "1000000"


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.01)


class Node:
    """A run_dir whose shares are containers on one fake GPU."""

    def __init__(self, built: Built, path: Path) -> None:
        self.built = built
        self.path = path
        self.run_dir = RunDir(path / "run")

    def container(self, name: str = NAME, *, cores: int = 3000, cores_max: int = 3000) -> Container:
        leaf = self.run_dir.make(name, share_bytes(gpu="-", cores=cores, cores_max=cores_max))
        for told in ("neighbours", "turn"):
            (leaf / told).touch()
        if cores_max > cores:
            (leaf / "pace").write_bytes(struct.pack("=8sQQ", b"\x01TAPACE1", cores, 0))
        return Container(self.built, leaf, self.path / "gpu")

    def turn(self, name: str = NAME) -> int:
        content = (self.run_dir.leaf(name) / "turn").read_bytes()
        return int(TURN.unpack(content)[1]) if content else 0

    def sample(self, name: str = NAME) -> ShareSample:
        sample = read_share(str(self.run_dir.path), name)
        assert sample is not None
        return sample

    def usage(self, name: str = NAME) -> Usage:
        usage = self.sample(name).usage
        assert isinstance(usage, Usage)
        return usage

    @contextmanager
    def agent(self, memory_bytes: Callable[[str], Mapping[int, int | None] | None]) -> Iterator[ShareBoard]:
        board, stop = ShareBoard(), threading.Event()
        sockets = ShareSockets(str(self.run_dir.path), memory_bytes)
        rounds = ShareRounds(str(self.run_dir.path), dict, sockets, board)
        threads = [threading.Thread(target=sockets.run), threading.Thread(target=rounds.run, args=(stop,))]
        for thread in threads:
            thread.start()
        try:
            yield board
        finally:
            stop.set()
            sockets.stop()
            for thread in threads:
                thread.join()
            sockets.close()


@pytest.fixture
def node(built: Built, tmp_path: Path) -> Node:
    return Node(built, tmp_path)


def test_a_process_under_the_library_is_seen_with_its_time_and_memory(node: Node):
    program = node.container().start("launches", "linked", "plain", KERNEL_NS, "2.5")
    wait_for(lambda: node.usage().gpu_time_ns > 100_000_000)
    before = node.sample()
    threading.Event().wait(1.0)
    now = node.sample()

    assert isinstance(now.usage, Usage)
    assert [process.pid for process in now.usage.processes] == [program.pid]
    assert now.usage.implicit_bytes >= CONTEXT_BYTES
    rate = rate_of(before, now)
    assert rate is not None
    assert rate.cores == pytest.approx(3000, abs=600)
    assert rate.waiting > 0.3
    finished(program)
    after = node.usage()
    assert (after.processes, after.used_bytes) == ((), 0)
    assert after.gpu_time_ns >= now.usage.gpu_time_ns


class Figures(dict[int, int | None]):
    """What the fake device holds of any process that is asked about."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth

    def get(self, key: int, default: object = None) -> int | None:  # type: ignore[override]
        return self._truth.of(key)[0] or None


def test_contexts_are_charged_as_the_agent_measures_them(node: Node):
    container = node.container()
    figures = Figures(Truth(container))
    # A share whose GPU has no UUID is asked for by the address in its name.
    with node.agent(lambda gpu: figures if gpu == "0000:3b:00.0" else None):
        wait_for((container.directory / "agent.sock").exists)
        program = container.start("launches", "linked", "plain", KERNEL_NS, "8")
        wait_for(lambda: any(process.measured for process in node.usage().processes))

        # For a while after a context was made what it may still take is charged; then what it has taken.
        wait_for(lambda: abs(node.usage().implicit_bytes - CONTEXT_BYTES) < 80 * MIB)
        finished(program)
    figures._truth.close()


def test_an_elastic_share_gets_the_idle_gpu_and_gives_it_back_within_a_second(node: Node):
    elastic = node.container(cores=3000, cores_max=10000)
    owner = node.container(OTHER, cores=7000, cores_max=7000)
    with node.agent(lambda gpu: None) as board:
        alone = finished(elastic.start("launches", "linked", "plain", KERNEL_NS, "3"))
        assert alone["permille"] > 600 * (1000 - alone["starved_permille"]) // 1000, alone

        borrower = elastic.start("launches", "linked", "plain", KERNEL_NS, "6")
        wait_for(lambda: board.paced.get(NAME, 0) > 6000)
        busy = owner.start("launches", "linked", "plain", KERNEL_NS, "3")
        wait_for(lambda: node.usage(OTHER).gpu_time_ns > 0)
        began_s = time.monotonic()
        wait_for(lambda: board.paced[NAME] == 3000)
        took_s = time.monotonic() - began_s
        facts = finished(busy)
        # Of 700: the borrower had the GPU for the first moment, and a busy machine may keep the owner from launching.
        assert facts["permille"] > 550 * (1000 - facts["starved_permille"]) // 1000, facts
        finished(borrower)

    assert took_s < 1.0


def test_shares_that_fill_a_gpu_take_turns_and_have_what_they_had_without(node: Node):
    granted = {NAME: 3000, OTHER: 6000}
    containers = {name: node.container(name, cores=cores, cores_max=cores) for name, cores in granted.items()}
    with node.agent(lambda gpu: None):
        programs = {
            name: container.start("launches", "linked", "plain", KERNEL_NS, "5")
            for name, container in containers.items()
        }
        wait_for(lambda: node.turn(NAME) != 0 and node.turn(OTHER) != 0)
        for name, program in programs.items():
            facts = finished(program)
            due = granted[name] // 10
            assert due * (1000 - facts["starved_permille"]) // 1000 - 60 <= facts["permille"] <= due + 30, facts
        wait_for(lambda: node.turn(NAME) == node.turn(OTHER) == 0)


def test_verify_passes_under_the_library(node: Node, built: Built, tmp_path: Path):
    """All but what only a container's mounts can give."""
    program, root = tmp_path / "topoalloc-verify", tmp_path / "root"
    source = "topoalloc/sharing/shim/verify/verify.c"
    subprocess.run(["gcc", "-std=c11", "-O2", "-o", program, source, "-ldl"], check=True)
    container = node.container()
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "topoalloc").symlink_to(container.directory)
    (root / "etc" / "ld.so.preload").write_text("/usr/local/lib/topoalloc/libtopoalloc-vcuda.so\n")
    done = subprocess.run(
        [program, "--root", root], env=os.environ | container.variables(), capture_output=True, text=True, check=False
    )

    passed = {line.split(" ")[1].rstrip(":") for line in done.stdout.splitlines() if line.startswith("PASS")}
    assert passed == {"share", "preload", "library", "driver", "cuDeviceTotalMem", "cuMemGetInfo", "usage"}, done.stdout
    assert f"of {8 * GIB} bytes, granted {8 * GIB}" in done.stdout
