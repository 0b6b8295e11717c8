"""Whatever lies in the share directory, a program runs or is refused with an error of the driver: it never crashes."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shim.built import PROGRAM_SOURCES, SHIM_SOURCES, ran
from tests.shim.container import GIB, USAGE_FILE_BYTES, Container, Share, empty_usage, facts_of

OUT_OF_MEMORY = 2
LIMIT = 4 * GIB


def refuses(container: Container) -> bool:
    facts = container.run("memory", "linked", "plain", "64M")
    return facts["start"] == OUT_OF_MEMORY or facts["obtained"] == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "topoalloc-share 2\n",
        "\0" * 100,
        Share().text() + "more 1\n",
        Share().text().replace("memory 4294967296", "memory -1"),
        Share().text().replace("memory 4294967296", "memory 99999999999999999999999"),
        Share().text().replace("cores 10000", "cores 0"),
        Share().text().replace("end\n", "memory 17179869184\nend\n"),
        Share().text().replace("generation 1\n", ""),
        Share().text().replace("\n", "\r\n"),
        Share().text()[:-1],
        "x" * 100_000,
    ],
    ids=range(12),
)
def test_a_share_file_that_cannot_be_read_refuses_memory(container: Container, text: str) -> None:
    (container.directory / "share").write_text(text)
    assert refuses(container)


def test_a_share_that_becomes_unreadable_changes_nothing_for_a_running_program(container: Container) -> None:
    holder = container.start("memory", "linked", "hold", "64M")
    assert holder.stdout
    holder.stdout.readline()
    (container.directory / "share").write_text("rubbish")
    assert "held=" in holder.stdout.readline()
    holder.communicate(timeout=10)
    assert holder.returncode == 0


@pytest.mark.parametrize("directory", ["", "/nonexistent", "share", "/" + "x" * 5000])
def test_without_any_share_memory_is_refused(container: Container, directory: str) -> None:
    container.environment["TOPOALLOC_SHARE_DIR"] = directory
    assert refuses(container)


def test_a_share_directory_without_a_share_refuses_memory(container: Container) -> None:
    (container.directory / "share").unlink()
    assert refuses(container)


def test_without_a_usage_file_memory_is_refused(container: Container) -> None:
    (container.directory / "usage").unlink()
    assert refuses(container)


def test_without_a_usage_file_memory_is_allowed_where_so_configured(container: Container) -> None:
    container.grant(Share(without_usage="allow"))
    (container.directory / "usage").unlink()
    assert container.run("memory", "linked", "plain", "64M")["obtained"] > 0


@pytest.mark.parametrize("size", [0, 1, 127, 4096, USAGE_FILE_BYTES - 1])
def test_a_usage_file_cut_short_refuses_memory(container: Container, size: int) -> None:
    (container.directory / "usage").write_bytes(empty_usage()[:size])
    assert refuses(container)


def test_the_usage_file_has_all_its_memory_before_it_is_used(container: Container) -> None:
    usage = container.directory / "usage"
    with usage.open("r+b") as file:
        begin = file.read(4096)
        file.truncate(0)
        file.seek(0)
        file.write(begin)
        file.truncate(USAGE_FILE_BYTES)
    assert usage.stat().st_blocks * 512 < USAGE_FILE_BYTES

    container.run("memory", "linked", "plain", "64M")

    assert usage.stat().st_blocks * 512 >= USAGE_FILE_BYTES


def test_a_usage_file_without_room_on_its_file_system_refuses_memory_and_ends_nobody(container: Container) -> None:
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0:
        pytest.skip("no mounts here")
    share = container.directory
    steps = [
        "mount --make-rprivate /",
        f"cp -r {share} {share}.kept && mount -t tmpfs -o size=64k none {share}",
        f"cp {share}.kept/share {share}/ && head -c 4096 {share}.kept/usage > {share}/usage",
        f'truncate -s {USAGE_FILE_BYTES} {share}/usage && exec "$@"',
    ]
    container.wrapper = ("unshare", "--mount", "sh", "-ec", "\n".join(steps), "sh")

    assert refuses(container)


def test_a_usage_file_of_another_version_refuses_memory(container: Container) -> None:
    other = bytearray(empty_usage())
    other[8] = 9
    (container.directory / "usage").write_bytes(other)
    assert refuses(container)


@pytest.mark.parametrize("seed", range(12))
def test_a_usage_file_full_of_rubbish_crashes_nobody(container: Container, seed: int) -> None:
    drawn = random.Random(seed)
    usage = bytearray(empty_usage())
    for _ in range(2000 if seed % 2 else 20):
        usage[drawn.randrange(16 if seed % 3 else 0, len(usage))] = drawn.randrange(256)
    (container.directory / "usage").write_bytes(usage)
    container.grant(Share(cores=5000))
    container.run("memory", "linked", "plain", "64M")
    container.run("launches", "linked", "plain", "100000", "0.05")


def test_a_usage_file_that_is_cut_short_under_a_running_program_does_not_undo_the_limit(container: Container) -> None:
    holder = container.start("memory", "linked", "hold", "64M")
    assert holder.stdout
    holder.stdout.readline()
    holder.stdout.readline()
    taken = container.run("memory", "linked", "plain", "64M")
    holder.communicate(timeout=10)
    assert taken.get("obtained", 0) == 0


@pytest.fixture(scope="session")
def share_reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that reads a share with the shim's own parser and address and undefined-behaviour checks on."""
    program = tmp_path_factory.mktemp("share-reader") / "share_reader"
    checks = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    sources = (str(PROGRAM_SOURCES / "share_reader.c"), str(SHIM_SOURCES / "share.c"))
    ran("gcc", "-std=c11", "-D_GNU_SOURCE", *checks, f"-I{SHIM_SOURCES}", "-o", str(program), *sources)
    return program


