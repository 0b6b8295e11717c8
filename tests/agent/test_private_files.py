"""What lies in the way on the node, by accident or on purpose."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoalloc.agent.private_files import (
    DEPTH_MAX,
    REMOVED_MAX,
    FileFault,
    make_directory,
    open_directory,
    read_file,
    remove,
    write_file,
)

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def files_of_at_most(bytes_max: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A directory elsewhere that nothing may touch."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "canary").write_text("alive")
    return elsewhere


def is_alive(canary: Path) -> bool:
    return [path.name for path in canary.iterdir()] == ["canary"] and (canary / "canary").read_text() == "alive"


def test_a_missing_directory_is_made_with_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        os.close(open_directory(tmp_path / "a" / "b", 0o750))
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o750


def test_a_directory_with_another_mode_is_put_right(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o700)

    os.close(open_directory(tmp_path / "a", 0o755))

    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o755


@pytest.mark.parametrize("part", ["run", "run/below"])
def test_a_link_in_the_place_of_a_directory_is_not_followed(tmp_path: Path, canary: Path, part: str) -> None:
    place = tmp_path / part
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(canary)

    with pytest.raises(FileFault, match="a link or a file lies where a directory should be"):
        open_directory(tmp_path / "run" / "below", 0o750)

    assert is_alive(canary)


def test_a_file_in_the_place_of_a_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")

    with pytest.raises(FileFault, match="a link or a file lies where a directory should be"):
        open_directory(tmp_path / "run" / "shares", 0o750)


def test_a_directory_that_others_can_write_into_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o777)

    with pytest.raises(FileFault, match="others than its owner can write"):
        open_directory(tmp_path / "run" / "shares", 0o750)


@as_root
def test_a_directory_of_another_user_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", NOBODY, NOBODY)

    with pytest.raises(FileFault, match="belongs to user 65534"):
        open_directory(tmp_path / "run" / "shares", 0o750)


@pytest.mark.parametrize("path", ["relative", "/a/../b"])
def test_a_path_that_is_not_plain_is_refused(path: str) -> None:
    with pytest.raises(FileFault):
        open_directory(Path(path), 0o750)


def test_what_is_somebody_elses_is_neither_made_nor_changed(tmp_path: Path) -> None:
    with pytest.raises(FileFault, match="No such file"):
        open_directory(tmp_path / "missing", None)
    (tmp_path / "there").mkdir(mode=0o711)

    os.close(open_directory(tmp_path / "there", None))

    assert stat.S_IMODE((tmp_path / "there").stat().st_mode) == 0o711
    assert not (tmp_path / "missing").exists()


def test_a_file_appears_with_its_content_and_mode(tmp_path: Path) -> None:
    with opened(tmp_path) as fd:
        write_file(fd, "share", b"limits", 0o444, 100)

    assert (tmp_path / "share").read_bytes() == b"limits".ljust(100, b"\0")
    assert stat.S_IMODE((tmp_path / "share").stat().st_mode) == 0o444
    assert names_in(tmp_path) == ["share"]


@pytest.mark.parametrize("planted", ["share", ".share.new"])
def test_a_link_planted_in_the_place_of_a_file_is_replaced_and_not_followed(
    tmp_path: Path, canary: Path, planted: str
) -> None:
    (tmp_path / planted).symlink_to(canary / "canary")

    with opened(tmp_path) as fd:
        write_file(fd, "share", b"limits", 0o444)

    assert is_alive(canary)
    assert not (tmp_path / "share").is_symlink()
    assert (tmp_path / "share").read_bytes() == b"limits"


@pytest.mark.parametrize("planted", ["share", ".share.new"])
def test_a_directory_in_the_place_of_a_file_is_replaced(tmp_path: Path, planted: str) -> None:
    (tmp_path / planted / "deep").mkdir(parents=True)

    with opened(tmp_path) as fd:
        write_file(fd, "share", b"limits", 0o444)

    assert (tmp_path / "share").read_bytes() == b"limits"


def test_a_file_that_does_not_fit_leaves_the_old_one_and_nothing_half_written(tmp_path: Path) -> None:
    with opened(tmp_path) as fd:
        write_file(fd, "share", b"old", 0o444)
        with files_of_at_most(10), pytest.raises(OSError, match="File too large"):
            write_file(fd, "share", b"x" * 100, 0o444)

    assert names_in(tmp_path) == ["share"]
    assert (tmp_path / "share").read_bytes() == b"old"


def test_what_is_no_regular_file_is_not_read(tmp_path: Path, canary: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(canary / "canary")
    (tmp_path / "directory").mkdir()

    with opened(tmp_path) as fd:
        assert [read_file(fd, name, 10) for name in ("fifo", "link", "directory", "missing")] == [None] * 4


def test_no_more_of_a_file_is_read_than_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 1000)

    with opened(tmp_path) as fd:
        assert read_file(fd, "large", 10) == b"x" * 10


def test_removing_takes_links_and_not_what_they_point_to(tmp_path: Path, canary: Path) -> None:
    leaf = tmp_path / "leaf"
    (leaf / "deep").mkdir(parents=True)
    (leaf / "link").symlink_to(canary)
    (leaf / "deep" / "link").symlink_to(canary / "canary")
    os.mkfifo(leaf / "deep" / "fifo")

    with opened(tmp_path) as fd:
        remove(fd, "leaf")

    assert not leaf.exists()
    assert is_alive(canary)


def test_removing_nothing_is_no_fault(tmp_path: Path) -> None:
    with opened(tmp_path) as fd:
        remove(fd, "missing")


def test_a_removal_takes_so_many_entries_and_no_more(tmp_path: Path) -> None:
    leaf = tmp_path / "leaf"
    leaf.mkdir()
    for number in range(REMOVED_MAX + 10):
        (leaf / str(number)).touch()

    with opened(tmp_path) as fd:
        with pytest.raises(OSError, match="more lies below it"):
            remove(fd, "leaf")
        assert 0 < len(names_in(leaf)) <= 20
        remove(fd, "leaf")

    assert not leaf.exists()


def test_what_lies_deeper_than_a_removal_goes_is_moved_up_and_goes_with_the_next(tmp_path: Path) -> None:
    deep = tmp_path.joinpath("leaf", *["d"] * (DEPTH_MAX + 2))
    deep.mkdir(parents=True)

    with opened(tmp_path) as fd:
        remove(fd, "leaf")
        (moved,) = names_in(tmp_path)
        remove(fd, moved)

    assert names_in(tmp_path) == []


def test_a_new_directory_is_empty_and_ours_alone(tmp_path: Path, canary: Path) -> None:
    (tmp_path / "new").symlink_to(canary)

    with opened(tmp_path) as fd:
        os.close(make_directory(fd, "new"))

    assert is_alive(canary)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert names_in(tmp_path / "new") == []


@given(st.binary(max_size=3000), st.integers(0, 4000))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, content: bytes, more: int) -> None:
    with opened(tmp_path_factory.mktemp("files")) as fd:
        write_file(fd, "file", content, 0o400, len(content) + more)

        assert read_file(fd, "file", 10_000) == content + b"\0" * more
