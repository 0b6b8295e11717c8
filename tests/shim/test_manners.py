"""What a program may do by itself, or beside us, goes on as it would without the shim."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import time
from pathlib import Path

import pytest

from tests.shim.built import PROGRAM_SOURCES, ran
from tests.shim.container import (
    GIB,
    PROGRAM_TIMEOUT_S,
    USAGE_HEADER,
    USAGE_SLOT,
    USAGE_SLOTS_MAX,
    Container,
    Share,
    facts_of,
    finished,
)

LIMIT = 4 * GIB
OUT_OF_MEMORY = 2
LOCK_AT = 24  # of usage_header
SLOT_STATE_AT = 68  # of usage_slot
LOCKS_AT = 0x40000000
F_OFD_SETLK = 37
REFUSED_WITHIN_S = 20  # five seconds for each question to a ledger that cannot be had, not for each dead process


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("strangers")
    flags = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-pedantic")
    ran("gcc", *flags, "-rdynamic", "-o", str(into / "stranger"), str(PROGRAM_SOURCES / "stranger.c"), "-ldl")
    return into


def ran_stranger(container: Container, strangers: Path, *arguments: str) -> dict[str, int]:
    done = subprocess.run(
        [str(strangers / "stranger"), *arguments],
        env=container.variables(),
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return facts_of(done.stdout)


def test_where_no_driver_is_loaded_none_is_found_and_none_is_loaded(container: Container, strangers: Path) -> None:
    facts = ran_stranger(container, strangers, "ask")
    assert facts.pop("own") == 1
    assert facts == {"init": 0, "hooked": 0, "next": 0, "nvml": 0, "versioned": 0, "loaded": 0}


def test_a_driver_that_is_loaded_later_from_elsewhere_is_limited(container: Container, strangers: Path) -> None:
    container.environment["LD_LIBRARY_PATH"] = "/nonexistent"
    facts = ran_stranger(container, strangers, "late", str(container.built.driver / "libcuda.so.1"))
    assert facts["start"] == 0
    assert facts["before"] == 0
    assert LIMIT - GIB < facts["obtained"] < LIMIT


def test_a_library_that_stands_in_front_of_the_driver_too_reaches_it(container: Container, strangers: Path) -> None:
    wrapper = strangers / "libwrapper.so"
    driver = container.built.driver
    ran(
        *("gcc", "-D_GNU_SOURCE", "-fPIC", "-shared", "-o", str(wrapper), str(PROGRAM_SOURCES / "wrapper.c")),
        *(f"-L{driver}", "-Wl,--no-as-needed", "-l:libcuda.so.1", "-ldl"),
    )
    container.environment["LD_PRELOAD"] = f"{container.built.shim} {wrapper}"
    facts = ran_stranger(container, strangers, "wrapped", str(wrapper))
    assert facts["wrapped"] == 1
    assert LIMIT - GIB < facts["obtained"] < LIMIT


def test_no_question_goes_to_a_descriptor_that_became_the_programs(measured: Container) -> None:
    facts = measured.run("manners", "linked", "descriptor")
    assert facts["found"] == 1
    assert facts["heard"] == 0
    assert facts["still_open"] == 1


def test_a_context_after_the_last_is_charged_for_its_heap_again(container: Container) -> None:
    facts = container.run("manners", "linked", "limits")
    assert facts["first"] == facts["second"] > 0


def test_a_cancelled_thread_leaves_no_lock_behind(measured: Container) -> None:
    assert measured.run("manners", "linked", "cancel")["after"] == 1


def test_the_end_of_no_capture_breaks_no_other(container: Container) -> None:
    container.grant(Share(cores=5000, generation=2))
    facts = container.run("manners", "linked", "captures")
    assert facts["refused"] == 1
    assert facts["ended"] == 0
    assert facts["graph"] == 1


@pytest.mark.parametrize("case", ["streams", "pools"])
def test_what_is_destroyed_is_not_used_any_more(container: Container, case: str) -> None:
    """With the compiler's checks in test_sanitizers.py, which see it where it happens to go well."""
    container.grant(Share(cores=5000, generation=2))
    assert container.run("manners", "linked", case)["survived"] == 1


def test_a_program_whose_errors_nobody_reads_is_not_ended_by_our_words(container: Container) -> None:
    (container.directory / "share").unlink()
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen(
        [str(container.built.programs / "memory"), "linked", "plain", "64M"],
        env=container.variables(),
        stdout=subprocess.PIPE,
        stderr=writer,
        text=True,
    )
    os.close(writer)
    output, _ = process.communicate(timeout=PROGRAM_TIMEOUT_S)
    assert process.returncode >= 0, output


def _write_lock(container: Container, holder: int) -> None:
    with (container.directory / "usage").open("r+b") as usage:
        usage.seek(LOCK_AT)
        usage.write(struct.pack("<I", holder))


def _taking_over(container: Container) -> None:
    """In a child, before it becomes the program: its slot follows from its PID."""
    _write_lock(container, os.getpid() % USAGE_SLOTS_MAX + 1)


def test_the_ledger_goes_on_where_the_slots_last_owner_died_with_its_lock(container: Container) -> None:
    """A program that replaces itself has its PID and so its slot again: nobody else's death would tell."""
    process = subprocess.Popen(
        [str(container.built.programs / "memory"), "linked", "plain", "64M"],
        env=container.variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: _taking_over(container),  # noqa: PLW1509 (one thread)
    )
    container.started.append(process)
    began = time.monotonic()
    facts = finished(process)
    assert facts["obtained"] >= LIMIT - GIB
    assert time.monotonic() - began < REFUSED_WITHIN_S / 2


def test_a_lock_that_nobody_can_hold_is_taken_over(container: Container) -> None:
    _write_lock(container, USAGE_SLOTS_MAX + 77)
    began = time.monotonic()
    assert container.run("memory", "linked", "plain", "64M")["obtained"] >= LIMIT - GIB
    assert time.monotonic() - began < REFUSED_WITHIN_S / 2


@pytest.mark.slow
def test_a_stopped_holder_of_the_lock_delays_and_refuses_but_does_not_hang(container: Container) -> None:
    with (container.directory / "usage").open("r+b") as usage:
        # A slot whose process lives and does not go on, and a hundred whose processes died.
        fcntl.fcntl(usage, F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, LOCKS_AT + 6, 1, 0))
        for index in range(100, 200):
            usage.seek(USAGE_HEADER.size + index * USAGE_SLOT.size + SLOT_STATE_AT)
            usage.write(struct.pack("<I", 1))
        usage.flush()
        _write_lock(container, 7)
        began = time.monotonic()
        process = container.start("memory", "linked", "plain", "64M")
        output, _ = process.communicate(timeout=PROGRAM_TIMEOUT_S)
        assert facts_of(output)["start"] == OUT_OF_MEMORY
        assert time.monotonic() - began < REFUSED_WITHIN_S
