"""`nvidia-smi topo -m` (and `-mp`): the PCIe class or the NVLinks of every pair, and the CPUs and NUMA node of GPUs.

An NV# cell hides the PCIe class; every other cell of `topo -m` says that there are no NVLinks. `topo -mp` prints PCIe
classes alone and says nothing of NVLinks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import LinkClass, Unknown
from topoalloc.topology.pci_classes import NVIDIA
from topoalloc.topology.readers import topo_p2p
from topoalloc.topology.readers.matrix_text import (
    NIC_LEGEND_TITLE,
    Matrix,
    MatrixRow,
    Title,
    cut_legend_line,
    has_rows,
    printed_matrix,
    vocabulary,
)
from topoalloc.topology.readers.printed_text import plain_head
from topoalloc.topology.reading import (
    GpuReading,
    LinkReading,
    NicReading,
    NumaReading,
    Reading,
    SourceRefusal,
    Standing,
)

# SOC is the word of drivers before 2017 for SYS, printed "SMP link between CPU sockets".
UNKNOWN_CELL = "?"  # the one word that the driver does not print: our own tables have it where no source tells
WORDS = vocabulary("X", "NV#", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC", UNKNOWN_CELL)

_GPU = re.compile(r"GPU(\d{1,4})")
_NIC = re.compile(r"NIC\d{1,4}")
# MIG instances hang where their GPU hangs.
_MIG = re.compile(r"(?:GPU\d+[./:_-]?)?MIG\S*")
# How the English legends of all drivers begin and end what they say of a word.
_TRAVERSING = "Connection traversing "
_LEGEND: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "X": ("Self", ("Self",)),
    "SYS": (_TRAVERSING, (")",)),
    "SOC": (_TRAVERSING, (")",)),
    "NODE": (_TRAVERSING, ("NUMA node",)),
    "PHB": (_TRAVERSING, (")",)),
    "PXB": (_TRAVERSING, (")",)),
    "PIX": (_TRAVERSING, ("switch", "bridge")),
    "NV#": (_TRAVERSING, ("NVLinks",)),
}
_LEGEND_LINE = re.compile(rf"\s*({'|'.join(map(re.escape, (*_LEGEND, UNKNOWN_CELL)))})\s*=\s*(.*)")
_NIC_LEGEND = re.compile(r"\s*(NIC\d{1,4})\s*[:：]\s*(\S+)\s*")
# Grace: the node of the CPUs, then the node ids reserved for the memory of MIG instances, of which a GPU has seven.
_NODE_AND_RESERVED = re.compile(r"(\d+)((?:,\d+-\d+)+)")
_MIG_INSTANCES = 7
_HEADER = re.compile(r"^[^\S\n]*GPU\d+\b[^\n]*\bCPU Aff", re.MULTILINE)
_PCIE_ONLY = re.compile(r"topo\s+-mp\b|topo[-_.]?mp\b")


def recognise(head: str) -> bool:
    """Whether the beginning of a file looks like this table (damaged ones too, for the refusal to name the damage)."""
    text = plain_head(head)
    return (has_rows(text, WORDS) or _HEADER.search(text) is not None) and not topo_p2p.recognise(head)


def parse(text: str, name: str) -> Reading | SourceRefusal:
    """Read one table. GPUs and NICs keep the order of their rows; every pair of devices has a LinkReading.

    `index` is the number of the row's label. A NIC's `rdma` is the column's name, or what the NIC Legend says.
    A cell that cannot be accounted for refuses the table, naming the row.
    """
    source = f"topo -m ({name})"
    printed = printed_matrix(text, WORDS, source)
    if isinstance(printed, SourceRefusal):
        return printed
    matrix, is_open = printed
    misplaced = _misplaced_cell(matrix)
    if misplaced is not None:
        return SourceRefusal(source, misplaced)
    rdma_names = _rdma_names(matrix, is_open)
    if isinstance(rdma_names, str):
        return SourceRefusal(source, rdma_names)
    gpu_rows = [row for row in matrix.rows if _GPU.fullmatch(row.label)]
    if not gpu_rows:
        return SourceRefusal(source, "a table without a GPU row")
    nic_rows = [row for row in matrix.rows if not _GPU.fullmatch(row.label) and not _MIG.fullmatch(row.label)]
    gpus = tuple(_gpu(row, matrix.titles) for row in gpu_rows)
    tells_nvlinks = not _PCIE_ONLY.search("\n".join((name, *matrix.before)))
    links, asymmetries = _links(matrix, gpu_rows, nic_rows, tells_nvlinks)
    return Reading(
        source=source,
        standing=Standing.WHOLE,
        numa_nodes=_numa_nodes(gpus, gpu_rows, matrix.titles),
        gpus=gpus,
        nics=tuple(_nic(row.label, rdma_names) for row in nic_rows),
        links=links,
        ordered=True,
        warnings=(*asymmetries, *_doubts(matrix, gpu_rows, nic_rows, rdma_names, is_open)),
    )


def _misplaced_cell(matrix: Matrix) -> str | None:
    """X stands where a device meets itself and nowhere else; anything else shows a column that has moved."""
    for row in matrix.rows:
        for column, cell in zip(matrix.columns, row.cells, strict=True):
            if (cell == "X") != (column == row.label):
                return f"row {row.label}: {cell} in column {column}; the cells of the row are out of place"
            if cell.startswith("NV") and not (_is_gpu_side(row.label) and _is_gpu_side(column)):
                return f"row {row.label}: {cell} in column {column}; only GPUs have NVLinks"
    return None


def _is_gpu_side(label: str) -> bool:
    return _GPU.fullmatch(label) is not None or _MIG.fullmatch(label) is not None


def _rdma_names(matrix: Matrix, text_is_open: bool) -> Mapping[str, str] | str:
    """RDMA device by NIC label, from the NIC Legend or from the label itself; or why the legend cannot be used."""
    cut = cut_legend_line(matrix, text_is_open, _LEGEND)
    if cut is not None:
        return f"the legend is cut short at {cut[:40]!r}; record the table again"
    told = {match[1]: match[2] for line in matrix.after if (match := _NIC_LEGEND.fullmatch(line))}
    numbered = [row.label for row in matrix.rows if _NIC.fullmatch(row.label)]
    lacking = [label for label in numbered if label not in told]
    titled = any(line.strip() == NIC_LEGEND_TITLE for line in matrix.after)
    if lacking and (told or titled):
        return f"the NIC Legend does not name {lacking[0]}; it is cut short, record the table again"
    names = {row.label: row.label for row in matrix.rows if not _NIC.fullmatch(row.label)}
    names.update((label, told[label]) for label in numbered if label in told)
    doubled = next((label for label in numbered if list(told.values()).count(told.get(label, "")) > 1), None)
    if doubled is not None:
        return f"the NIC Legend gives {told[doubled]} to two NICs; it is cut short or altered, record the table again"
    return names


def _gpu(row: MatrixRow, titles: Sequence[Title]) -> GpuReading:
    match = _GPU.fullmatch(row.label)
    assert match is not None, "called for GPU rows only"
    tail = dict(zip(titles, row.tail, strict=True))
    return GpuReading(
        index=int(match[1]),
        numa_node=_node(tail[Title.NUMA]) if Title.NUMA in tail else None,
        cpus=_cpus(tail[Title.CPU]) if Title.CPU in tail else None,
        vendor=NVIDIA,
    )


def _cpus(cell: str | None) -> CpuSet | Unknown:
    if cell is None:
        return Unknown("the CPU Affinity cell is empty")
    return Unknown("CPU Affinity is N/A") if cell == "N/A" else CpuSet.from_list(cell)


def _node(cell: str | None) -> int | Unknown:
    """The NUMA node of a GPU; a list of nodes means that the driver could not decide (numa_node -1 in sysfs)."""
    if cell is None:
        return Unknown("the NUMA Affinity cell is empty")
    if cell.isdigit():
        return int(cell)
    reserved = _NODE_AND_RESERVED.fullmatch(cell)
    if reserved is not None and all(len(CpuSet.from_list(ids)) >= _MIG_INSTANCES for ids in reserved[2][1:].split(",")):
        return int(reserved[1])
    return Unknown(f"NUMA Affinity is {cell[:40]}")


def _numa_nodes(
    gpus: Iterable[GpuReading], rows: Iterable[MatrixRow], titles: Sequence[Title]
) -> tuple[NumaReading, ...]:
    """Every node the table names: those of the GPUs, and the GPUs' own memory, which has no CPUs."""
    nodes = {gpu.numa_node: NumaReading(gpu.numa_node) for gpu in gpus if isinstance(gpu.numa_node, int)}
    for row in rows:
        own = dict(zip(titles, row.tail, strict=True)).get(Title.GPU_NUMA)
        if own is not None and own.isdigit():
            nodes.setdefault(int(own), NumaReading(int(own), cpus=CpuSet()))
    return tuple(nodes[node] for node in sorted(nodes))


