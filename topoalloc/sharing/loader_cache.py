"""`/etc/ld.so.cache` of glibc: which library name is which file (glibc, sysdeps/generic/dl-cache.h)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType

MAGIC = b"glibc-ld.so.cache1.1"
OLD_MAGIC = b"ld.so-1.7.0\0"  # may come before; glibc 2.32 has stopped writing it
CACHE_BYTES_MAX = 16 * 1024**2
ENTRIES_MAX = 200_000
NAME_BYTES_MAX = 4096
_HEADER = struct.Struct("<20sII")  # magic, entries, bytes of strings; 48 bytes with what is not used here
_HEADER_BYTES = 48
_ENTRY = struct.Struct("<iIIIQ")  # flags, name, path (both from the header on), OS version, hardware capabilities
# FLAG_ELF_LIBC6 with the architecture, by what uname calls it.
FLAGS: Mapping[str, int] = MappingProxyType({"x86_64": 0x0303, "aarch64": 0x0A03})


def libraries_in(cache: bytes, machine: str) -> Mapping[str, str]:
    """Path by library name for this architecture, the first of several; nothing where the content is no such cache."""
    begin = cache.find(MAGIC, 0, CACHE_BYTES_MAX) if cache.startswith((MAGIC, OLD_MAGIC)) else -1
    wanted = FLAGS.get(machine)
    if begin < 0 or wanted is None or len(cache) < begin + _HEADER_BYTES:
        return MappingProxyType({})
    _, count, _ = _HEADER.unpack_from(cache, begin)
    found: dict[str, str] = {}
    for number in range(min(count, ENTRIES_MAX)):
        at = begin + _HEADER_BYTES + number * _ENTRY.size
        if at + _ENTRY.size > len(cache):
            break
        flags, name_at, path_at, _, _ = _ENTRY.unpack_from(cache, at)
        if flags & 0xFFFF == wanted:
            name, path = _text(cache, begin + name_at), _text(cache, begin + path_at)
            if name and path.startswith("/"):
                found.setdefault(name, path)
    return MappingProxyType(found)


def _text(cache: bytes, at: int) -> str:
    end = cache.find(b"\0", at, at + NAME_BYTES_MAX)
    return cache[at:end].decode("utf-8", "replace") if 0 <= at <= end else ""
