"""The lines of a text that a tool printed and a person saved, freed of what terminals and pastes add to them.

Bounded, so that a file of a million lines costs a glance; a text that is none (binary, empty) is refused here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from topoalloc.topology.reading import SourceRefusal

# The longest real outputs: `lspci -tv` of an 8-socket server, about 2,000 lines; a `numactl -H` line of 4,096 CPUs,
# 20,000 characters. A factor of ten and three above them.
LINES_MAX = 20_000
LINE_LENGTH_MAX = 65_536
TEXT_LENGTH_MAX = 16 * 2**20
# How much of a file the detector shows to `recognise`.
HEAD_LENGTH_MAX = 65_536

# Colour and underline, as bytes, as `cat -v` shows them, or with the escape character lost on the way.
_COLOUR = re.compile(r"(?:\x1b|\^\[)?\[[0-9;]{0,16}m")
# Byte order marks, no-break and other blanks of web pages, and the carriage return of Windows editors.
_BLANKS = str.maketrans({"\ufeff": None, "\u200b": None, "\u00a0": " ", "\u2007": " ", "\u202f": " ", "\r": None})


@dataclass(frozen=True, slots=True)
class PrintedText:
    """`lines` without line ends. `is_open`: the last line had no line end, so it may have been cut short."""

    lines: tuple[str, ...]
    is_open: bool


def printed_lines(text: str, source: str) -> PrintedText | SourceRefusal:
    """Split a text into plain lines; `source` names the text in a refusal."""
    if len(text) > TEXT_LENGTH_MAX:
        return SourceRefusal(source, f"longer than {TEXT_LENGTH_MAX >> 20} MiB; give the output of one command")
    if "\x00" in text:
        return SourceRefusal(source, "binary, not text; give the output of the command as it was printed")
    if text.count("\n") > LINES_MAX:
        return SourceRefusal(source, f"more than {LINES_MAX} lines; give the output of one command")
    lines = plain(text).split("\n")
    is_open = bool(lines[-1].strip())
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_LENGTH_MAX:
            return SourceRefusal(source, f"line {number} is longer than {LINE_LENGTH_MAX} characters")
    if not any(line.strip() for line in lines):
        return SourceRefusal(source, "empty; the command may have failed, run it again")
    return PrintedText(tuple(lines), is_open)


def plain_head(head: str) -> str:
    """The beginning of a file as `recognise` looks at it. Patterns for it must not let `\\s` cross lines, which costs
    the square of a run of empty lines."""
    return plain(head[:HEAD_LENGTH_MAX])


def plain(text: str) -> str:
    """The text without colours, carriage returns and typographic blanks."""
    return _COLOUR.sub("", text.translate(_BLANKS))