def _nic(label: str, rdma_names: Mapping[str, str]) -> NicReading:
    rdma = rdma_names.get(label)
    return NicReading(name=rdma or label, rdma=rdma or Unknown("the table has no NIC Legend"))


@dataclass(frozen=True, slots=True)
class _Cell:
    """What one cell says: the class, or that NVLinks hide it, and how many NVLinks."""

    word: str
    pcie: LinkClass | Unknown
    nvlinks: int | Unknown


def _cell(word: str) -> _Cell:
    if word == UNKNOWN_CELL:
        return _Cell(word, Unknown(f"the cell is {word}"), Unknown(f"the cell is {word}"))
    if word.startswith("NV"):
        return _Cell(word, Unknown(f"hidden by {word} cell"), int(word[2:]))
    return _Cell(word, LinkClass["SYS" if word == "SOC" else word], 0)


def _links(
    matrix: Matrix, gpu_rows: Sequence[MatrixRow], nic_rows: Sequence[MatrixRow], tells_nvlinks: bool
) -> tuple[tuple[LinkReading, ...], tuple[str, ...]]:
    """One LinkReading per pair of GPUs and NICs, and a warning for each pair whose two cells differ."""
    place = {column: at for at, column in enumerate(matrix.columns)}
    ends = [(("gpu", at), row) for at, row in enumerate(gpu_rows)] + [
        (("nic", at), row) for at, row in enumerate(nic_rows)
    ]
    links: list[LinkReading] = []
    warnings: list[str] = []
    for (a, row_a), (b, row_b) in combinations(ends, 2):
        one, other = _cell(row_a.cells[place[row_b.label]]), _cell(row_b.cells[place[row_a.label]])
        pcie = _farther(one.pcie, other.pcie)
        nvlinks = _fewer(one.nvlinks, other.nvlinks)
        if one.word != other.word:
            warnings.append(
                f"{row_a.label}-{row_b.label} is {one.word} in one row, {other.word} in the other; the worse is taken"
            )
        links.append(LinkReading(a, b, pcie=pcie, nvlinks=nvlinks if tells_nvlinks else None))
    return tuple(links), tuple(warnings)


