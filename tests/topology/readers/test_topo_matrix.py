"""`nvidia-smi topo -m`: the recorded tables, and every driver generation's and paste's shape of a table."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.readers.recorded import FACTS, names, read, refused, says_the_same, text_of
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import LinkClass, Unknown
from topoalloc.topology.readers import topo_matrix
from topoalloc.topology.readers.printed_text import LINE_LENGTH_MAX, LINES_MAX
from topoalloc.topology.reading import LinkReading, Reading, SourceRefusal, Standing

TABLES = names(".topo-m.txt")

PLAIN = """\
\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV4\tSYS\tPIX\t0-15\t0\t\tN/A
GPU1\tNV4\t X \tSYS\tPXB\t0-15\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tSYS\t16-31,48-63\t1\t\tN/A
NIC0\tPIX\tPXB\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_bond_0
"""


def table(text: str) -> Reading:
    return read(topo_matrix.parse(text, "host.txt"))


def refusal(text: str) -> str:
    return refused(topo_matrix.parse(text, "host.txt"))


def link(reading: Reading, a: tuple[str, int], b: tuple[str, int]) -> LinkReading:
    return next(link for link in reading.links if (link.a, link.b) == (a, b))


def with_tail(titles: str, *tails: str) -> str:
    """A table of as many GPUs as tails, all SYS."""
    header = "".join(f"\tGPU{at}" for at in range(len(tails)))
    rows = [
        f"GPU{row}\t" + "\t".join(" X " if column == row else "SYS" for column in range(len(tails))) + tail
        for row, tail in enumerate(tails)
    ]
    return "\n".join([header + titles, *rows, ""])


# The recorded tables


@pytest.mark.parametrize("name", TABLES)
def test_a_recorded_table_has_the_gpus_of_its_facts(name: str) -> None:
    reading, facts = table(text_of(name)), FACTS[name]
    assert [gpu.index for gpu in reading.gpus] == [gpu["index"] for gpu in facts["gpus"]]
    for gpu, fact in zip(reading.gpus, facts["gpus"], strict=True):
        assert isinstance(gpu.cpus, CpuSet)
        assert gpu.cpus == CpuSet.from_list(fact["cpu_affinity"])
        assert (gpu.numa_node if isinstance(gpu.numa_node, int) else None) == fact["numa"]
        assert (gpu.numa_node is None) == ("numa_affinity_text" not in fact)


@pytest.mark.parametrize("name", TABLES)
def test_a_recorded_table_has_the_nics_and_nodes_of_its_facts(name: str) -> None:
    reading, facts = table(text_of(name)), FACTS[name]
    assert [node.id for node in reading.numa_nodes] == facts["numa_nodes_seen"]
    devices = [nic["device"] for nic in facts["nics"]]
    assert [None if isinstance(nic.rdma, Unknown) else nic.rdma for nic in reading.nics] == devices
    assert [nic.name for nic in reading.nics] == [nic["device"] or nic["name"] for nic in facts["nics"]]


@pytest.mark.parametrize("name", TABLES)
def test_a_recorded_table_has_every_cell_of_its_facts(name: str) -> None:
    reading, facts = table(text_of(name)), FACTS[name]
    place = {f"GPU{gpu.index}": ("gpu", at) for at, gpu in enumerate(reading.gpus)}
    place |= {nic["name"]: ("nic", at) for at, nic in enumerate(facts["nics"])}
    cells = {
        (place[a], place[b]): word
        for a, row in facts["gpu_matrix"].items()
        for b, word in row.items()
        if place[a] < place[b]
    }
    assert {(link.a, link.b) for link in reading.links if link.a[0] == "gpu"} == set(cells)
    for pair, word in cells.items():
        found = link(reading, *pair)
        if word.startswith("NV"):
            assert (found.pcie, found.nvlinks) == (Unknown(f"hidden by {word} cell"), int(word[2:]))
        else:
            assert (found.pcie, found.nvlinks) == (LinkClass[word], 0)


@pytest.mark.parametrize("name", TABLES)
def test_a_recorded_table_has_the_nvlink_pairs_of_its_facts(name: str) -> None:
    reading, facts = table(text_of(name)), FACTS[name]
    pairs = {
        (reading.gpus[link.a[1]].index, reading.gpus[link.b[1]].index): link.nvlinks
        for link in reading.links
        if link.nvlinks
    }
    assert pairs == {(pair["a"], pair["b"]): pair["links"] for pair in facts["nvlink_pairs"]}


def test_a_table_is_a_source_of_its_own_whose_row_order_numbers_the_devices() -> None:
    reading = table(text_of("dgx1-v100-4nic-unsorted-columns.topo-m.txt"))
    assert (reading.standing, reading.ordered) == (Standing.WHOLE, True)
    assert [nic.rdma for nic in reading.nics] == ["mlx5_2", "mlx5_0", "mlx5_3", "mlx5_1"]


def test_recorded_tables_are_read_without_warnings_where_nothing_is_missing() -> None:
    """Two are doubtful: one NIC Legend was not copied; one legend has no NV#, as `topo -mp` prints it."""
    doubtful = {name for name in TABLES if table(text_of(name)).warnings}
    assert doubtful == {"8xrtx4090-2socket-sys-dualport-nic.topo-m.txt", "aws-vm-2gpu-pix-header-shift.topo-m.txt"}


