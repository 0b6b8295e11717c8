"""The share file as the agent reads it back, and the names of shares."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sharing.made_usage import GIB, share_bytes
from topoalloc.sharing.share_limits import ShareLimits, ShareRefusal, gpu_of, is_share_name, parse_share, shown_gpu

NAME = "0000:3b:00.0-c07"


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


@pytest.mark.parametrize("name", ["", ".", "..", ".x", "a/b", "A", "a\0", "a" * 64, "\u00e9", "a b", "a\n"])
def test_no_other_directory_passes_for_a_share(name: str):
    assert not is_share_name(name)


@pytest.mark.parametrize("name", [NAME, "gpu3-c07", "0000:3b:00.0-p1-c07"])
def test_a_share_is_called_like_its_lowest_core(name: str):
    assert is_share_name(name)


def test_the_driver_is_asked_by_uuid_or_else_by_address_or_not_at_all():
    known, unknown = parse_share(share_bytes()), parse_share(share_bytes(gpu="-"))
    assert isinstance(known, ShareLimits)
    assert isinstance(unknown, ShareLimits)

    assert gpu_of(NAME, known) == "GPU-8e"
    assert gpu_of(NAME, unknown) == "0000:3b:00.0"
    assert gpu_of("gpu3-c07", unknown) is None
    assert shown_gpu("gpu3-c07", unknown) == "gpu3"
    assert shown_gpu("odd", known) == "GPU-8e"
    assert shown_gpu("odd", None) == "?"
