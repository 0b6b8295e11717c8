"""What `make e2e-components` does when there is nothing to build, or nothing to build it with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.cluster.binaries import binary

BUILD = Path(__file__).parent / "components" / "build.py"


def build(*names: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BUILD), *names]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600, check=False
    )


def fake_go(folder: Path, script: str) -> str:
    go = folder / "go"
    go.write_text(f"#!/bin/sh\n{script}\n")
    go.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_a_current_cache_is_left_alone():
    build("oracle")
    before = binary("oracle").stat().st_mtime_ns

    answer = build("oracle")

    assert binary("oracle").stat().st_mtime_ns == before
    assert answer.stdout.split()[:2] == ["oracle", "current"]


def test_without_go_it_says_which_go_is_needed(tmp_path: Path):
    answer = build("oracle", PATH=str(tmp_path), TOPOALLOC_E2E_CACHE=str(tmp_path))

    assert answer.returncode == 1
    assert "Go 1.26.0 or newer is needed" in answer.stderr
    assert "no `go` on PATH" in answer.stderr


def test_a_go_that_is_too_old_is_named_with_its_own_words(tmp_path: Path):
    path = fake_go(tmp_path, "echo 'go.mod requires go >= 1.26.0 (running go 1.22.1)' >&2; exit 1")

    answer = build("oracle", PATH=path, TOPOALLOC_E2E_CACHE=str(tmp_path))

    assert answer.returncode == 1
    assert f"{tmp_path}/go says: go.mod requires go >= 1.26.0 (running go 1.22.1)" in answer.stderr


def test_what_does_not_build_is_shown_and_leaves_nothing_in_the_cache(tmp_path: Path):
    path = fake_go(tmp_path, '[ "$1" = env ] && echo go1.26.0 && exit; echo "main.go:1: syntax error"; exit 2')

    answer = build("oracle", PATH=path, TOPOALLOC_E2E_CACHE=str(tmp_path))

    assert answer.returncode == 1
    assert "oracle does not build" in answer.stderr
    assert "main.go:1: syntax error" in answer.stderr
    assert list((tmp_path / "bin").iterdir()) == []


def test_an_unknown_component_is_refused_with_the_known_ones():
    answer = build("kublet")

    assert answer.returncode == 1
    assert answer.stderr.startswith("no component kublet; there are: oracle ")
