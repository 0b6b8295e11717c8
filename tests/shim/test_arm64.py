"""The library as it is delivered for arm64, under qemu: its ways in, its limits, and topoalloc-verify.

qemu computes on this machine's processors, which order memory more strictly than arm64's: that nothing here rests on
that is not shown."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.shim.built import PROGRAM_SOURCES, Built, build_driver_and_programs, build_shipped, build_verify, ran
from tests.shim.container import (
    GIB,
    MIB,
    PROGRAM_TIMEOUT_S,
    Container,
    Share,
    Truth,
    agent_of,
    facts_of,
    finished,
    line_of,
)
from tests.shim.test_library import CAUGHT, GLIBC_FLOOR
from tests.shim.test_memory_limit import FAMILIES, LIMIT, OUT_OF_MEMORY, UNIT_BYTES, WAYS, exact

COMPILER, OBJDUMP, EMULATOR = "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-objdump", "qemu-aarch64"
SYSTEM = "/usr/aarch64-linux-gnu"  # where Debian's cross compiler has its C library
LARGEST_PAGE_BYTES = 64 << 10  # of kernels for arm64
RACERS = 6
# qemu is slow, and a busy machine slower: that launches are held back is judged, not how exactly.
PERMILLE_MOST = 400
# Every indirect branch has to end at a mark, as compilers of some distributions make it. Debian's own start files and
# the atomics of its libgcc have no marks, so they stay out.
GUARDED = ("-mbranch-protection=standard", "-mno-outline-atomics", "-nostartfiles", "-Wl,-z,force-bti")


@pytest.fixture(scope="session")
def arm64(tmp_path_factory: pytest.TempPathFactory) -> Built:
    if os.uname().machine == "aarch64":
        pytest.skip("this machine is arm64: every other test of this folder runs on it")
    missing = [tool for tool in (COMPILER, EMULATOR, "make") if not shutil.which(tool)]
    if missing or not Path(SYSTEM, "lib/libc.so.6").exists():
        pytest.skip(
            f"needs gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user: no {', '.join(missing) or SYSTEM}"
        )
    into = tmp_path_factory.mktemp("arm64")
    driver, programs = build_driver_and_programs(into, f"CC={COMPILER}", "CFLAGS=-O0 -g0")
    build_verify(into, COMPILER)
    return Built(driver, programs, build_shipped(into, COMPILER))


def emulated(container: Container, *options: str, preload: str = "") -> Container:
    """The same container, its programs run by qemu; the loader of this machine has no part in it."""
    given = container.variables()
    variables = {"LD_PRELOAD": preload or str(container.built.shim), "LD_LIBRARY_PATH": given["LD_LIBRARY_PATH"]}
    setting = [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
    container.wrapper = (EMULATOR, *options, "-L", SYSTEM, *setting)
    container.environment |= dict.fromkeys(variables, "")
    return container


@pytest.fixture
def container(arm64: Built, tmp_path: Path) -> Iterator[Container]:
    made = Container(arm64, tmp_path / "share", tmp_path / "gpu")
    made.grant(Share())
    yield emulated(made)
    made.close()


def ran_in(container: Container, *command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*container.wrapper, *command],
        env=container.variables(),
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
    )


@pytest.mark.parametrize("name", ["libtopoalloc-vcuda.so", "topoalloc-verify"])
def test_it_runs_on_glibc_2_17_alone_and_on_kernels_with_large_pages(arm64: Built, name: str) -> None:
    binary = str(arm64.shim.parent / name)
    versions = set(re.findall(r"\(GLIBC_([0-9.]+)\)", ran(OBJDUMP, "-T", binary)))
    headers = ran(OBJDUMP, "-p", binary)
    assert versions
    assert max(tuple(map(int, version.split("."))) for version in versions) <= GLIBC_FLOOR
    assert set(re.findall(r"NEEDED\s+(\S+)", headers)) <= {"libc.so.6", "libdl.so.2", "ld-linux-aarch64.so.1"}
    loaded = re.findall(r"^\s+LOAD .* align 2\*\*(\d+)", headers, re.MULTILINE)
    assert loaded
    assert all(1 << int(power) >= LARGEST_PAGE_BYTES for power in loaded)


def test_every_variant_of_a_caught_call_is_caught_by_every_way(container: Container) -> None:
    done = ran_in(container, container.built.programs / "resolve")
    assert done.returncode == 0, done.stderr
    assert "differ=" not in done.stdout
    rows = [re.split(r"[@/= ]", line) for line in done.stdout.splitlines()]
    assert [row for row in rows if row[0] in CAUGHT and set(row[4:7]) != {"shim"}] == []
    assert sum(row[4] == "driver" for row in rows) > len(rows) / 2


@pytest.fixture(scope="session")
def strangers(arm64: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that was not linked with the driver, and a library that stands in front of the driver as well."""
    into = tmp_path_factory.mktemp("strangers")
    plain = (COMPILER, "-std=c11", "-D_GNU_SOURCE", "-O1", "-g")
    ran(*plain, "-rdynamic", "-o", str(into / "stranger"), str(PROGRAM_SOURCES / "stranger.c"), "-ldl")
    linked = (f"-L{arm64.driver}", "-Wl,--no-as-needed", "-l:libcuda.so.1", "-ldl")
    library = ("-fPIC", "-shared", "-o", str(into / "libwrapper.so"), str(PROGRAM_SOURCES / "wrapper.c"))
    ran(*plain, *library, *linked)
    return into


