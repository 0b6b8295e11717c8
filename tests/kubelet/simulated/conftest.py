"""One world per test."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubelet.simulated.world import World


@pytest.fixture
def world() -> Iterator[World]:
    # pytest's own tmp_path is too long for a unix socket in some set-ups.
    with tempfile.TemporaryDirectory(prefix="topoalloc-test-") as directory:
        made = World(Path(directory))
        try:
            yield made
        finally:
            made.close()
