"""A turn is read as the library reads it (shim/pace.c): whole, in its period, and of a fresh word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoalloc.sharing.told_files import PACE_STALE_NS, TURN, TURN_MAGIC, TURN_PERIOD_US, Turn, parse_turn

WRITTEN_NS = 10**12


@given(from_us=st.integers(0, TURN_PERIOD_US - 1), data=st.data())
def test_every_turn_within_the_period_is_read_as_it_was_written(from_us: int, data: st.DataObject):
    turn = Turn(from_us, data.draw(st.integers(1, TURN_PERIOD_US - from_us)))

    assert parse_turn(TURN.pack(TURN_MAGIC, turn.word, WRITTEN_NS), WRITTEN_NS + PACE_STALE_NS) == turn


@pytest.mark.parametrize(
    ("content", "later_ns"),
    [
        (b"", 0),
        (TURN.pack(TURN_MAGIC, Turn(0, 1000).word, WRITTEN_NS)[:-1], 0),
        (TURN.pack(TURN_MAGIC + 1, Turn(0, 1000).word, WRITTEN_NS), 0),
        (TURN.pack(TURN_MAGIC, 0, WRITTEN_NS), 0),
        (TURN.pack(TURN_MAGIC, Turn(0, TURN_PERIOD_US + 1).word, WRITTEN_NS), 0),
        (TURN.pack(TURN_MAGIC, Turn(0, 1000).word, WRITTEN_NS), PACE_STALE_NS + 1),
    ],
    ids=["nothing", "cut short", "another magic", "no turns", "beyond the period", "old"],
)
def test_what_is_no_turn_is_none(content: bytes, later_ns: int):
    assert parse_turn(content, WRITTEN_NS + later_ns) is None


@given(content=st.binary(max_size=64), now_ns=st.integers(0, 2**63))
def test_whatever_the_file_holds_a_turn_lies_within_its_period(content: bytes, now_ns: int):
    turn = parse_turn(content, now_ns)

    assert turn is None or 0 < turn.from_us + turn.length_us <= TURN_PERIOD_US