def test_where_no_driver_is_loaded_none_is_found_and_none_is_loaded(container: Container, strangers: Path) -> None:
    facts = facts_of(ran_in(container, strangers / "stranger", "ask").stdout)
    assert facts == {"init": 0, "hooked": 0, "next": 0, "nvml": 0, "versioned": 0, "own": 1, "loaded": 0}


def test_the_next_object_after_the_caller_stays_a_question_of_who_asks(container: Container, strangers: Path) -> None:
    wrapper = strangers / "libwrapper.so"
    container.environment.clear()
    emulated(container, preload=f"{container.built.shim} {wrapper}")
    facts = facts_of(ran_in(container, strangers / "stranger", "wrapped", wrapper).stdout)
    assert facts["wrapped"] == 1
    assert LIMIT - GIB < facts["obtained"] < LIMIT


@pytest.mark.parametrize("way", WAYS)
def test_no_way_to_the_driver_passes_the_limit(container: Container, way: str) -> None:
    exact(container.run("memory", way, "plain", "64M"))


@pytest.mark.parametrize("family", FAMILIES[1:], ids="-".join)
def test_a_family_gets_its_limit_and_not_a_byte_more(container: Container, family: tuple[str, str, str]) -> None:
    program, kind, size = family
    exact(container.run(program, "linked", kind, size))


def test_what_the_driver_takes_beside_is_asked_of_the_agent(container: Container) -> None:
    with agent_of(container):
        exact(container.run("implicit", "linked", "module", "64M"))


def test_sixteen_threads_at_once_get_no_byte_over(container: Container) -> None:
    facts = container.run("memory", "linked", "threads", "32M")
    assert LIMIT - UNIT_BYTES <= facts["taken"] <= LIMIT


def test_processes_racing_for_one_share_get_no_byte_over(container: Container) -> None:
    container.environment["FAKE_CONTEXT_BYTES"] = str(64 * MIB)
    container.grant(Share(context=64 * MIB))
    truth = Truth(container)
    racers = [container.start("memory", "linked", "hold", "16M") for _ in range(RACERS)]
    for racer in racers:
        assert line_of(racer.stdout)["start"] in (0, OUT_OF_MEMORY)
    for racer in racers:
        line_of(racer.stdout)
    taken, _, _ = truth.of()
    for racer in racers:
        finished(racer)
    truth.close()
    assert LIMIT - UNIT_BYTES <= taken <= LIMIT


def test_what_a_killed_process_held_is_there_for_the_next(container: Container) -> None:
    holder = container.start("memory", "linked", "hold", "64M")
    assert line_of(holder.stdout)["start"] == 0
    assert line_of(holder.stdout)["held"] > LIMIT - GIB
    assert container.run("memory", "linked", "plain", "64M").get("obtained", 0) == 0
    holder.kill()
    holder.communicate(timeout=PROGRAM_TIMEOUT_S)
    exact(container.run("memory", "linked", "plain", "64M"))


def test_without_a_share_memory_is_refused(container: Container) -> None:
    (container.directory / "share").unlink()
    assert container.run("memory", "linked", "plain", "64M")["start"] == OUT_OF_MEMORY


@pytest.mark.parametrize("kind", ["plain", "graph"])
def test_launches_beyond_the_share_of_time_are_held_back(container: Container, kind: str) -> None:
    container.grant(Share(cores=3000))
    facts = container.run("launches", "linked", kind, "1000000", "0.5")
    assert 0 < facts["permille"] <= PERMILLE_MOST, facts


def test_every_report_shows_the_share(container: Container) -> None:
    facts = container.run("reports", "linked")
    assert facts["total"] == facts["device_total"] == facts["nvml_total"] == facts["nvml_total_v2"] == LIMIT


def verified(container: Container, program: Path, root: Path) -> set[str]:
    """What passed; the rest is what only a container's mounts can give."""
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "topoalloc").symlink_to(container.directory)
    (root / "etc" / "ld.so.preload").write_text("/usr/local/lib/topoalloc/libtopoalloc-vcuda.so\n")
    done = ran_in(container, program, "--root", root)
    assert done.returncode == 1, done.stdout + done.stderr
    return {line.split(" ")[1].rstrip(":") for line in done.stdout.splitlines() if line.startswith("PASS")}


ACTIVE = {"share", "preload", "library", "driver", "cuDeviceTotalMem", "cuMemGetInfo", "usage"}


def test_verify_passes_under_the_library(container: Container, tmp_path: Path) -> None:
    assert verified(container, container.built.shim.parent / "topoalloc-verify", tmp_path / "root") == ACTIVE


def test_where_branches_are_guarded_the_library_and_verify_are_entered_at_a_mark(
    container: Container, tmp_path: Path
) -> None:
    # atexit and pthread_atfork want an address of this library, which a start file would define.
    guarded = build_shipped(
        tmp_path, COMPILER, *GUARDED, "-Wl,--defsym=__dso_handle=process_limits", "-Wl,--no-warnings"
    )
    program = build_verify(tmp_path, COMPILER, *GUARDED, "-Wl,--no-warnings")
    container.environment.clear()
    container.built = replace(container.built, shim=guarded)
    emulated(container, "-cpu", "max")
    exact(container.run("memory", "dlsym", "plain", "64M"))
    assert verified(container, program, tmp_path / "root") == ACTIVE
