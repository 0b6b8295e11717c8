"""What the kubelet's device checkpoint tells of finished init containers, and that nothing in it can hurt."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoalloc.allocation.demand import ContainerDemand, PodDemand
from topoalloc.allocation.ledger import CheckpointEntry, Holding, Owner, State, with_leftovers
from topoalloc.kubelet.checkpoint_file import FILE_NAME, parse_entries, read_answers, read_entries

OURS = frozenset({"topoalloc.io/vgpu-core"})
TEXT = """{"Data": {"PodDeviceEntries": [
  {"PodUID": "u1", "ContainerName": "init", "ResourceName": "topoalloc.io/vgpu-core",
   "DeviceIDs": {"0": ["a"], "1": ["b"]}, "AllocResp": "aGk="},
  {"PodUID": "u1", "ContainerName": "init", "ResourceName": "example.com/other", "DeviceIDs": {"-1": ["x"]},
   "AllocResp": ""}], "RegisteredDevices": {"topoalloc.io/vgpu-core": ["a", "b"]}}, "Checksum": 1}"""

INIT = ContainerDemand("init", (("topoalloc.io/vgpu-core", 2),), init=True)
APP = ContainerDemand("app", (("topoalloc.io/vgpu-core", 1),))
ROSTER = (PodDemand("ns", "pod", "u1", (INIT, APP)),)
ENTRY = CheckpointEntry("u1", "init", frozenset({"a", "b"}))


def test_our_devices_are_read_on_whatever_numa_node_they_are_filed(tmp_path: Path):
    (tmp_path / FILE_NAME).write_text(TEXT)

    assert read_entries(tmp_path, OURS) == (ENTRY,)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"Data": null}', '{"Data": {"PodDeviceEntries": null}}', '{"Data": 1}']
)
def test_another_layout_tells_nothing(tmp_path: Path, text: str):
    (tmp_path / FILE_NAME).write_text(text)

    assert read_entries(tmp_path, OURS) == ()


def test_the_answers_are_those_of_every_plugin(tmp_path: Path):
    (tmp_path / FILE_NAME).write_text(TEXT)

    assert read_answers(tmp_path) == (b"hi", b"")


def test_a_kubelet_that_has_nothing_on_record_has_no_answers_and_one_not_understood_is_not_taken_for_it(tmp_path: Path):
    def answers(text: str) -> tuple[bytes, ...] | None:
        (tmp_path / FILE_NAME).write_text(text)
        return read_answers(tmp_path)

    assert answers('{"Data": {"PodDeviceEntries": null, "RegisteredDevices": {}}, "Checksum": 1}') == ()
    assert answers(TEXT.replace('"aGk="', "null")) == (b"", b"")
    assert answers(TEXT.replace("AllocResp", "Answer")) is None
    assert answers(TEXT.replace("PodDeviceEntries", "Entries")) is None
    assert answers(TEXT.replace("aGk=", "%%")) is None
    assert answers(TEXT[:-3]) is None


def test_no_file_tells_nothing(tmp_path: Path):
    assert read_entries(tmp_path, OURS) == ()


@given(st.binary(max_size=200) | st.integers(0, len(TEXT)).map(lambda cut: TEXT[:cut].encode()))
def test_any_bytes_tell_nothing_or_entries(data: bytes):
    assert set(parse_entries(data, OURS)) <= {ENTRY}


def test_what_nobody_took_over_from_an_init_container_is_still_its():
    app = Holding(frozenset({"a"}), confirmed=True, call=1, granted_at_s=1.0)
    state = State(holdings={Owner("ns", "pod", "app"): app})

    state = with_leftovers(state, (ENTRY,), ROSTER)

    assert state.holdings[Owner("ns", "pod", "init")].ids == {"b"}
    assert state.holdings[Owner("ns", "pod", "init")].init


def test_entries_of_pods_that_are_gone_say_nothing():
    assert with_leftovers(State(), (ENTRY,), ()).holdings == {}


def test_entries_of_app_containers_are_left_to_pod_resources():
    entry = CheckpointEntry("u1", "app", frozenset({"a"}))

    assert with_leftovers(State(), (entry,), ROSTER).holdings == {}
