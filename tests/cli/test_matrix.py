"""The matrix of `topoalloc show`, which the reader of `nvidia-smi topo -m` must read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given

from tests.cli.made_machines import NO_NODE, SILENT, cube_mesh, dgx, gpu, hostile, machine, nic, node, pci_tree
from tests.cli.random_machines import machines
from topoalloc.cli.picture.matrix import matrix_text
from topoalloc.topology.assemble import assemble
from topoalloc.topology.machine import LinkClass, Machine, Unknown, known
from topoalloc.topology.readers import topo_matrix
from topoalloc.topology.reading import SourceRefusal
from topoalloc.topology.sources import load_machine

MACHINES = Path(__file__).parent.parent / "machines"


def read_back(text: str) -> Machine:
    reading = topo_matrix.parse(text, "made.txt")
    assert not isinstance(reading, SourceRefusal), reading
    read = assemble([reading], None)
    assert isinstance(read, Machine), read
    return read


def told(read: Machine) -> object:
    """What a machine read from a table holds: pairs, and the CPUs and node of every GPU."""
    pairs = {
        (one.a, one.b): (known(one.pcie), known(one.nvlinks) if one.b.startswith("GPU") else None) for one in read.links
    }
    return pairs, [(one.id, known(one.cpus), known(one.numa_node)) for one in read.gpus], len(read.nics)


def holdable(made: Machine) -> object:
    """What of a machine a table can hold: NV# hides the class, and a class says that there is no NVLink."""
    counts = [known(one.nvlinks) for one in made.links if one.b.startswith("GPU")]
    pcie_only = all(count is None for count in counts)
    pairs: dict[tuple[str, str], tuple[LinkClass | None, int | None]] = {}
    for one in made.links:
        pcie, count = known(one.pcie), known(one.nvlinks)
        if not one.b.startswith("GPU"):
            pairs[one.a, one.b] = (pcie, None)
        elif count:
            pairs[one.a, one.b] = (None, count)
        elif pcie is None or (count is None and not pcie_only):
            pairs[one.a, one.b] = (None, None)
        else:
            pairs[one.a, one.b] = (pcie, count)
    return pairs, [(one.id, known(one.cpus) or None, known(one.numa_node)) for one in made.gpus], len(made.nics)


def test_the_matrix_looks_like_the_drivers() -> None:
    made = machine(
        [node(0, "0-3")],
        [gpu(0, 0, cpus="0-3,64-67"), gpu(1, NO_NODE, cpus="0-7")],
        [nic(0, 0)],
        lambda a, b: LinkClass.PIX if a == "GPU0" else LinkClass.SYS,
        {("GPU0", "GPU1"): 4},
    )

    assert matrix_text(made) == (
        "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\n"
        "GPU0\t X \tNV4\tPIX\t0-3,64-67\t0\n"
        "GPU1\tNV4\t X \tSYS\t0-7\t\tN/A\n"
        "NIC0\tPIX\tSYS\t X \t\t\n"
        "\n"
        "Legend:\n"
        "\n"
        "  X    = the device itself\n"
        "  SYS  = through the interconnect of NUMA nodes (UPI, Infinity Fabric)\n"
        "  NODE = through several host bridges of one NUMA node\n"
        "  PHB  = through one host bridge, which is in the CPU as a rule\n"
        "  PXB  = through several PCIe bridges, not through a host bridge\n"
        "  PIX  = through one PCIe bridge, or one on either side of a common one\n"
        "  NV#  = through # NVLinks, counted between the two GPUs\n"
        "  ?    = no source tells\n"
        "\n"
        "NIC Legend:\n"
        "\n"
        "  NIC0: mlx5_0\n"
    )


@pytest.mark.parametrize("made", [dgx(), cube_mesh(), pci_tree()], ids=["dgx", "cube_mesh", "pci_tree"])
def test_a_matrix_is_read_back_as_the_same_facts(made: Machine) -> None:
    read = read_back(matrix_text(made))

    assert told(read) == holdable(made)
    assert read.warnings == ()


def test_the_nic_legend_gives_the_rdma_names_back() -> None:
    read = read_back(matrix_text(dgx()))

    assert [one.rdma for one in read.nics] == [f"mlx5_{i}" for i in range(8)]


def test_what_is_unknown_is_a_question_mark_and_stays_unknown() -> None:
    made = machine([node(0, "0-3")], [gpu(0, 0, cpus="0-3"), gpu(1, 0, cpus="0-3")], [nic(0, 0)], lambda a, b: SILENT)
    text = matrix_text(made)

    assert "GPU0\t X \t?\t?\t" in text
    assert all(isinstance(link.pcie, Unknown) for link in read_back(text).links)


def test_without_any_nvlink_count_the_table_is_read_back_as_silent_about_nvlink() -> None:
    made = machine([node(0, "0-3")], [gpu(0, 0, cpus="0-3"), gpu(1, 0, cpus="0-3")], [], lambda a, b: LinkClass.PIX)
    silent = replace(made, links=tuple(replace(link, nvlinks=Unknown("no source")) for link in made.links))

    (link,) = read_back(matrix_text(silent)).links
    assert link.pcie == LinkClass.PIX
    assert isinstance(link.nvlinks, Unknown)


def test_a_class_is_not_said_where_it_would_also_say_that_there_is_no_nvlink() -> None:
    gpus = [gpu(i, 0, cpus="0-3") for i in range(3)]
    made = machine([node(0, "0-3")], gpus, [], lambda a, b: LinkClass.PIX)
    links = (replace(made.links[0], nvlinks=Unknown("no source")), *made.links[1:])

    assert "GPU0\t X \t?\tPIX\t" in matrix_text(replace(made, links=links))


def test_two_ports_of_one_name_are_told_apart_in_the_legend() -> None:
    made = machine(
        [node(0, "0-3")], [], [nic(0, 0, name="mlx4_0"), nic(1, 0, name="mlx4_0")], lambda a, b: LinkClass.PIX
    )

    assert matrix_text(made).endswith("  NIC0: mlx4_0.NIC0\n  NIC1: mlx4_0.NIC1\n")


def test_no_name_breaks_the_table_or_steers_the_terminal() -> None:
    text = matrix_text(hostile())

    assert read_back(text).nics
    assert all(character.isprintable() or character in "\t\n" for character in text)


@pytest.mark.parametrize(
    "name", sorted(path.name for path in MACHINES.iterdir() if path.name.endswith((".topo-m.txt", ".nccl-topo.xml")))
)
def test_the_matrix_of_a_recorded_machine_is_read_back_as_the_same_facts(name: str) -> None:
    made = load_machine([str(MACHINES / name)])
    if not made.gpus:
        # A table without a GPU is none of the driver's, and its reader says so.
        assert isinstance(topo_matrix.parse(matrix_text(made), name), SourceRefusal)
        return

    assert told(read_back(matrix_text(made))) == holdable(made)


@given(machines())
def test_the_matrix_of_any_machine_is_read_back_as_the_same_facts(made: Machine) -> None:
    assume(made.gpus)
    # A table that names one node answers for GPUs whose node it does not know; that is the reader's rule.
    assume(len({one.numa_node for one in made.gpus if not isinstance(one.numa_node, Unknown)}) != 1)

    assert told(read_back(matrix_text(made))) == holdable(made)
