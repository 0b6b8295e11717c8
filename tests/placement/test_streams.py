"""Long runs: NICs stay beside GPUs and link bandwidth stays near that of an empty node.

The thresholds are what a prototype of the same order reached in simulation; a random or lowest-index choice reaches
less than half of it.
"""

from __future__ import annotations

import pytest

from tests.placement.streams import Demand, Tally, equal, mixed, scarce, stream, whole_size
from tests.placement.worlds import DGX_A100, HGX_H100, MI100_4NIC, PCIE_UNEVEN, V100_MESH, board

ARRIVALS = 2000


def long_run(name: str, demand: Demand) -> Tally:
    tally = stream(board(name), demand, ARRIVALS, seed=1)
    assert tally.placed > ARRIVALS // 2
    return tally


@pytest.mark.parametrize("name", (DGX_A100, HGX_H100))
@pytest.mark.parametrize(("demand", "least"), [(equal, 0.995), (mixed, 0.995), (scarce, 0.99)])
def test_nics_are_below_one_switch_with_their_gpus(name: str, demand: Demand, least: float):
    tally = long_run(name, demand)
    assert tally.one_switch >= least * tally.with_nics
    assert tally.one_node >= least * tally.with_nics


@pytest.mark.parametrize(("name", "least"), [(V100_MESH, 0.98), (MI100_4NIC, 0.97), (PCIE_UNEVEN, 0.985)])
def test_sets_keep_nearly_the_bandwidth_of_an_empty_node(name: str, least: float):
    tally = long_run(name, lambda random: (whole_size(random), 0))
    assert tally.bandwidth >= least * tally.bandwidth_best


@pytest.mark.parametrize("name", (DGX_A100, HGX_H100))
def test_on_a_uniform_fabric_no_bandwidth_is_lost(name: str):
    tally = long_run(name, equal)
    assert tally.bandwidth == tally.bandwidth_best
