"""`topoalloc verify`: inside a container, whether the limits of its share are active. One line for each check.

For images without Python `topoalloc-verify` (sharing/shim/verify/verify.c) makes the same checks in the same words.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from topoalloc.agent.share_files import live_slots
from topoalloc.sharing.share_file import CORES_FULL, ShareLimits, parse_share
from topoalloc.sharing.usage import USAGE_FILE_BYTES, UsageRefusal, parse_usage

LIBRARY = "libtopoalloc-vcuda.so"
LIBRARY_DIRECTORY = "/usr/local/lib/topoalloc"
SHARE_DIRECTORY = "/etc/topoalloc"
PRELOAD_FILE = "/etc/ld.so.preload"
BYTES_MAX = 4097
CHILD_MAX_S = 30.0
NO_SHARE = 2
_IS_LOADED = f"import sys; sys.exit({'/' + LIBRARY!r} not in open('/proc/self/maps').read())"

Check = tuple[bool, str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", metavar="DIR", default="", help="look for the files of a share below DIR")


def run(args: argparse.Namespace) -> int:
    """Print every check; 0: all passed, 1: one failed, 2: there is no share here."""
    failed = False
    limits = _limits(args.root)
    if isinstance(limits, int):
        none = limits == errno.ENOENT
        words = "this container has no limits" if none else "its limits are unknown, and GPU memory is refused"
        print(f"FAIL share: {SHARE_DIRECTORY}/share cannot be read ({os.strerror(limits)}): {words}")
        return NO_SHARE if none else 1
    for passed, name, words in _checks(args.root, limits):
        print(f"{'PASS' if passed else 'FAIL'} {name}: {words}", flush=True)
        failed |= not passed
    return int(failed)


def _checks(root: str, limits: ShareLimits | None) -> Iterator[Check]:
    yield _share(limits)
    yield _preload_line(root)
    loaded = f"/{LIBRARY}\n" in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    yield loaded, "library", "it is loaded in this process" if loaded else "it is not loaded in this process"
    yield _environment()
    for path, read_only in (
        (SHARE_DIRECTORY, True),
        (PRELOAD_FILE, True),
        (LIBRARY_DIRECTORY, True),
        (f"{SHARE_DIRECTORY}/usage", False),
    ):
        yield _mount(root, path, read_only=read_only)
    for path in (f"{SHARE_DIRECTORY}/share", PRELOAD_FILE):
        yield _unwritable(root, path)
    if limits is not None:
        yield from _driver(limits)
        yield _usage(root)


def _limits(root: str) -> ShareLimits | int | None:
    """The limits, None where the file is none, an error number where there is none."""
    try:
        limits = parse_share(_read(f"{root}{SHARE_DIRECTORY}/share"))
    except OSError as error:
        return error.errno or errno.EIO
    return limits if isinstance(limits, ShareLimits) else None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - bounded
        return file.read(BYTES_MAX)


def _share(limits: ShareLimits | None) -> Check:
    if limits is None:
        return False, "share", f"{SHARE_DIRECTORY}/share is not a share of this version"
    whole, rest = divmod(limits.cores, CORES_FULL // 100)
    memory = (
        "memory is not limited on this node"
        if limits.memory_bytes is None
        else f"{limits.memory_bytes} bytes of its memory"
    )
    return True, "share", f"{whole}.{rest:02d} % of the GPU's time, {memory}"


def _preload_line(root: str) -> Check:
    try:
        content = _read(f"{root}{PRELOAD_FILE}")
    except OSError as error:
        return False, "preload", f"{PRELOAD_FILE} cannot be read ({error.strerror})"
    if content != f"{LIBRARY_DIRECTORY}/{LIBRARY}\n".encode():
        return False, "preload", f"{PRELOAD_FILE} does not name {LIBRARY_DIRECTORY}/{LIBRARY} alone"
    return True, "preload", f"{PRELOAD_FILE} names the library"


def _environment() -> Check:
    variables = {"LD_PRELOAD": "", "LD_LIBRARY_PATH": "/nonexistent", "TOPOALLOC_SHARE_DIR": "/nonexistent"}
    try:
        child = subprocess.run(  # noqa: S603 - this interpreter and a constant
            [sys.executable, "-I", "-S", "-c", _IS_LOADED], env=variables, timeout=CHILD_MAX_S, check=False
        )
        passed = child.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        passed = False
    outcome = "has the library too" if passed else "goes without the library"
    return passed, "environment", f"a process that clears LD_PRELOAD {outcome}"


def _mount(root: str, path: str, *, read_only: bool) -> Check:
    found: bool | None = None
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split(" ")
        if len(fields) > 5 and fields[4] == root + path:
            found = "ro" in fields[5].split(",")
    if found is None:
        return False, f"mount {path}", "nothing is mounted there"
    return found == read_only, f"mount {path}", "read-only" if found else "writable"


def _unwritable(root: str, path: str) -> Check:
    try:
        os.close(os.open(root + path, os.O_WRONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno != errno.ENOENT, f"write {path}", os.strerror(error.errno or errno.EIO)
    return False, f"write {path}", "it can be written"


def _driver(limits: ShareLimits) -> Iterator[Check]:
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        yield False, "driver", "libcuda.so.1 cannot be loaded"
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    total, free_now, total_now = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
    calls: tuple[tuple[str, str, tuple[object, ...]], ...] = (
        ("cuInit", "cuInit", (0,)),
        ("cuDeviceGet", "cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDeviceTotalMem", "cuDeviceTotalMem_v2", (ctypes.byref(total), device)),
        ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
        ("cuCtxSetCurrent", "cuCtxSetCurrent", (context,)),
        ("cuMemGetInfo", "cuMemGetInfo_v2", (ctypes.byref(free_now), ctypes.byref(total_now))),
    )
    if not all(hasattr(driver, symbol) for _, symbol, _ in calls):
        yield False, "driver", "libcuda.so.1 lacks calls that every driver has"
        return
    for name, symbol, arguments in calls:
        result = getattr(driver, symbol)(*arguments)
        if result != 0:
            yield False, "driver", f"{name} failed with error {result}"
            return
    yield True, "driver", "a context could be made"
    granted = limits.memory_bytes
    if granted is not None:
        yield total.value == granted, "cuDeviceTotalMem", f"{total.value} bytes, granted {granted}"
        is_right = total_now.value == granted and free_now.value <= total_now.value
        yield is_right, "cuMemGetInfo", f"{free_now.value} of {total_now.value} bytes, granted {granted}"


def _usage(root: str) -> Check:
    try:
        fd = os.open(f"{root}{SHARE_DIRECTORY}/usage", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return False, "usage", f"{SHARE_DIRECTORY}/usage cannot be opened for writing ({error.strerror})"
    try:
        usage = parse_usage(os.pread(fd, USAGE_FILE_BYTES, 0), live_slots(fd))
    except (OSError, struct.error) as error:
        return False, "usage", f"{SHARE_DIRECTORY}/usage cannot be read ({error})"
    finally:
        os.close(fd)
    if isinstance(usage, UsageRefusal):
        return False, "usage", f"{SHARE_DIRECTORY}/usage is not of this version"
    slot = next((process.slot for process in usage.processes if process.pid == os.getpid()), None)
    if slot is None:
        return False, "usage", "this process uses the GPU and is not accounted"
    return True, "usage", f"this process is accounted in slot {slot}"
