"""A share's directory as its container sees it, mounted as the answer to the kubelet says."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.sharing.enforcements import enforcement
from topoalloc.agent.share_directories import ShareDirectories
from topoalloc.sharing.share import Share

SHARE = Share("0000:3b:00.0-c07", 0, None, 30, 1024**3)
# What a tenant with root in its container may try, by what has to come of it.
DENIED = (
    "touch {etc}/new",
    "rm -f {etc}/share",
    "mv {etc}/share {etc}/other",
    "chmod 0666 {etc}/share",
    "sh -c 'echo memory none >> {etc}/share'",
    "ln -sf /etc/passwd {etc}/share",
    "rm -f {etc}/usage",
    "sh -c 'echo >> {etc}/ld.so.preload'",
    "sh -c 'echo > {preload}'",
)
ALLOWED = ("cat {etc}/share", "cat {preload}", "sh -c 'echo used >> {etc}/usage'")


def in_container(leaf: Path, etc: Path, preload: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command where the directory is mounted as a container has it, in a mount namespace of its own."""
    steps = (
        f"mount --bind {leaf} {etc}",
        f"mount -o remount,bind,ro {etc}",
        f"mount --bind {leaf}/usage {etc}/usage",
        f"mount --bind {leaf}/ld.so.preload {preload}",
        f"mount -o remount,bind,ro {preload}",
        command.format(etc=etc, preload=preload),
    )
    script = " && ".join(steps)
    return subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path, Path]:
    """The share's directory, and where it and the preload file are mounted."""
    etc, preload = tmp_path / "etc", tmp_path / "preload"
    etc.mkdir()
    preload.touch()
    shares = ShareDirectories(tmp_path / "run", enforcement("builtin"))
    shares.put(SHARE, fresh=True)
    shares.close()
    leaf = tmp_path / "run" / "shares" / SHARE.name
    if in_container(leaf, etc, preload, "true").returncode != 0:
        pytest.skip("no mount namespaces here")
    return leaf, etc, preload


@pytest.mark.parametrize("command", DENIED)
def test_a_container_changes_nothing_that_limits_it(places: tuple[Path, Path, Path], command: str) -> None:
    leaf = places[0]
    before = {path.name: path.read_bytes() for path in leaf.iterdir()}

    tried = in_container(*places, command)

    assert tried.returncode != 0, shlex.quote(command)
    assert "Read-only file system" in tried.stderr or "busy" in tried.stderr
    assert {path.name: path.read_bytes() for path in leaf.iterdir()} == before


@pytest.mark.parametrize("command", ALLOWED)
def test_a_container_reads_its_limits_and_writes_its_account(places: tuple[Path, Path, Path], command: str) -> None:
    assert in_container(*places, command).returncode == 0