# Shapes that mean the same


def unwrapped_variants(text: str) -> dict[str, str]:
    first, rest = text.split("\n", 1)
    return {
        "underline after the tab": f"\t\x1b[4m{first.lstrip()}\x1b[0m\n{rest}",
        "underline before the tab": f"\x1b[4m{first}\x1b[0m\n{rest}",
        "escape shown by cat -v": f"^[[4m{first}^[[0m\n{rest}",
        "escape character lost": f"[4m{first}[0m\n{rest}",
        "header without its first tab": f"{first.lstrip()}\n{rest}",
        "blanks for tabs": text.expandtabs(8),
        "blanks at line ends lost": "\n".join(line.rstrip() for line in text.expandtabs(8).split("\n")),
        "tabs doubled": text.replace("\t", "\t\t") if "CPU" in first else text,
        "indented": "".join(f"    {line}\n" for line in text.split("\n")),
        "indented by a tab": "".join(f"\t{line}\n" for line in text.split("\n")),
        "Windows line ends": text.replace("\n", "\r\n"),
        "no-break blanks": text.expandtabs(8).replace(" ", "\u00a0"),
        "byte order mark": "\ufeff" + text,
        "rule line under the header": f"{first}\n{'-' * 60}\n{rest}",
        "blank lines between rows": text.replace("\n", "\n\n"),
        "prompt and code fence": f"```\nroot@node:~# nvidia-smi topo -m\n{text}```\n",
        "shortened titles": text.replace("CPU Affinity", "CPU Aff").replace("NUMA Affinity", "NUMA"),
        "translated legend": re.sub(r"= Connection.*", "= Verbindung über PCIe", text.replace("Legend:", "Legende:")),
    }


@pytest.mark.parametrize("name", TABLES)
def test_what_pastes_add_and_lose_changes_nothing(name: str) -> None:
    text = text_of(name)
    expected = table(text)
    for what, variant in unwrapped_variants(text).items():
        assert says_the_same(table(variant), expected), what


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("width", [72, 80, 100, 120, 132, 160, 200])
def test_rows_broken_at_the_terminals_width_are_joined_again(name: str, width: int) -> None:
    text = text_of(name)
    assert says_the_same(table(broken(text, width, "\n")), table(text))


def broken(text: str, width: int, line_end: str) -> str:
    """The text as copied from a terminal of this width; with an empty line end, cells run together."""
    lines = (
        line_end.join(line[at : at + width].rstrip() for at in range(0, max(1, len(line)), width))
        for line in text.expandtabs(8).split("\n")
    )
    return "\n".join(lines)


@given(st.sampled_from(TABLES), st.integers(24, 260))
def test_rows_broken_anywhere_are_joined_again_or_refused_by_name(name: str, width: int) -> None:
    result = topo_matrix.parse(broken(text_of(name), width, "\n"), "host.txt")
    if isinstance(result, SourceRefusal):
        assert re.match(r"row (GPU|NIC|mlx)|.*header|no row", result.reason)
    else:
        assert says_the_same(result, table(text_of(name)))


@given(st.sampled_from(TABLES), st.integers(40, 260))
def test_cells_that_ran_together_where_a_line_break_was_are_told_apart_or_refused(name: str, width: int) -> None:
    result = topo_matrix.parse(broken(text_of(name), width, ""), "host.txt")
    assert isinstance(result, SourceRefusal) or says_the_same(result, table(text_of(name)))


