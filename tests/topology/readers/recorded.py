"""Recorded machines and what is known of them (tests/machines), for the tests of readers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from topoalloc.topology.reading import Reading, SourceRefusal

MACHINES = Path(__file__).parents[2] / "machines"
FACTS: dict[str, dict[str, Any]] = {
    name: entry["facts"] for name, entry in json.loads((MACHINES / "facts.json").read_text()).items()
}


def names(ending: str) -> list[str]:
    """The recorded files whose names end so, sorted."""
    found = sorted(path.name for path in MACHINES.iterdir() if path.name.endswith(ending))
    assert found, f"no recorded file ends in {ending}"
    return found


def text_of(name: str) -> str:
    """A recorded text, byte for byte but for its decoding."""
    return (MACHINES / name).read_bytes().decode()


def read(result: Reading | SourceRefusal) -> Reading:
    """The reading, where a refusal would be the reader's fault."""
    assert isinstance(result, Reading), str(result)
    return result


def refused(result: Reading | SourceRefusal) -> str:
    """The reason of a refusal: one line that fits a terminal's message."""
    assert isinstance(result, SourceRefusal), result
    assert result.reason
    assert "\n" not in str(result)
    assert len(result.reason) < 300
    return result.reason


def says_the_same(one: Reading, other: Reading) -> bool:
    """Whether two readings differ in nothing but warnings."""
    return replace(one, warnings=()) == replace(other, warnings=())
