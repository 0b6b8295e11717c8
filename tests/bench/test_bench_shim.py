"""What the sharing library costs a process on the fake driver: its whole life, beside others and after a bad death."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.shim.built import Built, build
from tests.shim.container import USAGE_HEADER, USAGE_SLOT, Container, Share, empty_usage

F_OFD_SETLK = 37  # linux/fcntl.h
LOCKS_AT = 0x40000000  # usage_layout.h
NEIGHBOURS = 300
STATE_OFFSET = 68
LOCK_OFFSET = 24
SHARE = Share(cores=3000)
ROUNDS = 10


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def container(built: Built, tmp_path: Path) -> Iterator[Container]:
    made = Container(built, tmp_path / "share", tmp_path / "gpu")
    made.grant(SHARE)
    yield made
    made.close()


@contextmanager
def living_neighbours(container: Container, count: int) -> Iterator[None]:
    """Slots in use as other processes of the container would hold them."""
    path = container.directory / "usage"
    with ExitStack() as stack:
        for slot in range(count):
            descriptor = os.open(path, os.O_RDWR)
            stack.callback(os.close, descriptor)
            os.pwrite(descriptor, struct.pack("<I", 1), USAGE_HEADER.size + slot * USAGE_SLOT.size + STATE_OFFSET)
            lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, LOCKS_AT + slot, 1, 0)
            fcntl.fcntl(descriptor, F_OFD_SETLK, lock)
        yield


def one_process(container: Container) -> None:
    container.run("memory", "linked", "plain", "1G")


def test_a_process_without_the_library(benchmark: BenchmarkFixture, container: Container):
    container.environment["LD_PRELOAD"] = ""
    benchmark.pedantic(one_process, (container,), rounds=ROUNDS, warmup_rounds=1)


def test_a_process_alone(benchmark: BenchmarkFixture, container: Container):
    benchmark.pedantic(one_process, (container,), rounds=ROUNDS, warmup_rounds=1)


def test_a_process_beside_three_hundred(benchmark: BenchmarkFixture, container: Container):
    with living_neighbours(container, NEIGHBOURS):
        benchmark.pedantic(one_process, (container,), rounds=ROUNDS, warmup_rounds=1)


def test_a_process_after_one_that_died_with_the_lock(benchmark: BenchmarkFixture, container: Container):
    def die() -> None:
        usage = bytearray(empty_usage())
        struct.pack_into("<I", usage, LOCK_OFFSET, NEIGHBOURS)
        (container.directory / "usage").write_bytes(usage)

    benchmark.pedantic(one_process, (container,), setup=die, rounds=ROUNDS)
