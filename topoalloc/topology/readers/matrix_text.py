"""The square table of devices that `nvidia-smi topo` prints, in whatever shape a paste left it.

Nothing is guessed: a row is read when every cell of every column can be accounted for, in exactly one way; else it is
refused by name. Tabs, colours, rule lines and line breaks may be gone, added or moved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.readers.printed_text import LINE_LENGTH_MAX, PrintedText, printed_lines
from topoalloc.topology.reading import SourceRefusal

# The largest real table has 8 GPUs and 40 NICs; a table is quadratic in this number.
COLUMNS_MAX = 256
# A row of the widest allowed table on an 80-column terminal breaks into about this many lines.
FRAGMENTS_MAX = 32
# Line breaks in one row of which it is open whether they cut a word or stand between two; 2 to the power of it
# readings are tried.
OPEN_BREAKS_MAX = 6

# The titles are 35 characters without blanks; the bound keeps the search for shortened ones cheap.
TITLES_LENGTH_MAX = 120

TAB_WIDTH = 8
LEGEND_TITLE = "Legend:"
NIC_LEGEND_TITLE = "NIC Legend:"
_CUT_NIC_NAME = re.compile(r"NIC\d+\s*:?")
_RULE_LINE = re.compile(r"[\s|:+=_─━-]*")
_CONTINUATION = re.compile(r"(?!\s*(?:GPU|NIC|MIG)\d)[A-Z0-9,/?\s-]+")
_BROKEN_ROW = re.compile(r"\s*((?:GPU|NIC)\d+)\b(?!\s*[:：])")
_LABEL = r"[A-Za-z][\w.:/-]*"
_TAIL_TOKEN = re.compile(r"N/A|\d+(?:[,-]\d+)*")
_TITLES = re.compile(r"(?P<cpu>cpu[^\d]*?)?(?P<numa>numa[^\d]*?)?(?P<gpu_numa>gpunuma[^\d]*)?", re.IGNORECASE)


class Title(StrEnum):
    """The columns right of the matrix; drivers before 2016 print none, then one was added at a time."""

    CPU = "CPU Affinity"
    NUMA = "NUMA Affinity"
    GPU_NUMA = "GPU NUMA ID"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words a cell can be, and the patterns that follow from them; made by `vocabulary`."""

    cell: re.Pattern[str]
    cells: re.Pattern[str]
    row_start: re.Pattern[str]  # a label, blanks, then something that begins with a cell
    fragment: re.Pattern[str]  # what a line break in a cell leaves at the start of the next line, cells after it


def vocabulary(*words: str) -> Vocabulary:
    """Words are plain or end in `#`, which stands for a number of one or two digits (NV#)."""
    one = "(?:" + "|".join(_pattern(word) for word in words) + ")"
    ends = {_pattern(word[start:]) for word in words for start in range(1, len(word))}
    return Vocabulary(
        cell=re.compile(one),
        cells=re.compile(f"{one}+"),
        row_start=re.compile(rf"\s*({_LABEL})\s+(?={one}(?:{one}|\s|\d|$))"),
        fragment=re.compile(f"(?:{'|'.join(sorted(ends))})?{one}*"),
    )


