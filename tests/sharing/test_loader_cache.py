"""The loader's cache as glibc writes it, whole, cut off and made up."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from topoalloc.sharing.loader_cache import libraries_in

X86, ARM = 0x0303, 0x0A03


def cache(*libraries: tuple[str, str, int], before: bytes = b"") -> bytes:
    strings, entries = b"", b""
    begin = 48 + 24 * len(libraries)
    for name, path, flags in libraries:
        name_at = begin + len(strings)
        strings += name.encode() + b"\0"
        path_at = begin + len(strings)
        strings += path.encode() + b"\0"
        entries += struct.pack("<iIIIQ", flags, name_at, path_at, 0, 0)
    header = struct.pack("<20sII20x", b"glibc-ld.so.cache1.1", len(libraries), len(strings))
    return before + header + entries + strings


CUDA = ("libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1", X86)
CUDA_ARM = ("libcuda.so.1", "/usr/lib/aarch64-linux-gnu/libcuda.so.1", ARM)


def test_a_library_is_found_by_its_name_for_its_architecture() -> None:
    both = cache(CUDA_ARM, CUDA)

    assert dict(libraries_in(both, "x86_64")) == {CUDA[0]: CUDA[1]}
    assert dict(libraries_in(both, "aarch64")) == {CUDA_ARM[0]: CUDA_ARM[1]}


def test_the_first_of_several_is_the_one_that_the_loader_takes() -> None:
    other = ("libcuda.so.1", "/opt/libcuda.so.1", X86)

    assert libraries_in(cache(CUDA, other), "x86_64")["libcuda.so.1"] == CUDA[1]


def test_an_older_cache_before_it_is_passed_over() -> None:
    older = b"ld.so-1.7.0\0" + struct.pack("<I", 0)

    assert dict(libraries_in(cache(CUDA, before=older), "x86_64")) == {CUDA[0]: CUDA[1]}


def test_an_architecture_that_is_not_known_has_none() -> None:
    assert not libraries_in(cache(CUDA), "riscv64")


@given(st.integers(0, 200))
def test_a_cache_that_is_cut_off_gives_what_is_whole(length: int) -> None:
    assert set(libraries_in(cache(CUDA)[:length], "x86_64").items()) <= {CUDA[:2]}


@given(st.binary(max_size=300))
def test_any_bytes_are_read(content: bytes) -> None:
    libraries_in(content, "x86_64")
    libraries_in(b"glibc-ld.so.cache1.1" + content, "x86_64")
