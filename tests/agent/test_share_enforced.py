"""From the directory that a grant makes to a program that stays within it: our library, mounted as the answer to the
kubelet says, in front of the fake driver. The environment is the tenant's, and clean."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.shim.built import Built, build
from topoalloc.agent.share_directories import ShareDirectories
from topoalloc.agent.shim_library import install_library, packaged_library
from topoalloc.sharing.builtin_shim import BuiltinShim
from topoalloc.sharing.enforcement import Enforced
from topoalloc.sharing.share import Share, ShareRules

MIB, GIB = 1024**2, 1024**3
LIMIT = 2 * GIB
SHARE = Share("0000:3b:00.0-c07", 0, None, 99, LIMIT)
CHUNK = 64 * MIB


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    if shutil.which("gcc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler")
    return build(tmp_path_factory.mktemp("built"))


@pytest.fixture
def granted(tmp_path: Path, built: Built) -> Enforced:
    content = packaged_library(built.shim.parent)
    assert content is not None
    library = install_library(content, tmp_path / "lib")
    shares = ShareDirectories(tmp_path / "run", BuiltinShim(ShareRules(), str(library.directory)))
    try:
        return shares.put(SHARE, fresh=True)
    finally:
        shares.close()


def in_container(enforced: Enforced, scratch: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the share's mounts in their places; what is missing of them is made in layers that vanish."""
    steps = ["set -e", "mount --make-rprivate /"]
    for place in ("/etc", "/usr/local/lib"):
        layer = scratch / place.replace("/", "_")
        steps += [
            f"mkdir -p {layer} && mount -t tmpfs none {layer} && mkdir {layer}/upper {layer}/work",
            f"mount -t overlay -o lowerdir={place},upperdir={layer}/upper,workdir={layer}/work none {place}",
        ]
    for mount in sorted(enforced.edits.mounts, key=lambda mount: mount.container_path.count("/")):
        kind = "mkdir -p" if Path(mount.host_path).is_dir() else "touch"
        # A place below another mount is there already.
        steps.append(f"test -e {mount.container_path} || {kind} {mount.container_path}")
        steps.append(f"mount --bind {mount.host_path} {mount.container_path}")
        if mount.read_only:
            steps.append(f"mount -o remount,bind,ro {mount.container_path}")
    script = "\n".join([*steps, command])
    return subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False)


def obtained(done: subprocess.CompletedProcess[str]) -> int:
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("obtained="))
    return int(line.partition("=")[2])


@pytest.fixture
def fill(granted: Enforced, built: Built, tmp_path: Path) -> str:
    """The command that takes as much memory as it gets; skips where mounts are not allowed."""
    if os.geteuid() != 0 or in_container(granted, tmp_path, "true").returncode != 0:
        pytest.skip("no mounts here")
    variables = f"LD_LIBRARY_PATH={built.driver} FAKE_GPU_STATE={tmp_path}/gpu"
    return f"env {{extra}} {variables} {built.programs}/memory linked plain 64M"


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param("-i", id="an empty environment"),
        pytest.param("-u LD_PRELOAD", id="without LD_PRELOAD"),
        pytest.param("LD_PRELOAD=", id="with an empty LD_PRELOAD"),
        pytest.param("TOPOALLOC_SHARE_DIR=/tmp", id="with a share of one's own"),
        pytest.param("TOPOALLOC_CORES=x=100 CUDA_DEVICE_MEMORY_LIMIT=100g", id="with limits of one's own"),
    ],
)
def test_a_program_gets_its_share_and_not_more_whatever_its_environment(
    granted: Enforced, fill: str, tmp_path: Path, extra: str
) -> None:
    got = obtained(in_container(granted, tmp_path, fill.format(extra=extra)))

    assert LIMIT - GIB < got <= LIMIT  # a context is charged too


def test_without_the_mounts_it_gets_the_whole_gpu(granted: Enforced, fill: str, tmp_path: Path) -> None:
    """So it is the mounts that limit it."""
    assert obtained(in_container(Enforced(), tmp_path, fill.format(extra="-i"))) > 4 * LIMIT


def test_a_tenant_that_tries_to_write_its_limits_first_gets_no_more(
    granted: Enforced, fill: str, tmp_path: Path
) -> None:
    attack = (
        "(echo > /etc/ld.so.preload; sed -i s/memory.*/memory\\ none/ /etc/topoalloc/share; umask 0) 2>/dev/null || :"
    )

    assert obtained(in_container(granted, tmp_path, f"{attack}\n{fill.format(extra='-i')}")) <= LIMIT
