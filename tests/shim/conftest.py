"""The fake driver and the shim, compiled once per session; a container per test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shim.built import Built, build
from tests.shim.container import Container, Share, agent_of


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    if not shutil.which("gcc") or not shutil.which("make"):
        pytest.skip("gcc and make compile the shim and its fake driver")
    return build(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def container(built: Built, tmp_path: Path) -> Iterator[Container]:
    """A share of 4 GiB and all cores, without an agent to ask."""
    made = Container(built, tmp_path / "share", tmp_path / "gpu")
    made.grant(Share())
    yield made
    made.close()


@pytest.fixture
def measured(container: Container) -> Iterator[Container]:
    """The same with an agent that tells each process what it holds."""
    with agent_of(container):
        yield container
