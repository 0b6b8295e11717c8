"""What a board makes of a machine: pair values, nearness of NICs, twins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.placement.worlds import (
    DGX_A100,
    HGX_H100,
    MACHINES,
    MINSKY,
    P4D,
    UNTOLD,
    V100_MESH,
    board,
    even_tree,
    gpu,
    nic,
    node,
    tree,
)
from topoalloc.errors import TopoallocError
from topoalloc.placement.board import board_of
from topoalloc.placement.nearness import counts_of, mask_of, nested_blocks
from topoalloc.placement.rates import NEAR_NODE_POINTS, PCIE_GBPS, PCIE_POINTS, SAME_NODE_POINTS
from topoalloc.placement.subsets import SUBSET_TABLE_GPUS_MAX, subset_tables
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Link, LinkClass, Machine, Unknown
from topoalloc.topology.sources import load_machine

PIX, PXB, PHB, NODE, SYS = LinkClass


def two_gpus(pcie: LinkClass | Unknown, nvlinks: int | Unknown, model: str = "Example V100") -> Machine:
    gpus = tuple(replace(gpu(index), model=model) for index in range(2))
    return Machine((), gpus, (), (Link("GPU0", "GPU1", pcie, nvlinks, UNTOLD),), (), (), (), ())


@pytest.mark.parametrize(
    ("model", "links", "gbps"),
    [
        ("Tesla P100-SXM2-16GB", 1, 20),
        ("Tesla V100-SXM2-32GB", 2, 50),
        ("NVIDIA H100 80GB HBM3", 18, 450),
        ("NVIDIA B200", 18, 900),
    ],
)
def test_an_nvlink_counts_the_rate_of_its_generation(model: str, links: int, gbps: int):
    assert board_of(two_gpus(SYS, links, model)).bandwidth[0][1] == gbps


def test_an_xgmi_link_counts_fifty():
    machine = two_gpus(SYS, 1)
    machine = replace(machine, gpus=tuple(replace(member, vendor="1002") for member in machine.gpus))
    assert board_of(machine).bandwidth[0][1] == 50


def test_the_slower_end_decides_the_rate_of_a_link():
    machine = two_gpus(SYS, 4)
    machine = replace(machine, gpus=(replace(machine.gpus[0], model="Tesla P100"), machine.gpus[1]))
    assert board_of(machine).bandwidth[0][1] == 80


@pytest.mark.parametrize("pcie", LinkClass)
def test_without_nvlink_the_pcie_class_decides(pcie: LinkClass):
    made = board_of(two_gpus(pcie, 0))
    assert made.bandwidth[0][1] == PCIE_GBPS[pcie]
    assert made.locality[0][1] == PCIE_POINTS[pcie]


def test_unknown_links_count_as_the_worst():
    made = board_of(two_gpus(UNTOLD, UNTOLD))
    assert made.bandwidth[0][1] == PCIE_GBPS[SYS]
    assert made.locality[0][1] == PCIE_POINTS[SYS]


def test_an_unknown_class_inside_one_numa_node_counts_as_node():
    machine = two_gpus(UNTOLD, UNTOLD)
    machine = replace(machine, gpus=tuple(replace(member, numa_node=3) for member in machine.gpus))
    made = board_of(machine)
    assert made.bandwidth[0][1] == PCIE_GBPS[NODE]
    assert made.locality[0][1] == PCIE_POINTS[NODE] + SAME_NODE_POINTS


def test_equal_cpu_affinities_stand_for_an_unknown_numa_node():
    machine = two_gpus(SYS, 1)
    machine = replace(machine, gpus=tuple(replace(member, cpus=CpuSet.of((0, 1))) for member in machine.gpus))
    assert board_of(machine).locality[0][1] == PCIE_POINTS[SYS] + SAME_NODE_POINTS


def test_gpus_below_the_switch_of_one_nic_are_below_one_switch():
    # The table hides GPU-GPU classes behind NVLink; NIC1 is PXB to GPU0 and PIX to GPU1.
    made = board(HGX_H100)
    assert made.locality[0][1] == PCIE_POINTS[PXB] + SAME_NODE_POINTS
    assert made.locality[0][2] == PCIE_POINTS[NODE] + SAME_NODE_POINTS


def test_two_gpus_of_unknown_numa_nodes_are_not_on_one():
    assert board_of(two_gpus(SYS, 1)).locality[0][1] == PCIE_POINTS[SYS]


def test_nodes_of_one_socket_are_nearer_than_the_farthest():
    made = board_of(tree([(0, 0, 0), (1, 0, 0), (2, 0, 0)]))
    assert made.locality[0][1] == PCIE_POINTS[SYS] + NEAR_NODE_POINTS
    assert made.locality[0][2] == PCIE_POINTS[SYS]


def test_a_pair_that_no_link_describes_counts_as_the_worst():
    assert board_of(replace(two_gpus(PIX, 4), links=())).bandwidth[0][1] == PCIE_GBPS[SYS]


def test_the_mesh_of_a_dgx_1_has_its_double_links():
    made = board(V100_MESH)
    assert made.bandwidth[0][3] == 2 * made.bandwidth[0][1]
    assert made.bandwidth[0][5] == PCIE_GBPS[SYS]


def test_a_node_whose_distances_are_unknown_earns_no_nearness():
    machine = tree([(0, 0, 0), (1, 0, 0), (2, 0, 0)])
    machine = replace(machine, numa_nodes=tuple(node(member.id) for member in machine.numa_nodes))
    assert board_of(machine).locality[0][1] == PCIE_POINTS[SYS]


# Nearness of NICs


def closeness(name: str, gpus: set[int], nics: set[int], seats: int = 1) -> tuple[int, ...]:
    return counts_of(board(name).pairings.closeness(mask_of(gpus), seats, mask_of(nics)))


def test_a_nic_below_the_gpus_switch_counts_at_every_level():
    assert closeness(HGX_H100, {0}, {0}) == (1, 1, 1, 1)


def test_a_nic_two_bridges_away_is_not_one_bridge_away():
    assert closeness(HGX_H100, {0}, {1}) == (1, 1, 1, 0)


def test_a_nic_of_another_socket_counts_nowhere():
    assert closeness(HGX_H100, {0}, {4}) == (0, 0, 0, 0)


def test_a_gpu_takes_no_more_nics_than_it_has_seats():
    assert closeness(P4D, {0}, {0, 1}, seats=1)[2] == 1
    assert closeness(P4D, {0}, {0, 1}, seats=2)[2] == 2


def test_nics_of_a_dgx_a100_pair_by_their_own_switch():
    assert closeness(DGX_A100, {0, 1}, {0, 1}) == (2, 2, 2, 0)


def test_a_machine_without_near_nics_has_no_blocks():
    assert board(MINSKY).blocks == ()


def test_contradictory_cells_count_as_far():
    # GPU0 is below one switch with both NICs, GPU1 with one of them: no tree has this.
    blocks = nested_blocks([[PIX, PIX], [PIX, SYS]])
    assert blocks == ()


def test_a_contradiction_at_one_level_keeps_what_nearer_levels_prove():
    blocks = nested_blocks([[PIX, NODE], [SYS, PIX]])
    assert [(block.gpus, block.nics) for block in blocks] == [(1, 1), (2, 2)]


def test_blocks_of_one_level_lie_inside_those_of_the_next():
    blocks = nested_blocks([[PIX, PXB, NODE], [PXB, PIX, NODE], [NODE, NODE, PHB]])
    assert sorted((block.gpus, block.nics) for block in blocks) == [(1, 1), (2, 2), (3, 3), (4, 4), (7, 7)]


def with_nics() -> list[Path]:
    return sorted(path for path in MACHINES.iterdir() if path.suffix not in (".json", ".md"))


def test_on_every_recorded_machine_nics_are_as_near_as_their_class_says():
    """No recorded machine contradicts itself, so nothing is taken for farther than it is."""
    seen = 0
    for path in with_nics():
        try:
            machine = load_machine([str(path)])
        except TopoallocError:
            continue
        links, made = machine.links_by_pair(), board_of(machine)
        for i, here in enumerate(machine.gpus):
            for j, there in enumerate(machine.nics):
                pcie = links[here.id, there.id].pcie
                counts = counts_of(made.pairings.closeness(1 << i, 1, 1 << j))
                if isinstance(pcie, LinkClass):
                    assert counts == tuple(int(pcie <= level) for level in (PXB, PHB, NODE, PIX)), path.name
                    seen += 1
    assert seen > 500


# Twins and tables


def test_gpus_of_one_switch_are_twins():
    assert board_of(even_tree(8, 4, nodes=2, switches=4)).twins == (0b11, 0b1100, 0b110000, 0b11000000)


def test_gpus_with_nics_of_their_own_are_no_twins():
    assert len(board_of(even_tree(8, 8, nodes=2, switches=8, nvlinks=6)).twins) == 8


def test_tables_stop_at_their_limit():
    assert board_of(even_tree(SUBSET_TABLE_GPUS_MAX + 1, 0 + 1, nodes=1, switches=1)).tables is None


def test_what_is_left_over_is_measured_in_the_empty_boards_sets():
    tables = subset_tables([[0, 5, 1, 1], [5, 0, 1, 1], [1, 1, 0, 5], [1, 1, 5, 0]], [[0] * 4] * 4)
    # Both good pairs: all of the best 2-sets and of the best 4-set; one of them: half of the 2-sets.
    assert tables.leftover_bandwidth[0b1111] == 2_000_000
    assert tables.leftover_bandwidth[0b0011] == 500_000
    assert tables.leftover_bandwidth[0b0101] == 100_000


def test_unknown_nic_positions_do_not_exist_on_a_board():
    machine = replace(two_gpus(PIX, 0), nics=(nic(0),))
    assert board_of(machine).blocks == ()