def _pattern(word: str) -> str:
    return re.escape(word).replace(r"\#", r"\d{1,2}")


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One row: a cell per column of the table, then a cell per title (None: the cell is empty)."""

    label: str
    cells: tuple[str, ...]
    tail: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A table: `columns` and the labels of `rows` are the same set, usually in the same order.

    `before` and `after` are the lines around the table. `is_open`: the last row is the end of a text without a line
    end, so its last cell may be cut short.
    """

    columns: tuple[str, ...]
    titles: tuple[Title, ...]
    rows: tuple[MatrixRow, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    is_open: bool


@dataclass(frozen=True, slots=True)
class _RawRow:
    """A row before its cells are told apart: what follows the label, one string per line it takes."""

    label: str
    fragments: tuple[str, ...]
    offset: int  # where the first fragment begins in its line, with tabs expanded


@dataclass(frozen=True, slots=True)
class _Header:
    columns: tuple[str, ...]
    titles: tuple[Title, ...]
    cpu_offset: int | None  # where the CPU title stands when the header is one line printed with blanks


def has_rows(head: str, words: Vocabulary) -> bool:
    """Whether a text has a line that looks like a GPU's row of this kind of table."""
    labels = (_row_label(_unruled(line), words) for line in head.split("\n"))
    return any(label is not None and label.startswith("GPU") for label in labels)


def printed_matrix(text: str, words: Vocabulary, source: str) -> tuple[Matrix, bool] | SourceRefusal:
    """The table of a whole printed text, and whether the text's last line may have been cut short."""
    lines = printed_lines(text, source)
    if isinstance(lines, SourceRefusal):
        return lines
    matrix = read_matrix(lines, words, source)
    return matrix if isinstance(matrix, SourceRefusal) else (matrix, lines.is_open)


def read_matrix(text: PrintedText, words: Vocabulary, source: str) -> Matrix | SourceRefusal:
    """Find the table and account for every cell of it, or say which row cannot be read."""
    lines = [_unruled(line) for line in text.lines]
    first = next((at for at, line in enumerate(lines) if _row_label(line, words)), None)
    if first is None:
        return SourceRefusal(source, "no row of the table in it (a line such as `GPU0  X  ...`)")
    raw_rows, end = _collect_rows(lines, first, words)
    again = next((at for at in range(end, len(lines)) if _row_label(lines[at], words)), None)
    if again is not None:
        return SourceRefusal(
            source,
            f"line {again + 1} is a table row after the end of the table at line {end}: "
            "a damaged row, or two tables in one file; give one table per file",
        )
    labels = [row.label for row in raw_rows]
    refusal = _check_labels(labels, source)
    if refusal is not None:
        return refusal
    header_at, header_lines = _header_lines(lines, first, labels)
    header = _read_header(header_lines, labels, source)
    if isinstance(header, SourceRefusal):
        broken = _BROKEN_ROW.match(lines[end]) if end < len(lines) else None
        return SourceRefusal(source, f"row {broken[1]}: no cell behind the label") if broken else header
    rows: list[MatrixRow] = []
    for raw in raw_rows:
        row = _read_row(raw, header, words)
        if isinstance(row, str):
            return SourceRefusal(source, f"row {raw.label}: {row}")
        rows.append(row)
    before, after = text.lines[:header_at], text.lines[end:]
    return Matrix(header.columns, header.titles, tuple(rows), before, after, text.is_open and not after)


def cut_legend_line(
    matrix: Matrix, text_is_open: bool, legend: Mapping[str, tuple[str, tuple[str, ...]]]
) -> str | None:
    """The last line of a text, if it is a legend's title, or has no line end and is a part of a line of the legend.

    `legend` has for each word how its English explanation begins and how it may end; other languages are not judged.
    """
    last = next((line.strip() for line in reversed(matrix.after) if line.strip()), "")
    if last in (LEGEND_TITLE, NIC_LEGEND_TITLE):
        return last
    if not last or not text_is_open:
        return None
    word, equals, explanation = (part.strip() for part in last.partition("="))
    if not equals:
        beginnings = (LEGEND_TITLE, NIC_LEGEND_TITLE, *legend)
        is_cut = any(beginning.startswith(last) for beginning in beginnings) or bool(_CUT_NIC_NAME.fullmatch(last))
        return last if is_cut else None
    if word not in legend:
        return None
    beginning, ends = legend[word]
    is_english = explanation.startswith(beginning) or beginning.startswith(explanation)
    return last if is_english and not explanation.endswith(ends) else None


def _unruled(line: str) -> str:
    """The line with the column rules of a Markdown or box-drawn table taken out."""
    return line.replace("|", "\t").replace("│", "\t")


def _row_label(line: str, words: Vocabulary) -> str | None:
    match = words.row_start.match(line)
    return match[1] if match and not words.fragment.fullmatch(match[1]) else None


def _collect_rows(lines: Sequence[str], first: int, words: Vocabulary) -> tuple[list[_RawRow], int]:
    """The rows from line `first` on, wrapped lines with their row, and the number of lines up to the table's end."""
    rows: list[_RawRow] = []
    indentation = len(lines[first]) - len(lines[first].lstrip())
    end = first
    for at in range(first, len(lines)):
        line = lines[at]
        if _RULE_LINE.fullmatch(line):
            continue
        label = _row_label(line, words)
        if label is not None:
            start = line.index(label) + len(label)
            rows.append(_RawRow(label, (line[start:],), len(line[:start].expandtabs(TAB_WIDTH))))
        elif _CONTINUATION.fullmatch(line) and len(rows[-1].fragments) < FRAGMENTS_MAX:
            fragment = line[indentation:] if line[:indentation].isspace() else line
            rows[-1] = replace(rows[-1], fragments=(*rows[-1].fragments, fragment))
        else:
            break
        end = at + 1
    return rows, end


def _check_labels(labels: Sequence[str], source: str) -> SourceRefusal | None:
    if len(labels) > COLUMNS_MAX:
        return SourceRefusal(source, f"more than {COLUMNS_MAX} devices in one table")
    doubled = next((label for at, label in enumerate(labels) if label in labels[:at]), None)
    if doubled is not None:
        return SourceRefusal(source, f"row {doubled} is there twice; give one table per file")
    return None


def _header_lines(lines: Sequence[str], first: int, labels: Sequence[str]) -> tuple[int, list[str]]:
    """The lines of the header, and where they begin; without a header the place of the first row.

    The header is the last block of lines before the first row, from the block's first line that begins with a label.
    """
    end = first
    while end and _RULE_LINE.fullmatch(lines[end - 1]):
        end -= 1
    start = end
    while start and lines[start - 1].strip() and end - start < FRAGMENTS_MAX:
        start -= 1
    begin = next((at for at in range(start, end) if lines[at].lstrip().startswith(tuple(labels))), None)
    if begin is None:
        return first, []
    return begin, [line for line in lines[begin:end] if not _RULE_LINE.fullmatch(line)]


def _read_header(header: Sequence[str], labels: Sequence[str], source: str) -> _Header | SourceRefusal:
    """Columns and titles. Blanks are ignored, since pastes lose and move them; the rows tell which labels there are."""
    text = "".join("".join(line.split()) for line in header)
    if not text:
        return SourceRefusal(source, "the header line of the table (GPU0, GPU1, ..., CPU Affinity) is missing")
    by_length = sorted(labels, key=len, reverse=True)
    columns: list[str] = []
    at = 0
    while True:
        label = next((label for label in by_length if text.startswith(label, at)), None)
        if label is None:
            break
        columns.append(label)
        at += len(label)
    titles = _TITLES.fullmatch(text, at) if len(text) - at <= TITLES_LENGTH_MAX else None
    if titles is None:
        return SourceRefusal(source, f"column {text[at : at + 20]!r} of the header has no row")
    for label in labels:
        if columns.count(label) != 1:
            times = "no column" if label not in columns else "more than one column"
            return SourceRefusal(source, f"row {label} has {times} in the header")
    kinds = (("cpu", Title.CPU), ("numa", Title.NUMA), ("gpu_numa", Title.GPU_NUMA))
    present = tuple(title for name, title in kinds if titles[name])
    return _Header(tuple(columns), present, _cpu_offset(header))


def _cpu_offset(header: Sequence[str]) -> int | None:
    """Where the CPU title stands; only a one-line header that still has its first empty column tells it."""
    if len(header) != 1 or not header[0][:1].isspace():
        return None
    at = header[0].expandtabs(TAB_WIDTH).upper().find("CPU")
    return at if at >= 0 else None


def _read_row(raw: _RawRow, header: _Header, words: Vocabulary) -> MatrixRow | str:
    """The row, or why it cannot be read."""
    readings: list[MatrixRow] = []
    reasons: list[str] = []
    joined = _joinings(raw.fragments, words)
    if joined is None:
        return f"broken over {len(raw.fragments)} lines at places where cells may be cut; print it on a wider terminal"
    for text in joined:
        for cells, tail_text in _split_cells(text, len(header.columns), words, reasons):
            tail = _read_tail(tail_text, raw, text, header)
            if isinstance(tail, str):
                reasons.append(tail)
                continue
            row = MatrixRow(raw.label, cells, tail)
            if row not in readings:
                readings.append(row)
    if len(readings) > 1:
        return "joined cells that can be told apart in more than one way"
    return readings[0] if readings else reasons[0]


def _joinings(fragments: Sequence[str], words: Vocabulary) -> list[str] | None:
    """The texts a broken row may have been: a break stands between two cells or inside one, at times either."""
    if sum(map(len, fragments)) > LINE_LENGTH_MAX:
        return None
    texts = [fragments[0]]
    for previous, fragment in pairwise(fragments):
        before = previous.split()[-1] if previous.strip() else ""
        digits_meet = before[-1:].isdigit() and fragment[:1].isdigit()
        blank_between = fragment[:1].isspace() or previous[-1:].isspace()
        if blank_between or (words.cells.fullmatch(before) and not digits_meet):
            joints = [" "]
        else:
            joints = [""] if before.isalpha() else ["", " "]
        texts = [text + joint + fragment for text in texts for joint in joints]
        if len(texts) > 1 << OPEN_BREAKS_MAX:
            return None
    return texts


def _split_cells(text: str, count: int, words: Vocabulary, reasons: list[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The first `count` cells of a row and the text behind them, in every way that the text allows."""
    cells: list[str] = []
    at = 0
    while len(cells) < count:
        while at < len(text) and text[at].isspace():
            at += 1
        match = words.cell.match(text, at)
        if match is None:
            found = text[at:].split(maxsplit=1)
            reasons.append(
                f"{len(cells)} of {count} cells, then {found[0][:20]!r}" if found else f"{len(cells)} of {count} cells"
            )
            return
        cells.append(match[0])
        at = match.end()
    yield tuple(cells), text[at:]
    # `NV120-31` is NV12 and 0-31 or NV1 and 20-31.
    if re.fullmatch(r"NV\d\d", cells[-1]) and text[at : at + 1].strip():
        yield (*cells[:-1], cells[-1][:-1]), text[at - 1 :]


def _read_tail(tail: str, raw: _RawRow, text: str, header: _Header) -> tuple[str | None, ...] | str:
    """The cells of the titled columns, or why they cannot be told apart."""
    titles = header.titles
    tokens = tail.replace("N/A", " N/A ").split()  # `0N/A` is two cells, whatever joined them
    wrong = next((token for token in tokens if not _TAIL_TOKEN.fullmatch(token)), None)
    if wrong is not None:
        return f"{wrong[:20]!r} is no cell of the table"
    if not raw.label.startswith(("GPU", "MIG")):
        return (None,) * len(titles) if not tokens else f"{tokens[0][:20]!r} has no column"
    if len(tokens) > len(titles):
        return f"{tokens[len(titles)][:20]!r} has no column"
    if len(tokens) == len(titles):
        return _checked(tokens, titles)
    if len(raw.fragments) == 1 and "\t" in tail:
        cells = _by_tabs(tail, len(titles))
    else:
        cells = _by_offset(tail, text, raw, header)
    if cells is None:
        return f"the cell of {titles[len(tokens)]} is missing"
    return _checked(cells, titles)


def _by_tabs(tail: str, count: int) -> list[str | None] | None:
    """Which titled cells are empty, from the tabs: `cpus TAB numa TAB TAB gpu`, one tab more after a short CPU list."""
    fields = [field.strip() for field in tail.split("\t")][1:]
    if len(fields) < (count if count < 3 else 4) or tail.split("\t", 1)[0].strip():
        return None
    cpu = fields[0] or None
    rest = [(at, field) for at, field in enumerate(fields) if at and field]
    if len(rest) == count - 1:
        return [cpu, *(field for _, field in rest)]
    if not rest:
        return [cpu, *[None] * (count - 1)]
    at, field = rest[0]
    if count == 3 and at <= 2 and len(fields) - at > 2:
        return [cpu, field, None]
    return [cpu, None, field] if count == 3 and at >= 3 and at == len(fields) - 1 else None


def _by_offset(tail: str, text: str, raw: _RawRow, header: _Header) -> list[str | None] | None:
    """An empty CPU cell in a table printed with blanks: the first token stands a tab stop or more behind the title."""
    tokens = tail.split()
    if len(raw.fragments) != 1 or header.cpu_offset is None or len(tokens) != len(header.titles) - 1 or not tokens:
        return None
    start = raw.offset + len(text) - len(tail.lstrip())
    return [None, *tokens] if start >= header.cpu_offset + TAB_WIDTH else None


def _checked(cells: Iterable[str | None], titles: Sequence[Title]) -> tuple[str | None, ...] | str:
    checked = tuple(cells)
    for cell, title in zip(checked, titles, strict=True):
        if cell is None or cell == "N/A":
            continue
        if title is Title.GPU_NUMA and not cell.isdigit():
            return f"{cell[:20]!r} is no {title}"
        try:
            CpuSet.from_list(cell)
        except ValueError:
            return f"{cell[:40]!r} is no {title}"
    return checked