def test_the_legend_is_not_needed() -> None:
    text = PLAIN.split("Legend:")[0].rstrip() + "\n"
    assert says_the_same(
        table(text.replace("NIC0", "mlx5_bond_0")),
        table(PLAIN.split("NIC Legend:")[0].replace("NIC0", "mlx5_bond_0")),
    )


def test_a_markdown_table_is_a_table() -> None:
    lines = PLAIN.split("\n\n")[0].split("\n")
    rows = ["| " + re.sub(r"\t+", " | ", line.rstrip("\t")) + " |" for line in lines]
    rows.insert(1, "|---|" + ":---:|" * 7)
    assert table("\n".join(rows)).links == table(PLAIN).links


def test_columns_may_stand_in_another_order_than_rows() -> None:
    text = "\tGPU1\tGPU0\tmlx5_1\nGPU0\tPHB\t X \tPIX\nGPU1\t X \tPHB\tSYS\nmlx5_1\tSYS\tPIX\t X \n"
    reading = table(text)
    assert link(reading, ("gpu", 0), ("gpu", 1)).pcie is LinkClass.PHB
    assert link(reading, ("gpu", 0), ("nic", 0)).pcie is LinkClass.PIX


def test_two_digit_labels_are_not_taken_for_one_digit_labels() -> None:
    count = 12
    rows = [
        f"GPU{row}\t" + "\t".join("X" if row == column else "NODE" for column in range(count)) for row in range(count)
    ]
    header = "".join(f"GPU{column}" for column in range(count))
    assert len(table("\n".join([header, *rows])).links) == count * (count - 1) // 2


# Driver generations


def test_the_oldest_tables_have_no_titled_columns() -> None:
    reading = table("\tGPU0\tGPU1\nGPU0\t X \tSOC\nGPU1\tSOC\t X \n")
    assert [(gpu.cpus, gpu.numa_node) for gpu in reading.gpus] == [(None, None)] * 2
    assert reading.links[0].pcie is LinkClass.SYS


@pytest.mark.parametrize(
    ("titles", "tails", "cpus", "node"),
    [
        ("\tCPU Affinity", "\t0-15", "0-15", None),
        ("\tCPU Affinity\tNUMA Affinity", "\t0-15\t0", "0-15", 0),
        ("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t0-15\t0\t\tN/A", "0-15", 0),
        ("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t0-71\t\t0,2-17\t\tN/A", "0-71", 0),
        ("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t0-71\t0,5-11\t\t4", "0-71", 0),
        ("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t72-143\t1,3-9,12-18\t\t2", "72-143", 1),
    ],
)
def test_each_generation_of_titled_columns_is_read(titles: str, tails: str, cpus: str, node: int | None) -> None:
    gpu = table(with_tail(titles, tails)).gpus[0]
    assert (gpu.cpus, gpu.numa_node) == (CpuSet.from_list(cpus), node)


@pytest.mark.parametrize("cell", ["N/A", "0-1", "0,1", "0,2-3", "0-3,5"])
def test_a_list_of_nodes_or_none_leaves_the_node_unknown_with_its_evidence(cell: str) -> None:
    gpu = table(with_tail("\tCPU Affinity\tNUMA Affinity", f"\t0-15\t{cell}")).gpus[0]
    assert gpu.numa_node == Unknown(f"NUMA Affinity is {cell}")


@pytest.mark.parametrize(
    ("tail", "cpus", "node", "own"),
    [
        ("\t\t1\t\tN/A", None, 1, None),
        ("\t0-7\t\t\tN/A", "0-7", None, None),
        ("\t0-7\t\t\t\tN/A", "0-7", None, None),
        ("\t0-7\t0\t\t", "0-7", 0, None),
        ("\t\t\t\t", None, None, None),
        ("\t0-7\t\t0\t\t4", "0-7", 0, 4),
    ],
)
def test_an_empty_cell_is_found_by_the_tabs_around_it(
    tail: str, cpus: str | None, node: int | None, own: int | None
) -> None:
    reading = table(with_tail("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID", tail))
    gpu = reading.gpus[0]
    assert gpu.cpus == (Unknown("the CPU Affinity cell is empty") if cpus is None else CpuSet.from_list(cpus))
    assert gpu.numa_node == (Unknown("the NUMA Affinity cell is empty") if node is None else node)
    assert [item.id for item in reading.numa_nodes] == sorted({n for n in (node, own) if n is not None})


