"""Archives from strangers: read in memory, never outside of themselves, and never at a price without a bound."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import tarfile
import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.trees import MACHINES, Folder, Link, Tree, files_of, numa_tree, recorded, tar_of
from topoalloc.topology.readers import archive, tar_stream
from topoalloc.topology.readers.archive import ArchiveFiles, is_archive, open_archive
from topoalloc.topology.readers.files import CONTENT_BYTES_MAX, Files, FilesBelow
from topoalloc.topology.readers.sysfs import read_machine_tree
from topoalloc.topology.reading import Reading, SourceRefusal

PACKINGS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "plain": bytes}
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
SECONDS_MAX = 20  # on a loaded machine; each case takes about one second alone


def refusal(data: bytes) -> str:
    started = time.monotonic()
    opened = open_archive(data, "a.tar")
    assert time.monotonic() - started < SECONDS_MAX
    assert isinstance(opened, SourceRefusal)
    assert opened.source == "a.tar"
    assert "\n" not in opened.reason
    return opened.reason


@pytest.mark.parametrize("packing", PACKINGS)
def test_every_packing_is_unpacked(packing: str) -> None:
    data = PACKINGS[packing](tar_of(numa_tree("0-3")))
    assert is_archive(data[:512])
    files = open_archive(data, "a")
    assert isinstance(files, ArchiveFiles)
    assert files.read("sys/devices/system/node/node0/cpulist") == b"0-3\n"


names = st.text("ab.é-", min_size=1, max_size=4).filter(lambda name: name not in {".", ".."})
# Longer than the 100 bytes of a plain header, so that every format's way to spell long paths is used.
long_names = st.builds(lambda name, times: (name * times)[:60], names, st.integers(1, 40))
paths = st.lists(st.one_of(names, long_names), min_size=1, max_size=5).map("/".join)


@given(st.dictionaries(paths, st.binary(max_size=1500), max_size=8), st.sampled_from(sorted(FORMATS)))
def test_what_the_standard_library_writes_is_read_back(content: dict[str, bytes], tar_format: str) -> None:
    # A path that runs through another file cannot be in one tree.
    tree = {
        path: data
        for path, data in content.items()
        if not any(other != path and path.startswith(other + "/") for other in content)
    }
    try:
        data = tar_of(tree, FORMATS[tar_format])
    except ValueError:  # ustar has no spelling for some long paths
        return
    files = open_archive(data, "a.tar")
    assert isinstance(files, ArchiveFiles), files
    assert {path: files.read(path) for path in tree} == tree


def test_hard_links_lead_to_the_member_they_name() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as writer:
        first = tarfile.TarInfo("d/e/first")
        first.size = 2
        writer.addfile(first, io.BytesIO(b"x\n"))
        second = tarfile.TarInfo("d/second")
        second.type, second.linkname = tarfile.LNKTYPE, "d/e/first"
        writer.addfile(second)
    files = open_archive(buffer.getvalue(), "a.tar")
    assert isinstance(files, ArchiveFiles)
    assert files.read("d/second") == b"x\n"


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "sys/../../outside", "./../x"])
def test_a_member_outside_of_the_archive_refuses_it(path: str) -> None:
    assert refusal(tar_of({**numa_tree("0"), path: "x"})) == (f"archive member {path!r} points outside of the archive")


@pytest.mark.parametrize("target", ["/etc/mtab", "../../../../etc/mtab", "../..", "/"])
def test_a_link_out_of_the_archive_leads_nowhere(target: str) -> None:
    files = files_of({**numa_tree("0"), "etc/mtab": Link(target)})
    assert (files.read("etc/mtab"), files.real_path("etc/mtab")) == (None, None)
    assert files.names("etc/mtab") == ()


def test_links_that_run_in_a_circle_lead_nowhere() -> None:
    files = files_of({"a": Link("b"), "b": Link("a"), "c": Link("c/c"), "d/up": Link("../d")})
    assert [files.read(path) for path in ("a", "b", "c")] == [None, None, None]
    assert files.real_path("d/up/up/up") == "d"
    assert files.real_path("/".join(["d", *["up"] * 100])) is None


def test_more_links_than_linux_follows_lead_nowhere() -> None:
    chain: dict[str, str | bytes | Link | Folder] = {f"l{n}": Link(f"l{n + 1}") for n in range(45)}
    files = files_of({**chain, "l45": "end"})
    assert files.read("l10") == b"end"
    assert files.read("l0") is None


def test_a_dangling_link_still_tells_where_it_leads() -> None:
    assert files_of({"sys/class/net/eth0": Link("../../devices/x/net/eth0")}).real_path("sys/class/net/eth0") == (
        "sys/devices/x/net/eth0"
    )


def test_a_file_below_a_link_replaces_the_link() -> None:
    """Unpackers that follow such links write outside; here nothing is followed while unpacking."""
    files = files_of({"sys": Link("/etc"), "sys/passwd": "x"})
    assert files.read("sys/passwd") == b"x"


def test_a_file_above_the_bound_is_there_but_not_readable() -> None:
    files = files_of({"d/large": bytes(CONTENT_BYTES_MAX + 1), "d/fits": b"x" * CONTENT_BYTES_MAX, "d/z": "after"})
    assert list(files.names("d")) == ["fits", "large", "z"]
    assert files.read("d/large") is None
    assert files.read("d/fits") == b"x" * CONTENT_BYTES_MAX
    assert files.read("d/z") == b"after"


def zeros(size: int) -> bytes:
    """gzip of a tar whose one file has `size` zero bytes, without holding them."""
    header = tarfile.TarInfo("sys/zeros")
    header.size = size
    packer = zlib.compressobj(1, wbits=31)
    parts = [packer.compress(header.tobuf())]
    block = bytes(1 << 20)
    parts += [packer.compress(block) for _ in range(size >> 20)]
    parts += [packer.compress(bytes(1024)), packer.flush()]
    return b"".join(parts)


def test_a_bomb_is_stopped_by_the_running_total() -> None:
    bomb = zeros(archive.UNPACKED_BYTES_MAX + (64 << 20))
    assert len(bomb) < 2 << 20
    assert "unpacks to more than 256 MiB" in refusal(bomb)


def test_a_member_that_claims_terabytes_is_cut_short() -> None:
    header = tarfile.TarInfo("sys/huge")
    header.size = 1 << 43
    assert "cut short" in refusal(gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + bytes(2048)))


def test_too_many_members_are_refused() -> None:
    member = tarfile.TarInfo("sys/x").tobuf()
    assert "has more than 200000 members" in refusal(member * (tar_stream.MEMBERS_MAX + 1) + bytes(1024))


def test_too_much_content_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "KEPT_BYTES_MAX", 1 << 20)
    tree: Tree = {f"sys/{n}": bytes(60_000) for n in range(20)}
    assert "holds more than 1 MiB" in refusal(tar_of(tree))


def test_folders_out_of_deep_paths_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "FOLDERS_MAX", 1000)
    assert "has more than 1000 folders" in refusal(tar_of({f"{n}/" + "a/" * 20 + "x": "" for n in range(60)}))


def test_a_path_longer_than_linux_allows_is_refused() -> None:
    assert "path is longer than 4096" in refusal(tar_of({"a/" * 2500 + "x": ""}))


def test_an_extended_header_above_its_bound_is_refused() -> None:
    assert "extended header is larger than 64 KiB" in refusal(tar_of({"a" * 70_000: ""}, tarfile.PAX_FORMAT))


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (b"9 path=x\n", None),
        (b"0 path=x\n", "cannot be read"),
        (b"xx path=x\n", "cannot be read"),
        (b"99999999999 path=x\n", "cannot be read"),
        (b"path=x", "cannot be read"),
    ],
)
def test_damaged_extended_headers_are_refused(records: bytes, reason: str | None) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, len(records)
    data = header.tobuf() + records.ljust(512, b"\0") + tarfile.TarInfo("y").tobuf() + bytes(1024)
    if reason is None:
        files = open_archive(data, "a.tar")
        assert isinstance(files, ArchiveFiles)
        assert files.names("") == ["x"]
    else:
        assert reason in refusal(data)


def test_devices_and_fifos_in_an_archive_are_left_out() -> None:
    fifo, device = tarfile.TarInfo("sys/fifo"), tarfile.TarInfo("sys/device")
    fifo.type, device.type = tarfile.FIFOTYPE, tarfile.CHRTYPE
    files = open_archive(fifo.tobuf() + device.tobuf() + tar_of({"sys/file": "x"}), "a.tar")
    assert isinstance(files, ArchiveFiles)
    assert files.names("sys") == ["file"]


def test_one_compressed_file_that_is_no_archive_is_told_apart() -> None:
    assert "holds no tar archive" in refusal(gzip.compress(b"<system/>" * 100))


CUT = [
    (name, part)
    for name in ("firecracker-2xh200-nv18.sysfs.tar.gz", "intel-4socket-offline-cpus.sysfs.tar.bz2")
    for part in range(1, 16)
]


@pytest.mark.parametrize(("name", "part"), CUT)
def test_a_truncated_archive_is_refused(name: str, part: int) -> None:
    data = (MACHINES / name).read_bytes()
    assert "cut short" in refusal(data[: len(data) * part // 16])


@pytest.mark.parametrize("part", range(2, 16))
def test_a_truncated_plain_tar_is_refused(part: int) -> None:
    data = tar_of(numa_tree("0-3", "4-7"))
    end = data.rstrip(b"\0")
    assert "cut short" in refusal(end[: len(end) * part // 16])


@pytest.mark.parametrize("part", range(1, 16))
def test_a_truncated_xz_archive_is_refused(part: int) -> None:
    data = lzma.compress(tar_of(numa_tree("0-3", "4-7")))
    assert "cut short" in refusal(data[: max(6, len(data) * part // 16)])


@given(st.sampled_from([b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ\0"]), st.binary(max_size=400))
def test_random_bytes_behind_a_packers_mark_are_refused(mark: bytes, rest: bytes) -> None:
    assert isinstance(open_archive(mark + rest, "a"), SourceRefusal)


@given(st.data())
def test_an_altered_archive_is_read_or_refused_and_never_raises(data: st.DataObject) -> None:
    plain = bytearray(tar_of({**numa_tree("0-1"), "sys/bus/pci/devices/0000:01:00.0": Link("../../../devices/x")}))
    for _ in range(data.draw(st.integers(1, 6))):
        plain[data.draw(st.integers(0, len(plain) - 1))] = data.draw(st.integers(0, 255))
    opened = open_archive(bytes(plain), "a.tar")
    if isinstance(opened, ArchiveFiles):
        assert isinstance(read_machine_tree(opened, "a.tar"), Reading | SourceRefusal)


@pytest.mark.slow
@pytest.mark.parametrize("name", recorded(".sysfs."))
def test_recorded_archives_with_noise_never_raise(name: str) -> None:
    original = (MACHINES / name).read_bytes()
    chance = random.Random(name)
    for _ in range(20):
        data = bytearray(original)
        for _ in range(chance.randint(1, 30)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        opened = open_archive(bytes(data), name)
        if isinstance(opened, ArchiveFiles):
            assert isinstance(read_machine_tree(opened, name), Reading | SourceRefusal)


def test_an_archive_of_several_machines_asks_for_one() -> None:
    tree = {f"{name}/{path}": content for name in ("a", "b") for path, content in numa_tree("0").items()}
    assert read_machine_tree(files_of(tree), "x") == SourceRefusal("x", "holds 2 machines (a, b); give one of them")


def test_an_archive_without_a_sys_folder_is_refused() -> None:
    refused = read_machine_tree(files_of({"etc/passwd": "x"}), "x")
    assert isinstance(refused, SourceRefusal)
    assert "holds no sys/devices" in refused.reason


@pytest.mark.parametrize("below", ["", "machine/", "dumps/machine/"])
def test_the_file_system_root_is_found_below_the_archives_top(below: str) -> None:
    read = read_machine_tree(files_of({f"{below}{path}": text for path, text in numa_tree("0-1").items()}), "x")
    assert isinstance(read, Reading)
    assert len(read.numa_nodes) == 1


def test_a_part_of_a_tree_is_a_tree_of_its_own() -> None:
    outer = files_of({"m/sys/a": "1", "m/sys/in": Link("a"), "m/sys/out": Link("../b"), "m/b": "2"})
    inner: Files = FilesBelow(outer, "m/sys")
    assert (inner.read("in"), inner.real_path("in")) == (b"1", "a")
    assert inner.real_path("out") is None
    assert list(inner.names("")) == ["a", "in", "out"]
