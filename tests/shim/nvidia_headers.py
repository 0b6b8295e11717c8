"""NVIDIA's own headers, one version beside another, and what a compiler says of the functions they declare."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.shim.built import ran

DOWNLOAD_TIMEOUT_S = 60
PROTOTYPE = re.compile(r"\b(?:CUresult|nvmlReturn_t)\s+((?:cu|nvml)\w+)\s*\(([^;{}]*)\)\s*;")
LAST_NAME = re.compile(r"^(.*[\s*])([A-Za-z_]\w*)$", re.DOTALL)
TYPE_WORDS = {"int", "long", "short", "char", "unsigned", "float", "double", "void"}

Facts = dict[tuple[str, int], list[int]]


@dataclass(frozen=True, slots=True)
class Package:
    """One of PyPI. Packages of two versions write the same files and cannot be installed beside each other, so the
    wheels are kept apart and only their headers are unpacked."""

    requirement: str
    sha256: str  # of its wheel for x86-64


def _wheel(package: Package, into: Path) -> Path:
    requirement, digest = package.requirement, package.sha256
    for known in into.glob("*.whl"):
        if hashlib.sha256(known.read_bytes()).hexdigest() == digest:
            return known
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--platform", "manylinux2014_x86_64", "--dest", str(into), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{requirement} did not come within {DOWNLOAD_TIMEOUT_S} seconds")
    if done.returncode != 0:
        pytest.skip(f"{requirement} cannot be had: {done.stderr.strip()[-200:]}")
    for fresh in into.glob("*.whl"):
        if hashlib.sha256(fresh.read_bytes()).hexdigest() == digest:
            return fresh
    pytest.fail(f"{requirement} is not the wheel that it was")


def unpacked(
    package: Package, names: Iterable[str], kept: str, request: pytest.FixtureRequest, factory: pytest.TempPathFactory
) -> Path:
    """Directory with these headers of a package; the wheel stays in pytest's cache below `kept`."""
    cache = request.config.cache
    assert cache is not None
    folder, into = cache.mkdir(kept) / package.requirement.partition("==")[2], factory.mktemp("headers")
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(_wheel(package, folder)) as wheel:
        for member in wheel.namelist():
            if Path(member).name in names:
                (into / Path(member).name).write_bytes(wheel.read(member))
    return into


def _types_of(parameters: str) -> list[str]:
    """The types of a prototype's parameters, their names taken away."""
    types = []
    for written in parameters.split(","):
        text = " ".join(written.split())
        if text in {"", "void"}:
            continue
        assert "(" not in text, f"a function pointer as parameter: {text}"
        arrays = text.count("[")
        text = re.sub(r"\s*\[[^]]*\]", "", text)
        named = LAST_NAME.match(text)
        if named and named.group(2) not in TYPE_WORDS and named.group(1).replace("const", "").strip():
            text = named.group(1).strip()
        types.append(text + "*" * arrays)
    return types


def prototypes(source: str, *flags: str) -> dict[str, list[str]]:
    done = subprocess.run(
        ["gcc", "-E", "-P", *flags, "-x", "c", "-"],
        input=source,
        capture_output=True,
        text=True,
        timeout=DOWNLOAD_TIMEOUT_S,
        check=True,
    )
    return {name: _types_of(parameters) for name, parameters in PROTOTYPE.findall(done.stdout)}


def facts_of(functions: dict[str, list[str]], into: Path, include: str, *flags: str) -> Facts:
    """Of each parameter: its size, its kind (integer or pointer), and the size of what it points to (0: nothing known).

    Asked of the compiler in a translation unit of its own, since both sides name the same things."""
    lines = []
    for name, types in functions.items():
        for at, kind in enumerate(types):
            plain = kind.count("*") == 1 and "void" in kind.split("*")[0].split()
            target = f"sizeof(*({kind})0)" if kind.endswith("*") and not plain else "(size_t)0"
            kept = f"sizeof({kind}), __builtin_classify_type(*({kind} *)0), {target}"
            lines.append(f'    printf("{name} {at} %zu %d %zu\\n", {kept});')
    source = into / "facts.c"
    source.write_text(f"{include}\n#include <stdio.h>\nint main(void)\n{{\n" + "\n".join(lines) + "\n}\n")
    program = into / "facts"
    ran("gcc", "-w", *flags, "-o", str(program), str(source))
    answers = (line.split() for line in ran(str(program)).splitlines())
    return {(name, int(at)): [int(value) for value in values] for name, at, *values in answers}


def compare(ours: Facts, theirs: Facts) -> None:
    for where, (size, kind, target) in ours.items():
        their_size, their_kind, their_target = theirs[where]
        assert (size, kind) == (their_size, their_kind), where
        if target:  # ours may be a plain address
            assert target == their_target, where
