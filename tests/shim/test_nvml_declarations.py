"""What the shim and the fake library believe of NVML's binary interface is what four versions of nvml.h say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shim.built import HERE, SHIM_SOURCES, ran
from tests.shim.nvidia_headers import Package, compare, facts_of, prototypes, unpacked

PROGRAM = HERE / "programs" / "nvml_declarations.c"
HEADERS = ("nvml.h",)
KEPT = "nvml-headers"
PACKAGES = {
    "11.8": Package(
        "nvidia-nvml-dev-cu11==11.8.86",
        "f5ad92d9563145137a26ca1b75cda26159125555109ccc303144a0b05b8531e6",
    ),
    # Of drivers 535.43 to 535.86, in which nvmlProcessInfo_t is longer than before and after.
    "12.2.0": Package(
        "nvidia-nvml-dev-cu12==12.2.81",
        "fc273833c1db4b5033c86acadae42be3c16155d9fd17eadc00f9ca677d3672ad",
    ),
    "12.9": Package(
        "nvidia-nvml-dev-cu12==12.9.79",
        "8bb367913c62cb65be9ae386c58dbf573f1f9e2f01cae54abb87bf5f63c6069e",
    ),
    "13.0": Package(
        "nvidia-nvml-dev==13.0.87",
        "082871368275cf6620fc900f55d8eaf2563b263a38a00a5168e9650bce963ba1",
    ),
}
OURS = """
#include "driver_api.h"
#define HOOK(name, parameters) nvmlReturn_t name parameters;
#include "nvml_hooks.def"
#define CALL(name, parameters) nvmlReturn_t name parameters;
#include "nvml_calls.def"
"""
# With this the header declares every version of a function, each under its exported name.
THEIRS = "#define NVML_NO_UNVERSIONED_FUNC_DEFS\n#include <nvml.h>\n"


@pytest.fixture(scope="session", params=PACKAGES)
def headers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with NVIDIA's nvml.h of one version."""
    return unpacked(PACKAGES[request.param], HEADERS, KEPT, request, tmp_path_factory)


def test_every_signature_has_the_librarys_parameters(headers: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    flags = f"-I{SHIM_SOURCES.absolute()}"
    ours, theirs = prototypes(OURS, flags), prototypes(THEIRS, f"-I{headers}")
    assert len(ours) > 4
    assert set(ours) - set(theirs) == set()
    for name, types in ours.items():
        assert len(types) == len(theirs[name]), f"{name}: {types} against {theirs[name]}"
    mine = facts_of(ours, tmp_path_factory.mktemp("ours"), '#include "driver_api.h"', flags)
    said = facts_of({name: theirs[name] for name in ours}, tmp_path_factory.mktemp("theirs"), THEIRS, f"-I{headers}")
    compare(mine, said)


def _said(into: Path, *flags: str) -> dict[str, str]:
    program = into / "said"
    ran("gcc", *flags, "-o", str(program), str(PROGRAM))
    return dict(line.split(" = ") for line in ran(str(program)).splitlines())


@pytest.mark.parametrize(
    "flags",
    [("-DSHIM", f"-I{SHIM_SOURCES}"), ("-DFAKE", f"-I{HERE / 'fake_driver'}")],
    ids=["of the shim", "of the fake library"],
)
def test_every_structure_and_constant_is_the_librarys(headers: Path, tmp_path: Path, flags: tuple[str, ...]) -> None:
    """One program, compiled with the names of one and with NVIDIA's, prints sizes, offsets and values."""
    mine, theirs = _said(tmp_path, *flags), _said(tmp_path, f"-I{headers}")
    assert len(mine) > 15
    assert {name: theirs.get(name) for name in mine} == mine
