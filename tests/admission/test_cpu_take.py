"""Which CPUs are taken: the kubelet's order and those of its faults that decide outcomes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoalloc.admission.cpu_distribute import HANGS, take_distributed
from topoalloc.admission.cpu_take import NotTaken, take_packed
from topoalloc.admission.cpu_topology import CpuPlace, CpuTopology
from topoalloc.topology.cpus import CpuSet


def nodes_of(counts: Sequence[int], threads: int = 1, nodes_per_socket: int = 1) -> CpuTopology:
    """NUMA nodes with so many CPUs, `threads` neighbours to a core."""
    places: dict[int, CpuPlace] = {}
    for node, count in enumerate(counts):
        for _ in range(count):
            cpu = len(places)
            places[cpu] = CpuPlace(cpu - cpu % threads, node // nodes_per_socket, node)
    return CpuTopology.of(places)


def packed(topology: CpuTopology, available: str, count: int) -> str:
    found = take_packed(topology, CpuSet.from_list(available), count)
    return found.text if isinstance(found, NotTaken) else str(found)


def distributed(topology: CpuTopology, available: str, count: int, group_size: int = 1) -> str:
    found = take_distributed(topology, CpuSet.from_list(available), count, group_size=group_size)
    return found.text if isinstance(found, NotTaken) else str(found)


def test_nothing_asked_is_nothing_taken() -> None:
    assert packed(nodes_of([4]), "0-3", 0) == ""


def test_whole_sockets_go_before_whole_nodes_where_a_socket_has_several() -> None:
    topology = nodes_of([2, 2, 2, 2], nodes_per_socket=2)

    assert packed(topology, "0-7", 4) == "0-3"
    assert packed(topology, "2-7", 4) == "4-7"
    assert packed(topology, "1-7", 2) == "2-3"


def test_the_node_with_the_fewest_free_cpus_is_used_up_first() -> None:
    assert packed(nodes_of([4, 4]), "0-3,6-7", 1) == "6"


def test_a_core_with_one_thread_busy_is_left_for_single_threads() -> None:
    assert packed(nodes_of([8], threads=2), "1,2-7", 2) == "2-3"
    assert packed(nodes_of([8], threads=2), "1,2-7", 1) == "1"


def test_on_a_hybrid_machine_a_core_with_a_busy_thread_counts_as_free_and_is_taken_whole() -> None:
    places = {0: CpuPlace(0, 0, 0), 1: CpuPlace(0, 0, 0), 2: CpuPlace(2, 0, 0), 3: CpuPlace(3, 0, 0)}

    assert packed(CpuTopology.of(places), "1-3", 2) == "0-1"  # CPU 0 was not available


def test_distribution_uses_one_node_where_that_suffices() -> None:
    assert distributed(nodes_of([4, 4, 4]), "0-11", 4) == "0-3"


def test_distribution_takes_a_remainder_from_as_many_nodes_as_possible() -> None:
    assert distributed(nodes_of([4, 4]), "0-7", 5) == "0-2,4-5"


def test_distribution_in_groups_keeps_cores_together() -> None:
    assert distributed(nodes_of([4, 4], threads=2), "0-7", 6, group_size=2) == "0-5"


def test_a_request_that_is_no_multiple_of_the_group_is_packed() -> None:
    assert distributed(nodes_of([4, 4], threads=2), "0-7", 3, group_size=2) == "0-2"


def test_the_best_of_five_equal_nodes_is_overwritten_by_its_sibling() -> None:
    """Four of five nodes are needed; the first best combination is 0,1,2,3, what is taken is 0,1,2,4."""
    assert distributed(nodes_of([2, 2, 2, 2, 2]), "0-9", 8) == "0-5,8-9"


def test_a_remainder_that_no_node_can_take_in_groups_hangs_the_kubelet() -> None:
    """4 nodes of 4 cores of 2 threads, one thread busy on each, 22 CPUs in groups of 2."""
    topology = nodes_of([8, 8, 8, 8], threads=2)
    free = "1-7,9-15,17-23,25-31"

    assert take_distributed(topology, CpuSet.from_list(free), 22, group_size=2) == HANGS


def test_a_node_in_several_sockets_counts_once_for_the_total() -> None:
    """Found by comparison with upstream: such a node comes twice in the order and twice in a combination."""
    places = {cpu: CpuPlace(0, 0, 0) for cpu in (*range(9), 13)}
    places |= {9: CpuPlace(9, 1, 1), 10: CpuPlace(9, 1, 1), 11: CpuPlace(11, 2, 2), 12: CpuPlace(12, 0, 3)}
    places |= {14: CpuPlace(14, 2, 0)}

    assert distributed(CpuTopology.of(places), "0-3,9-11,14", 5) == "0-1,9-10,14"


@pytest.mark.parametrize("take", [packed, distributed])
def test_more_than_is_free_is_refused_with_both_numbers(take: object) -> None:
    assert callable(take)
    assert take(nodes_of([2, 2]), "0-2", 4) == (
        "not enough cpus available to satisfy request: requested=4, available=3"
    )


@st.composite
def worlds(draw: st.DrawFn) -> tuple[CpuTopology, CpuSet, int, int]:
    """Sockets of equal size: the kubelet judges a socket by the average size (CPUsPerSocket in
    cpumanager/topology/topology.go) and can take too much of a larger one."""
    threads, cores, per_socket = draw(st.sampled_from((1, 2))), draw(st.integers(1, 3)), draw(st.sampled_from((1, 2)))
    counts = [threads * cores] * (per_socket * draw(st.integers(1, 3)))
    topology = nodes_of(counts, threads, per_socket)
    available = CpuSet.of(draw(st.sets(st.sampled_from(list(topology.cpus)))))
    return topology, available, draw(st.integers(0, 8)), draw(st.sampled_from((0, 1, 2)))


@given(worlds())
def test_what_is_taken_is_free_and_exact_or_the_reason_is_given(
    world: tuple[CpuTopology, CpuSet, int, int],
) -> None:
    topology, available, count, group_size = world
    found = (
        take_packed(topology, available, count)
        if group_size == 0
        else take_distributed(topology, available, count, group_size=group_size)
    )

    if isinstance(found, NotTaken):
        assert count > len(available) or group_size > 1
    else:
        assert len(found) == count
        assert not found - available
