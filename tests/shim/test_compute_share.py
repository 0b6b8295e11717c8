"""GPU time on the fake time line: what a limit of so many percent really gets."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.shim.built import Built
from tests.shim.container import Container, Share, finished
from topoalloc.sharing.told_files import (
    NEIGHBOURS,
    NEIGHBOURS_MAGIC,
    NEIGHBOURS_SEEN_AT,
    TURN,
    TURN_MAGIC,
    TURN_WRITTEN_AT,
    Turn,
)

WORD_AT = 8  # where both files have what is said
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
def told_each_second(path: Path, content: bytes, told_at: int) -> Iterator[Callable[[int], object]]:
    """A file of the agent's, whose time is that of its latest word; yields what says another one."""
    over = threading.Event()
    path.write_bytes(content)

    def tell() -> None:
        with path.open("r+b", buffering=0) as file:
            while not over.wait(1.0):
                os.pwrite(file.fileno(), struct.pack("=Q", time.monotonic_ns()), told_at)

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        with path.open("r+b", buffering=0) as file:
            yield lambda word: os.pwrite(file.fileno(), struct.pack("=Q", word), WORD_AT)
    finally:
        over.set()
        thread.join()


def told_of_neighbours(container: Container, cores: int) -> AbstractContextManager[Callable[[int], object]]:
    """What the GPU's other shares took."""
    content = NEIGHBOURS.pack(NEIGHBOURS_MAGIC, cores, time.monotonic_ns())
    return told_each_second(container.directory / "neighbours", content, NEIGHBOURS_SEEN_AT)


def told_its_turn(container: Container, turn: Turn) -> AbstractContextManager[Callable[[int], object]]:
    content = TURN.pack(TURN_MAGIC, turn.word, time.monotonic_ns())
    return told_each_second(container.directory / "turn", content, TURN_WRITTEN_AT)


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


def test_a_kernel_that_is_short_where_it_is_queued_and_long_where_it_is_waited_for_is_charged_both(
    container: Container,
) -> None:
    """Where only launches that were queued are learned from, it gets all of the GPU."""
    container.grant(Share(cores=3000))
    with told_of_neighbours(container, 0):
        facts = container.run("launches", "linked", "alternating", "20000,3000000", "4")

    assert facts["permille"] <= 400, facts


def test_a_program_is_not_held_back_for_what_its_kernel_took_in_another_phase(container: Container) -> None:
    """The mean was found while nobody else had the GPU, and is never looked at again while somebody has."""
    container.grant(Share(cores=3000))
    with told_of_neighbours(container, 0) as tell:
        program = container.start("launches", "linked", "phased", "1500000,20000", "5")
        time.sleep(1.9)  # of two seconds in which the limiter learns
        tell(10_000)
        facts = finished(program)

    assert near(facts, 300, points=60), facts


def test_time_that_neighbours_had_is_nobodys_debt(container: Container) -> None:
    container.grant(Share(cores=3000))
    with told_of_neighbours(container, 10_000):
        facts = container.run("launches", "linked", "plain", "1000000", "0.8")

    assert near(facts, 300), facts


@pytest.mark.parametrize("kernel", ["20000", "1000000", "20000000"])
@pytest.mark.parametrize("turn", [Turn(0, 30_000), Turn(61_000, 39_000)])
def test_a_share_that_takes_turns_gets_as_much(container: Container, kernel: str, turn: Turn) -> None:
    container.grant(Share(cores=3000))
    with told_its_turn(container, turn):
        facts = container.run("launches", "linked", "plain", kernel, "2")

    assert near(facts, 300), facts


@pytest.mark.parametrize(
    ("kind", "lengths", "turn"),
    [("once-longer", "6400000,2000000", Turn(0, 30_000)), ("long-longer", "3200000,1000000", Turn(0, 11_000))],
)
def test_a_share_that_takes_turns_is_not_held_back_for_what_its_kernel_took_before(
    container: Container, kind: str, lengths: str, turn: Turn
) -> None:
    """Where each launch waits for credit, nothing else tells that the first timing had a neighbour's slice in it, or
    that another phase has begun: such programs got a third and half of their share."""
    container.grant(Share(cores=turn.length_us // 10))
    with told_its_turn(container, turn):
        facts = container.run("launches", "linked", kind, lengths, "4")

    assert near(facts, turn.length_us // 100), facts


TAKING_TURNS = {"alice": (30, Turn(0, 36_750)), "bob": (40, Turn(37_500, 49_250)), "carol": (10, Turn(87_500, 11_750))}


@pytest.mark.parametrize("kernel", ["20000", "400000", "1000000", "3000000"])
def test_containers_that_take_turns_on_a_gpu_get_each_its_share(built: Built, tmp_path: Path, kernel: str) -> None:
    """They begin without turns, as they do until the agent has seen them at work, and learn beside each other."""
    containers = {name: Container(built, tmp_path / name, tmp_path / "gpu") for name in TAKING_TURNS}
    with ExitStack() as turns:
        for name, (percent, _) in TAKING_TURNS.items():
            containers[name].grant(Share(cores=percent * 100))
            turns.callback(containers[name].close)
        running = {name: each.start("launches", "linked", "plain", kernel, "3") for name, each in containers.items()}
        time.sleep(0.8)  # of 1.2 s in which the limiter learns
        for name, (_, turn) in TAKING_TURNS.items():
            turns.enter_context(told_its_turn(containers[name], turn))
        facts = {name: finished(process) for name, process in running.items()}

    assert all(near(facts[name], percent * 10) for name, (percent, _) in TAKING_TURNS.items()), facts


@pytest.mark.parametrize("turn", [Turn(0, 0), Turn(80_000, 40_000), Turn(2**31, 2**31)])
def test_turns_that_cannot_be_are_none(container: Container, turn: Turn) -> None:
    container.grant(Share(cores=3000))
    with told_its_turn(container, turn):
        facts = container.run("launches", "linked", "plain", "1000000", "0.8")

    assert near(facts, 300), facts
    assert facts["longest_us"] <= 14_000 + facts["starved_us"], facts


@pytest.mark.slow
@pytest.mark.parametrize("percent", [10, 30, 50, 70])
@pytest.mark.parametrize("kernel", ["20000", "1000000", "50000000"])
@pytest.mark.parametrize("kind", ["plain", "graph"])
def test_the_share_holds_over_ten_seconds(container: Container, percent: int, kernel: str, kind: str) -> None:
    facts = launched(container, percent, kind, kernel, 10)
    assert near(facts, percent * 10), facts
