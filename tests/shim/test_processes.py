"""Processes of one container share one limit, whatever becomes of them."""

from __future__ import annotations

import signal
import struct
import time

import pytest

from tests.shim.container import (
    GIB,
    MARGIN_BYTES,
    MIB,
    UNIT_BYTES,
    USAGE_HEADER,
    USAGE_SLOT,
    Container,
    Share,
    Truth,
    agent_of,
    finished,
    line_of,
)

LIMIT = 4 * GIB
OUT_OF_MEMORY = 2
RACERS = 16
TAKEN_BACK_S = 0.1
SMALL_CONTEXT_BYTES = 64 * MIB
PIECE_BYTES = 64 * MIB
LOCK_OFFSET = 24  # usage_header.lock


def small_contexts(container: Container) -> None:
    """So that many processes find room for their contexts."""
    container.environment["FAKE_CONTEXT_BYTES"] = str(SMALL_CONTEXT_BYTES)
    container.grant(Share(context=SMALL_CONTEXT_BYTES))


def test_sixteen_processes_racing_get_no_byte_over(container: Container) -> None:
    small_contexts(container)
    truth = Truth(container)
    racers = [container.start("memory", "linked", "hold", "16M") for _ in range(RACERS)]
    for racer in racers:
        assert line_of(racer.stdout)["start"] in (0, OUT_OF_MEMORY)
    for racer in racers:
        line_of(racer.stdout)
    taken, _, _ = truth.of()
    for racer in racers:
        finished(racer)
    truth.close()
    assert LIMIT - UNIT_BYTES <= taken <= LIMIT


@pytest.mark.slow
def test_a_storm_of_kills_never_passes_the_limit_nor_loses_any_of_it(container: Container) -> None:
    small_contexts(container)
    truth = Truth(container)
    for wave in range(40):
        racers = [container.start("memory", "linked", "hold", "16M") for _ in range(RACERS)]
        for turn, racer in enumerate(racers):
            if (turn + wave) % 3 == 0:
                racer.kill()
        assert truth.of()[0] <= LIMIT
        for racer in racers:
            racer.kill()
            racer.communicate(timeout=10)
    facts = container.run("memory", "linked", "plain", "64M")
    truth.close()
    assert LIMIT - UNIT_BYTES <= facts["taken"] <= LIMIT


def test_the_share_of_a_killed_process_is_there_for_the_next_within_a_tenth_of_a_second(container: Container) -> None:
    holder = container.start("memory", "linked", "hold", "64M")
    assert line_of(holder.stdout)["start"] == 0
    held = line_of(holder.stdout)["held"]
    assert container.run("memory", "linked", "plain", "64M").get("obtained", 0) == 0
    holder.send_signal(signal.SIGKILL)
    holder.communicate(timeout=10)
    killed_at = time.monotonic()
    following = container.start("memory", "linked", "hold", "64M")
    assert line_of(following.stdout)["start"] == 0
    assert held - line_of(following.stdout)["held"] <= PIECE_BYTES
    took_s = time.monotonic() - killed_at
    finished(following)
    # The start of a program on a busy machine is part of it: ten times what is promised for the shim alone.
    assert took_s < TAKEN_BACK_S * 10


def test_a_process_killed_while_it_starts_does_not_hold_up_the_next(container: Container) -> None:
    for delay_ms in range(0, 20, 2):
        victim = container.start("memory", "linked", "hold", "64M")
        time.sleep(delay_ms / 1000)
        victim.kill()
        victim.communicate(timeout=10)
    began = time.monotonic()
    facts = container.run("memory", "linked", "plain", "64M")
    assert time.monotonic() - began < 2
    assert facts["taken"] > LIMIT - UNIT_BYTES


def test_a_program_that_replaces_itself_begins_with_the_whole_share(container: Container) -> None:
    facts = container.run("memory", "linked", "exec", "3G")
    assert facts["before_exec"] == 0
    facts = container.run("memory", "linked", "plain", "64M")
    assert facts["taken"] > LIMIT - UNIT_BYTES


def test_two_processes_split_what_there_is(container: Container) -> None:
    holder = container.start("memory", "linked", "hold", "2G")
    assert line_of(holder.stdout)["start"] == 0
    assert line_of(holder.stdout)["held"] == 2 * GIB
    second = container.run("memory", "linked", "plain", "64M")
    finished(holder)
    assert second["obtained"] <= LIMIT - 2 * GIB - 1000 * MIB
    assert second["obtained"] >= LIMIT - 2 * GIB - 1000 * MIB - UNIT_BYTES


def test_the_ledger_is_empty_when_everybody_has_gone(container: Container) -> None:
    with agent_of(container):
        for _ in range(3):
            container.run("memory", "linked", "plain", "64M")
    following = container.start("memory", "linked", "hold", "8G")
    line_of(following.stdout)
    line_of(following.stdout)
    total = container.total_bytes()
    finished(following)
    assert 500 * MIB <= total <= 500 * MIB + MARGIN_BYTES


def test_the_lock_of_a_process_that_died_with_it_is_taken_over_and_the_bytes_counted_anew(container: Container) -> None:
    container.grant(Share())
    usage = bytearray((container.directory / "usage").read_bytes())
    dead = 777
    struct.pack_into("<Q", usage, USAGE_HEADER.size + dead * USAGE_SLOT.size, 3 * GIB)  # it held this much
    struct.pack_into("<I", usage, USAGE_HEADER.size + dead * USAGE_SLOT.size + 68, 1)  # state: in use
    struct.pack_into("<I", usage, LOCK_OFFSET, dead + 1)
    (container.directory / "usage").write_bytes(usage)

    facts = container.run("memory", "linked", "plain", "64M")

    assert facts["error"] == OUT_OF_MEMORY
    assert LIMIT - UNIT_BYTES <= facts["taken"] <= LIMIT
