"""Lines of printed text, freed of what terminals and pastes add."""

from __future__ import annotations

import pytest

from topoalloc.topology.readers.printed_text import LINE_LENGTH_MAX, LINES_MAX, PrintedText, printed_lines
from topoalloc.topology.reading import SourceRefusal


def lines(text: str) -> PrintedText:
    result = printed_lines(text, "host.txt")
    assert isinstance(result, PrintedText)
    return result


@pytest.mark.parametrize("text", ["a\x1b[4mb\x1b[0m\n", "\ufeffab\r\n", "a^[[1;31mb\n", "[4mab[0m\n", "a\u200bb\n"])
def test_colours_marks_and_carriage_returns_are_taken_out(text: str) -> None:
    assert lines(text) == PrintedText(("ab",), is_open=False)


def test_typographic_blanks_become_blanks() -> None:
    assert lines("a\u00a0b\u202fc\n").lines == ("a b c",)


def test_only_line_feeds_end_lines() -> None:
    assert lines("a\x0bb\u2028c\nd\n").lines == ("a\x0bb\u2028c", "d")


def test_a_last_line_without_an_end_is_open() -> None:
    assert lines("a\nb").is_open
    assert not lines("a\nb\n").is_open
    assert not lines("a\n  ").is_open


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (" \n\t\n", "empty"),
        ("\x1b[0m", "empty"),
        ("a\x00b", "binary"),
        ("a\n" * (LINES_MAX + 1), "lines"),
        ("a" * (LINE_LENGTH_MAX + 1), "line 1"),
        ("a" * 17 * 2**20, "16 MiB"),
    ],
)
def test_what_is_no_output_of_one_command_is_refused(text: str, reason: str) -> None:
    result = printed_lines(text, "host.txt")
    assert isinstance(result, SourceRefusal)
    assert reason in result.reason
