"""What the agent tells the library of a share, a file for each: the pace of an elastic share, what its neighbours took,
and its turn (shim/usage_layout.h). Pure.

Each file is a magic number, a word, and the time of the word; old words count for nothing.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

PACE_STALE_NS = 3_000_000_000

PACE_MAGIC = 0x3145434150415401
PACE = struct.Struct("=QQQ")
PACE_CORES_AT, PACE_WRITTEN_AT = 8, 16

NEIGHBOURS_MAGIC = 0x3148474941544101
NEIGHBOURS = struct.Struct("=QQQ")
NEIGHBOURS_CORES_AT, NEIGHBOURS_SEEN_AT = 8, 16
NEIGHBOURS_SEEN_NS = 10_000_000_000

TURN_MAGIC = 0x314E525554415401
TURN = struct.Struct("=QQQ")
TURN_AT, TURN_WRITTEN_AT = 8, 16
TURN_PERIOD_US = 100_000


@dataclass(frozen=True, slots=True)
class Turn:
    """The part of every period of CLOCK_MONOTONIC that is a share's own."""

    from_us: int
    length_us: int

    @property
    def word(self) -> int:
        """As the file has it: the beginning in the upper 32 bits, the length in the lower ones."""
        return self.from_us << 32 | self.length_us


def parse_turn(content: bytes, now_ns: int) -> Turn | None:
    """The turn that a share has at `now_ns` of CLOCK_MONOTONIC, as its library reads the file; None: no turn."""
    if len(content) < TURN.size:
        return None
    magic, word, written_at_ns = TURN.unpack_from(content)
    turn = Turn(word >> 32, word & 0xFFFFFFFF)
    if magic != TURN_MAGIC or not turn.length_us or turn.from_us + turn.length_us > TURN_PERIOD_US:
        return None
    return turn if written_at_ns + PACE_STALE_NS >= now_ns else None
