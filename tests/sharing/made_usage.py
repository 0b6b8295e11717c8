"""Usage and share files as bytes, written from the C layout's words and not by the code that reads them."""

from __future__ import annotations

import struct
from collections.abc import Mapping

GIB = 1024**3


def slot_bytes(
    *, pid: int = 1, explicit: int = 0, implicit: int = 0, gpu_time_ns: int = 0, waited_ns: int = 0, refused: int = 0,
    launches: int = 0, state: int = 1, overheads: int = 1,
) -> bytes:  # fmt: skip
    words = (explicit, implicit, 0, gpu_time_ns, waited_ns, launches, refused, 0)
    return struct.pack("=8Q4I6Q", *words, pid, state, 0, overheads, *[0] * 6)


def usage_bytes(
    slots: Mapping[int, bytes] | None = None, *, gone_gpu_time_ns: int = 0, gone_waited_ns: int = 0,
    wanting_at_ns: int = 0, magic: bytes = b"TAUSAGE1", version: int = 1, slot_count: int = 1000,
) -> bytes:  # fmt: skip
    header = struct.pack("=8sIIQIIQ", magic, version, slot_count, 0, 0, 0, 0)
    header += struct.pack("=5Q", gone_gpu_time_ns, gone_waited_ns, 0, 0, wanting_at_ns) + bytes(48)
    content = bytearray(header.ljust(131072, b"\0"))
    for number, slot in (slots or {}).items():
        content[128 + 128 * number : 256 + 128 * number] = slot
    return bytes(content)


def share_bytes(
    *, gpu: str = "GPU-8e", cores: int = 3000, cores_max: int = 3000, memory: str = str(8 * GIB), generation: int = 1
) -> bytes:
    lines = (
        "topoalloc-share 1", f"generation {generation}", f"gpu {gpu}", f"cores {cores}", f"cores-max {cores_max}",
        f"memory {memory}", "context 629145600", "without-usage refuse", "end",
    )  # fmt: skip
    return "".join(f"{line}\n" for line in lines).encode()
