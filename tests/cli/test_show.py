"""`topoalloc show`, from the command line inward."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from topoalloc.cli.main import main

MACHINES = Path(__file__).parent.parent / "machines"
DGX = str(MACHINES / "dgx-a100-epyc-nps4-10nic.topo-m.txt")
TABLE = str(MACHINES / "perlmutter-4xa100-epyc7763-slingshot.topo-m.txt")
XML = str(MACHINES / "perlmutter-4xa100-epyc7763-slingshot.nccl-topo.xml")
ADDITION = str(MACHINES / "perlmutter-4xa100.nvlink-s.txt")


def test_the_tree_is_what_is_shown_unless_asked_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["show", "--from", DGX])

    assert status == 0
    assert capsys.readouterr().out.startswith(
        "8 GPUs\n4 NUMA nodes · 10 NICs · read from topo -m (dgx-a100-epyc-nps4-10nic.topo-m.txt)\n"
    )


def test_json_is_the_schemas_document(capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", "--from", DGX, "--as", "json"])

    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "topoalloc.machine/v1"
    assert [gpu["id"] for gpu in document["gpus"]] == [f"GPU{i}" for i in range(8)]


def test_svg_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", "--from", DGX, "--as", "svg"])

    assert ET.fromstring(capsys.readouterr().out).tag == "{http://www.w3.org/2000/svg}svg"


def test_the_matrix_has_a_row_per_device(capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", "--from", DGX, "--as", "matrix"])

    rows = [line.split("\t")[0] for line in capsys.readouterr().out.split("\n\n")[0].splitlines()]
    assert rows == ["", *(f"GPU{i}" for i in range(8)), *(f"NIC{i}" for i in range(10))]


@pytest.mark.parametrize(
    "sources", [["--from", TABLE, XML], ["--from", TABLE, "--from", XML]], ids=["one --from", "two --from"]
)
def test_sources_after_one_from_or_several_are_merged(sources: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", *sources, "--as", "json"])

    gpu = json.loads(capsys.readouterr().out)["gpus"][0]
    assert (gpu["bdf"], gpu["numa_node"], gpu["cpus"]) == ("0000:03:00.0", 3, "48-63,112-127")


def test_gpu_memory_is_taken_where_no_source_tells_it(capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", "--from", DGX, "--gpu-memory", "40GiB", "--as", "json"])

    assert {gpu["memory_bytes"] for gpu in json.loads(capsys.readouterr().out)["gpus"]} == {40 << 30}


@pytest.fixture
def contradicting(tmp_path: Path) -> list[str]:
    """Two tables of one machine that disagree about a link."""
    table = Path(DGX).read_text(encoding="utf-8")
    other = tmp_path / "other.txt"
    other.write_text(table.replace("PIX", "PXB"), encoding="utf-8")
    return [DGX, str(other)]


@pytest.mark.parametrize("form", ["tree", "matrix", "svg"])
def test_contradictions_go_to_stderr_one_a_line(
    form: str, contradicting: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["show", "--from", *contradicting, "--as", form])

    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(line.startswith("topoalloc show: ") for line in lines)


def test_contradictions_are_inside_the_json_and_nowhere_else(
    contradicting: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["show", "--from", *contradicting, "--as", "json"])

    captured = capsys.readouterr()
    assert json.loads(captured.out)["warnings"]
    assert captured.err == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--from", "/nonexistent/machine.txt"],
        ["--from", str(Path(__file__))],
        ["--from", ADDITION],
        ["--from", DGX, "--gpu-memory", "80G"],
        ["--from", DGX, "--gpu-memory", ""],
        ["--from", DGX, "--sysfs", "/sys"],
        ["--sysfs", "/nonexistent"],
        ["--sysfs", ""],
    ],
    ids=["no file", "no machine", "addition alone", "two meanings", "empty size", "two machines", "no folder", "empty"],
)
def test_bad_input_is_one_line_and_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["show", *arguments])

    captured = capsys.readouterr()
    assert (status, captured.out) == (2, "")
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("topoalloc show: ")


def test_a_refused_gpu_memory_names_its_argument(capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", "--from", DGX, "--gpu-memory", "much"])

    assert "--gpu-memory" in capsys.readouterr().err


def _in_a_process(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "topoalloc", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_a_terminal_that_knows_ascii_only_gets_utf8_instead_of_a_traceback() -> None:
    ran = _in_a_process(["show", "--from", DGX], PYTHONIOENCODING="ascii")

    assert (ran.returncode, ran.stderr) == (0, b"")
    assert "└─ PCIe switch (PXB)" in ran.stdout.decode("utf-8")


def test_this_node_can_be_shown_whatever_it_has() -> None:
    ran = _in_a_process(["show"])

    assert ran.returncode == 0
    assert b"read from sysfs" in ran.stdout


def test_showing_a_tree_loads_nothing_of_the_agent() -> None:
    script = (
        "import sys; from topoalloc.cli.main import main; "
        f"main(['show', '--from', {DGX!r}]); "
        "heavy = {'grpc', 'google.protobuf', 'kubernetes', 'yaml', 'prometheus_client'}; "
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False)

    assert ran.stderr == b""
