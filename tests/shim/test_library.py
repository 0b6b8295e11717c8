"""The library itself: what it exports and needs, its shared layout, and which entry points it stands in front of."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.shim.built import PROGRAM_SOURCES, SHIM_SOURCES, Built, ran
from tests.shim.container import (
    USAGE_FILE_BYTES,
    USAGE_HEADER,
    USAGE_MAGIC,
    USAGE_SLOT,
    USAGE_SLOTS_MAX,
    Container,
)

GLIBC_FLOOR = (2, 17)
OTHER_EXPORTS = {"dlsym", "dlvsym", "dlopen", "dlclose", "fork", "vfork", "execve", "execv", "execvp", "execvpe"}
# Bases of which every variant must be caught: what allocates, launches or frees.
CAUGHT = (
    "cuMemAlloc",
    "cuMemAllocPitch",
    "cuMemAllocManaged",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemCreate",
    "cuArrayCreate",
    "cuArray3DCreate",
    "cuMipmappedArrayCreate",
    "cuMemFree",
    "cuMemFreeAsync",
    "cuMemRelease",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuLaunchCooperativeKernel",
    "cuLaunchCooperativeKernelMultiDevice",
    "cuGraphLaunch",
    "cuGraphInstantiate",
    "cuGraphInstantiateWithFlags",
    "cuGraphInstantiateWithParams",
    "cuMemGetInfo",
    "cuDeviceTotalMem",
    "cuGetProcAddress",
    "cuCtxCreate",
    "cuDevicePrimaryCtxRetain",
    "cuModuleLoadData",
    "cuCtxSetLimit",
)


SYMBOL = re.compile(r"^[0-9a-f]{16} .{7} (\S+)\s+[0-9a-f]+\s+(?:\(?([A-Z0-9_.a-z]+)\)?\s+)?(\S+)$", re.MULTILINE)


def symbols(built: Built) -> list[tuple[str, str, bool]]:
    """Name, version and whether the library itself defines it."""
    found = SYMBOL.findall(ran("objdump", "-T", str(built.shim)))
    return [(name, version, section != "*UND*") for section, version, name in found]


def test_it_exports_hooks_and_nothing_else(built: Built) -> None:
    exported = {name for name, _, defined in symbols(built) if defined}
    assert len(exported) > 50
    assert {name for name in exported if not name.startswith(("cu", "nvml"))} <= OTHER_EXPORTS
    assert not {name for name in exported if name.startswith(("cuda", "cublas", "cudnn"))}


def test_it_runs_on_glibc_2_17(built: Built) -> None:
    versions = {version for _, version, defined in symbols(built) if not defined and version.startswith("GLIBC_")}
    assert versions
    assert max(tuple(map(int, version[6:].split(".")[:2])) for version in versions) <= GLIBC_FLOOR


def test_it_needs_the_c_library_alone(built: Built) -> None:
    needed = re.findall(r"NEEDED\s+(\S+)", ran("objdump", "-p", str(built.shim)))
    assert set(needed) <= {
        "libc.so.6",
        "libdl.so.2",
        "libpthread.so.0",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
    }


def test_its_usage_file_has_the_layout_that_is_read_back(built: Built) -> None:
    program, source = built.programs / "layout", PROGRAM_SOURCES / "layout.c"
    ran("gcc", "-std=c11", f"-I{SHIM_SOURCES}", "-o", str(program), str(source))
    header, slot, total_at, pid_at, slots, size, magic = ran(str(program)).split()
    assert (int(header), int(slot)) == (USAGE_HEADER.size, USAGE_SLOT.size)
    assert (int(total_at), int(pid_at)) == (16, 64)
    assert (int(slots), int(size), int(magic, 16)) == (USAGE_SLOTS_MAX, USAGE_FILE_BYTES, USAGE_MAGIC)


def test_the_agents_reader_has_the_same_layout() -> None:
    reader = pytest.importorskip("topoalloc.sharing.usage")
    sizes = {name: value for name, value in vars(reader).items() if isinstance(value, int)}
    assert sizes.get("USAGE_FILE_BYTES", USAGE_FILE_BYTES) == USAGE_FILE_BYTES
    assert sizes.get("USAGE_SLOTS_MAX", USAGE_SLOTS_MAX) == USAGE_SLOTS_MAX


@pytest.fixture
def resolved(container: Container) -> list[list[str]]:
    process = container.start("resolve")
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert "differ=" not in output
    return [re.split(r"[@/= ]", line) for line in output.splitlines()]


def test_every_variant_of_a_caught_call_is_caught_by_every_way(resolved: list[list[str]]) -> None:
    missed = [row for row in resolved if row[0] in CAUGHT and set(row[4:7]) != {"shim"}]
    assert missed == []


def test_what_is_not_caught_is_the_drivers_own(resolved: list[list[str]]) -> None:
    assert {owner for row in resolved for owner in row[4:7]} == {"shim", "driver"}
    assert sum(row[4] == "driver" for row in resolved) > len(resolved) / 2


def test_the_drivers_answer_to_every_question_stays_its_own(container: Container, resolved: list[list[str]]) -> None:
    environment = container.variables()
    del environment["LD_PRELOAD"]
    done = subprocess.run(
        [str(container.built.programs / "resolve")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    plain = [re.split(r"[@/= ]", line) for line in done.stdout.splitlines()]
    assert [row[7:] for row in plain] == [row[7:] for row in resolved]


@pytest.mark.parametrize("version", ["11080", "12090", "13000"])
def test_an_older_driver_is_answered_for_like_a_newer_one(container: Container, version: str) -> None:
    container.environment["FAKE_DRIVER_VERSION"] = version
    ways = ["linked", "dlsym", "procaddress"] if version != "11080" else ["linked", "dlsym"]
    for way in ways:
        assert container.run("memory", way, "plain", "64M")["error"] == 2
