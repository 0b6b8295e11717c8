"""The wheel brings the library and topoalloc-verify where there is a compiler, and says so where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY, VERIFY = "topoalloc/sharing/shim/libtopoalloc-vcuda.so", "topoalloc/sharing/shim/topoalloc-verify"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """This project with a shim of one function."""
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shim = tmp_path / "topoalloc" / "sharing" / "shim"
    shim.mkdir(parents=True)
    (tmp_path / "topoalloc" / "__init__.py").write_text("")
    shutil.copy(ROOT / "topoalloc/sharing/shim/compile.flags", shim)
    shutil.copytree(ROOT / "topoalloc/sharing/shim/verify", shim / "verify")
    shutil.copy(ROOT / "topoalloc/sharing/shim/usage_layout.h", shim)
    (shim / "one.c").write_text(
        "int cuInit(unsigned int flags);\nint cuInit(unsigned int flags) { return (int)flags; }\n"
    )
    (shim / "exports.map").write_text("{ global: cuInit; local: *; };\n")
    (shim / "libtopoalloc-vcuda.so").write_text("of an earlier build")
    (shim / "topoalloc-verify").write_text("of an earlier build")
    return tmp_path


def build(project: Path, compiler: str) -> tuple[str, list[str], str]:
    """The wheel's name, what of the shim is in it, and what the build said."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"]
    env = {**os.environ, "CC": compiler}
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = (project / "dist").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if "/shim/" in name]
        assert all(archive.read(name)[:4] == b"\x7fELF" for name in files)
    return wheel.name, files, done.stdout + done.stderr


def test_a_wheel_built_with_a_compiler_has_both_and_no_source_of_them(project: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")

    name, files, _ = build(project, "cc")

    assert sorted(files) == [LIBRARY, VERIFY]
    assert "-py3-none-linux_" in name


def test_a_wheel_built_without_one_has_none_and_says_so(project: Path) -> None:
    name, files, said = build(project, "no-such-compiler")

    assert files == []
    assert name.endswith("-py3-none-any.whl")
    assert "WITHOUT libtopoalloc-vcuda.so (no no-such-compiler): shares will not be enforced" in said


def test_a_wheel_of_the_dependencies_alone_has_none_and_says_so(project: Path) -> None:
    """The image is built in two steps: before the code comes, the package is an empty one."""
    shutil.rmtree(project / "topoalloc" / "sharing")

    _, files, said = build(project, "cc")

    assert files == []
    assert "WITHOUT libtopoalloc-vcuda.so" in said