def test_an_empty_cpu_cell_is_found_by_its_place_when_tabs_became_blanks() -> None:
    titles = "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"
    text = with_tail(titles, "\t0-7\t0\t\tN/A", "\t\t1\t\tN/A").expandtabs(8)
    assert [gpu.numa_node for gpu in table(text).gpus] == [0, 1]
    assert table(text).gpus[1].cpus == Unknown("the CPU Affinity cell is empty")


def test_the_memory_node_of_a_coherent_gpu_is_named_and_has_no_cpus() -> None:
    reading = table(with_tail("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t0-71\t0\t\t1"))
    assert [(node.id, node.cpus) for node in reading.numa_nodes] == [(0, None), (1, CpuSet())]


def test_mig_rows_count_as_cells_and_are_left_out() -> None:
    text = "\tGPU0\tMIG0\tGPU1\nGPU0\t X \tPIX\tSYS\nMIG0\tPIX\t X \tSYS\nGPU1\tSYS\tSYS\t X \n"
    reading = table(text)
    assert [gpu.index for gpu in reading.gpus] == [0, 1]
    assert [link.pcie for link in reading.links] == [LinkClass.SYS]
    assert "MIG" in reading.warnings[0]


def test_an_excerpt_keeps_the_numbers_of_its_labels() -> None:
    reading = table("\tGPU4\tGPU5\nGPU4\t X \tNV18\nGPU5\tNV18\t X \n")
    assert [gpu.index for gpu in reading.gpus] == [4, 5]


@pytest.mark.parametrize("command", ["root@node:~# nvidia-smi topo -mp\n", "$ nvidia-smi  topo -mp\n"])
def test_a_table_of_pcie_classes_alone_is_silent_about_nvlinks(command: str) -> None:
    text = "\tGPU0\tGPU1\nGPU0\t X \tPXB\nGPU1\tPXB\t X \n"
    assert table(command + text).links[0].nvlinks is None
    assert read(topo_matrix.parse(text, "host.topo-mp.txt")).links[0].nvlinks is None
    assert table(text).links[0].nvlinks == 0


def test_a_legend_without_nvlinks_is_pointed_out() -> None:
    """`topo -mp` is told from `topo -m` by its legend alone, which people cut as well; so a warning, no decision."""
    warnings = table(text_of("aws-vm-2gpu-pix-header-shift.topo-m.txt")).warnings
    assert any("topo -mp" in warning for warning in warnings)


# Contradictions


def test_different_link_counts_keep_the_smaller_with_a_warning() -> None:
    reading = table("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV2\t X \n")
    assert reading.links[0].nvlinks == 2
    assert reading.warnings == ("GPU0-GPU1 is NV4 in one row, NV2 in the other; the worse is taken",)


def test_links_missing_in_one_row_are_no_links_and_the_class_of_the_other_row_stays() -> None:
    found = table("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tPHB\t X \n").links[0]
    assert (found.pcie, found.nvlinks) == (LinkClass.PHB, 0)


def test_different_classes_keep_the_farther_with_a_warning() -> None:
    reading = table("\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tSYS\t X \n")
    assert reading.links[0].pcie is LinkClass.SYS
    assert len(reading.warnings) == 1


def test_cpu_lists_that_overlap_in_part_are_pointed_out() -> None:
    reading = table(with_tail("\tCPU Affinity", "\t0-15,32-47", "\t16-31,4"))
    assert "overlap" in reading.warnings[0]


