"""The command's edges: closed and full outputs, exhausted machines; one line, never a traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

SHOW = [sys.executable, "-m", "topoalloc", "show", "--from", "tests/machines/azure-ndv5.nccl-topo.xml"]


def run(shell: str) -> subprocess.CompletedProcess[str]:
    command = " ".join(SHOW)
    return subprocess.run(["bash", "-c", shell.replace("SHOW", command)], capture_output=True, text=True, check=False)


def test_a_full_output_is_said_in_one_line():
    done = run("SHOW > /dev/full")

    assert done.returncode == 1
    assert done.stderr.startswith("topoalloc: OSError: ")
    assert "No space left" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("shell", ["SHOW >&-", "SHOW | true", "SHOW | head -1 > /dev/null"])
def test_an_output_nobody_reads_is_no_fault(shell: str):
    assert "Traceback" not in run(shell).stderr


def test_no_verb_is_a_fault_of_the_caller():
    done = subprocess.run([sys.executable, "-m", "topoalloc"], capture_output=True, text=True, check=False)

    assert done.returncode == 2
