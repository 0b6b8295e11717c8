"""GPU time on the fake time line: what a limit of so many percent really gets."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.shim.container import Container, Share, finished
from topoalloc.sharing.usage import NEIGHBOURS, NEIGHBOURS_MAGIC, NEIGHBOURS_SEEN_AT

POINTS = 15  # permille either way: 1.5 points
KERNELS = [("20000", 0.5), ("1000000", 0.6), ("50000000", 2.5)]


def launched(container: Container, percent: int, kind: str, kernel: str, seconds: float, *more: str) -> dict[str, int]:
    container.grant(Share(cores=percent * 100))
    return container.run("launches", "linked", kind, kernel, str(seconds), *more)


def near(facts: dict[str, int], permille: int, *, points: int = POINTS) -> bool:
    """Never above the share; below it only by what a busy machine kept the program from launching."""
    fewest = permille * (1000 - facts["starved_permille"]) // 1000
    return fewest - points <= facts["permille"] <= permille + points


@pytest.mark.parametrize("percent", [10, 30, 50, 70])
def test_a_kernel_of_a_millisecond_gets_its_share(container: Container, percent: int) -> None:
    facts = launched(container, percent, "plain", "1000000", 0.8)
    assert near(facts, percent * 10), facts


@pytest.mark.parametrize(("kernel", "seconds"), [KERNELS[0], KERNELS[2]])
def test_short_and_long_kernels_get_it_too(container: Container, kernel: str, seconds: float) -> None:
    facts = launched(container, 30, "plain", kernel, seconds)
    one_kernel = int(kernel) / 1e6 / seconds
    assert near(facts, 300, points=POINTS + int(one_kernel)), facts


@pytest.mark.parametrize("kind", ["ex", "cooperative", "multi", "graph", "default"])
def test_every_kind_of_launch_is_limited_alike(container: Container, kind: str) -> None:
    facts = launched(container, 30, kind, "500000", 0.8)
    assert near(facts, 300), facts


def test_launches_in_a_threads_own_stream_are_limited(container: Container) -> None:
    container.grant(Share(cores=3000))
    facts = container.run("launches", "procaddress-threads", "default", "1000000", "0.8")
    assert near(facts, 300), facts


def test_streams_that_overlap_are_charged_the_time_they_share(container: Container) -> None:
    facts = launched(container, 30, "plain", "1000000", 0.8, "4")
    assert facts["permille"] <= 300 + POINTS


def test_two_processes_of_a_container_share_one_limit(container: Container) -> None:
    container.grant(Share(cores=3000))
    both = [container.start("launches", "linked", "plain", "1000000", "0.8") for _ in range(2)]
    ends = [finished(process) for process in both]
    together = {key: sum(facts[key] for facts in ends) for key in ends[0]}
    assert near(together, 300, points=2 * POINTS), ends


def test_no_limit_holds_nothing_back(container: Container) -> None:
    assert near(launched(container, 100, "plain", "1000000", 0.4), 1000, points=40)


def test_no_launch_waits_longer_than_its_time_and_its_share_ask_for(container: Container) -> None:
    facts = launched(container, 10, "plain", "1000000", 0.8)
    assert facts["longest_us"] <= 1000 * 10 + 10_000 + facts["starved_us"] + 2000, facts


@contextmanager
def told_of_neighbours(container: Container, cores: int) -> Iterator[None]:
    """The agent's word once a second: what the GPU's other shares took."""
    path, over = container.directory / "neighbours", threading.Event()
    path.write_bytes(NEIGHBOURS.pack(NEIGHBOURS_MAGIC, cores, time.monotonic_ns()))

    def tell() -> None:
        with path.open("r+b", buffering=0) as file:
            while not over.wait(1.0):
                os.pwrite(file.fileno(), struct.pack("=Q", time.monotonic_ns()), NEIGHBOURS_SEEN_AT)

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("kind", "lengths"), [("mixed", "20000,300000"), ("mixed", "100000,3000000"), ("waited", "20000,3000000")]
)
def test_a_kernel_whose_length_varies_is_charged_what_it_took(container: Container, kind: str, lengths: str) -> None:
    """Its shortest launches are what a prediction would go by; it got 47, 100 and 94 percent of the GPU so."""
    container.grant(Share(cores=3000))
    with told_of_neighbours(container, 0):
        facts = container.run("launches", "linked", kind, lengths, "5")

    # What it had in the first second or two, before that was known, is paid back in the time that counts here.
    assert facts["permille"] + facts["starved_permille"] >= 300 * 3 // 5, facts
    # One that is waited for goes before its length is known, with nothing behind it that could be held back.
    assert facts["permille"] <= 300 + (100 if kind == "waited" else POINTS), facts


def test_time_that_neighbours_had_is_nobodys_debt(container: Container) -> None:
    container.grant(Share(cores=3000))
    with told_of_neighbours(container, 10_000):
        facts = container.run("launches", "linked", "plain", "1000000", "0.8")

    assert near(facts, 300), facts


@pytest.mark.slow
@pytest.mark.parametrize("percent", [10, 30, 50, 70])
@pytest.mark.parametrize("kernel", ["20000", "1000000", "50000000"])
@pytest.mark.parametrize("kind", ["plain", "graph"])
def test_the_share_holds_over_ten_seconds(container: Container, percent: int, kernel: str, kind: str) -> None:
    facts = launched(container, percent, kind, kernel, 10)
    assert near(facts, percent * 10), facts
