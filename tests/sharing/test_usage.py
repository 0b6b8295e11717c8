"""The usage file: its layout is the C header's, and whatever a tenant writes into it is read or refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sharing.made_usage import slot_bytes, usage_bytes
from topoalloc.sharing import told_files, usage
from topoalloc.sharing.usage import Usage, UsageRefusal, parse_usage

PRINTER = r"""
#include "usage_layout.h"
#include <stddef.h>
#include <stdio.h>
#define SAY(what) printf(#what " %llu\n", (unsigned long long)(what))
int main(void)
{
    SAY(sizeof(struct usage_header)); SAY(sizeof(struct usage_slot)); SAY(offsetof(struct usage_file, slots));
    SAY(offsetof(struct usage_header, gone_gpu_time_ns)); SAY(offsetof(struct usage_header, gone_waited_ns));
    SAY(offsetof(struct usage_header, gone_launches)); SAY(offsetof(struct usage_header, gone_refused));
    SAY(offsetof(struct usage_header, wanting_at_ns));
    SAY(offsetof(struct usage_slot, explicit_bytes)); SAY(offsetof(struct usage_slot, implicit_bytes));
    SAY(offsetof(struct usage_slot, managed_bytes)); SAY(offsetof(struct usage_slot, gpu_time_ns));
    SAY(offsetof(struct usage_slot, waited_ns)); SAY(offsetof(struct usage_slot, launches));
    SAY(offsetof(struct usage_slot, refused)); SAY(offsetof(struct usage_slot, pid));
    SAY(offsetof(struct usage_slot, state)); SAY(offsetof(struct usage_slot, unhooked));
    SAY(offsetof(struct usage_slot, overheads));
    SAY(sizeof(struct pace_file)); SAY(offsetof(struct pace_file, cores_now));
    SAY(offsetof(struct pace_file, written_at_ns));
    SAY(USAGE_MAGIC); SAY(USAGE_VERSION); SAY(USAGE_SLOTS_MAX); SAY(USAGE_FILE_BYTES); SAY(USAGE_LOCKS_AT);
    SAY(PACE_MAGIC); SAY(PACE_STALE_NS);
    SAY(sizeof(struct neighbours_file)); SAY(offsetof(struct neighbours_file, cores));
    SAY(offsetof(struct neighbours_file, seen_at_ns)); SAY(NEIGHBOURS_MAGIC); SAY(NEIGHBOURS_SEEN_NS);
    SAY(sizeof(struct turn_file)); SAY(offsetof(struct turn_file, turn));
    SAY(offsetof(struct turn_file, written_at_ns)); SAY(TURN_MAGIC); SAY(TURN_PERIOD_NS);
    return 0;
}
"""


def test_the_layout_read_here_is_that_of_the_c_header(tmp_path: Path):
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text(PRINTER)
    subprocess.run(["gcc", "-std=c11", "-Itopoalloc/sharing/shim", "-o", program, source], check=True)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout

    said = {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in printed.splitlines()}
    header = {f"offsetof(struct usage_header, {name})": 40 + 8 * n for n, name in enumerate(
        ("gone_gpu_time_ns", "gone_waited_ns", "gone_launches", "gone_refused", "wanting_at_ns"))}  # fmt: skip
    words = ("explicit_bytes", "implicit_bytes", "managed_bytes", "gpu_time_ns", "waited_ns", "launches", "refused")
    slot = {f"offsetof(struct usage_slot, {name})": 8 * n for n, name in enumerate(words)}
    halves = {f"offsetof(struct usage_slot, {name})": 64 + 4 * n for n, name in enumerate(
        ("pid", "state", "unhooked", "overheads"))}  # fmt: skip
    assert said == {
        "sizeof(struct usage_header)": usage.HEADER.size,
        "sizeof(struct usage_slot)": usage.SLOT.size,
        "offsetof(struct usage_file, slots)": usage.HEADER.size,
        **header, **slot, **halves,
        "sizeof(struct pace_file)": told_files.PACE.size,
        "offsetof(struct pace_file, cores_now)": told_files.PACE_CORES_AT,
        "offsetof(struct pace_file, written_at_ns)": told_files.PACE_WRITTEN_AT,
        "USAGE_MAGIC": usage.USAGE_MAGIC,
        "USAGE_VERSION": usage.USAGE_VERSION,
        "USAGE_SLOTS_MAX": usage.USAGE_SLOTS_MAX,
        "USAGE_FILE_BYTES": usage.USAGE_FILE_BYTES,
        "USAGE_LOCKS_AT": usage.USAGE_LOCKS_AT,
        "PACE_MAGIC": told_files.PACE_MAGIC,
        "PACE_STALE_NS": told_files.PACE_STALE_NS,
        "sizeof(struct neighbours_file)": told_files.NEIGHBOURS.size,
        "offsetof(struct neighbours_file, cores)": told_files.NEIGHBOURS_CORES_AT,
        "offsetof(struct neighbours_file, seen_at_ns)": told_files.NEIGHBOURS_SEEN_AT,
        "NEIGHBOURS_MAGIC": told_files.NEIGHBOURS_MAGIC,
        "NEIGHBOURS_SEEN_NS": told_files.NEIGHBOURS_SEEN_NS,
        "sizeof(struct turn_file)": told_files.TURN.size,
        "offsetof(struct turn_file, turn)": told_files.TURN_AT,
        "offsetof(struct turn_file, written_at_ns)": told_files.TURN_WRITTEN_AT,
        "TURN_MAGIC": told_files.TURN_MAGIC,
        "TURN_PERIOD_NS": told_files.TURN_PERIOD_US * 1000,
    }  # fmt: skip


def test_live_processes_hold_memory_and_dead_ones_only_keep_their_counters():
    content = usage_bytes(
        {
            0: slot_bytes(pid=7, explicit=100, implicit=10, gpu_time_ns=5, waited_ns=1, refused=2),
            999: slot_bytes(pid=8, explicit=200, implicit=20, gpu_time_ns=50, waited_ns=10, refused=1),
        },
        gone_gpu_time_ns=500,
        gone_waited_ns=100,
        wanting_at_ns=77,
    )

    read = parse_usage(content, {999})

    assert isinstance(read, Usage)
    assert [(one.slot, one.pid) for one in read.processes] == [(999, 8)]
    assert (read.explicit_bytes, read.implicit_bytes, read.used_bytes) == (200, 20, 220)
    assert (read.gpu_time_ns, read.waited_ns, read.refused, read.wanting_at_ns) == (555, 111, 3, 77)


def test_a_lock_on_a_free_slot_is_no_process():
    read = parse_usage(usage_bytes({3: slot_bytes(state=0, explicit=5)}), {3})

    assert isinstance(read, Usage)
    assert (read.processes, read.gpu_time_ns) == ((), 0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 of 131072"),
        (usage_bytes()[:-1], "131071 of 131072"),
        (usage_bytes(magic=b"TAUSAGE2"), "magic"),
        (usage_bytes(version=2), "version 2"),
        (usage_bytes(slot_count=999), "999 slots"),
    ],
)
def test_what_is_no_usage_file_is_refused_with_the_reason(content: bytes, words: str):
    read = parse_usage(content, {0})

    assert isinstance(read, UsageRefusal)
    assert words in read.reason


@given(st.binary(max_size=400), st.integers(0, 131072), st.booleans(), st.sets(st.integers(0, 999), max_size=5))
def test_any_bytes_are_read_or_refused(noise: bytes, at: int, keeps_header: bool, alive: set[int]):
    content = bytearray(usage_bytes({number: slot_bytes(pid=number) for number in range(3)}))
    content[at : at + len(noise)] = noise
    if keeps_header:
        content[:16] = usage_bytes()[:16]

    read = parse_usage(bytes(content), alive)

    assert isinstance(read, Usage | UsageRefusal)
    if isinstance(read, Usage):
        assert {process.slot for process in read.processes} <= alive
        assert read.used_bytes >= 0
