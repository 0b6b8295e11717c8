"""A folder on disk as a tree: nothing outside of it, nothing that blocks, nothing without a bound."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from topoalloc.topology.readers.files import CONTENT_BYTES_MAX, FolderFiles, text_of


def test_a_file_is_read_with_its_links_followed(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_text("x\n")
    (tmp_path / "l").symlink_to("d/f")
    files = FolderFiles(tmp_path)
    assert (files.read("l"), files.real_path("l")) == (b"x\n", "d/f")
    assert text_of(files, "l") == "x"
    assert list(files.names("")) == ["d", "l"]
    assert files.is_folder("d")
    assert not files.is_folder("l")


def test_the_root_itself_has_the_empty_path(tmp_path: Path) -> None:
    assert FolderFiles(tmp_path).real_path("") == ""
    assert FolderFiles("/").real_path("etc") == "etc"


@pytest.mark.parametrize("path", ["../secret", "out", "out/file", "up/secret"])
def test_nothing_outside_of_the_folder_is_read(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("x")
    root = tmp_path / "root"
    root.mkdir()
    (root / "out").symlink_to(tmp_path / "elsewhere")
    (root / "up").symlink_to("..")
    files = FolderFiles(root)
    assert (files.read(path), files.real_path(path)) == (None, None)
    assert list(files.names(path)) == []


def test_links_in_a_circle_and_paths_that_are_none_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    files = FolderFiles(tmp_path)
    for path in ("a", "nul\0byte", "x" * 5000, "missing/deeper"):
        assert files.read(path) is None
        assert list(files.names(path)) == []


def test_a_dangling_link_still_tells_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "l").symlink_to("gone/away")
    assert FolderFiles(tmp_path).real_path("l") == "gone/away"


def test_fifos_sockets_and_folders_are_not_read_as_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        files = FolderFiles(tmp_path)
        assert [files.read(path) for path in ("fifo", "socket", "", "fifo")] == [None] * 4


def test_a_file_above_the_bound_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(CONTENT_BYTES_MAX + 1))
    (tmp_path / "fits").write_bytes(bytes(CONTENT_BYTES_MAX))
    files = FolderFiles(tmp_path)
    assert files.read("large") is None
    assert files.read("fits") == bytes(CONTENT_BYTES_MAX)


def test_an_attribute_that_answers_with_an_error_is_not_there() -> None:
    """/proc/self/mem exists, is a regular file and answers EIO at its start, as some sysfs attributes do."""
    assert FolderFiles("/proc/self").read("mem") is None
