"""The process that outlives everything: it makes the namespaces of a cluster and undoes all of it when its standard
input ends, be it because the test said so or because the test was killed.

Run as a program (standard library only): `keeper.py BASE NAME`. Prints the PID of process 1 of the namespaces.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

SERVICE_ADDRESS = "10.96.0.1"  # of the API server inside; the first of its service range, as with kubeadm
# bash as process 1 reaps orphans (the shims of containerd); its end is the end of every process inside.
FIRST_PROCESS = f"""
ip link set lo up && ip addr add {SERVICE_ADDRESS}/32 dev lo && echo 1 > /proc/sys/net/ipv4/ip_forward && echo up
while :; do sleep 3600 & wait $!; done
"""
CGROUP_ROUNDS_MAX = 50
CGROUP_PAUSE_S = 0.1


def child_of(pid: int, tries: int = 500) -> int:
    """The only child of a process, once it has one."""
    for _ in range(tries):
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if found:
            return int(found[0])
        time.sleep(0.01)
    raise RuntimeError(f"process {pid} started nothing")


def start() -> tuple[subprocess.Popen[bytes], int]:
    command = ["unshare", "--mount", "--propagation", "private", "--pid", "--net", "--fork", "--kill-child"]
    process = subprocess.Popen(
        [*command, "--mount-proc", "bash", "-c", FIRST_PROCESS], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    if process.stdout.readline().strip() != b"up":
        raise RuntimeError("no namespaces: this needs root with CAP_SYS_ADMIN and CAP_NET_ADMIN, and iproute2")
    return process, child_of(process.pid)


def cgroup_hierarchies() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return [root]
    return [path for path in root.iterdir() if path.is_dir() and not path.is_symlink()]


def remove_cgroups(name: str) -> None:
    """Groups can be removed once their last process is gone, which takes a moment."""
    for _ in range(CGROUP_ROUNDS_MAX):
        left = [top for root in cgroup_hierarchies() for top in root.glob(f"{name}-*")]
        if not left:
            return
        for top in left:
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
        time.sleep(CGROUP_PAUSE_S)


def main(base: str, name: str) -> None:
    for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(kind, signal.SIG_IGN)
    process, first = start()
    try:
        print(first, flush=True)
        sys.stdin.buffer.read()
    finally:
        process.kill()
        process.wait()
        remove_cgroups(name)
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
