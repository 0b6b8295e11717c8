"""Made-up machines in one line: the line comes back, faults are named by position, and the machine is what it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoalloc.topology.assemble import assemble
from topoalloc.topology.checks import check_machine
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import LinkClass, Machine, Unknown
from topoalloc.topology.readers.synthetic import (
    NvlinkShape,
    SyntheticMachine,
    parse_synthetic,
    read_synthetic,
    synthetic_reading,
)
from topoalloc.topology.reading import Reading, SourceRefusal

PIX, PHB, SYS = LinkClass.PIX, LinkClass.PHB, LinkClass.SYS


def parsed(text: str) -> SyntheticMachine:
    machine = parse_synthetic(text)
    assert isinstance(machine, SyntheticMachine), machine
    return machine


def refused(text: str) -> str:
    machine = parse_synthetic(text)
    assert isinstance(machine, SourceRefusal)
    assert "\n" not in str(machine)
    return machine.reason


def machine(text: str) -> Machine:
    reading = read_synthetic(text)
    assert isinstance(reading, Reading), reading
    assembled = assemble([reading], None)
    assert isinstance(assembled, Machine), assembled
    return assembled


sizes = st.one_of(st.integers(1, 1 << 40), st.integers(1, 500).map(lambda gib: gib << 30))
shapes = st.one_of(st.none(), st.sampled_from(NvlinkShape))


@st.composite
def spellable(draw: st.DrawFn) -> SyntheticMachine:
    shape = draw(shapes)
    return SyntheticMachine(
        numa=draw(st.integers(1, 2)),
        switch=draw(st.integers(0, 2)),
        gpu=draw(st.integers(0, 3)),
        nic=draw(st.integers(0, 1)),
        nvlink_shape=shape,
        nvlinks=draw(st.integers(1, 18)) if shape else 0,
        gpu_memory_bytes=draw(st.none() | sizes),
        model=draw(st.none() | st.text("aZ09._+-", min_size=1, max_size=60)),
        cpus=draw(st.none() | st.integers(0, 256)),
        ram_bytes=draw(st.none() | sizes),
    )


@given(spellable())
def test_a_machine_is_spelled_so_that_it_parses_to_itself(spelled: SyntheticMachine) -> None:
    assert parsed(str(spelled)) == spelled
    assert str(parsed(str(spelled))) == str(spelled)


@given(spellable())
def test_every_spellable_machine_is_sound(spelled: SyntheticMachine) -> None:
    assembled = assemble([synthetic_reading(spelled)], None)
    assert isinstance(assembled, Machine), assembled
    assert check_machine(assembled) == ()
    assert assembled.warnings == ()
    below = max(spelled.switch, 1) * spelled.numa
    assert (len(assembled.gpus), len(assembled.nics)) == (spelled.gpu * below, spelled.nic * below)


@given(st.text(max_size=60))
def test_no_text_makes_the_parser_raise(text: str) -> None:
    assert isinstance(parse_synthetic(text), SyntheticMachine | SourceRefusal)


def test_the_line_of_the_documentation() -> None:
    text = "numa:2 switch:2 gpu:2 nic:1 nv:all=12 mem:80GiB cpus:16"
    assert str(parsed(f"synthetic:{text}")) == text
    here = machine(text)
    assert [str(node.cpus) for node in here.numa_nodes] == ["0-15", "16-31"]
    assert {gpu.memory_bytes for gpu in here.gpus} == {80 << 30}
    assert {link.nvlinks for link in here.links if link.b.startswith("GPU")} == {12}


def test_words_may_come_in_any_order_and_with_commas() -> None:
    assert parsed("gpu:2,numa:2, nic:1") == parsed("numa:2 gpu:2 nic:1")


def test_a_switch_joins_its_devices_more_closely_than_the_host_bridge() -> None:
    links = machine("numa:2 switch:2 gpu:2 nic:1").links_by_pair()
    found = [links["GPU0", other].pcie for other in ("GPU1", "NIC0", "GPU2", "NIC1", "GPU4", "NIC2")]
    assert found == [PIX, PIX, PHB, PHB, SYS, SYS]


def test_without_switches_every_device_has_a_root_port() -> None:
    links = machine("numa:1 gpu:2 nic:1")
    assert {link.pcie for link in links.links} == {PHB}
    assert links.switch_groups == ()


@pytest.mark.parametrize(
    ("shape", "counts"),
    [("mesh", [6, 6, 6, 6, 6, 6]), ("pairs", [6, 0, 0, 0, 0, 6]), ("all", [6, 6, 6, 6, 6, 6])],
)
def test_nvlink_shapes(shape: str, counts: list[int]) -> None:
    assert [link.nvlinks for link in machine(f"gpu:4 nv:{shape}=6").links] == counts


def test_no_nvlink_word_means_no_nvlinks() -> None:
    assert {link.nvlinks for link in machine("gpu:3").links} == {0}


def test_what_is_not_given_is_unknown() -> None:
    here = machine("gpu:1")
    assert isinstance(here.gpus[0].memory_bytes, Unknown)
    assert isinstance(here.numa_nodes[0].cpus, Unknown)
    assert machine("gpu:1 cpus:0").numa_nodes[0].cpus == CpuSet()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "names nothing"),
        ("synthetic:", "names nothing"),
        ("numa:2 gpu", "at character 8: '' is no number"),
        ("numa:2 gpus:4", "at character 8: 'gpus' is none of"),
        ("gpu:2x", "at character 1: '2x' is no number from 0 to 512"),
        ("numa:0", "at character 1: '0' is no number from 1 to 64"),
        ("gpu:1 mem:80", None),
        ("gpu:1 mem:much", "at character 7: 'much' is not a size"),
        ("gpu:1 nv:ring=2", "at character 7: nv:ring=2 is not nv:all=N"),
        ("gpu:1 nv:all", "is not nv:all=N"),
        ("gpu:1  gpu:2", "at character 8: gpu is given twice"),
        ("gpu:1 model:A/B", "at character 7: 'A/B' is no model"),
        ("numa:64 gpu:9", "576 devices; at most 512"),
        ("switch:1 gpu:33", "33 devices below one switch; a switch has 32 ports"),
        ("switch:60 gpu:4", "360 PCI buses below one host bridge; at most 255"),
        ("gpu:300", "300 PCI buses below one host bridge; at most 255"),
        ("numa:64 cpus:65535", "CPUs; at most 65535"),
        ("gpu:1 " * 400, "longer than 1000 characters"),
    ],
)
def test_faults_are_named_with_their_position(text: str, reason: str | None) -> None:
    if reason is None:
        assert parsed(text).gpu_memory_bytes == 80
    else:
        assert reason in refused(text)
