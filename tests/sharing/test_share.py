"""A container's ids as limits, and the name under which they lie on the node."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.handmade import GIB, UNTOLD, machine
from topoalloc.sharing.inventory import Inventory, inventory_of
from topoalloc.sharing.settings import SharingSettings
from topoalloc.sharing.share import Share, ShareRules, is_elastic, is_share_name, share_name, share_of
from topoalloc.topology.machine import Machine

MIB = 1024**2


def served(of: Machine) -> Inventory:
    inventory = inventory_of(of, SharingSettings())
    assert isinstance(inventory, Inventory)
    return inventory


NODE = served(machine(memory_bytes=4 * GIB))
UNTOLD_MEMORY = served(machine(memory_bytes=UNTOLD))
GPU0, GPU1 = NODE.gpu_keys[:2]


def cores(key: str, *units: int) -> frozenset[str]:
    return frozenset(f"{key}-c{unit:02d}" for unit in units)


def memory(key: str, *units: int) -> frozenset[str]:
    return frozenset(f"{key}-m{unit:04d}" for unit in units)


def test_a_share_has_the_limits_of_its_core_and_memory_ids() -> None:
    ids = cores(GPU1, *range(40, 70)) | memory(GPU1, 3, 4, 5)

    assert share_of(NODE, ids, "uid", "app") == Share(f"{GPU1}-c40", 1, None, 30, 3 * 256 * MIB, "uid", "app")


def test_a_share_is_named_by_its_lowest_core_whatever_the_order_of_its_ids() -> None:
    ids = sorted(cores(GPU0, 9, 10, 99))

    names = {share.name for order in (ids, ids[::-1]) if (share := share_of(NODE, order)) is not None}

    assert names == {f"{GPU0}-c09"}


def test_a_share_without_memory_may_use_none_where_memory_is_served() -> None:
    share = share_of(NODE, cores(GPU0, 1))

    assert share is not None
    assert share.memory_bytes == 0


def test_memory_is_not_limited_where_it_is_not_served() -> None:
    share = share_of(UNTOLD_MEMORY, cores(UNTOLD_MEMORY.gpu_keys[0], 1))

    assert share is not None
    assert share.memory_bytes is None


def test_memory_of_another_gpu_is_not_counted() -> None:
    share = share_of(NODE, cores(GPU0, 1) | memory(GPU1, 0) | memory(GPU0, 0))

    assert share is not None
    assert share.memory_bytes == 256 * MIB


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param(cores(GPU0, *range(100)), id="a whole GPU"),
        pytest.param(cores(GPU0, *range(100)) | cores(GPU1, *range(100)), id="two whole GPUs"),
        pytest.param(memory(GPU0, 0, 1), id="memory alone"),
        pytest.param(frozenset(NODE.nic_keys[:1]), id="a NIC"),
        pytest.param(cores(GPU0, 1) | cores(GPU1, 1), id="cores of two GPUs, which are never granted"),
        pytest.param(frozenset({"of another life"}), id="ids that are not ours"),
        pytest.param(frozenset[str](), id="nothing"),
    ],
)
def test_what_is_no_share_is_not_limited(ids: frozenset[str]) -> None:
    assert share_of(NODE, ids) is None


def test_a_share_tells_the_uuid_of_its_gpu_where_a_source_does() -> None:
    plain = machine()
    named = served(replace(plain, gpus=tuple(replace(gpu, uuid=f"GPU-{gpu.index}") for gpu in plain.gpus)))
    share = share_of(named, cores(GPU1, 0))

    assert share is not None
    assert share.gpu_uuid == "GPU-1"


@pytest.mark.parametrize("of", [machine(), machine(addresses=False)], ids=["addresses", "indices"])
def test_every_core_of_a_node_has_a_name_of_its_own_that_a_path_can_have(of: Machine) -> None:
    node = served(of)
    names = [share_name(device.id) for device in node.resources[0].devices]

    assert len(set(names)) == len(names)
    assert all(is_share_name(name) for name in names)


@given(st.text(max_size=400))
def test_no_name_leads_out_of_its_directory(text: str) -> None:
    if is_share_name(text):
        assert 1 <= len(text) <= 63
        assert not {"/", "\0", "\n", "%"} & set(text)
        assert not text.startswith(".")
        assert text.isascii()


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "../a", "a\0", "A", "%2e", "ä", "a" * 64, "a\n"])
def test_what_a_path_should_not_have_is_no_name(text: str) -> None:
    assert not is_share_name(text)


@given(st.text(min_size=1, max_size=63))
def test_whatever_an_id_is_its_name_stays_in_its_directory(text: str) -> None:
    name = share_name(text)

    assert "/" not in name
    assert "\0" not in name
    assert is_share_name(name) or name.startswith(".") or len(name) > 63


@pytest.mark.parametrize(("ceiling", "elastic"), [(None, False), (30, False), (31, True), (100, True)])
def test_a_share_is_elastic_where_the_ceiling_is_above_it(ceiling: int | None, elastic: bool) -> None:
    assert is_elastic(Share("a", 0, None, 30, 0), ShareRules(elastic_cores=ceiling)) is elastic
