"""What the shim believes of CUDA's binary interface is what NVIDIA's own headers of three versions say."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.shim.built import SHIM_SOURCES, ran

PROGRAM = Path(__file__).parent / "programs" / "declarations.c"
DOWNLOAD_TIMEOUT_S = 60
HEADERS = ("cuda.h", "cudaTypedefs.h")
# Version: package on PyPI, its version, SHA-256 of its wheel for x86-64. Packages of two versions write the same files
# and cannot be installed beside each other, so the wheels are kept apart and only their headers are unpacked.
PACKAGES = {
    "11.8": (
        "nvidia-cuda-runtime-cu11==11.8.89",
        "92d04069a987e1fbc9213f8376d265df0f7bb42617d44f5eda1f496acea7f2d1",
    ),
    "12.9": (
        "nvidia-cuda-runtime-cu12==12.9.79",
        "25bba2dfb01d48a9b59ca474a1ac43c6ebf7011f1b0b8cc44f54eb6ac48a96c3",
    ),
    "13.0": (
        "nvidia-cuda-runtime==13.0.96",
        "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
    ),
}
PROTOTYPE = re.compile(r"\bCUresult\s+(cu\w+)\s*\(([^;{}]*)\)\s*;")
LAST_NAME = re.compile(r"^(.*[\s*])([A-Za-z_]\w*)$", re.DOTALL)
TYPE_WORDS = {"int", "long", "short", "char", "unsigned", "float", "double", "void"}


def _wheel(requirement: str, digest: str, into: Path) -> Path:
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


def _headers(version: str, request: pytest.FixtureRequest, into: Path) -> Path:
    requirement, digest = PACKAGES[version]
    cache = request.config.cache
    assert cache is not None
    kept = cache.mkdir("cuda-headers") / version
    kept.mkdir(exist_ok=True)
    with zipfile.ZipFile(_wheel(requirement, digest, kept)) as wheel:
        for member in wheel.namelist():
            if Path(member).name in HEADERS:
                (into / Path(member).name).write_bytes(wheel.read(member))
    return into


@pytest.fixture(scope="session", params=PACKAGES)
def headers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with NVIDIA's cuda.h of one version."""
    return _headers(request.param, request, tmp_path_factory.mktemp("headers"))


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


def _prototypes(source: str, *flags: str) -> dict[str, list[str]]:
    done = subprocess.run(
        ["gcc", "-E", "-P", *flags, "-x", "c", "-"],
        input=source,
        capture_output=True,
        text=True,
        timeout=DOWNLOAD_TIMEOUT_S,
        check=True,
    )
    return {name: _types_of(parameters) for name, parameters in PROTOTYPE.findall(done.stdout)}


OURS = """
#include "driver_api.h"
#define HOOK(name, parameters, base, version, per_thread) CUresult name parameters;
#include "hooks.def"
#define CALL(name, parameters) CUresult name parameters;
#include "calls.def"
"""
# With this the header declares every version and stream semantics of a function, each under its exported name.
THEIRS = "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n"


def _facts(functions: dict[str, list[str]], into: Path, include: str, *flags: str) -> dict[tuple[str, int], list[int]]:
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


@pytest.fixture(scope="session")
def ours() -> dict[str, list[str]]:
    return _prototypes(OURS, f"-I{SHIM_SOURCES.absolute()}")


def test_every_signature_has_the_drivers_parameters(
    headers: Path, ours: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    theirs = _prototypes(THEIRS, f"-I{headers}")
    both = {name: types for name, types in ours.items() if name in theirs}
    assert len(both) > len(ours) / 2
    for name, types in both.items():
        assert len(types) == len(theirs[name]), f"{name}: {types} against {theirs[name]}"
    flags = f"-I{SHIM_SOURCES.absolute()}"
    mine = _facts(both, tmp_path_factory.mktemp("ours"), '#include "driver_api.h"', flags)
    said = _facts({name: theirs[name] for name in both}, tmp_path_factory.mktemp("theirs"), THEIRS, f"-I{headers}")
    for where, (size, kind, target) in mine.items():
        their_size, their_kind, their_target = said[where]
        assert (size, kind) == (their_size, their_kind), where
        if target:  # ours may be a plain address
            assert target == their_target, where


def test_every_hook_stands_for_an_abi_that_the_driver_names(headers: Path) -> None:
    """cudaTypedefs.h has one type for each form of a function, with the version of CUDA that brought it."""
    text = (headers / "cudaTypedefs.h").read_text()
    version = int(re.findall(r"#define CUDA_VERSION (\d+)", (headers / "cuda.h").read_text())[0])
    done = ran("gcc", "-E", "-P", "-DHOOK(n,p,b,v,t)=HOOK n b v t", "-x", "c", str(SHIM_SOURCES / "hooks.def"))
    hooks = [line.replace('"', "").split() for line in re.findall(r"HOOK (.*)", done)]
    missing = [
        name
        for name, base, abi, per_thread in hooks
        if int(abi) <= version and f"PFN_{base}_v{abi}{'_ptsz' if per_thread == '1' else ''})" not in text
    ]
    assert hooks
    assert missing == []


def test_every_function_is_declared_by_one_of_the_versions_at_least(
    ours: dict[str, list[str]], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """So that a misspelt name, which no driver would ever have, is seen."""
    declared: set[str] = set()
    for version in PACKAGES:
        declared |= set(_prototypes(THEIRS, f"-I{_headers(version, request, tmp_path_factory.mktemp('all'))}"))
    assert set(ours) - declared == set()


def test_every_structure_and_constant_is_the_drivers(headers: Path, tmp_path: Path) -> None:
    """One program, compiled once with our names and once with theirs, prints sizes, offsets and values."""
    mine, said = tmp_path / "ours", tmp_path / "theirs"
    ran("gcc", "-DOURS", f"-I{SHIM_SOURCES}", "-o", str(mine), str(PROGRAM))
    ran("gcc", "-w", "-D__CUDA_API_VERSION_INTERNAL", f"-I{headers}", "-o", str(said), str(PROGRAM))
    assert ran(str(mine)) == ran(str(said))
