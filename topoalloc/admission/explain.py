"""Why a merge was not admitted, in words and as data, and what would have had to be free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from topoalloc.admission.hints import Hints, ProviderAnswer
from topoalloc.admission.policy import NumaInfo, Options, Policy


@dataclass(frozen=True, slots=True)
class Supply:
    """How much of a resource each NUMA node has in all and free, and how much was asked for."""

    request: int
    total: Mapping[int, int] = field(default_factory=dict)
    free: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Demand:
    """One resource's say in the merge. `usable`: the masks that the policy could have admitted, narrowest first."""

    provider: str
    resource: str
    hints: Hints
    usable: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """`sentence` says why in one line; `remedy` what would have had to be free or asked for.

    `conflict` is the pair (or, where no pair suffices, the group) of demands that cannot meet; `demands` all of
    them that have an opinion.
    """

    sentence: str
    remedy: str
    demands: tuple[Demand, ...]
    conflict: tuple[Demand, ...]


def explain(
    policy: Policy,
    options: Options,
    answers: Iterable[tuple[str, ProviderAnswer]],
    numa: NumaInfo,
    supplies: Mapping[str, Supply] | None = None,
) -> Explanation | None:
    """Why the policy refuses these answers (pairs of provider name and answer); None when it admits them."""
    raise NotImplementedError
