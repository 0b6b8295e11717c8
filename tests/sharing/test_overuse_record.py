"""The list of findings from the agent to the publisher, and the event that is made of one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topoalloc.cluster.overuse_event import overuse_event, overuse_event_name
from topoalloc.cluster.rejection import NOTE_BYTES_MAX
from topoalloc.sharing.overuse import Finding, GpuProcess, Overuse
from topoalloc.sharing.overuse_record import RECORDS_MAX, OveruseRecord, parse_records, record_of, records_text
from topoalloc.sharing.share_owners import ShareOwner

GIB = 1024**3
RECORD = OveruseRecord(
    1_800_000_000, Overuse.MEMORY, "team", "train-0", "uid-1", "main", "GPU-8e", 9 * GIB, 8 * GIB, 2, 1
)
NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,60}[a-z0-9])?", fullmatch=True)
RECORDS = st.builds(
    OveruseRecord,
    st.integers(0, 2**40),
    st.sampled_from(Overuse),
    NAMES,
    NAMES,
    NAMES,
    NAMES,
    st.sampled_from(["GPU-8e", "0000:3b:00.0"]),
    st.integers(0, 2**60),
    st.none() | st.integers(0, 2**60),
    st.integers(1, 4096),
    st.none() | st.integers(0, 1000),
)


@given(st.lists(RECORDS, max_size=RECORDS_MAX))
def test_what_is_written_is_read(records: list[OveruseRecord]):
    assert parse_records(records_text(records)) == tuple(records)


@given(st.text(max_size=400))
def test_any_text_is_read_without_what_is_no_record(text: str):
    assert all(isinstance(record, OveruseRecord) for record in parse_records(text))


def test_a_line_that_was_changed_is_left_out_and_the_others_stay():
    line = records_text([RECORD])

    assert parse_records(line.replace("memory", "other") + line + line.replace("team", "te am")) == (RECORD,)


@given(RECORDS)
def test_an_event_fits_what_the_api_server_takes(record: OveruseRecord):
    event = overuse_event(record, "node-1", "2026-01-01T00:00:00Z")

    assert len(str(event["message"]).encode()) <= NOTE_BYTES_MAX
    assert len(overuse_event_name(record)) <= 253
    assert event["reason"] == "GpuShareOveruse"


def test_the_event_says_held_and_granted():
    message = str(overuse_event(RECORD, "node-1", "")["message"])

    assert message.startswith("Container main holds 9216 MiB of GPU GPU-8e and was granted 8192 MiB")


def test_the_same_finding_is_the_same_event_and_a_later_one_is_another():
    later = OveruseRecord(**{name: getattr(RECORD, name) for name in RECORD.__slots__} | {"found_s": 1_800_000_001})

    assert overuse_event_name(RECORD) == overuse_event_name(RECORD)
    assert overuse_event_name(RECORD) != overuse_event_name(later)


def test_containers_that_cannot_be_told_apart_are_named_together():
    process = GpuProcess("GPU-8e", 7, 1, 9 * GIB, "uid-1", "c")
    finding = Finding(Overuse.MEMORY, ("a", "b"), "GPU-8e", (process,), 9 * GIB, 8 * GIB, None, new=True)
    owners = [ShareOwner("team", "train-0", name, "uid-1") for name in ("main", "side")]

    record = record_of(finding, owners, 5)

    assert (record.containers, record.pod, record.found_s) == ("main,side", "train-0", 5)
    assert parse_records(records_text([record])) == (record,)
