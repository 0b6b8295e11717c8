"""The library on the node: there as a whole, unchanged, or not handed out."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from topoalloc.agent.private_files import FileFault
from topoalloc.agent.shim_library import check_foreign_shim, install_library, packaged_library

CONTENT = b"\x7fELF and more"
LIBRARY, VERIFY = "libtopoalloc-vcuda.so", "topoalloc-verify"
FILES = {LIBRARY: CONTENT}
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def library_in(lib_dir: Path) -> Path:
    return lib_dir / DIGEST[:16] / "libtopoalloc-vcuda.so"


def test_the_library_lies_alone_below_a_name_made_of_its_content(tmp_path: Path) -> None:
    installed = install_library(FILES, tmp_path / "lib")

    path = library_in(tmp_path / "lib")
    assert installed.directory == path.parent
    assert sorted(each.name for each in path.parent.iterdir()) == [path.name, "without-share"]
    assert path.read_bytes() == CONTENT
    assert stat.S_IMODE(path.stat().st_mode) == 0o555
    installed.check()


def test_what_holds_without_a_share_lies_beside_it_and_follows_the_configuration(tmp_path: Path) -> None:
    for word in ("refuse", "allow", "refuse"):
        installed = install_library(FILES, tmp_path / "lib", word)
        policy = installed.directory / "without-share"
        assert policy.read_text() == f"{word}\n"
        assert stat.S_IMODE(policy.stat().st_mode) == 0o444


def test_a_library_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    install_library(FILES, tmp_path)
    before = library_in(tmp_path).stat().st_ino

    install_library(FILES, tmp_path)

    assert library_in(tmp_path).stat().st_ino == before


def test_another_version_lies_beside_it(tmp_path: Path) -> None:
    old = install_library(FILES, tmp_path)
    new = install_library({LIBRARY: b"\x7fELF of a later version"}, tmp_path)

    assert old.directory != new.directory
    old.check()
    new.check()


def test_a_changed_library_is_not_handed_out_and_put_right_at_the_next_start(tmp_path: Path) -> None:
    installed = install_library(FILES, tmp_path)
    library_in(tmp_path).chmod(0o755)
    library_in(tmp_path).write_bytes(b"\x7fELF of somebody else")

    with pytest.raises(FileFault, match="is not what the agent put there"):
        installed.check()
    install_library(FILES, tmp_path).check()


def test_a_missing_library_is_not_handed_out(tmp_path: Path) -> None:
    installed = install_library(FILES, tmp_path)
    library_in(tmp_path).unlink()

    with pytest.raises(FileFault, match="is gone"):
        installed.check()


def test_a_link_in_its_place_is_no_library_and_is_replaced(tmp_path: Path) -> None:
    installed = install_library(FILES, tmp_path / "lib")
    (tmp_path / "mine").write_bytes(CONTENT)
    library_in(tmp_path / "lib").unlink()
    library_in(tmp_path / "lib").symlink_to(tmp_path / "mine")

    with pytest.raises(FileFault, match="is gone"):
        installed.check()
    install_library(FILES, tmp_path / "lib").check()
    assert not library_in(tmp_path / "lib").is_symlink()


def test_a_directory_that_others_can_write_into_is_not_used(tmp_path: Path) -> None:
    installed = install_library(FILES, tmp_path / "lib")
    tmp_path.chmod(0o777)

    with pytest.raises(FileFault, match="others than its owner can write"):
        installed.check()


@pytest.mark.parametrize("content", [None, b"", b"# a script"])
def test_what_is_no_library_is_none(tmp_path: Path, content: bytes | None) -> None:
    (tmp_path / VERIFY).write_bytes(CONTENT)
    if content is not None:
        (tmp_path / LIBRARY).write_bytes(content)

    assert packaged_library(tmp_path) is None


def test_an_installation_brings_the_library_and_the_program_beside_it_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / LIBRARY).write_bytes(CONTENT)
    assert packaged_library(tmp_path) == FILES
    (tmp_path / VERIFY).write_bytes(CONTENT)

    assert packaged_library(tmp_path) == {LIBRARY: CONTENT, VERIFY: CONTENT}


def test_the_program_lies_beside_the_library_and_is_looked_at_like_it(tmp_path: Path) -> None:
    installed = install_library({**FILES, VERIFY: b"\x7fELF of the program"}, tmp_path)
    program = installed.directory / VERIFY
    assert sorted(each.name for each in installed.directory.iterdir()) == [LIBRARY, VERIFY, "without-share"]
    assert stat.S_IMODE(program.stat().st_mode) == 0o555
    installed.check()
    program.chmod(0o755)
    program.write_bytes(b"\x7fELF of somebody else")

    with pytest.raises(FileFault, match="topoalloc-verify: is not what the agent put there"):
        installed.check()


def test_another_program_beside_the_same_library_is_another_version(tmp_path: Path) -> None:
    first, second = (install_library({**FILES, VERIFY: content}, tmp_path) for content in (b"one", b"two"))

    assert first.directory != second.directory
    first.check()


def test_a_library_of_somebody_else_has_to_be_roots(tmp_path: Path) -> None:
    (tmp_path / "lib64").mkdir()
    path = tmp_path / "lib64" / "libcuda.so.1"
    with pytest.raises(FileFault, match="No such file"):
        check_foreign_shim(tmp_path, "lib64/libcuda.so.1")
    path.touch(mode=0o755)
    check_foreign_shim(tmp_path, "lib64/libcuda.so.1")
    path.chmod(0o757)

    with pytest.raises(FileFault, match="others than root can change it"):
        check_foreign_shim(tmp_path, "lib64/libcuda.so.1")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_library_that_belongs_to_a_user_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "libvgpu.so").touch()
    os.chown(tmp_path / "libvgpu.so", 1000, 1000)

    with pytest.raises(FileFault, match="others than root"):
        check_foreign_shim(tmp_path, "libvgpu.so")
