"""Masks of NUMA nodes: order, enumeration, bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoalloc.admission.numa_mask import (
    ENUMERATED_NODES_MAX,
    is_narrower,
    mask_of,
    masks_in_order,
    nodes_of,
    partial_mask_of,
    text_of,
)
from topoalloc.errors import InputError

node_sets = st.sets(st.integers(0, 63))


@given(node_sets)
def test_a_mask_gives_its_nodes_back_in_ascending_order(nodes: set[int]) -> None:
    assert nodes_of(mask_of(nodes)) == tuple(sorted(nodes))


@pytest.mark.parametrize("node", [-1, 64])
def test_a_node_outside_64_bits_is_refused(node: int) -> None:
    with pytest.raises(ValueError, match="outside 0-63"):
        mask_of((node,))


def test_a_device_node_outside_64_bits_matches_nothing() -> None:
    assert partial_mask_of((-1, 2, 70)) == 0b100


def test_subsets_come_by_size_and_then_in_the_order_of_the_nodes() -> None:
    assert [text_of(mask) for mask in masks_in_order((0, 2, 5))] == [
        "{0}", "{2}", "{5}", "{0,2}", "{0,5}", "{2,5}", "{0,2,5}",
    ]  # fmt: skip


@given(st.sets(st.integers(0, 63), max_size=8))
def test_every_non_empty_subset_comes_exactly_once(nodes: set[int]) -> None:
    masks = list(masks_in_order(sorted(nodes)))

    assert len(masks) == len(set(masks)) == 2 ** len(nodes) - 1


def test_more_nodes_than_can_be_enumerated_are_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="13 NUMA nodes have"):
        list(masks_in_order(range(ENUMERATED_NODES_MAX + 1)))


@given(node_sets, node_sets)
def test_narrower_means_fewer_nodes_and_then_lower_numbers(one: set[int], other: set[int]) -> None:
    expected = (len(one), mask_of(one)) < (len(other), mask_of(other))

    assert is_narrower(mask_of(one), mask_of(other)) is expected


def test_no_mask_reads_as_any_node() -> None:
    assert text_of(None) == "any node"
