"""Every kind of input goes to its reader by what it holds, and everything else gets one clear line within seconds."""

from __future__ import annotations

import bz2
import gzip
import os
import random
import socket
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.trees import FACTS, MACHINES, numa_tree, tar_of
from topoalloc.topology import detect
from topoalloc.topology.detect import read_content, read_source
from topoalloc.topology.machine import Machine
from topoalloc.topology.reading import Reading, SourceRefusal, Standing
from topoalloc.topology.snapshot import dump
from topoalloc.topology.sources import load_machine

SECONDS_MAX = 20  # on a loaded machine; alone the slowest case takes two

FORMAT_OF_SUFFIX = {
    ".sysfs.tar.gz": "sysfs",
    ".sysfs.tar.bz2": "sysfs",
    ".sysfs.tar.xz": "sysfs",
    ".nccl-topo.xml": "NCCL XML",
    ".hwloc.xml": "hwloc XML",
    ".topo-m.txt": "topo -m",
    ".topo-p2p-n.txt": "topo -p2p",
    ".nvlink-s.txt": "nvidia-smi nvlink",
    ".nvlink-R.txt": "nvidia-smi nvlink",
    ".smi-L.txt": "nvidia-smi -L",
    ".smi-q.xml": "nvidia-smi -q -x",
    ".lspci-tv.txt": "lspci -tv",
    ".numactl-H.txt": "numactl -H",
    ".gpu-numa.txt": "PCI list",
}
ADDITIONS = {"topo -p2p", "nvidia-smi nvlink", "nvidia-smi -L", "nvidia-smi -q -x", "numactl -H", "PCI list"}


def refused(path: str | Path) -> str:
    """The one line of a refusal, in time."""
    started = time.monotonic()
    result = read_source(str(path))
    assert time.monotonic() - started < SECONDS_MAX
    assert isinstance(result, SourceRefusal), result
    line = str(result)
    assert "\n" not in line
    assert len(line) < 700
    return line


@pytest.mark.parametrize("name", sorted(FACTS))
def test_every_recorded_file_goes_to_its_reader(name: str) -> None:
    expected = next(kind for suffix, kind in FORMAT_OF_SUFFIX.items() if name.endswith(suffix))
    reading = read_source(str(MACHINES / name))
    assert isinstance(reading, Reading), reading
    assert reading.source == f"{expected} ({MACHINES / name})"
    assert reading.standing is (Standing.ADDITION if expected in ADDITIONS else Standing.WHOLE)


@pytest.mark.parametrize("name", sorted(FACTS))
def test_the_name_of_a_file_plays_no_part(name: str) -> None:
    assert isinstance(read_content((MACHINES / name).read_bytes(), "x"), Reading)


def test_a_folder_a_spelling_and_a_snapshot_are_sources_too(tmp_path: Path) -> None:
    (tmp_path / "sys" / "devices" / "system" / "node" / "node0").mkdir(parents=True)
    (tmp_path / "sys" / "devices" / "system" / "node" / "node0" / "cpulist").write_text("0-3\n")
    assert isinstance(read_source(str(tmp_path)), Reading)
    assert isinstance(read_source(str(tmp_path / "sys")), Reading)
    assert isinstance(read_source("synthetic:gpu:2"), Reading)
    (tmp_path / "line").write_text("synthetic:numa:2 gpu:2\n")
    assert read_source(str(tmp_path / "line")) == read_source("synthetic:numa:2 gpu:2")
    machine = load_machine(["synthetic:gpu:2 nic:1"])
    (tmp_path / "snapshot").write_text(dump(machine))
    assert read_source(str(tmp_path / "snapshot")) == machine


def test_a_byte_order_mark_does_not_hide_a_format(tmp_path: Path) -> None:
    text = (MACHINES / "2gpu-nv12-mlx4-node.topo-m.txt").read_text()
    for encoding in ("utf-8-sig", "utf-16"):
        (tmp_path / encoding).write_text(text, encoding=encoding)
        assert isinstance(read_source(str(tmp_path / encoding)), Reading)


def bomb(levels: int) -> str:
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "x"}">' for n in range(levels))
    return f"<?xml version='1.0'?><!DOCTYPE system [{entities}]><system>&e{levels - 1};</system>"


