"""What the shim believes of CUDA's binary interface is what NVIDIA's own headers of three versions say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.shim.built import SHIM_SOURCES, ran
from tests.shim.nvidia_headers import Package, compare, facts_of, prototypes, unpacked

PROGRAM = Path(__file__).parent / "programs" / "declarations.c"
HEADERS = ("cuda.h", "cudaTypedefs.h")
KEPT = "cuda-headers"
PACKAGES = {
    "11.8": Package(
        "nvidia-cuda-runtime-cu11==11.8.89",
        "92d04069a987e1fbc9213f8376d265df0f7bb42617d44f5eda1f496acea7f2d1",
    ),
    "12.9": Package(
        "nvidia-cuda-runtime-cu12==12.9.79",
        "25bba2dfb01d48a9b59ca474a1ac43c6ebf7011f1b0b8cc44f54eb6ac48a96c3",
    ),
    "13.0": Package(
        "nvidia-cuda-runtime==13.0.96",
        "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
    ),
}


@pytest.fixture(scope="session", params=PACKAGES)
def headers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with NVIDIA's cuda.h of one version."""
    return unpacked(PACKAGES[request.param], HEADERS, KEPT, request, tmp_path_factory)


OURS = """
#include "driver_api.h"
#define HOOK(name, parameters, base, version, per_thread) CUresult name parameters;
#include "hooks.def"
#define CALL(name, parameters) CUresult name parameters;
#include "calls.def"
"""
# With this the header declares every version and stream semantics of a function, each under its exported name.
THEIRS = "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n"


@pytest.fixture(scope="session")
def ours() -> dict[str, list[str]]:
    return prototypes(OURS, f"-I{SHIM_SOURCES.absolute()}")


def test_every_signature_has_the_drivers_parameters(
    headers: Path, ours: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    theirs = prototypes(THEIRS, f"-I{headers}")
    both = {name: types for name, types in ours.items() if name in theirs}
    assert len(both) > len(ours) / 2
    for name, types in both.items():
        assert len(types) == len(theirs[name]), f"{name}: {types} against {theirs[name]}"
    flags = f"-I{SHIM_SOURCES.absolute()}"
    mine = facts_of(both, tmp_path_factory.mktemp("ours"), '#include "driver_api.h"', flags)
    said = facts_of({name: theirs[name] for name in both}, tmp_path_factory.mktemp("theirs"), THEIRS, f"-I{headers}")
    compare(mine, said)


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
    for package in PACKAGES.values():
        declared |= set(prototypes(THEIRS, f"-I{unpacked(package, HEADERS, KEPT, request, tmp_path_factory)}"))
    assert set(ours) - declared == set()


def test_every_structure_and_constant_is_the_drivers(headers: Path, tmp_path: Path) -> None:
    """One program, compiled once with our names and once with theirs, prints sizes, offsets and values."""
    mine, said = tmp_path / "ours", tmp_path / "theirs"
    ran("gcc", "-DOURS", f"-I{SHIM_SOURCES}", "-o", str(mine), str(PROGRAM))
    ran("gcc", "-w", "-D__CUDA_API_VERSION_INTERNAL", f"-I{headers}", "-o", str(said), str(PROGRAM))
    assert ran(str(mine)) == ran(str(said))
