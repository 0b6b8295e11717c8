"""`nvidia-smi topo -p2p CAPABILITY`: whether two GPUs can reach each other's memory; adds to another source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations

from topoalloc.topology.readers.matrix_text import Matrix, cut_legend_line, has_rows, printed_matrix, vocabulary
from topoalloc.topology.readers.printed_text import plain_head
from topoalloc.topology.reading import GpuReading, LinkReading, Reading, SourceRefusal, Standing

# CNS, GNS, TNS, NS: chipset, GPU, topology or the capability not supported; DR: disabled by a registry key.
WORDS = vocabulary("X", "OK", "CNS", "GNS", "TNS", "NS", "DR", "U")

_LEGEND: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "X": ("Self", ("Self",)),
    "OK": ("Status Ok", ("Ok",)),
    "CNS": ("Chipset not supported", ("supported",)),
    "GNS": ("GPU not supported", ("supported",)),
    "TNS": ("Topology not supported", ("supported",)),
    "NS": ("Not supported", ("supported",)),
    "DR": ("Disabled by regkey", ("regkey",)),
    "U": ("Unknown", ("Unknown",)),
}
_GPU = re.compile(r"GPU(\d{1,4})")
_OWN_WORD = re.compile(
    r"^[^\S\n]*GPU\d+\b[^\n]*[\s|](?:OK|CNS|GNS|TNS|NS|DR|U)(?:[\s|]|$)|^[^\S\n]*OK[^\S\n]*=[^\S\n]*Status Ok",
    re.MULTILINE,
)
_CAPABILITY = re.compile(r"p2p[ ._=-]*([rwnap])\b")


def recognise(head: str) -> bool:
    """Whether the beginning of a file looks like this table."""
    text = plain_head(head)
    return _OWN_WORD.search(text) is not None and has_rows(text, WORDS)


def parse(text: str, name: str) -> Reading | SourceRefusal:
    """`peer_access` of every pair of GPUs: OK is True, U is None, everything else is False.

    Where the file name or the command line in the text shows that another capability than read or write was asked
    for (n: NVLink, a: atomics, p: properties), only OK says something of peer access.
    """
    source = f"topo -p2p ({name})"
    printed = printed_matrix(text, WORDS, source)
    if isinstance(printed, SourceRefusal):
        return printed
    matrix, is_open = printed
    cut = cut_legend_line(matrix, is_open, _LEGEND)
    if cut is not None:
        return SourceRefusal(source, f"the legend is cut short at {cut[:40]!r}; record the table again")
    if matrix.titles:
        return SourceRefusal(source, f"it has a column {matrix.titles[0]}: a table of `topo -m`, not of `topo -p2p`")
    for row in matrix.rows:
        if not _GPU.fullmatch(row.label):
            return SourceRefusal(source, f"row {row.label}: this table has rows of GPUs only")
        for column, cell in zip(matrix.columns, row.cells, strict=True):
            if (cell == "X") != (column == row.label):
                return SourceRefusal(source, f"row {row.label}: {cell} in column {column}; the cells are out of place")
    capability = _CAPABILITY.search("\n".join((*matrix.before, name)))
    no_means_no = capability is None or capability[1] in "rw"
    links, warnings = _links(matrix, no_means_no)
    gpus = tuple(GpuReading(index=int(row.label[3:])) for row in matrix.rows)
    return Reading(source=source, standing=Standing.ADDITION, gpus=gpus, links=links, warnings=warnings)


def _links(matrix: Matrix, no_means_no: bool) -> tuple[tuple[LinkReading, ...], tuple[str, ...]]:
    place = {column: at for at, column in enumerate(matrix.columns)}
    links: list[LinkReading] = []
    warnings: list[str] = []
    for (a, row_a), (b, row_b) in combinations(enumerate(matrix.rows), 2):
        words = (row_a.cells[place[row_b.label]], row_b.cells[place[row_a.label]])
        if words[0] != words[1]:
            warnings.append(
                f"{row_a.label}-{row_b.label} is {words[0]} in one row, {words[1]} in the other; the worse is taken"
            )
        links.append(LinkReading(("gpu", a), ("gpu", b), peer_access=_peer_access(words, no_means_no)))
    return tuple(links), tuple(warnings)


def _peer_access(words: tuple[str, str], no_means_no: bool) -> bool | None:
    if any(word not in {"OK", "U"} for word in words):
        return False if no_means_no else None
    return None if "U" in words else True
