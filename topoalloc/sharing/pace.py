"""How much GPU time each elastic share may take at this moment: its own, and what the others leave idle. Pure.

Looked at several times a second. What a share is not using is lent out at once and taken back at once: its owner never
waits for it, because the limit of a share is never below its own cores, whatever others were lent; for one period the
limits may add up to more than the GPU, and the GPU then divides itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from topoalloc.sharing.share_file import CORES_FULL

PACE_PERIOD_S = 0.2
# A share counts as using the most that it used within so many periods (one second): work comes in bursts, and the time
# between two of them is not idle.
PERIODS_KEPT = 5
WANTING_NS = 1_000_000_000  # a launch held back this long ago still says that more is wanted
# From this part of its cores on a share wants them all, or more, although nothing has held it back lately: what was
# lent to it may be all it can use.
WANTS_FROM_PERCENT = 90
# Kept free beside what a share uses, so that it has begun to grow before its time has to be taken back.
MARGIN_CORES = 200


@dataclass(frozen=True, slots=True)
class PaceShare:
    """One share of a GPU. `used`: hundredths of a percent over the last period; `wanting`: it was held back lately."""

    name: str
    cores: int
    cores_max: int
    used: int
    wanting: bool


@dataclass(frozen=True, slots=True)
class PaceState:
    """What each share of one GPU used in the last periods, oldest first."""

    used: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))


def is_wanting(wanting_at_ns: int, now_ns: int) -> bool:
    """Whether a launch was held back just now. A time to come is no time."""
    return 0 < wanting_at_ns <= now_ns and now_ns - wanting_at_ns <= WANTING_NS


def pace(state: PaceState, shares: Sequence[PaceShare]) -> tuple[PaceState, Mapping[str, int]]:
    """What each elastic share of one GPU may take from now on, in hundredths of a percent, by name.

    Never below its cores, never above its cores-max. Where the cores of all shares fit the GPU, what is lent and what
    the shares are taken to need for themselves fit it too.
    """
    used = {share.name: (*state.used.get(share.name, ()), share.used)[-PERIODS_KEPT:] for share in shares}
    askers = [share for share in shares if share.wanting or _is_near(share, max(used[share.name]))]
    asking = {share.name for share in askers}
    idle = CORES_FULL - sum(
        share.cores if share.name in asking else min(share.cores, max(used[share.name]) + MARGIN_CORES)
        for share in shares
    )
    elastic = [share for share in shares if share.cores_max > share.cores]
    lent = _lent(max(0, idle), [share for share in elastic if share.name in asking])
    allowed = {share.name: share.cores + lent.get(share.name, 0) for share in elastic}
    return PaceState(MappingProxyType(used)), allowed


def _is_near(share: PaceShare, used: int) -> bool:
    """Whether a share uses so much of its own cores that it will want them all, or more."""
    return used * 100 >= share.cores * WANTS_FROM_PERCENT


def _lent(idle: int, askers: Sequence[PaceShare]) -> dict[str, int]:
    """Divide idle time in proportion to cores, each up to its cores-max: the highest level that fits, so that more
    idle time, or fewer askers, never gives anybody less."""
    low, high = 0, CORES_FULL * CORES_FULL
    while low < high:
        level = (low + high + 1) // 2
        if sum(_at_level(share, level) for share in askers) <= idle:
            low = level
        else:
            high = level - 1
    return {share.name: _at_level(share, low) for share in askers}


def _at_level(share: PaceShare, level: int) -> int:
    return min(share.cores_max - share.cores, level * share.cores // CORES_FULL)
