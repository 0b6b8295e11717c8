"""Sets of CPU numbers and their Linux spellings (lists and masks)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

CPU_NUMBER_MAX = 65_535  # larger than any Linux NR_CPUS; bounds what a hostile list such as 0-99999999 can cost


@dataclass(frozen=True, slots=True)
class CpuSet:
    """An immutable set of CPU numbers held as the bits of one integer."""

    bits: int = 0

    def __iter__(self) -> Iterator[int]:
        bits = self.bits
        while bits:
            low = bits & -bits
            yield low.bit_length() - 1
            bits ^= low

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __bool__(self) -> bool:
        return self.bits != 0

    def __contains__(self, cpu: int) -> bool:
        return cpu >= 0 and bool(self.bits >> cpu & 1)

    def __or__(self, other: CpuSet) -> CpuSet:
        return CpuSet(self.bits | other.bits)

    def __and__(self, other: CpuSet) -> CpuSet:
        return CpuSet(self.bits & other.bits)

    def __sub__(self, other: CpuSet) -> CpuSet:
        return CpuSet(self.bits & ~other.bits)

    def __str__(self) -> str:
        """The Linux list spelling: `0-3,8,10-11`; empty for the empty set."""
        parts: list[str] = []
        first = previous = -2
        for cpu in self:
            if cpu == previous + 1:
                previous = cpu
                continue
            _append_range(parts, first, previous)
            first = previous = cpu
        _append_range(parts, first, previous)
        return ",".join(parts)

    @classmethod
    def of(cls, cpus: Iterable[int]) -> CpuSet:
        bits = 0
        for cpu in cpus:
            bits |= 1 << _checked(cpu)
        return cls(bits)

    @classmethod
    def from_list(cls, text: str) -> CpuSet:
        """Read `0-3,8`; strides (`0-6:2/4`) do not occur in sysfs. Raises ValueError."""
        bits = 0
        for part in text.strip().split(","):
            if not part.strip():
                continue
            match = re.fullmatch(r"\s*(\d{1,6})(?:\s*-\s*(\d{1,6}))?\s*", part)
            if match is None:
                raise ValueError(f"not a CPU list: {text.strip()[:80]!r}")
            low = _checked(int(match.group(1)))
            high = _checked(int(match.group(2) or low))
            if high < low:
                raise ValueError(f"not a CPU list: {part.strip()!r} runs backwards")
            bits |= ((1 << (high - low + 1)) - 1) << low
        return cls(bits)

    @classmethod
    def from_mask(cls, text: str) -> CpuSet:
        """Read comma-separated 32-bit hexadecimal words, most significant first; short and empty words count."""
        bits = 0
        for word in text.strip().split(","):
            digits = word.strip().lower().removeprefix("0x")
            if not re.fullmatch(r"[0-9a-f]{0,8}", digits):
                raise ValueError(f"not a CPU mask: {text.strip()[:80]!r}")
            bits = bits << 32 | int(digits or "0", 16)
            if bits.bit_length() > CPU_NUMBER_MAX + 1:
                raise ValueError(f"CPU mask names CPUs above {CPU_NUMBER_MAX}")
        return cls(bits)


def _append_range(parts: list[str], first: int, last: int) -> None:
    if first >= 0:
        parts.append(str(first) if first == last else f"{first}-{last}")


def _checked(cpu: int) -> int:
    if not 0 <= cpu <= CPU_NUMBER_MAX:
        raise ValueError(f"CPU number {cpu} is outside 0-{CPU_NUMBER_MAX}")
    return cpu
