"""Lists of PCI functions with class and NUMA node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.readers.recorded import FACTS, read, refused, says_the_same, text_of
from topoalloc.topology.machine import Unknown
from topoalloc.topology.readers import pci_list
from topoalloc.topology.reading import Reading, SourceRefusal, Standing

RECORDED = "perlmutter-4xa100-epyc7763-slingshot.gpu-numa.txt"


def functions(text: str) -> Reading:
    return read(pci_list.parse(text, "host.txt"))


def test_the_recorded_list_agrees_with_its_facts() -> None:
    reading = functions(text_of(RECORDED))
    assert [{"busid": str(gpu.bdf), "numa": gpu.numa_node} for gpu in reading.gpus] == FACTS[RECORDED]["gpus"]
    assert [node.id for node in reading.numa_nodes] == [0, 1, 2, 3]
    assert (reading.standing, reading.nics, reading.warnings) == (Standing.ADDITION, (), ())


@pytest.mark.parametrize(
    "line",
    [
        "0000:3b:00.0 class=0x030200 numa=1",
        "3b:00.0 0x030200 1",
        "00000000:3B:00.0,0x030200,1",
        "0000:3b:00.0 vendor=0x10de class=0x030200 numa_node=1",
        "  0000:3b:00.0\t030200\t1\r",
    ],
)
def test_each_spelling_of_a_line_is_read(line: str) -> None:
    (gpu,) = functions(f"# address class node\n\n{line}\n").gpus
    assert (str(gpu.bdf), gpu.numa_node) == ("0000:3b:00.0", 1)


def test_kinds_follow_class_and_vendor() -> None:
    reading = functions(
        "01:00.0 vendor=0x10de class=0x030000 numa=0\n"
        "02:00.0 vendor=0x1a03 class=0x030000 numa=0\n"
        "03:00.0 vendor=0x15b3 class=0x020700 numa=1\n"
        "04:00.0 vendor=0x10de class=0x068000 numa=1\n"
        "05:00.0 vendor=0x144d class=0x010802 numa=-1\n"
    )
    assert [str(gpu.bdf) for gpu in reading.gpus] == ["0000:01:00.0"]
    assert [str(nic.bdf) for nic in reading.nics] == ["0000:03:00.0"]
    assert [str(address) for address in reading.nvswitches] == ["0000:04:00.0"]


@pytest.mark.parametrize("text", ["-1", "N/A", "-"])
def test_a_node_that_the_kernel_does_not_know_is_unknown(text: str) -> None:
    assert isinstance(functions(f"3b:00.0 class=0x030200 numa={text}\n").gpus[0].numa_node, Unknown)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("# nothing\n", "no PCI function"),
        ("hello world\n", "line 1"),
        ("3b:00.0\n", "no class"),
        ("3b:00.0 class=0x0302 numa=1\n", "no class"),
        ("3b:00.0 class=0x030200 numa=one\n", "no NUMA node"),
        ("3b:00.0 class=0x030200 numa=4096\n", "above"),
        ("3b:00.0 class=0x030200 numa=1 colour=red\n", "'colour=red'"),
        ("3b:00.0 class=0x030200 vendor=nvidia numa=1\n", "no PCI id"),
        ("3b:00.0 class=0x030200 numa=1\n3b:00.0 class=0x030200 numa=0\n", "twice"),
        ("3b:00.0 class=0x030200 numa=1\n4b:00.0 class=0x030200\n", "4b:00.0 has no NUMA node"),
        ("3b:00.0 class=0x030200\n", "no NUMA node"),
        ("3b:00.0 class=0x030200 numa=", "cut short"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, reason: str) -> None:
    assert reason in refused(pci_list.parse(text, "host.txt"))


@given(st.data())
def test_a_list_cut_in_a_line_is_refused_or_warned_of_and_cut_between_lines_is_shorter(data: st.DataObject) -> None:
    text = text_of(RECORDED)
    result = pci_list.parse(text[: data.draw(st.integers(0, len(text)))], "host.txt")
    if isinstance(result, Reading):
        assert result.warnings or result.gpus == functions(text).gpus[: len(result.gpus)]


@given(st.text(st.sampled_from("0123456789abcdef:.x=numclas \n")))
def test_any_text_is_refused_or_read_without_raising(text: str) -> None:
    result = pci_list.parse(text, "host.txt")
    assert isinstance(result, SourceRefusal) or says_the_same(result, functions(text))
