"""Keeps the agent small: it runs on every GPU node, so each megabyte is paid many times."""

from __future__ import annotations

import ctypes
import sys
from importlib import import_module
from types import ModuleType

# glibc's malloc.h
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
MMAP_THRESHOLD_BYTES = 64 * 1024


def reduce_footprint() -> None:
    """Call before grpc is imported; harmless later, and where the C library is not glibc."""
    _tune_malloc()
    _import_grpc_without_asyncio()


def _tune_malloc() -> None:
    """Twenty threads that rarely allocate would each keep an arena of their own. And what is large goes back to the
    kernel when it is freed (a list for the kubelet, an account that was read): glibc would let it grow the heap for
    good, since it raises this bound with the first large piece that is freed."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)


class _Later(ModuleType):
    """Stands for a module until something is asked of it; then that is imported as ever."""

    def __getattr__(self, name: str) -> object:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def _import_grpc_without_asyncio() -> None:
    """grpc imports asyncio, which loads OpenSSL and much else, and its own asyncio side. Only its threads are used
    here, and they ask neither for anything."""
    if "grpc" in sys.modules:
        return
    placeholders = [_Later(name) for name in ("asyncio", "grpc.aio") if name not in sys.modules]
    sys.modules.update({placeholder.__name__: placeholder for placeholder in placeholders})
    try:
        import grpc  # noqa: F401
    finally:
        for placeholder in placeholders:
            if sys.modules.get(placeholder.__name__) is placeholder:
                del sys.modules[placeholder.__name__]
