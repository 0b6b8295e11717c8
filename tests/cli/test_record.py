"""`topoalloc record`: a snapshot that may be published."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.made_machines import dgx
from topoalloc.cli.main import main
from topoalloc.cli.record import left_out_words, recorded_words, write_whole
from topoalloc.errors import InputError
from topoalloc.topology.machine import MigDevice
from topoalloc.topology.snapshot import redact
from topoalloc.topology.sources import load_machine

MACHINES = Path(__file__).parent.parent / "machines"
DGX = str(MACHINES / "dgx-a100-epyc-nps4-10nic.topo-m.txt")
QUERY = str(MACHINES / "firecracker-2xh200-nv18.smi-q.xml")
SYSFS = str(MACHINES / "firecracker-2xh200-nv18.sysfs.tar.gz")


def test_a_record_is_read_back_as_the_machine_it_was_made_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "machine.json"

    status = main(["record", "--from", SYSFS, QUERY, "-o", str(file)])

    assert status == 0
    assert load_machine([str(file)]) == redact(load_machine([SYSFS, QUERY]))


def test_a_record_goes_to_stdout_and_what_was_left_out_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    main(["record", "--from", SYSFS, QUERY])

    captured = capsys.readouterr()
    assert captured.out.startswith("{")
    assert captured.err == (
        "topoalloc record: recorded 1 NUMA node, 2 GPUs, 1 NIC\n"
        "topoalloc record: left out UUIDs of 2 GPUs, names of source files; "
        "serial numbers and host names are not in it\n"
    )


def test_a_record_holds_no_uuid(capsys: pytest.CaptureFixture[str]) -> None:
    main(["record", "--from", SYSFS, QUERY])

    assert "GPU-" not in capsys.readouterr().out.replace("GPU-GPU", "")


def test_a_record_of_this_node_can_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "here.json"
    main(["record", "-o", str(file)])

    assert main(["show", "--from", str(file)]) == 0


def test_names_of_mig_devices_count_as_uuids_of_their_gpu() -> None:
    made = dgx()
    gpus = (replace(made.gpus[0], mig=(MigDevice(0, "1g.5gb", "MIG-3a"),)), *made.gpus[1:])
    whole = replace(made, gpus=gpus)

    assert left_out_words(whole, redact(whole)).startswith("left out UUIDs of 1 GPU;")


def test_nothing_left_out_is_said_too() -> None:
    made = dgx()

    assert left_out_words(made, made) == "serial numbers and host names are not in it"
    assert recorded_words(made) == "recorded 4 NUMA nodes, 8 GPUs, 8 NICs"


def test_a_file_is_replaced_as_a_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    file.write_text("old", encoding="utf-8")

    write_whole(file, "new")

    assert (file.read_text(encoding="utf-8"), list(tmp_path.iterdir())) == ("new", [file])


def test_a_symbolic_link_keeps_pointing_at_the_file_that_is_replaced(tmp_path: Path) -> None:
    file, link = tmp_path / "machine.json", tmp_path / "link.json"
    file.write_text("old", encoding="utf-8")
    link.symlink_to(file)

    write_whole(link, "new")

    assert link.is_symlink()
    assert file.read_text(encoding="utf-8") == "new"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(fifo, "new")

        assert os.read(reader, 100) == b"new"
    finally:
        os.close(reader)


@pytest.mark.parametrize("where", ["missing/machine.json", "."])
def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, where: str) -> None:
    with pytest.raises(InputError, match=r"cannot be written \(.+\)") as caught:
        write_whole(tmp_path / where, "new")

    assert "\n" not in str(caught.value)


def test_a_refused_source_leaves_an_older_record_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "machine.json"
    file.write_text("old", encoding="utf-8")

    status = main(["record", "--from", "/nonexistent", "-o", str(file)])

    assert (status, file.read_text(encoding="utf-8")) == (2, "old")