# Refusals


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("\n\n  \n", "empty"),
        ("\x00\x01", "binary"),
        ("GPU 0: NVIDIA A100 (UUID: GPU-1)\n", "no row"),
        ("GPU0\t X \n", "header"),
        ("\tGPU0\tGPU1\nGPU0\t X \tSYS\n", "'GPU1'"),
        ("\tGPU0\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n", "row GPU1 has no column"),
        ("\tGPU0\tGPU0\nGPU0\t X \tSYS\n", "row GPU0"),
        ("\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU0\tSYS\t X \n", "row GPU0 is there twice"),
        ("\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\t X \tSYS\n", "row GPU1"),
        ("\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\n", "row GPU1: 1 of 2 cells"),
        ("\tGPU0\tGPU1\nGPU0\t X \tSYS\tSYS\nGPU1\tSYS\t X \n", "row GPU0"),
        ("\tGPU0\tGPU1\nGPU0\t X \tFOO\nGPU1\tSYS\t X \n", "row GPU0: 1 of 2 cells, then 'FOO'"),
        ("\tGPU0\tGPU1\nGPU0\t X \tFOO\nGPU1\tFOO\t X \n", "row GPU1: no cell"),
        ("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSYS\t0-7\nGPU1\tSYS\t X \n", "row GPU1: the cell of CPU Affinity"),
        ("\tGPU0\tCPU Affinity\nGPU0\t X \t7-0\n", "row GPU0: '7-0' is no CPU Affinity"),
        ("\tGPU0\tCPU Affinity\nGPU0\t X \t0-99999999\n", "row GPU0"),
        ("\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\t0\n", "row GPU0: '0' has no column"),
        ("\tGPU0\tmlx5_0\tCPU Affinity\nGPU0\t X \tPIX\t0-7\nmlx5_0\tPIX\t X \t0-7\n", "row mlx5_0"),
        ("\tGPU0\tmlx5_0\nGPU0\t X \tNV4\nmlx5_0\tNV4\t X \n", "only GPUs have NVLinks"),
        ("\tmlx5_0\nmlx5_0\t X \n", "without a GPU row"),
        ("\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tsys\t X \n", "row GPU1: no cell behind the label"),
        ("\tGPU0\tGPU1\tGPU2\nGPU0\tX\tPIX\tPIX\nGPU1\t!\tX\tPIX\nGPU2\tPIX\tPIX\tX\n", "line 4 is a table row after"),
    ],
)
def test_what_cannot_be_accounted_for_is_refused_by_name(text: str, reason: str) -> None:
    assert reason in refusal(text)


def test_cells_that_can_be_told_apart_in_two_ways_are_refused() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV120-31\nGPU1\tNV12\t X \t0-31\n"
    assert "more than one way" in refusal(text)
    assert table(text.replace("NV120-31", "NV180-17").replace("NV12\t", "NV18\t")).links[0].nvlinks == 18


def test_two_tables_in_one_file_are_refused() -> None:
    assert "one table per file" in refusal(PLAIN + PLAIN)


def test_a_nic_legend_that_leaves_out_a_nic_is_refused() -> None:
    text = "\tGPU0\tNIC0\tNIC1\nGPU0\t X \tPIX\tPIX\nNIC0\tPIX\t X \tPIX\nNIC1\tPIX\tPIX\t X \n\nNIC Legend:\n\n"
    assert "NIC1" in refusal(text + "  NIC0: mlx5_0\n")
    assert "two NICs" in refusal(text + "  NIC0: mlx5_1\n  NIC1: mlx5_1\n")
    assert "NIC Legend" in refusal(text)


@pytest.mark.parametrize(
    "end",
    ["Legend", "Legend:", "X    = Sel", "PXB  = Connection trav", "PIX  =", "  PI", "NIC Leg", "NIC Legend:", "NIC0"],
)
def test_a_legend_cut_in_the_middle_of_a_line_is_refused(end: str) -> None:
    assert "cut short" in refusal(PLAIN[: PLAIN.rindex(end) + len(end)])


def test_a_legend_without_lines_is_refused() -> None:
    assert "cut short" in refusal(PLAIN.split("  X ")[0])


@pytest.mark.parametrize("name", TABLES)
def test_a_table_cut_in_half_is_refused_or_the_cut_took_nothing_but_legend(name: str) -> None:
    text = text_of(name)
    result = topo_matrix.parse(text[: len(text) // 2], name)
    assert isinstance(result, SourceRefusal) or "Legend" in text[: len(text) // 2]


def test_a_table_of_too_many_devices_is_refused() -> None:
    rows = "".join(f"GPU{at}\tX\n" for at in range(300))
    assert "256" in refusal("\tGPU0\n" + rows)


def test_a_million_lines_are_refused_within_a_second_or_two() -> None:
    started = time.monotonic()
    assert str(LINES_MAX) in refusal("GPU0\tX\tSYS\n" * 1_000_000)
    assert time.monotonic() - started < 2


def test_an_endless_line_is_refused() -> None:
    assert str(LINE_LENGTH_MAX) in refusal("GPU0\t" + "X" * (LINE_LENGTH_MAX + 1))
