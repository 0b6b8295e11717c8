"""`topoalloc verify` and the C program for images without Python: both judge the same, and see what is missing.

A library of a few lines stands for the driver: it shows the memory that a test tells it to.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.made_shares import RunDir
from tests.sharing.made_usage import GIB, share_bytes, usage_bytes

SOURCE = Path("topoalloc/sharing/shim/verify/verify.c")
LIBRARY = "libtopoalloc-vcuda.so"
LINE = f"/usr/local/lib/topoalloc/{LIBRARY}\n"
DRIVER = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>
#include "usage_layout.h"
static size_t total(void) { return strtoull(getenv("TOTAL"), NULL, 10); }
int cuInit(unsigned flags) { return getenv("BROKEN") ? 999 : 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = total(); return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *all) { *all = total(); *free = *all / 2; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device)
{
    const char *path = getenv("USAGE");
    if (path == NULL)
        return 0;
    int fd = open(path, O_RDWR);
    struct usage_slot slot = {.pid = (unsigned)getpid(), .state = 1};
    struct flock lock = {.l_type = F_WRLCK, .l_start = USAGE_LOCKS_AT + 4, .l_len = 1};
    pwrite(fd, &slot, sizeof slot, sizeof(struct usage_header) + 4 * sizeof slot);
    return fcntl(fd, F_OFD_SETLK, &lock);
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the C program, the driver's stand-in and a library of the name that is looked for."""
    folder = tmp_path_factory.mktemp("built")
    sources = sorted(SOURCE.parent.glob("*.c"))
    subprocess.run(["gcc", f"@{SOURCE.parent}/compile.flags", *sources, "-o", folder / "topoalloc-verify"], check=True)
    (folder / "driver.c").write_text(DRIVER)
    (folder / "driver").mkdir()
    shared = ["gcc", "-shared", "-fPIC", "-w", f"-I{SOURCE.parent.parent}"]
    subprocess.run([*shared, "-o", folder / "driver" / "libcuda.so.1", folder / "driver.c"], check=True)
    subprocess.run([*shared, "-x", "c", "-o", folder / LIBRARY, "/dev/null"], check=True)
    return folder


@pytest.fixture(params=["c", "python"])
def command(request: pytest.FixtureRequest, built: Path) -> list[str]:
    if request.param == "c":
        return [str(built / "topoalloc-verify")]
    return [sys.executable, "-m", "topoalloc", "verify"]


def made_root(path: Path, share: bytes | None = None) -> Path:
    etc = path / "root" / "etc"
    (etc / "topoalloc").mkdir(parents=True)
    (etc / "topoalloc" / "share").write_bytes(share_bytes() if share is None else share)
    (etc / "topoalloc" / "usage").write_bytes(usage_bytes())
    (etc / "ld.so.preload").write_text(LINE)
    return path / "root"


