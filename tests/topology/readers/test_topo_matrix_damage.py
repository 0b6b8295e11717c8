"""Damaged `topo -m` tables: read as before, refused, or read with a warning; never silently different."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tests.topology.readers.recorded import names, read, says_the_same, text_of
from topoalloc.topology.readers import topo_matrix
from topoalloc.topology.reading import Reading, SourceRefusal

TEXTS = tuple(text_of(name) for name in names(".topo-m.txt"))

texts = st.sampled_from(TEXTS)


def table_end(text: str) -> int:
    """Where the legend begins; damage there is no damage."""
    at = text.find("\n\n")
    return at if at >= 0 else len(text)


def is_not_silently_different(text: str, damaged: str) -> bool:
    whole, result = read(topo_matrix.parse(text, "host.txt")), topo_matrix.parse(damaged, "host.txt")
    if isinstance(result, SourceRefusal):
        return bool(result.reason) and "\n" not in result.reason
    return says_the_same(result, whole) or bool(set(result.warnings) - set(whole.warnings))


@given(texts, st.data())
def test_a_text_cut_anywhere(text: str, data: st.DataObject) -> None:
    assert is_not_silently_different(text, text[: data.draw(st.integers(0, len(text)))])


@given(texts, st.data(), st.sampled_from(["delete", "delete with a blank", "blank out"]))
def test_a_cell_title_or_label_dropped(text: str, data: st.DataObject, how: str) -> None:
    tokens = list(re.finditer(r"\S+", text[: table_end(text)]))
    token = data.draw(st.sampled_from(tokens))
    behind = token.end() + 1 if how == "delete with a blank" else token.end()
    between = " " * len(token[0]) if how == "blank out" else ""
    assert is_not_silently_different(text, text[: token.start()] + between + text[behind:])


@given(texts, st.data())
def test_blanks_dropped_between_cells(text: str, data: st.DataObject) -> None:
    blanks = list(re.finditer(r"[ \t]+", text[: table_end(text)]))
    blank = data.draw(st.sampled_from(blanks))
    assert is_not_silently_different(text, text[: blank.start()] + text[blank.end() :])


@given(texts, st.data())
def test_a_line_dropped_doubled_or_moved(text: str, data: st.DataObject) -> None:
    lines = text.split("\n")
    last = text[: table_end(text)].count("\n")
    at, to = data.draw(st.integers(0, last)), data.draw(st.integers(0, last))
    line = lines[at]
    assert is_not_silently_different(text, "\n".join(lines[:at] + lines[at + 1 :]))
    assert is_not_silently_different(text, "\n".join([*lines[:at], line, line, *lines[at + 1 :]]))
    rest = lines[:at] + lines[at + 1 :]
    moved = topo_matrix.parse("\n".join([*rest[:to], line, *rest[to:]]), "host.txt")
    # A moved row is another order of devices, which is not damage.
    assert isinstance(moved, SourceRefusal) or sorted(map(repr, moved.gpus)) == sorted(
        map(repr, read(topo_matrix.parse(text, "host.txt")).gpus)
    )


@given(texts, st.data(), st.text("Qq?%$#\x07é\u2028\ufffd*", min_size=1, max_size=3))
def test_signs_that_no_cell_has_put_in_anywhere(text: str, data: st.DataObject, signs: str) -> None:
    at = data.draw(st.integers(0, table_end(text)))
    assert is_not_silently_different(text, text[:at] + signs + text[at:])


@given(texts, st.data())
def test_colours_put_in_between_cells_anywhere(text: str, data: st.DataObject) -> None:
    spots = sorted({0, *(match.start() for match in re.finditer(r"(?<=\s)(?=\S)|(?<=\S)(?=\s)", text))})
    for at in sorted(data.draw(st.lists(st.sampled_from(spots), max_size=8, unique=True)), reverse=True):
        text = text[:at] + data.draw(st.sampled_from(["\x1b[4m", "\x1b[0m", "\x1b[1;31m", "\x1b[m"])) + text[at:]
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert says_the_same(read(topo_matrix.parse(text, "h")), read(topo_matrix.parse(plain, "h")))


@given(texts, st.data())
def test_bytes_replaced_at_random_never_raise(text: str, data: st.DataObject) -> None:
    raw = bytearray(text.encode())
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=12)):
        raw[at] = data.draw(st.integers(0, 255))
    result = topo_matrix.parse(raw.decode(errors="replace"), "host.txt")
    assert isinstance(result, Reading | SourceRefusal)


@given(st.text())
def test_any_text_is_refused_or_read_without_raising(text: str) -> None:
    assert isinstance(topo_matrix.parse(text, "host.txt"), Reading | SourceRefusal)
    assert topo_matrix.recognise(text) in {True, False}


@given(
    st.lists(
        st.sampled_from(
            ["GPU0", "GPU1", "NIC0", " X ", "SYS", "NV12", "0-7", "N/A", "\t", "\n", "CPU Affinity", "Legend:"]
        ),
        max_size=40,
    )
)
def test_words_of_the_table_in_any_order_never_raise(words: list[str]) -> None:
    assert isinstance(topo_matrix.parse("".join(words), "host.txt"), Reading | SourceRefusal)
    assert isinstance(topo_matrix.parse("\t".join(words), "host.txt"), Reading | SourceRefusal)
