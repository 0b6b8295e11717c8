"""What the processes of one container say of themselves in its usage file (shim/usage_layout.h). Pure.

The file lies in the tenant's hands: every read has fixed bounds, no limit is ever taken from here, and which processes
are alive is told by the kernel's locks and never by the file.
"""

from __future__ import annotations

import struct
from collections.abc import Set
from dataclasses import dataclass

USAGE_MAGIC = 0x3145474153554154
USAGE_VERSION = 1
USAGE_SLOTS_MAX = 1000
USAGE_FILE_BYTES = 131072
USAGE_LOCKS_AT = 0x40000000  # a live process holds a write lock on the byte this far in, plus the number of its slot
HEADER = struct.Struct("=QIIQII6Q48x")
SLOT = struct.Struct("=8Q4I48x")
_STATE_AT = 68  # of `state` within a slot
_IN_USE = 1


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """One live process. `pid` is the container's own number for it; `measured`: implicit_bytes is no guess."""

    slot: int
    pid: int
    explicit_bytes: int
    implicit_bytes: int
    managed_bytes: int
    unhooked: int
    measured: bool


@dataclass(frozen=True, slots=True)
class Usage:
    """A container at one moment. The counters cover processes that ended too; bytes are of live ones alone.

    `wanting_at_ns`: CLOCK_MONOTONIC time at which a launch was last held back, 0: never.
    """

    processes: tuple[ProcessUsage, ...]
    gpu_time_ns: int
    waited_ns: int
    launches: int
    refused: int
    wanting_at_ns: int

    @property
    def explicit_bytes(self) -> int:
        return sum(process.explicit_bytes for process in self.processes)

    @property
    def implicit_bytes(self) -> int:
        return sum(process.implicit_bytes for process in self.processes)

    @property
    def used_bytes(self) -> int:
        return self.explicit_bytes + self.implicit_bytes


@dataclass(frozen=True, slots=True)
class UsageRefusal:
    """Why a usage file tells nothing."""

    reason: str


def parse_usage(content: bytes, alive: Set[int]) -> Usage | UsageRefusal:
    """Read the file's bytes. `alive`: numbers of the slots whose process holds its lock; others hold no memory."""
    if len(content) < USAGE_FILE_BYTES:
        return UsageRefusal(f"usage has {len(content)} of {USAGE_FILE_BYTES} bytes")
    magic, version, slots, *counters = HEADER.unpack_from(content)
    if magic != USAGE_MAGIC:
        return UsageRefusal("usage begins with another magic number")
    if version != USAGE_VERSION:
        return UsageRefusal(f"usage is of version {version}, not {USAGE_VERSION}")
    if slots != USAGE_SLOTS_MAX:
        return UsageRefusal(f"usage claims {slots} slots, not {USAGE_SLOTS_MAX}")
    gpu_time_ns, waited_ns, launches, refused, wanting_at_ns = counters[-5:]
    processes: list[ProcessUsage] = []
    for number in _slots_in_use(content):
        slot = SLOT.unpack_from(content, HEADER.size + number * SLOT.size)
        gpu_time_ns += slot[3]
        waited_ns += slot[4]
        launches += slot[5]
        refused += slot[6]
        if number in alive:
            processes.append(ProcessUsage(number, slot[8], slot[0], slot[1], slot[2], slot[10], slot[11] == 1))
    return Usage(tuple(processes), gpu_time_ns, waited_ns, launches, refused, wanting_at_ns)


def _slots_in_use(content: bytes) -> list[int]:
    """Numbers of the slots that say so. A process that ended keeps its counters in its slot until another one adds
    them to the header, so they are not told by the locks."""
    words = memoryview(content)[HEADER.size : HEADER.size + USAGE_SLOTS_MAX * SLOT.size].cast("I")
    states = words[_STATE_AT // 4 :: SLOT.size // 4].tolist()
    return [number for number, state in enumerate(states) if state == _IN_USE]
