"""The CDI specification on the node: whole, readable, and touched only when it changes."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.sharing.test_cdi_spec import KIND, files_of, named
from topoalloc.agent.cdi_file import write_cdi_spec
from topoalloc.agent.private_files import FileFault
from topoalloc.sharing.edits import DeviceFiles

NODE = named("GPU-aa", "GPU-bb")


def test_the_specification_is_one_file_that_runtimes_can_read(tmp_path: Path) -> None:
    write_cdi_spec(NODE, files_of(NODE), KIND, tmp_path / "cdi")

    (path,) = (tmp_path / "cdi").iterdir()
    assert path.name == "topoalloc.io-gpu.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert json.loads(path.read_text())["kind"] == KIND


def test_a_specification_that_says_the_same_is_left_alone(tmp_path: Path) -> None:
    write_cdi_spec(NODE, files_of(NODE), KIND, tmp_path)
    before = (tmp_path / "topoalloc.io-gpu.json").stat().st_ino

    write_cdi_spec(NODE, files_of(NODE), KIND, tmp_path)
    assert (tmp_path / "topoalloc.io-gpu.json").stat().st_ino == before
    write_cdi_spec(NODE, files_of(NODE, (("libcuda.so.1", "/lib/x"),)), KIND, tmp_path)
    assert (tmp_path / "topoalloc.io-gpu.json").stat().st_ino != before


def test_specifications_of_others_are_left_alone_and_links_not_followed(tmp_path: Path) -> None:
    (tmp_path / "nvidia.yaml").write_text("of somebody else")
    (tmp_path / "topoalloc.io-gpu.json").symlink_to(tmp_path / "nvidia.yaml")

    write_cdi_spec(NODE, files_of(NODE), KIND, tmp_path)

    assert (tmp_path / "nvidia.yaml").read_text() == "of somebody else"
    assert not (tmp_path / "topoalloc.io-gpu.json").is_symlink()


def test_a_directory_that_others_can_write_into_gets_none(tmp_path: Path) -> None:
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi").chmod(0o777)

    with pytest.raises(FileFault):
        write_cdi_spec(NODE, files_of(NODE), KIND, tmp_path / "cdi")


def test_a_node_without_device_nodes_gets_none_and_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_cdi_spec(NODE, DeviceFiles(), KIND, tmp_path / "cdi")

    assert not (tmp_path / "cdi").exists()
    assert "no device node" in caplog.text
