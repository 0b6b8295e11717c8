"""Memory sizes as people write and read them."""

from __future__ import annotations

import re

from topoalloc.errors import InputError

# A bare G means 10^9 to Kubernetes and 2^30 to most GPU tools, so a suffix has to say which: GiB or Gi, or GB.
_UNITS = {"": 1, "b": 1} | {
    spelling: base**power
    for power, letter in enumerate("kmgt", start=1)
    for spelling, base in ((f"{letter}ib", 1024), (f"{letter}i", 1024), (f"{letter}b", 1000))
}
_SIZE = re.compile(r"(\d{1,20})(?:\.(\d{1,9}))?\s*([a-zA-Z]{0,3})")
SIZE_BYTES_MAX = 1 << 50  # 1 PiB: far above the memory of any one device; catches a unit given twice


def parse_size(text: str) -> int:
    """Bytes of `80GiB`, `80Gi`, `81920MiB`, `80GB` or `85899345920`; raises InputError with what to write instead."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{text[:40]!r} is not a size; write a number and a unit, such as 80GiB, 81920MiB or 80GB")
    whole, decimals, unit = match.groups(default="")
    factor = _UNITS.get(unit.lower())
    if factor is None:
        raise InputError(f"{text[:40]!r} has the unit {unit!r}; write KiB, MiB, GiB, TiB, or decimal KB, MB, GB, TB")
    size_bytes: int = int(whole + decimals) * factor // 10 ** len(decimals)
    if not 0 < size_bytes <= SIZE_BYTES_MAX:
        raise InputError(f"{text[:40]!r} is outside 1 byte to 1 PiB")
    return size_bytes


def size_words(size_bytes: int) -> str:
    """`40 GiB`, `79.6 GiB`, `512 MiB`, `0`: the largest binary unit that keeps it at 1 or above, one decimal."""
    for factor, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size_bytes} bytes" if size_bytes else "0"
