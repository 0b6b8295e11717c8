"""Each process is found in the driver's list, also where the entries of its third version are longer (535.43)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shim.container import (
    MIB,
    PROGRAM_TIMEOUT_S,
    USAGE_HEADER,
    USAGE_SLOT,
    USAGE_SLOTS_MAX,
    Container,
    Share,
    Truth,
    finished,
    line_of,
)

FIRST_PID_NAMESPACE = 0xEFFFFFFC  # include/linux/proc_ns.h: the library asks NVML in this one alone
HOLDERS = 3
CONTEXT_BYTES = 64 * MIB  # so that there is room for each
MEASURED_WITHIN_S = 20.0
PIDS_AT, OVERHEADS_AT = 8, 11  # of a slot's fields
ASK = """
import pynvml
from topoalloc.topology.readers.nvml_processes import GpuProcesses
pynvml.nvmlInit()
for pid, taken in GpuProcesses().memory_bytes("0000:3b:00.0").items():
    print(pid, taken)
"""


@pytest.fixture(params=["0", "1"], ids=["entries of always", "longer entries"])
def holders(container: Container, request: pytest.FixtureRequest) -> Iterator[tuple[Container, list[int]]]:
    """Processes of one container that hold some memory, and wait."""
    container.environment["FAKE_LONG_PROCESSES"] = request.param
    container.environment["FAKE_CONTEXT_BYTES"] = str(CONTEXT_BYTES)
    container.grant(Share(context=CONTEXT_BYTES))
    running = [container.start("memory", "linked", "hold", "2G") for _ in range(HOLDERS)]
    for process in running:
        assert line_of(process.stdout)["start"] == 0
        line_of(process.stdout)
    yield container, [process.pid for process in running]
    for process in running:
        finished(process)


def measured(container: Container) -> set[int]:
    usage = (container.directory / "usage").read_bytes()[USAGE_HEADER.size :]
    slots = [USAGE_SLOT.unpack_from(usage, at * USAGE_SLOT.size) for at in range(USAGE_SLOTS_MAX)]
    return {slot[PIDS_AT] for slot in slots if slot[OVERHEADS_AT]}


@pytest.mark.skipif(
    Path("/proc/self/ns/pid").stat().st_ino != FIRST_PID_NAMESPACE, reason="PIDs here are not those of the driver"
)
def test_without_an_agent_every_process_measures_itself(holders: tuple[Container, list[int]]) -> None:
    container, pids = holders
    deadline_s = time.monotonic() + MEASURED_WITHIN_S
    while measured(container) != set(pids):
        assert time.monotonic() < deadline_s, (measured(container), pids)
        time.sleep(0.05)


def test_the_agent_is_told_of_every_process(holders: tuple[Container, list[int]]) -> None:
    container, pids = holders
    environment = container.variables()
    del environment["LD_PRELOAD"]
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = {int(pid): int(taken) for pid, taken in (line.split() for line in done.stdout.splitlines())}
    truth = Truth(container)
    assert told == {pid: truth.of(pid)[0] for pid in pids}
    truth.close()