def _fewer(one: int | Unknown, other: int | Unknown) -> int | Unknown:
    if isinstance(one, Unknown):
        return other
    return one if isinstance(other, Unknown) else min(one, other)


def _farther(one: LinkClass | Unknown, other: LinkClass | Unknown) -> LinkClass | Unknown:
    if isinstance(one, Unknown):
        return other
    return one if isinstance(other, Unknown) else max(one, other)


def _doubts(
    matrix: Matrix,
    gpu_rows: Sequence[MatrixRow],
    nic_rows: Sequence[MatrixRow],
    rdma_names: Mapping[str, str],
    text_is_open: bool,
) -> Iterator[str]:
    """What the table leaves open, in words for the reader of the result."""
    unnamed = [row.label for row in nic_rows if row.label not in rdma_names]
    if unnamed:
        yield f"no NIC Legend: the RDMA devices of {unnamed[0]} to {unnamed[-1]} are not told"
    for row in gpu_rows:
        for title, cell in zip(matrix.titles, row.tail, strict=True):
            if cell is None and title is not Title.GPU_NUMA:
                yield f"{row.label}: the {title} cell is empty"
    migs = [row.label for row in matrix.rows if _MIG.fullmatch(row.label)]
    if migs:
        yield f"{len(migs)} MIG rows are left out: an instance hangs where its GPU hangs"
    yield from _cpu_doubts(matrix)
    if text_is_open:
        yield from _end_doubts(matrix)
    yield from _legend_doubts(matrix)


def _cpu_doubts(matrix: Matrix) -> Iterator[str]:
    """CPU lists of two nodes share no CPU, and an undecided GPU lists all; lists cut at a screen's edge overlap."""
    if Title.CPU not in matrix.titles:
        return
    cells = {row.tail[0]: row.label for row in matrix.rows if row.tail[0] not in (None, "N/A")}
    lists = [(label, CpuSet.from_list(cell)) for cell, label in cells.items()]
    for (label_a, a), (label_b, b) in combinations(lists, 2):
        if a & b not in (a, b, CpuSet()):
            yield f"the CPU lists of {label_a} and {label_b} overlap in part; the table may be cut at the right"
            return


def _end_doubts(matrix: Matrix) -> Iterator[str]:
    """What may be wrong where the text ends without a line end, for what a cut leaves there can look whole."""
    last = matrix.rows[-1]
    final = next((cell for cell in reversed(last.tail) if cell is not None), "N/A")
    if matrix.is_open and final != "N/A" and not any(row.tail == last.tail for row in matrix.rows[:-1]):
        yield f"row {last.label} ends the text without a line end; its last cell may be cut short"
    name = _NIC_LEGEND.fullmatch(matrix.after[-1]) if matrix.after else None
    if name is not None:
        yield f"the NIC Legend ends without a line end; the name {name[2]} may be cut short"


def _legend_doubts(matrix: Matrix) -> Iterator[str]:
    explained = {match[1] for line in matrix.after if (match := _LEGEND_LINE.fullmatch(line))}
    if not explained:
        return
    used = {"NV#" if cell.startswith("NV") else cell for row in matrix.rows for cell in row.cells}
    missing = sorted(used - explained - {"X"})
    if missing:
        yield f"the legend does not explain {', '.join(missing)}; the file may be cut short"
    if {"SYS", "PHB", "PXB", "PIX"} <= explained and "NV#" not in explained:
        yield "the legend has no NV#: if this is `topo -mp`, NVLinks are not shown; add `nvidia-smi nvlink -s`"
