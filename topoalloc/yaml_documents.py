"""YAML text as plain values, within bounds: no aliases, no tags, no duplicate keys, no depth or size without end.

Every refusal names the file, the document (counted from 1) and the place in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import yaml

from topoalloc.errors import InputError

DOCUMENT_BYTES_MAX = 8 * 1024 * 1024  # the API server takes 3 MiB a request; a few hundred pods are less
EVENTS_MAX = 1_000_000  # about thirty per small container: bounds memory and seconds whatever the text says
DEPTH_MAX = 64  # a Pod nests to about fifteen
DOCUMENTS_MAX = 10_000  # more than are admitted from one file
TEXT_SHOWN_MAX = 60  # characters of the user's text repeated in an error

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,30})")
_OTHER_INTEGER = re.compile(r"0(?:o?[0-7]{1,20}|x[0-9a-fA-F]{1,16})")
_FLOAT = re.compile(r"[-+]?(?:[0-9]{1,30}\.[0-9]{0,30}|\.[0-9]{1,30}|[0-9]{1,30})(?:[eE][-+]?[0-9]{1,2})?")


def _words() -> dict[str, bool | None]:
    """Plain scalars with a meaning. Kubernetes reads YAML 1.1: yes, no, on and off are booleans there."""
    words: dict[str, bool | None] = {"": None, "~": None}
    for meaning, spellings in ((True, "true yes on"), (False, "false no off"), (None, "null")):
        for word in spellings.split():
            words |= dict.fromkeys((word, word.capitalize(), word.upper()), meaning)
    return words


_WORDS = _words()


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document: `value` of dict, list, str, int, float, bool and None; `number` counts from 1."""

    file: str
    number: int
    value: object

    def error(self, path: str, what: str) -> InputError:
        """The one line for a fault at `path` (`spec.containers[0].name`; empty: the document itself)."""
        return InputError(": ".join(part for part in (self.file, f"document {self.number}", path, what) if part))


def read_documents(path: Path) -> tuple[Document, ...]:
    """All documents of a file that say anything; raises InputError with one line."""
    try:
        with path.open("rb") as stream:
            content = stream.read(DOCUMENT_BYTES_MAX + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(content) > DOCUMENT_BYTES_MAX:
        raise InputError(f"{path}: larger than {DOCUMENT_BYTES_MAX >> 20} MiB: split it")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}): is this YAML?") from error
    return parse_documents(text, str(path))


def parse_documents(text: str, file: str) -> tuple[Document, ...]:
    """The documents of `text` that say anything; `file` is only used to speak about it. Raises InputError."""
    builder = _Builder(file)
    # libyaml's parser where PyYAML was built with it: the same events, ten times faster.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        for count, event in enumerate(yaml.parse(text, Loader=loader)):
            if count >= EVENTS_MAX:
                raise builder.fault(event.start_mark, f"more than {EVENTS_MAX} elements in one file: split it")
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        raise builder.fault(error.problem_mark, _syntax_fault(error, text)) from error
    except yaml.YAMLError as error:
        reason = getattr(error, "reason", None) or "not YAML"
        raise InputError(f"{file}: document {builder.number}: {reason}") from error
    return tuple(document for document in builder.documents if document.value is not None)


class _Mark(Protocol):
    """A place in the text, counted from 0; PyYAML has a class of its own for each parser."""

    @property
    def line(self) -> int: ...
    @property
    def column(self) -> int: ...


class _Builder:
    """Turns the parser's flat events into values without recursion."""

    def __init__(self, file: str) -> None:
        self.documents: list[Document] = []
        self._file = file
        self._started = 0
        self._open: list[_Collection] = []

    @property
    def number(self) -> int:
        """The document being read, counted from 1."""
        return max(self._started, 1)

    def fault(self, mark: _Mark | None, what: str) -> InputError:
        where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        return InputError(f"{self._file}: document {self.number}: {where}{what}")

    def take(self, event: yaml.Event) -> None:
        match event:
            case yaml.AliasEvent():
                raise self.fault(event.start_mark, f"the alias *{event.anchor} is not accepted: write the value out")
            case yaml.ScalarEvent():
                self._refuse_tag(event)
                self._place(self._scalar(event), event.start_mark)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._refuse_tag(event)
                self._start(event)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                done = self._open.pop()
                self._place(done.value, event.start_mark)
            case yaml.DocumentStartEvent():
                self._started += 1
            case _:
                pass  # the other marks carry no value

    def _start(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent) -> None:
        if len(self._open) >= DEPTH_MAX:
            raise self.fault(event.start_mark, f"nested deeper than {DEPTH_MAX} levels")
        self._open.append(_Collection({} if isinstance(event, yaml.MappingStartEvent) else []))

    def _place(self, value: object, mark: _Mark | None) -> None:
        if not self._open:
            self.documents.append(Document(self._file, self.number, value))
            if len(self.documents) > DOCUMENTS_MAX:
                raise self.fault(None, f"more than {DOCUMENTS_MAX} documents in one file: split it")
            return
        fault = self._open[-1].add(value)
        if fault:
            raise self.fault(mark, fault)

    def _refuse_tag(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> None:
        tag = event.tag
        if tag is not None and tag not in {"!", "tag:yaml.org,2002:str"}:
            raise self.fault(event.start_mark, f"the tag {_shown(tag)} is not accepted")

    def _scalar(self, event: yaml.ScalarEvent) -> object:
        plain = event.implicit[0] and event.tag is None
        return _plain_value(event.value) if plain else event.value


class _Collection:
    """A mapping or list that is still open; a mapping waits for a key, then for its value."""

    def __init__(self, value: dict[str, object] | list[object]) -> None:
        self.value = value
        self._key: str | None = None

    def add(self, item: object) -> str | None:
        """Take the next key, value or element; returns what is wrong with it, or None."""
        if isinstance(self.value, list):
            self.value.append(item)
        elif self._key is not None:
            self.value[self._key] = item
            self._key = None
        else:
            if isinstance(item, (dict, list)) or item is None:
                return "a key must be text"
            key = str(item).lower() if isinstance(item, bool) else str(item)
            if key in self.value:
                return f"the key {_shown(key)} appears twice"
            self._key = key
        return None


def _plain_value(text: str) -> object:
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OTHER_INTEGER.fullmatch(text):
        return int(text, 16) if text.startswith("0x") else int(text.replace("o", ""), 8)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _syntax_fault(error: yaml.MarkedYAMLError, text: str) -> str:
    mark = error.problem_mark
    if mark is not None:
        line = next((line for number, line in enumerate(text.splitlines()) if number == mark.line), "")
        if line[: mark.column + 1].strip(" ").startswith("\t"):
            return "a tab cannot indent YAML: use spaces"
    return error.problem or "not YAML"


def _shown(text: str) -> str:
    return repr(text if len(text) <= TEXT_SHOWN_MAX else text[: TEXT_SHOWN_MAX - 3] + "...")
