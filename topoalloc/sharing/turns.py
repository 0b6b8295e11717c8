"""Whose turn a GPU is while the shares at work want more of it than there is. Pure.

A GPU that several containers keep busy changes between them every few milliseconds and loses a tenth of its time to
that, so shares which fill it cannot all be had. Where each of them launches in a part of every period of its own,
the GPU changes as often as there are shares in a period (shim/credit.c).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from topoalloc.sharing.pace import is_wanting
from topoalloc.sharing.share_file import CORES_FULL
from topoalloc.sharing.share_sample import ShareSample, UsageRate
from topoalloc.sharing.told_files import TURN_PERIOD_US, Turn
from topoalloc.sharing.usage import Usage

# At the end of a turn, for what was launched last to be done and the GPU to change. Without it the turns run into each
# other, and the GPU changes as often as before.
CHANGE_US = 750
# From here on shares at work are so often on the GPU at the same time that changing between them is felt.
TURNS_FROM_CORES = 7_500
# A share that takes this part of its cores is at work, although nothing held it back: the others may leave it no more.
AT_WORK_PERCENT = 70
# Work comes in bursts, and every share that comes or goes moves the turns of the others: it counts for so many looks.
WORK_LOOKS = 3
# A smaller one goes as it can: its turn would be all change, and it is on the GPU seldom enough.
TURN_FROM_CORES = 500
# A share that gets less than this part of what its turn holds, for so many looks in a row, has a program that cannot
# keep a GPU busy, or a GPU that somebody else has too. It fares better without turns, and has none for so many looks.
SHORT_PERCENT = 85
SHORT_LOOKS = 5
REST_LOOKS = 30


@dataclass(frozen=True, slots=True)
class TurnShare:
    """One share of a GPU. `cores`: what it may take at this moment, in hundredths of a percent; `used`: what it took
    between the last two looks, None: not known."""

    name: str
    cores: int
    is_at_work: bool
    used: int | None = None


@dataclass(frozen=True, slots=True)
class TurnsState:
    """Of one GPU, by the names of shares: what the turns of the last look hold (hundredths of a percent), in how many
    looks of a row a share fell short, how many more it has no turn, and how many more it counts as at work."""

    held: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    short_looks: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    rest_looks: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    work_looks: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


def turn_share(sample: ShareSample, cores: int, rate: UsageRate | None) -> TurnShare:
    """A share as it was read, and what it took since it was read before; None: not known."""
    wanting = isinstance(sample.usage, Usage) and is_wanting(sample.usage.wanting_at_ns, sample.at_ns)
    used = None if rate is None else rate.cores
    busy = used is not None and used * 100 >= cores * AT_WORK_PERCENT > 0
    return TurnShare(sample.name, cores, wanting or busy, used)


def turns_after(state: TurnsState, shares: Sequence[TurnShare]) -> tuple[TurnsState, Mapping[str, Turn]]:
    """The turns of one GPU from this look to the next."""
    short, resting, working = dict[str, int](), dict[str, int](), dict[str, int]()
    for share in shares:
        name = share.name
        short[name] = state.short_looks.get(name, 0) + 1 if _is_short(share, state) else 0
        resting[name] = max(0, state.rest_looks.get(name, 0) - 1)
        if short[name] >= SHORT_LOOKS:
            short[name], resting[name] = 0, REST_LOOKS
        working[name] = WORK_LOOKS if share.is_at_work else max(0, state.work_looks.get(name, 0) - 1)
    given = turns([share for share in shares if working[share.name] and not resting[share.name]])
    cores = {share.name: share.cores for share in shares}
    held = {name: min(cores[name], turn.length_us * CORES_FULL // TURN_PERIOD_US) for name, turn in given.items()}
    return TurnsState(*(MappingProxyType(each) for each in (held, short, resting, working))), given


def _is_short(share: TurnShare, state: TurnsState) -> bool:
    held = state.held.get(share.name)
    return held is not None and share.used is not None and share.used * 100 < held * SHORT_PERCENT


def turns(shares: Sequence[TurnShare]) -> Mapping[str, Turn]:
    """Turns of shares at work, which fill the period in proportion to their cores, in the order of their names; of none
    where those of TURN_FROM_CORES and more are fewer than two, or claim less than TURNS_FROM_CORES together."""
    taking = sorted((share for share in shares if share.cores >= TURN_FROM_CORES), key=lambda share: share.name)
    claimed = sum(share.cores for share in taking)
    if len(taking) < 2 or claimed < TURNS_FROM_CORES:
        return {}
    if any(TURN_PERIOD_US * share.cores // claimed < 2 * CHANGE_US for share in taking):
        return {}  # claims that no GPU has, from files in change
    given: dict[str, Turn] = {}
    before = 0
    for share in taking:
        from_us = TURN_PERIOD_US * before // claimed
        before += share.cores
        given[share.name] = Turn(from_us, TURN_PERIOD_US * before // claimed - from_us - CHANGE_US)
    return given
