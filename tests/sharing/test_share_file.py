"""The text that the library in a container reads its limits from, and the agent reads back."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sharing.made_usage import GIB, share_bytes
from topoalloc.sharing.share import Share, ShareRules
from topoalloc.sharing.share_file import (
    SHARE_BYTES_MAX,
    ShareLimits,
    ShareRefusal,
    following,
    gpu_of,
    parse_share,
    share_text,
    shown_gpu,
)

NAME = "0000:3b:00.0-c07"
SHARE = Share("0000:3b:00.0-c00", 0, "GPU-8e1c", 30, 8 * 1024**3)
shares = st.builds(
    Share,
    name=st.just("a"),
    position=st.integers(0, 15),
    gpu_uuid=st.none() | st.text(max_size=100),
    cores=st.integers(1, 99),
    memory_bytes=st.none() | st.integers(0, 2**48),
)
rules = st.builds(ShareRules, st.none() | st.integers(1, 100), st.integers(0, 2**36), st.booleans())


def keys_of(content: bytes) -> dict[str, str]:
    """A reader written from the contract: unknown, missing and repeated keys are faults."""
    assert len(content) <= 4096
    first, *lines, last, rest = content.decode("ascii").split("\n")
    assert (first, last, rest) == ("topoalloc-share 1", "end", "")
    pairs = [line.split(" ") for line in lines]
    keys = dict(pairs)
    assert sorted(keys) == sorted(key for key, _ in pairs)
    assert keys.keys() == {"generation", "gpu", "cores", "cores-max", "memory", "context", "without-usage"}
    return keys


def test_the_file_says_what_was_granted() -> None:
    assert share_text(SHARE, ShareRules()) == (
        b"topoalloc-share 1\n"
        b"generation 1\n"
        b"gpu GPU-8e1c\n"
        b"cores 3000\n"
        b"cores-max 3000\n"
        b"memory 8589934592\n"
        b"context 629145600\n"
        b"without-usage refuse\n"
        b"end\n"
    )


@pytest.mark.parametrize(("ceiling", "told"), [(None, "3000"), (20, "3000"), (80, "8000")])
def test_the_ceiling_is_the_nodes_where_that_is_above_the_share(ceiling: int | None, told: str) -> None:
    assert keys_of(share_text(SHARE, ShareRules(elastic_cores=ceiling)))["cores-max"] == told


def test_memory_that_is_not_served_is_not_limited_and_none_granted_is_none() -> None:
    texts = [share_text(replace(SHARE, memory_bytes=amount), ShareRules()) for amount in (None, 0)]

    assert [keys_of(text)["memory"] for text in texts] == ["none", "0"]


@given(shares, rules)
def test_whatever_is_granted_the_file_can_be_read(share: Share, some: ShareRules) -> None:
    keys = keys_of(share_text(share, some))

    assert int(keys["cores"]) == share.cores * 100
    assert int(keys["cores"]) <= int(keys["cores-max"]) <= 10_000
    assert 1 <= len(keys["gpu"]) <= 63


@given(shares, shares, rules, st.integers(1, 2**63 - 2))
def test_a_rewrite_is_counted_and_the_same_limits_are_no_rewrite(
    old: Share, new: Share, some: ShareRules, generation: int
) -> None:
    before = share_text(old, some, generation)

    after = following(before, share_text(new, some))

    same = share_text(old, some) == share_text(new, some)
    assert after == (before if same else share_text(new, some, generation + 1))


@given(st.binary(max_size=SHARE_BYTES_MAX))
def test_whatever_lay_there_the_limits_follow(before: bytes) -> None:
    keys = keys_of(following(before, share_text(SHARE, ShareRules())))

    assert (keys["cores"], keys["memory"]) == ("3000", "8589934592")


READER = """
#include "share.h"
#include <stdio.h>
int main(void)
{
    char text[5000];
    struct share share;
    size_t bytes = fread(text, 1, sizeof text, stdin);
    if (!share_parse(text, bytes, &share))
        return 1;
    printf("%llu %s %u %u %llu %llu %d\\n", (unsigned long long)share.generation, share.gpu, share.cores,
           share.cores_max, (unsigned long long)share.memory_bytes, (unsigned long long)share.context_bytes,
           share.allow_without_usage);
    return 0;
}
"""


@pytest.fixture(scope="module")
def library_reads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program around the library's own reader."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder, shim = tmp_path_factory.mktemp("reader"), Path("topoalloc/sharing/shim").resolve()
    (folder / "reader.c").write_text(READER)
    command = [compiler, f"-I{shim}", "-o", str(folder / "reader"), str(folder / "reader.c"), str(shim / "share.c")]
    subprocess.run(command, check=True)
    return folder / "reader"


@given(shares, rules, st.integers(1, 2**62))
def test_the_library_reads_what_the_agent_writes(
    library_reads: Path, share: Share, some: ShareRules, generation: int
) -> None:
    text = share_text(share, some, generation)
    keys = keys_of(text)

    said = subprocess.run([str(library_reads)], input=text, capture_output=True, check=True).stdout.decode().split()

    memory = 2**64 - 1 if share.memory_bytes is None else share.memory_bytes
    allow = int(some.without_usage)
    assert said == [
        *(str(generation), keys["gpu"], keys["cores"], keys["cores-max"]),
        *(str(memory), str(some.context_bytes), str(allow)),
    ]


@given(shares, rules, st.integers(1, 2**62))
def test_the_agent_reads_back_what_it_writes(share: Share, some: ShareRules, generation: int) -> None:
    limits = parse_share(share_text(share, some, generation))

    assert isinstance(limits, ShareLimits)
    assert (limits.generation, limits.cores, limits.memory_bytes) == (generation, share.cores * 100, share.memory_bytes)
    assert (limits.context_bytes, limits.refuses_without_usage) == (some.context_bytes, not some.without_usage)
    assert limits.elastic == (limits.cores_max > limits.cores)


def test_every_key_is_read():
    limits = parse_share(share_bytes(cores=3000, cores_max=9000))

    assert limits == ShareLimits(1, "GPU-8e", 3000, 9000, 8 * GIB, 629145600, True)
    assert limits.elastic


@pytest.mark.parametrize(("memory", "expected"), [("none", None), ("0", 0), ("1", 1)])
def test_no_limit_is_another_thing_than_no_memory(memory: str, expected: int | None):
    limits = parse_share(share_bytes(memory=memory))

    assert isinstance(limits, ShareLimits)
    assert limits.memory_bytes == expected


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"topoalloc-share 2\nend\n",
        share_bytes()[:-1],
        share_bytes().replace(b"end\n", b""),
        share_bytes().replace(b"context", b"contexts"),
        share_bytes().replace(b"cores 3000", b"cores 3000\ncores 3000"),
        share_bytes().replace(b"generation 1\n", b""),
        share_bytes(cores=0),
        share_bytes(cores=3001),
        share_bytes(cores_max=10001),
        share_bytes(memory="-1"),
        share_bytes(memory="1e3"),
        share_bytes(memory="9" * 19),
        share_bytes().replace(b"refuse", b"perhaps"),
        share_bytes(gpu="a b"),
        share_bytes(gpu="\u00e9"),
        share_bytes() + b" " * 4096,
    ],
)
def test_what_is_not_exactly_a_share_is_refused(content: bytes):
    assert isinstance(parse_share(content), ShareRefusal)


@given(st.binary(max_size=5000))
def test_any_bytes_are_read_or_refused(content: bytes):
    assert isinstance(parse_share(content), ShareRefusal)


@given(st.integers(0, 300), st.binary(min_size=1, max_size=3))
def test_a_share_that_was_changed_somewhere_is_read_or_refused(at: int, noise: bytes):
    content = bytearray(share_bytes())
    content[at : at + len(noise)] = noise

    assert isinstance(parse_share(bytes(content)), ShareLimits | ShareRefusal)


def test_the_driver_is_asked_by_uuid_or_else_by_address_or_not_at_all():
    known, unknown = parse_share(share_bytes()), parse_share(share_bytes(gpu="-"))
    assert isinstance(known, ShareLimits)
    assert isinstance(unknown, ShareLimits)

    assert gpu_of(NAME, known.gpu) == "GPU-8e"
    assert gpu_of(NAME, unknown.gpu) == "0000:3b:00.0"
    assert gpu_of("gpu3-c07", unknown.gpu) is None
    assert shown_gpu("gpu3-c07", unknown) == "gpu3"
    assert shown_gpu("odd", known) == "GPU-8e"
    assert shown_gpu("odd", None) == "?"
