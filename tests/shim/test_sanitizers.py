"""The same programs and shim with the compiler's checks for memory errors, undefined behaviour and data races."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.shim.built import Built, build, ran
from tests.shim.container import Container, Share

ADDRESS = ("-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-fno-sanitize-recover=undefined")
THREAD = ("-fsanitize=thread",)
CASES = [
    ("memory", "plain", "64M"),
    ("memory", "threads", "64M"),
    ("memory", "managed", "64M"),
    ("arrays", "mipmap", "64M"),
    ("pools", "pool", "64M"),
    ("pools", "cross"),
    ("vmm", "mapped", "64M"),
    ("graphs", "captured", "64M"),
    ("graphs", "capture"),
    ("implicit", "module", "64M"),
    ("foreign", "external"),
    ("launches", "plain", "100000", "0.1", "4"),
    ("launches", "graph", "100000", "0.1"),
    ("manners", "streams"),
    ("manners", "pools"),
    ("manners", "captures"),
]


def built_with(flags: tuple[str, ...], into: Path) -> Built:
    return build(into, *flags)


def preloaded(built: Built, runtime: str) -> str:
    """A checked library in an unchecked order: the checker's own runtime has to come first."""
    return f"{ran('gcc', f'-print-file-name={runtime}').strip()} {built.shim}"


@pytest.fixture(scope="session")
def address_checked(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return built_with(ADDRESS, tmp_path_factory.mktemp("address"))


@pytest.fixture(scope="session")
def thread_checked(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return built_with(THREAD, tmp_path_factory.mktemp("thread"))


def run_checked(built: Built, into: Path, runtime: str, options: dict[str, str], case: tuple[str, ...]) -> None:
    container = Container(built, into / "share", into / "gpu")
    container.grant(Share(cores=5000))
    container.environment |= {"LD_PRELOAD": preloaded(built, runtime)} | options
    program, *arguments = case
    process = container.start(program, "linked", *arguments)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, f"{output}\n{errors}"
    assert "ERROR" not in errors
    assert "WARNING" not in errors
    assert "runtime error" not in errors


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_no_memory_error_and_no_undefined_behaviour(
    address_checked: Built, tmp_path: Path, case: tuple[str, ...]
) -> None:
    # The programs leave what they were refused to free, as programs do.
    run_checked(address_checked, tmp_path, "libasan.so", {"ASAN_OPTIONS": "detect_leaks=0"}, case)


@pytest.mark.slow
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="gcc's checker for races is used on x86-64 alone here")
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_no_data_race(thread_checked: Built, tmp_path: Path, case: tuple[str, ...]) -> None:
    # The thread that looks at the share again ends with the process.
    run_checked(thread_checked, tmp_path, "libtsan.so", {"TSAN_OPTIONS": "report_thread_leaks=0"}, case)