HOSTILE: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "is empty"),
    "blanks": (b" \n\t\r\n", "is empty"),
    "zeros": (bytes(4096), "is binary"),
    "elf": (b"\x7fELF\x02\x01\x01" + bytes(57), "is binary"),
    "zip": (b"PK\x03\x04" + b"x" * 100, "is binary"),
    "zstd": (b"\x28\xb5\x2f\xfd" + b"x" * 100, "is binary"),
    "prose": (b"Dear Sir or Madam,\nthe machine is fast.\n", "is no format that is known here"),
    "latin-1": ("Schöne Grüße\n".encode("latin-1"), "is no format that is known here"),
    "million lines": (b"GPU 0\n" * 1_000_000, ""),
    "million numbers": (b"12345\n" * 1_000_000, ""),
    "one long line": (b"GPU0 X " * 1_000_000, ""),
    "entity bomb": (bomb(10).encode(), "DOCTYPE 'system' carries declarations"),
    "external entity": (b'<!DOCTYPE s [<!ENTITY x SYSTEM "file:///etc/passwd">]><s>&x;</s>', "carries declarations"),
    "deep xml": (b"<a>" * 100_000, "nested deeper"),
    "wide xml": (b"<system>" + b"<a/>" * 300_000 + b"</system>", "more than 200000 elements"),
    "other xml": (b"<html><body/></html>", "XML with the root <html>"),
    "channel plan": (b'<graphs version="1"></graphs>', "channel plan"),
    "other json": (b'{"gpus": []}', "$.schema: is missing"),
    "show output": (b'{"schema": "topoalloc.machine/v1", "gpus": []}', "output of `show --as json`"),
    "deep json": (b'{"a":' * 100_000, "nested too deeply"),
    "plain text in gzip": (gzip.compress(b"GPU0 X\n"), "holds no tar archive"),
    "escaping tar": (tar_of({**numa_tree("0"), "../../etc/cron.d/x": "x"}), "points outside"),
    "tar of nothing": (tar_of({}), "is binary"),
    "tar without sys": (bz2.compress(tar_of({"etc/passwd": "x"})), "holds no sys/devices"),
    "spelling": (b"synthetic:gpus:2", "at character 1"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_and_unknown_files_get_one_line(case: str, tmp_path: Path) -> None:
    content, reason = HOSTILE[case]
    path = tmp_path / "file"
    path.write_bytes(content)
    assert reason in refused(path)


def test_what_is_no_file_is_refused_without_being_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert "is a FIFO" in refused(tmp_path / "fifo")
    assert "is a device" in refused("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        assert "is a socket" in refused(tmp_path / "s")


def test_what_is_not_there_or_no_path_is_refused(tmp_path: Path) -> None:
    assert "No such file or directory" in refused(tmp_path / "missing")
    assert "cannot be read" in refused("nul\0byte")
    assert "cannot be read" in refused("x" * 10_000)
    assert "holds no sys/devices" in refused(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    assert "Too many levels of symbolic links" in refused(tmp_path / "loop")


def test_a_file_above_the_bound_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(detect.FILE_BYTES_MAX + 1)
    assert "is larger than 128 MiB" in refused(path)


def test_a_name_with_a_line_break_stays_one_line(tmp_path: Path) -> None:
    path = tmp_path / "two\nlines"
    path.write_bytes(b"")
    assert "two\\nlines" in refused(path)


BINARY_SUFFIXES = (".gz", ".bz2", ".xz", ".xml")
SMALL = sorted(name for name in FACTS if (MACHINES / name).stat().st_size < 20_000)


@pytest.mark.parametrize("name", SMALL)
def test_truncated_files_never_raise_and_archives_and_xml_are_refused(name: str) -> None:
    """A table cut between two rows may still be a whole smaller table; a cut archive or document never is."""
    data = (MACHINES / name).read_bytes().rstrip()
    for part in range(1, 16):
        result = read_content(data[: len(data) * part // 16], name)
        assert isinstance(result, Reading | SourceRefusal)
        if name.endswith(BINARY_SUFFIXES):
            assert isinstance(result, SourceRefusal), part


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(FACTS) - set(SMALL)))
def test_truncated_large_files_are_refused(name: str) -> None:
    data = (MACHINES / name).read_bytes().rstrip()
    for part in range(1, 16):
        assert isinstance(read_content(data[: len(data) * part // 16], name), SourceRefusal), part


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    assert isinstance(read_content(data, "x"), SourceRefusal)


@given(st.sampled_from(SMALL), st.data())
def test_altered_files_are_read_or_refused_and_never_raise(name: str, data: st.DataObject) -> None:
    content = bytearray((MACHINES / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    assert isinstance(read_content(bytes(content), name), Reading | Machine | SourceRefusal)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FACTS))
def test_files_with_shuffled_lines_never_raise(name: str) -> None:
    lines = (MACHINES / name).read_bytes().splitlines(keepends=True)
    chance = random.Random(name)
    for _ in range(10):
        chance.shuffle(lines)
        assert isinstance(read_content(b"".join(lines), name), Reading | Machine | SourceRefusal)
