"""One share as it was read at a moment, and what its container did between two of them. Pure.

Counters are the tenant's: they may go back or leap, so every figure is held within what is possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from topoalloc.sharing.share_file import CORES_FULL, ShareLimits, ShareRefusal
from topoalloc.sharing.usage import Usage, UsageRefusal


@dataclass(frozen=True, slots=True)
class ShareSample:
    """`inode` of its directory, which is a new one for every grant; `usage` is of CLOCK_MONOTONIC time `at_ns`."""

    name: str
    inode: int
    limits: ShareLimits | ShareRefusal
    usage: Usage | UsageRefusal
    at_ns: int


@dataclass(frozen=True, slots=True)
class UsageRate:
    """`cores`: GPU time in hundredths of a percent; `waiting`: the part of the time, 0 to 1, in which launches were
    held back, on average over the processes."""

    cores: int
    waiting: float


def rate_of(before: ShareSample | None, now: ShareSample) -> UsageRate | None:
    """The rate between two samples of one grant; None where there are not two, or one could not be read."""
    if before is None or before.inode != now.inode or now.at_ns <= before.at_ns:
        return None
    if not isinstance(before.usage, Usage) or not isinstance(now.usage, Usage):
        return None
    interval_ns = now.at_ns - before.at_ns
    gpu_time_ns = max(0, now.usage.gpu_time_ns - before.usage.gpu_time_ns)
    waited_ns = max(0, now.usage.waited_ns - before.usage.waited_ns)
    processes = max(1, len(now.usage.processes))
    return UsageRate(
        cores=min(CORES_FULL, gpu_time_ns * CORES_FULL // interval_ns),
        waiting=min(1.0, waited_ns / (interval_ns * processes)),
    )


def rates_of(before: Mapping[str, ShareSample], now: Iterable[ShareSample]) -> dict[str, UsageRate]:
    """The rates that are known, by the share's name."""
    rates = ((sample.name, rate_of(before.get(sample.name), sample)) for sample in now)
    return {name: rate for name, rate in rates if rate is not None}
