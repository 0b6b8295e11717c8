"""The tree of `topoalloc show`."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.cli.made_machines import ALL, cube_mesh, dgx, gpu, hostile, lone_vm, machine, node, pci_tree
from tests.cli.random_machines import machines
from topoalloc.cli.picture.tree import LINE_CHARACTERS_MAX, tree_text
from topoalloc.topology.machine import LinkClass, Machine, Unknown
from topoalloc.topology.spelling import model_words, reason_words


def test_the_tree_of_a_small_machine_reads_so() -> None:
    assert (
        tree_text(pci_tree())
        == """\
3 × L40S
3 NUMA nodes · 5 NICs · read from made by hand

NUMA node 0 · 64 GiB · distances 10 21 24 · 4 CPUs 0-3
├─ host bridge 0000:00
│  └─ PCIe switch 0000:01:00.0 (PIX)
│     ├─ GPU0     L40S    48 GiB       0000:04:00.0  nearest NIC0, NIC1 (PIX)
│     ├─ GPU1     L40S    48 GiB       0000:05:00.0  nearest NIC0, NIC1 (PIX)
│     └─ card 0000:06:00 (PIX)
│        ├─ NIC0  mlx5_0  InfiniBand   0000:06:00.0
│        └─ NIC1  mlx5_1  InfiniBand   0000:06:00.1
└─ host bridge 0000:40
   └─ NIC2        eno1    Ethernet     0000:41:00.0

NUMA node 1 · 64 GiB · distances 21 10 14 · 4 CPUs 4-7
└─ host bridge 0000:80 (PHB)
   ├─ GPU2        L40S    48 GiB       0000:81:00.0  nearest NIC3 (PHB)
   └─ NIC3        eth3v0  Ethernet VF  0000:82:00.2

NUMA node 2 · 128 GiB · distances 24 14 10 · no CPUs

NUMA node unknown (numa_node is -1)
└─ host bridge 0000:c0
   └─ NIC4        ens9                 0000:c1:00.0

NVLink: 4 links between GPU0 and GPU1

Unknown: NUMA node of NIC4 (numa_node is -1)
"""
    )


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("NVIDIA Corporation AD102GL [RTX 6000 Ada Generation]", "RTX 6000 Ada Generation"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA", "NVIDIA"),
    ],
)
def test_a_model_is_shown_by_the_name_it_is_sold_under(model: str, shown: str) -> None:
    assert model_words(model) == shown


@pytest.mark.parametrize(
    ("evidence", "shown"),
    [
        ("no source tells the model", "no source tells"),
        ("no source tells the NUMA node, and no GPU of known node is near", "no GPU of known node is near"),
        ("hidden by NV12 cell", "hidden by NV# cell"),
        ("node3 has no readable meminfo", "node has no readable meminfo"),
        ("x" * 200, "x" * 59 + "…"),
    ],
)
def test_a_reason_is_short_and_without_the_numbers_of_its_owner(evidence: str, shown: str) -> None:
    assert reason_words(Unknown(evidence)) == shown


def test_an_nvswitch_is_one_line() -> None:
    assert "NVLink: 12 links between any two of GPU0-7, through NVSwitch\n" in tree_text(dgx())


def test_a_hybrid_mesh_is_told_gpu_by_gpu_strongest_first() -> None:
    assert "NVLink: GPU0 has 2 links to GPU3, GPU4; 1 link to GPU1, GPU2\n" in tree_text(cube_mesh())


def test_gpus_without_nvlink_are_said_to_have_none() -> None:
    made = machine([node(0, "0-3")], [gpu(0, 0), gpu(1, 0)], pcie=lambda a, b: LinkClass.PHB)

    assert "NVLink: none\n" in tree_text(made)


def test_links_between_amd_gpus_are_called_xgmi() -> None:
    gpus = [gpu(0, 0, vendor="1002"), gpu(1, 0, vendor="1002")]
    made = machine([node(0, "0-3")], gpus, [], lambda a, b: LinkClass.PHB, {("GPU0", "GPU1"): 2})

    assert "XGMI: 2 links between GPU0 and GPU1\n" in tree_text(made)


def test_what_is_unknown_is_said_once_for_all_that_share_the_gap() -> None:
    assert "Unknown: model, memory and bus id of GPU0 (the source does not tell)\n" in tree_text(lone_vm())


@pytest.mark.parametrize("name", ALL)
def test_no_line_is_wider_than_a_terminal(name: str) -> None:
    assert max(len(line) for line in tree_text(ALL[name]()).splitlines()) <= LINE_CHARACTERS_MAX


def test_no_name_can_steer_the_terminal() -> None:
    assert all(character.isprintable() or character == "\n" for character in tree_text(hostile()))


@given(machines())
def test_the_tree_of_any_machine_has_each_device_on_a_line_of_its_own_and_is_the_same_twice(made: Machine) -> None:
    text = tree_text(made)
    heads = [line.lstrip("│├└─ ").split(" ")[0] for line in text.splitlines()[2:] if line[:1] in "│├└ "]
    devices = [head for head in heads if head[:3] in ("GPU", "NIC")]

    assert sorted(devices) == sorted([*(gpu.id for gpu in made.gpus), *(nic.id for nic in made.nics)])
    assert all(len(line) <= LINE_CHARACTERS_MAX and line.isprintable() for line in text.splitlines())
    assert text == tree_text(made)
