"""The checkpoint keeps what it was told, and a damaged one is noticed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topoalloc.admission.devices import DeviceTables, ListedDevices, Owner
from topoalloc.kubelet.simulated.checkpoint import decode, encode

names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=6)
owners = st.builds(Owner, names, names, names)
devices = st.frozensets(names, min_size=1, max_size=5)


@given(st.dictionaries(owners, st.tuples(devices, st.binary(max_size=8)), max_size=5), st.frozensets(names, max_size=3))
def test_records_and_answers_come_back(
    kept: dict[Owner, tuple[frozenset[str], bytes]], resources: frozenset[str]
) -> None:
    tables = DeviceTables(
        listed={name: ListedDevices() for name in resources},
        recorded={owner: ids for owner, (ids, _) in kept.items()},
    )
    answers = {owner: answer for owner, (_, answer) in kept.items()}
    found = decode(encode(tables, answers))
    assert found is not None
    assert (found.recorded, found.answers, frozenset(found.resources)) == (tables.recorded, answers, resources)


def test_a_device_on_two_nodes_is_filed_under_both_and_counts_once() -> None:
    owner = Owner("u", "c", "r")
    tables = DeviceTables(
        listed={"r": ListedDevices(nodes={"d": (0, 1)}, healthy=frozenset({"d"}))},
        recorded={owner: frozenset({"d"})},
    )
    content = encode(tables, {})
    assert b'{"0":["d"],"1":["d"]}' in content
    found = decode(content)
    assert found is not None and found.recorded == {owner: frozenset({"d"})}


@given(st.binary(max_size=60))
def test_nonsense_is_no_checkpoint(content: bytes) -> None:
    assert decode(content) is None


@given(st.integers(min_value=0))
def test_a_changed_byte_is_noticed(position: int) -> None:
    content = bytearray(encode(DeviceTables(recorded={Owner("u", "c", "r"): frozenset({"d"})}), {}))
    index = content.index(b'"u"') + 1
    content[index] = ord("v") + position % 3
    assert decode(bytes(content)) is None