def verdicts(command: list[str], root: Path, **variables: str) -> tuple[int, dict[str, str]]:
    """Exit status, and by the name of each check its verdict and words."""
    done = subprocess.run(
        [*command, "--root", str(root)], env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    return done.returncode, {
        rest.rpartition(": ")[0].partition(": ")[0]: f"{verdict} {rest}" for verdict, rest in lines
    }


def test_without_a_share_there_is_nothing_to_verify(command: list[str], tmp_path: Path):
    status, said = verdicts(command, tmp_path)

    assert status == 2
    assert said.keys() == {"share"}
    assert said["share"].startswith("FAIL share: /etc/topoalloc/share cannot be read (No such file")


def test_a_file_that_is_no_share_fails(command: list[str], tmp_path: Path):
    status, said = verdicts(command, made_root(tmp_path, b"topoalloc-share 2\nend\n"))

    assert status == 1
    assert said["share"] == "FAIL share: /etc/topoalloc/share is not a share of this version"
    assert "driver" not in said


def test_limits_that_are_not_active_fail_one_by_one(command: list[str], built: Path, tmp_path: Path):
    """The card's whole memory shown, no library, nothing mounted, no slot."""
    root = made_root(tmp_path)
    whole = str(80 * GIB)
    status, said = verdicts(command, root, LD_LIBRARY_PATH=str(built / "driver"), TOTAL=whole)

    assert status == 1
    assert said["share"] == f"PASS share: 30.00 % of the GPU's time, {8 * GIB} bytes of its memory"
    assert said["driver"].startswith("PASS")
    failed = {name for name, words in said.items() if words.startswith("FAIL")}
    mounts = {f"mount {path}" for path in ("/etc/topoalloc", "/etc/ld.so.preload", "/usr/local/lib/topoalloc")}
    assert failed == {
        *("library", "environment", "cuDeviceTotalMem", "cuMemGetInfo", "usage", "mount /etc/topoalloc/usage"),
        *("write /etc/topoalloc/share", "write /etc/ld.so.preload"),
        *mounts,
    }
    assert said["cuDeviceTotalMem"] == f"FAIL cuDeviceTotalMem: {whole} bytes, granted {8 * GIB}"


def test_limits_that_are_active_pass(command: list[str], built: Path, tmp_path: Path):
    root = made_root(tmp_path)
    status, said = verdicts(
        command,
        root,
        LD_LIBRARY_PATH=str(built / "driver"),
        LD_PRELOAD=str(built / LIBRARY),
        TOTAL=str(8 * GIB),
        USAGE=str(root / "etc/topoalloc/usage"),
    )

    assert status == 1  # preloaded by a variable, as here, it can be switched off
    passed = {name for name, words in said.items() if words.startswith("PASS")}
    assert passed == {"share", "preload", "library", "driver", "cuDeviceTotalMem", "cuMemGetInfo", "usage"}
    assert said["usage"] == "PASS usage: this process is accounted in slot 4"
    assert said["environment"] == "FAIL environment: a process that clears LD_PRELOAD goes without the library"


def test_where_memory_is_not_limited_it_is_not_compared(command: list[str], built: Path, tmp_path: Path):
    root = made_root(tmp_path, share_bytes(memory="none"))
    _, said = verdicts(command, root, LD_LIBRARY_PATH=str(built / "driver"), TOTAL=str(80 * GIB))

    assert "memory is not limited on this node" in said["share"]
    assert "cuMemGetInfo" not in said


def test_a_driver_that_fails_or_is_missing_is_said(command: list[str], built: Path, tmp_path: Path):
    root = made_root(tmp_path)

    _, said = verdicts(command, root, LD_LIBRARY_PATH=str(built / "driver"), BROKEN="1")
    assert said["driver"] == "FAIL driver: cuInit failed with error 999"
    _, said = verdicts(command, root, LD_LIBRARY_PATH=str(tmp_path))
    assert said["driver"] == "FAIL driver: libcuda.so.1 cannot be loaded"


@pytest.mark.parametrize("content", ["", "x", f"/tmp/other.so\n{LINE}", LINE.strip()])
def test_a_preload_file_that_names_anything_else_fails(command: list[str], tmp_path: Path, content: str):
    root = made_root(tmp_path)
    (root / "etc" / "ld.so.preload").write_text(content)

    assert verdicts(command, root)[1]["preload"].startswith("FAIL")


def test_both_programs_say_the_same_in_the_same_order(built: Path, tmp_path: Path):
    root = made_root(tmp_path)
    variables = os.environ | {"LD_LIBRARY_PATH": str(built / "driver"), "TOTAL": str(8 * GIB)}
    said = [
        subprocess.run([*command, "--root", str(root)], env=variables, capture_output=True, text=True, check=False)
        for command in ([str(built / "topoalloc-verify")], [sys.executable, "-m", "topoalloc", "verify"])
    ]

    assert said[0].stdout == said[1].stdout
    assert said[0].returncode == said[1].returncode == 1


def test_read_only_mounts_are_seen_as_a_container_has_them(command: list[str], built: Path, tmp_path: Path):
    """In a mount namespace of its own, as a runtime mounts them, with the preload file in force."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting needs root and unshare")
    leaf = RunDir(tmp_path / "run").make(share=share_bytes(memory=str(8 * GIB)))
    (leaf / "ld.so.preload").write_text(LINE)
    root = made_root(tmp_path)
    (root / "usr/local/lib/topoalloc").mkdir(parents=True)
    binds = (
        (leaf, root / "etc/topoalloc", "ro"),
        (leaf / "usage", root / "etc/topoalloc/usage", "rw"),
        (leaf / "ld.so.preload", root / "etc/ld.so.preload", "ro"),
        (built, root / "usr/local/lib/topoalloc", "ro"),
    )
    script = "set -e\n" + "".join(
        f"mount --bind {source} {target}\n" + (f"mount -o remount,bind,ro {target}\n" if mode == "ro" else "")
        for source, target, mode in binds
    )
    script += 'echo mounted >&2\nexec "$@"\n'
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *command, "--root", str(root)],
        env=os.environ | {"LD_LIBRARY_PATH": str(built / "driver"), "TOTAL": str(8 * GIB)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "mounted" not in done.stderr:
        pytest.skip("mount namespaces cannot be made here")

    passed = {
        line for line in done.stdout.splitlines() if line.startswith("PASS") and ("mount" in line or "write" in line)
    }
    assert passed == {
        "PASS mount /etc/topoalloc: read-only",
        "PASS mount /etc/ld.so.preload: read-only",
        "PASS mount /usr/local/lib/topoalloc: read-only",
        "PASS mount /etc/topoalloc/usage: writable",
        "PASS write /etc/topoalloc/share: Read-only file system",
        "PASS write /etc/ld.so.preload: Read-only file system",
    }