LINES = Share().text().splitlines(keepends=True)
SHARES = st.one_of(
    st.binary(max_size=5000),
    st.lists(
        st.sampled_from([*LINES, "memory none\n", "cores 1\n", " \n", "memory\n", "memory  5\n"]), max_size=14
    ).map(lambda lines: "".join(lines).encode()),
    st.tuples(st.integers(0, len(Share().text()) - 1), st.integers(0, 255)).map(
        lambda change: (text := bytearray(Share().text().encode()), text.__setitem__(*change), bytes(text))[2]
    ),
)


def read_all(program: Path, texts: list[bytes]) -> list[int]:
    asked = b"".join(b"%d\n%b" % (len(text), text) for text in texts)
    done = subprocess.run([program], input=asked, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return [int(line) for line in done.stdout.split()]


@settings(max_examples=10)
@given(texts=st.lists(SHARES, min_size=1, max_size=200))
def test_no_bytes_make_the_reader_of_shares_read_or_write_where_it_should_not(
    share_reader: Path, texts: list[bytes]
) -> None:
    assert len(read_all(share_reader, texts)) == len(texts)


@given(
    share=st.builds(
        Share,
        cores=st.integers(1, 10000),
        memory=st.one_of(st.none(), st.integers(0, 1 << 50)),
        context=st.integers(0, 1 << 40),
        without_usage=st.sampled_from(["allow", "refuse"]),
        generation=st.integers(0, (1 << 63) - 1),
    )
)
@settings(max_examples=10)
def test_every_share_that_the_agent_may_write_is_read(share_reader: Path, share: Share) -> None:
    assert read_all(share_reader, [share.text().encode()]) == [1]


def test_a_program_without_cuda_does_not_notice_the_shim(container: Container) -> None:
    environment = container.variables()
    environment["TOPOALLOC_SHARE_DIR"] = "/nonexistent"
    ran("env", *(f"{key}={value}" for key, value in environment.items()), "sh", "-c", "true")
    assert os.environ.get("LD_PRELOAD") is None


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [("allow\n", True), ("refuse\n", False), ("allow", False), ("allow\nrefuse\n", False), ("", False), (None, False)],
)
def test_without_a_share_the_word_beside_the_library_decides(
    container: Container, tmp_path: Path, policy: str | None, allowed: bool
) -> None:
    library = tmp_path / "library" / container.built.shim.name
    library.parent.mkdir()
    shutil.copy(container.built.shim, library)
    if policy is not None:
        (library.parent / "without-share").write_text(policy)
    container.environment |= {"LD_PRELOAD": str(library), "TOPOALLOC_SHARE_DIR": "/nonexistent"}
    process = container.start("memory", "linked", "plain", "64M")
    output, _ = process.communicate(timeout=30)
    assert (facts_of(output)["start"] == 0) == allowed


def test_a_share_that_is_there_holds_whatever_the_word_beside_the_library_is(
    container: Container, tmp_path: Path
) -> None:
    library = tmp_path / "library" / container.built.shim.name
    library.parent.mkdir()
    shutil.copy(container.built.shim, library)
    (library.parent / "without-share").write_text("allow\n")
    container.environment |= {"LD_PRELOAD": str(library)}
    assert container.run("memory", "linked", "plain", "64M")["obtained"] < LIMIT
