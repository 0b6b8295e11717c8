"""Whether what a command prints hangs on the order of sets, which differs between processes with the hash seed."""

from __future__ import annotations

import os
import subprocess
import sys

SEEDS = ("1", "2")
LIMIT_S = 120.0


def outputs_of(*arguments: str) -> set[bytes]:
    """What Python prints with these arguments, in a process for each hash seed: one element where all are equal."""
    printed = set()
    for seed in SEEDS:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, timeout=LIMIT_S, check=True)
        assert done.stdout
        printed.add(done.stdout)
    return printed
