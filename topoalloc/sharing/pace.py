"""How much GPU time each elastic share may take at this moment: its own, and what the others leave idle. Pure.

Looked at several times a second. What a share is not using is lent out at once and taken back at once: its owner never
waits for it, because the limit of a share is never below its own cores, whatever others were lent; for one period the
limits may add up to more than the GPU, and the GPU then divides itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType

from topoalloc.sharing.share_file import CORES_FULL, ShareLimits
from topoalloc.sharing.share_sample import ShareSample, rate_of
from topoalloc.sharing.usage import Usage

PACE_PERIOD_S = 0.2
# A share counts as using the most that it used within so many periods (one second): work comes in bursts, and the time
# between two of them is not idle.
PERIODS_KEPT = 5
WANTING_NS = 1_000_000_000  # a launch held back this long ago still says that more is wanted
# From this part of its cores on a share wants them all, or more, although nothing has held it back lately: what was
# lent to it may be all it can use.
WANTS_FROM_PERCENT = 90
# A figure over more than those periods is an average that hides the most which was used in any of them.
FIGURE_NS_MAX = round(PERIODS_KEPT * PACE_PERIOD_S * 1e9)
# Kept free beside what a share uses, so that it has begun to grow before its time has to be taken back.
MARGIN_CORES = 200


@dataclass(frozen=True, slots=True)
class PaceShare:
    """One share of a GPU. `used`: hundredths of a percent over the last period, None: not known; `wanting`: it was held
    back lately."""

    name: str
    cores: int
    cores_max: int
    used: int | None
    wanting: bool


@dataclass(frozen=True, slots=True)
class PaceState:
    """What each share of one GPU used in the last periods, oldest first."""

    used: Mapping[str, tuple[int | None, ...]] = field(default_factory=lambda: MappingProxyType({}))


def is_wanting(wanting_at_ns: int, now_ns: int) -> bool:
    """Whether a launch was held back just now. A time to come is no time."""
    return 0 < wanting_at_ns <= now_ns and now_ns - wanting_at_ns <= WANTING_NS


def pace_share(before: ShareSample | None, now: ShareSample) -> PaceShare | None:
    """One share as it was read now and a period before; None where its limits cannot be read."""
    limits, usage = now.limits, now.usage
    if not isinstance(limits, ShareLimits):
        return None
    wanting = isinstance(usage, Usage) and is_wanting(usage.wanting_at_ns, now.at_ns)
    return PaceShare(now.name, limits.cores, limits.cores_max, _used(before, now), wanting)


def _used(before: ShareSample | None, now: ShareSample) -> int | None:
    """Hundredths of a percent over the last period. Not known of a share that is seen for the first time (it may have
    run for days before the agent's start), whose account cannot be read, or that was not looked at for long."""
    if isinstance(now.usage, Usage) and now.usage.launches == 0 and now.usage.gpu_time_ns == 0:
        return 0  # it has not begun
    rate = rate_of(before, now)
    if before is None or rate is None or now.at_ns - before.at_ns > FIGURE_NS_MAX:
        return None
    return rate.cores


def pace(state: PaceState, shares: Sequence[PaceShare]) -> tuple[PaceState, Mapping[str, int]]:
    """What each elastic share of one GPU may take from now on, in hundredths of a percent, by name.

    Never below its cores, never above its cores-max. Where the cores of all shares fit the GPU, what is lent and what
    the shares are taken to need for themselves fit it too. What is not known of a share lends nothing: not its time to
    others, and no time of theirs to it.
    """
    used = {share.name: (*state.used.get(share.name, ()), share.used)[-PERIODS_KEPT:] for share in shares}
    asking = {share.name for share in shares if share.wanting or _is_near(share, used[share.name])}
    idle = CORES_FULL - sum(
        share.cores if share.name in asking else _needed(share, used[share.name]) for share in shares
    )
    elastic = [share for share in shares if share.cores_max > share.cores]
    lent = _lent(max(0, idle), [share for share in elastic if share.name in asking])
    allowed = {share.name: share.cores + lent.get(share.name, 0) for share in elastic}
    return PaceState(MappingProxyType(used)), allowed


def forgetting(state: PaceState, names: Set[str]) -> PaceState:
    """The state without these shares, of which there are new ones under the same names."""
    return PaceState(MappingProxyType({name: used for name, used in state.used.items() if name not in names}))


def _is_near(share: PaceShare, used: Sequence[int | None]) -> bool:
    """Whether a share uses so much of its own cores that it will want them all, or more; not by what it used before a
    period of which nothing is known."""
    if share.used is None:
        return False
    return max(figure for figure in used if figure is not None) * 100 >= share.cores * WANTS_FROM_PERCENT


def _needed(share: PaceShare, used: Sequence[int | None]) -> int:
    """What is kept free for a share that does not ask; all of its cores where the most that it used is not known."""
    most = 0
    for figure in used:
        if figure is None:
            return share.cores
        most = max(most, figure)
    return min(share.cores, most + MARGIN_CORES)


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
