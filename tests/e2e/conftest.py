"""Everything below needs root and what `make e2e-components` builds; it is marked `e2e` and run by `make e2e`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.cluster.image import build_image, build_workload_image

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def images() -> tuple[Path, Path]:
    """Archives of the images that every test cluster gets: topoalloc and the workload."""
    return build_image(), build_workload_image()
