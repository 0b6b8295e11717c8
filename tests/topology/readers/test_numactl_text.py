"""`numactl -H`: nodes, CPUs, memory and distances."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.readers.recorded import FACTS, read, refused, says_the_same, text_of
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Unknown
from topoalloc.topology.readers import numactl_text
from topoalloc.topology.reading import Reading, SourceRefusal, Standing

RECORDED = "asus-esc8000a-e12-4xrtx6000ada.numactl-H.txt"

SPARSE = """\
available: 3 nodes (0,8,252)
node 0 cpus: 0 1 2 3
node 0 size: 1000 MB
node 0 free: 10 MB
node 8 cpus: 4 5 6 7
node 8 size: 0 MB
node 8 free: 0 MB
node 252 cpus:
node 252 size: 32768 MB
node 252 free: 32000 MB
node distances:
node   0   8  252
  0:  10  40  80
  8:  40  10  80
 252:  80  80  10
"""


def nodes(text: str) -> Reading:
    return read(numactl_text.parse(text, "host.txt"))


def test_the_recorded_output_agrees_with_its_facts() -> None:
    reading, facts = nodes(text_of(RECORDED)), FACTS[RECORDED]
    assert {str(node.id): str(node.cpus) for node in reading.numa_nodes} == facts["nodes"]
    assert {str(node.id): node.memory_bytes for node in reading.numa_nodes} == {
        node: size << 20 for node, size in facts["sizes_mb"].items()
    }
    assert [node.distances for node in reading.numa_nodes] == [(10, 32), (32, 10)]
    assert (reading.standing, reading.all_numa_nodes) == (Standing.ADDITION, True)


def test_sparse_ids_nodes_without_cpus_and_without_memory_are_nodes() -> None:
    reading = nodes(SPARSE)
    assert [node.id for node in reading.numa_nodes] == [0, 8, 252]
    assert [node.cpus for node in reading.numa_nodes] == [CpuSet.from_list("0-3"), CpuSet.from_list("4-7"), CpuSet()]
    assert [node.memory_bytes for node in reading.numa_nodes] == [1000 << 20, 0, 32768 << 20]
    assert reading.numa_nodes[2].distances == (80, 80, 10)


def test_missing_distance_information_is_unknown() -> None:
    text = SPARSE.split("node distances")[0] + "No distance information available.\n"
    assert all(isinstance(node.distances, Unknown) for node in nodes(text).numa_nodes)


def test_an_unavailable_size_is_unknown() -> None:
    text = SPARSE.replace("node 8 size: 0 MB", "node 8 size: <not available>")
    assert isinstance(nodes(text).numa_nodes[1].memory_bytes, Unknown)


def test_prompts_are_passed_over() -> None:
    assert says_the_same(nodes("$ numactl -H\n" + SPARSE + "\n"), nodes(SPARSE))


@pytest.mark.parametrize(
    ("change", "to", "reason"),
    [
        ("available: 3 nodes (0,8,252)\n", "", "no line `available"),
        ("available: 3", "available: 4", "4 nodes, but 3"),
        ("node 8 cpus: 4 5 6 7\n", "", "CPUs of node 8"),
        ("node 8 cpus", "node 9 cpus", "node 9"),
        ("node 8 cpus: 4", "node 0 cpus: 4", "two lists"),
        ("node 8 size", "node 0 size", "two sizes"),
        ("  8:  40  10  80\n", "", "distances of node 8"),
        ("  8:  40  10  80\n", "  8:  40  10\n", "distances of node 8"),
        ("  8:  40  10  80\n", "  8:  40  40  80\n", "to itself"),
        ("node   0   8  252", "node   0   8  253", "header of the node distances"),
        ("node 8 free", "node 8 used", "line 7"),
        ("cpus: 0 1", "cpus: 99999999 1", "outside"),
    ],
)
def test_what_is_missing_or_does_not_fit_is_refused(change: str, to: str, reason: str) -> None:
    assert change in SPARSE
    assert reason in refused(numactl_text.parse(SPARSE.replace(change, to), "host.txt"))


def test_a_system_without_numa_support_is_refused() -> None:
    assert "line 1" in refused(numactl_text.parse("No NUMA support available on this system\n", "host.txt"))


@given(st.sampled_from([SPARSE, text_of(RECORDED)]), st.data())
def test_an_output_cut_anywhere_is_refused_or_whole(text: str, data: st.DataObject) -> None:
    result = numactl_text.parse(text[: data.draw(st.integers(0, len(text)))], "host.txt")
    assert isinstance(result, SourceRefusal) or says_the_same(result, nodes(text))


@given(st.text(st.sampled_from("node 01cpus:size\nMB availbl()")))
def test_any_text_is_refused_or_read_without_raising(text: str) -> None:
    assert isinstance(numactl_text.parse(text, "host.txt"), Reading | SourceRefusal)
