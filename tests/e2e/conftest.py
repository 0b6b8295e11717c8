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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The time of every file, and the figures that tests recorded."""
    took_s: dict[str, float] = {}
    figures: list[str] = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if not isinstance(report, pytest.TestReport) or not report.nodeid.startswith("tests/e2e/"):
                continue
            name = report.nodeid.partition("::")[0]
            took_s[name] = took_s.get(name, 0.0) + report.duration
            if report.when == "call":
                figures += [f"{what}: {figure}" for what, figure in report.user_properties]
    if took_s:
        terminalreporter.section("a real Kubernetes")
        for name, seconds in sorted(took_s.items()):
            terminalreporter.write_line(f"{seconds:8.1f} s  {name}")
        for figure in sorted(figures):
            terminalreporter.write_line(figure)


@pytest.fixture(scope="session")
def images() -> tuple[Path, Path]:
    """Archives of the images that every test cluster gets: topoalloc and the workload."""
    return build_image(), build_workload_image()
