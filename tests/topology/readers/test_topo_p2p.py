"""`nvidia-smi topo -p2p`: whether GPUs reach each other's memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.readers.recorded import FACTS, read, refused, text_of
from topoalloc.topology.readers import topo_p2p
from topoalloc.topology.reading import Reading, SourceRefusal, Standing

RECORDED = "perlmutter-4xa100.topo-p2p-n.txt"


def pair(word: str, back: str | None = None, name: str = "p2p.txt", before: str = "") -> Reading:
    text = f"{before} \tGPU0\tGPU1\t\n GPU0\tX\t{word}\t\n GPU1\t{back or word}\tX\t\n"
    return read(topo_p2p.parse(text, name))


def test_the_recorded_matrix_agrees_with_its_facts() -> None:
    reading = read(topo_p2p.parse(text_of(RECORDED), RECORDED))
    matrix = FACTS[RECORDED]["matrix"]
    assert [gpu.index for gpu in reading.gpus] == [0, 1, 2, 3]
    assert len(reading.links) == 6
    for link in reading.links:
        assert link.peer_access is (matrix[f"GPU{link.a[1]}"][f"GPU{link.b[1]}"] == "OK")
        assert (link.pcie, link.nvlinks) == (None, None)
    assert reading.standing is Standing.ADDITION


@pytest.mark.parametrize(
    ("word", "access"),
    [("OK", True), ("CNS", False), ("GNS", False), ("TNS", False), ("NS", False), ("DR", False), ("U", None)],
)
def test_each_word_tells_peer_access(word: str, access: bool | None) -> None:
    assert pair(word).links[0].peer_access is access


@pytest.mark.parametrize(
    ("name", "access"), [("h.topo-p2p-n.txt", None), ("h.topo-p2p-a.txt", None), ("h.p2p-r.txt", False)]
)
def test_lack_of_nvlink_or_atomics_is_no_lack_of_peer_access(name: str, access: bool | None) -> None:
    assert pair("NS", name=name).links[0].peer_access is access
    assert pair("OK", name=name).links[0].peer_access is True


def test_the_capability_is_also_told_by_the_command_line_above_the_table() -> None:
    assert pair("NS", before="$ nvidia-smi topo -p2p n\n").links[0].peer_access is None
    assert pair("NS", before="$ nvidia-smi topo -p2p w\n").links[0].peer_access is False


def test_two_rows_that_differ_take_the_worse_with_a_warning() -> None:
    reading = pair("OK", "GNS")
    assert reading.links[0].peer_access is False
    assert len(reading.warnings) == 1
    assert pair("OK", "U").links[0].peer_access is None


@pytest.mark.parametrize(
    "text",
    [
        " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tX\tOK\t\n",
        " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\t\n",
        " \tGPU0\tNIC0\t\n GPU0\tX\tOK\t\n NIC0\tOK\tX\t\n",
        " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n",
    ],
)
def test_cells_out_of_place_are_refused(text: str) -> None:
    assert refused(topo_p2p.parse(text, "p2p.txt"))


@pytest.mark.parametrize("end", ["Legend", "Legend:", "OK   = Stat", "  GNS", "NS   = Not"])
def test_a_legend_cut_in_the_middle_of_a_line_is_refused(end: str) -> None:
    text = text_of(RECORDED)
    assert "cut short" in refused(topo_p2p.parse(text[: text.rindex(end) + len(end)], RECORDED))


@given(st.integers(0, 200))
def test_a_matrix_cut_anywhere_is_refused_or_whole(cut: int) -> None:
    text = text_of(RECORDED)
    result = topo_p2p.parse(text[:cut], RECORDED)
    assert isinstance(result, SourceRefusal) or result.links == read(topo_p2p.parse(text, RECORDED)).links


@given(st.text(st.sampled_from("GPU01XOKNS \t\n")))
def test_any_text_is_refused_or_read_without_raising(text: str) -> None:
    assert isinstance(topo_p2p.parse(text, "p2p.txt"), Reading | SourceRefusal)
