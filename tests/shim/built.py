"""Compiles the fake driver, the programs and the shim, once per session and per set of compiler flags."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PROGRAM_SOURCES = HERE / "programs"
SHIM_SOURCES = Path("topoalloc/sharing/shim")
SHIM_FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")
BUILD_TIMEOUT_S = 240


@dataclass(frozen=True, slots=True)
class Built:
    driver: Path  # directory with libcuda.so.1 and libnvidia-ml.so.1
    programs: Path  # directory with one program per family
    shim: Path  # libtopoalloc-vcuda.so


def ran(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def build_shim(into: Path, *extra: str) -> Path:
    library, exports = into / "libtopoalloc-vcuda.so", SHIM_SOURCES / "exports.map"
    if extra:
        # A checker's runtime looks its own functions up by dlsym before it is ready to check anything, so it gets the
        # true one; programs that are linked still find every hook.
        exports = into / "exports.map"
        exports.write_text("{ global: cu*; nvml*; local: *; };")
    sources = sorted(str(path) for path in SHIM_SOURCES.glob("*.c"))
    ran("gcc", *SHIM_FLAGS, *extra, "-shared", f"-Wl,--version-script={exports}", "-o", str(library), *sources)
    return library


def build_shipped(into: Path, compiler: str, *extra: str) -> Path:
    """The library with the flags that it is delivered with."""
    library = into / "libtopoalloc-vcuda.so"
    sources = sorted(str(path) for path in SHIM_SOURCES.glob("*.c"))
    ran(compiler, *extra, f"@{SHIM_SOURCES}/compile.flags", *sources, "-o", str(library))
    return library


def build_verify(into: Path, compiler: str, *extra: str) -> Path:
    """topoalloc-verify, in the same way."""
    program, folder = into / "topoalloc-verify", SHIM_SOURCES / "verify"
    sources = sorted(str(path) for path in folder.glob("*.c"))
    ran(compiler, *extra, f"@{folder}/compile.flags", *sources, "-o", str(program))
    return program


def build_driver_and_programs(into: Path, *variables: str) -> tuple[Path, Path]:
    driver, programs = into / "driver", into / "programs"
    ran("make", "-s", "-C", str(HERE / "fake_driver"), f"OUT={driver}", *variables)
    ran("make", "-s", "-C", str(PROGRAM_SOURCES), f"DRIVER={driver}", f"OUT={programs}", *variables)
    return driver, programs


def build(into: Path, *extra: str) -> Built:
    driver, programs = build_driver_and_programs(into, f"CFLAGS={' '.join(extra)}")
    return Built(driver, programs, build_shim(into, *extra))
