"""The house rules that a program can check: sizes, names, who may import what, words that have no place here."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from topoalloc.cli.main import VERBS

SOURCES = sorted(path for path in Path("topoalloc").rglob("*.py") if "pb" not in path.parts)
TESTS = sorted(Path("tests").rglob("*.py"))
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
NESTING_MAX = 3  # blocks within blocks, counted below the function's own body

# Each outside thing has one module (or room) that touches it.
IMPORTERS = {
    "pynvml": (
        "topoalloc/topology/readers/nvml.py",
        "topoalloc/topology/readers/nvml_events.py",
        "topoalloc/topology/readers/nvml_processes.py",
    ),
    "pyudev": ("topoalloc/topology/readers/udev.py",),
    "grpc": ("topoalloc/kubelet/", "topoalloc/agent/footprint.py"),
    "topoalloc.pb": ("topoalloc/kubelet/", "topoalloc/agent/vcuda_registry.py"),
    "yaml": ("topoalloc/yaml_documents.py",),
    "msgspec": ("topoalloc/agent/config.py", "topoalloc/kubelet/", "topoalloc/cluster/api_objects.py"),
    "kubernetes": ("topoalloc/cluster/api_server.py",),
    "urllib3": ("topoalloc/cluster/api_server.py",),
    "tarfile": ("topoalloc/topology/readers/",),
}
BANNED_NAMES = re.compile(r"(^|_)(utils?|helpers?|common|misc|manager)(_|\.py$)")
# The kubelet's own managers keep the field's names.
FIELD_NAMES = {"device_manager.py", "topology_manager.py"}


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def depth(node: ast.AST, level: int = 0) -> int:
    """How deep statements with bodies are nested below a node; an `elif` is no deeper than its `if`."""
    deepest = level
    for child in ast.iter_child_nodes(node):
        blocks = ast.If | ast.For | ast.While | ast.With | ast.Try | ast.Match
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        inner = isinstance(child, blocks) and not is_elif
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            deepest = max(deepest, depth(child, level + 1 if inner else level))
    return deepest


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=str)
def test_every_function_fits_a_screen(path: Path):
    long = {
        f.name: n for f in functions(tree_of(path)) if (n := (f.end_lineno or 0) - f.lineno + 1) > FUNCTION_LINES_MAX
    }

    assert long == {}


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_no_function_nests_too_deep(path: Path):
    deep = {f.name: n for f in functions(tree_of(path)) if (n := depth(f)) > NESTING_MAX}

    assert deep == {}


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=str)
def test_every_file_holds_one_idea_and_says_which(path: Path):
    assert len(path.read_text().splitlines()) <= FILE_LINES_MAX
    assert path.read_text() == "" or ast.get_docstring(tree_of(path))


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_names_of_files_say_what_is_in_them(path: Path):
    assert path.name in FIELD_NAMES or not BANNED_NAMES.search(path.name)


@pytest.mark.parametrize("package", sorted(IMPORTERS))
def test_an_outside_thing_is_touched_in_one_place(package: str):
    elsewhere = [
        str(path)
        for path in SOURCES
        if any(name == package or name.startswith(f"{package}.") for name in imported(tree_of(path)))
        and not str(path).startswith(IMPORTERS[package])
    ]

    assert elsewhere == []


def test_nothing_is_left_to_be_done_in_the_text():
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")

    assert [str(path) for path in SOURCES if marks.search(path.read_text())] == []


def modules_imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, `from package import module` too; names that are no modules do no harm."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_module_is_imported_by_another_one():
    used = {name for path in SOURCES for name in modules_imported(path) if name != module_name(path)}
    used |= {f"topoalloc.cli.{command}" for command in VERBS}  # imported by name, only the one that is run
    unused = [
        str(path) for path in SOURCES if path.stem not in ("__init__", "__main__") and module_name(path) not in used
    ]

    assert unused == []


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts)


def test_no_binary_file_is_kept_but_recorded_machines():
    if not Path(".git").exists():
        pytest.skip("no git checkout here, which alone knows the files that are kept")
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, check=True).stdout.decode().split("\0")
    kept = [Path(name) for name in listed if name and not name.startswith("tests/machines/")]
    binary = [str(path) for path in kept if path.is_file() and b"\0" in path.read_bytes()]

    assert binary == []


def test_every_evidence_in_fidelity_is_a_test_that_exists():
    page = Path("docs/FIDELITY.md").read_text()
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", page)

    missing = [name for file, name in named if f"def {name}(" not in Path("tests/e2e", file).read_text()]

    assert len(named) > 20
    assert missing == []
