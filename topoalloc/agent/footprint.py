"""Keeps the agent small: it runs on every GPU node, so each megabyte is paid many times."""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType

# glibc's malloc.h
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
MMAP_THRESHOLD_BYTES = 64 * 1024


def reduce_footprint() -> None:
    """Call before grpc is imported; harmless later, and where the C library is not glibc."""
    _tune_malloc()
    _import_the_needed_part_of_grpc()


def _tune_malloc() -> None:
    """Twenty threads that rarely allocate would each keep an arena of their own. And what is large goes back to the
    kernel when it is freed (a list for the kubelet, an account that was read): glibc would let it grow the heap for
    good, since it raises this bound with the first large piece that is freed."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)


def _import_the_needed_part_of_grpc() -> None:
    """grpc imports asyncio, which loads OpenSSL if it can and does without if it cannot, and its own asyncio side.

    Only unix sockets are spoken here and asyncio is never used, so grpc is told that there is no `ssl`, and is given an
    empty module in the place of `grpc.aio`. Whoever needs one of them imports it as ever.
    """
    if "ssl" in sys.modules or "grpc" in sys.modules:
        return
    sys.modules["ssl"] = None  # type: ignore[assignment]  # the documented way to make an import fail
    sys.modules["grpc.aio"] = ModuleType("grpc.aio")
    try:
        import grpc

        del grpc.aio
    finally:
        del sys.modules["ssl"]
        sys.modules.pop("grpc.aio", None)
