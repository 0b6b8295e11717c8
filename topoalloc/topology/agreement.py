"""What several sources say of one fact: values that agree are kept, silence and doubt give way to knowledge, and
a contradiction is settled for the source given first and written down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Unknown

T = TypeVar("T")

# A contradiction repeats for every pair and device it touches; a report needs the kinds, not each instance.
WARNINGS_MAX = 200
_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Claim(Generic[T]):
    """What one source says of one fact; None: it is silent."""

    source: str
    value: T | Unknown | None


@dataclass(frozen=True, slots=True)
class _Contradiction:
    subject: str
    fact: str
    winner: str
    winning: str
    loser: str
    losing: str


class Agreement:
    """Settles facts one by one and keeps the contradictions met on the way."""

    def __init__(self) -> None:
        self._contradictions: list[_Contradiction] = []

    def on(
        self,
        subject: str,
        fact: str,
        claims: Iterable[Claim[T]],
        reconcile: Callable[[T, T], T | None] | None = None,
    ) -> T | Unknown | None:
        """The settled value of `fact` of `subject`; None where every source is silent.

        `reconcile` names the better of two different values that do not contradict each other (None: they do).
        It must not depend on the order of its arguments, so that the order of agreeing sources changes nothing.
        """
        best: Claim[T] | None = None
        doubts: set[str] = set()
        for claim in claims:
            if claim.value is None:
                continue
            if isinstance(claim.value, Unknown):
                doubts.add(claim.value.evidence)
                continue
            best = self._better(subject, fact, best, claim, claim.value, reconcile)
        if best is not None:
            return best.value
        return Unknown("; ".join(sorted(doubts))) if doubts else None

    def _better(
        self,
        subject: str,
        fact: str,
        best: Claim[T] | None,
        claim: Claim[T],
        value: T,
        reconcile: Callable[[T, T], T | None] | None,
    ) -> Claim[T]:
        if best is None:
            return claim
        assert best.value is not None and not isinstance(best.value, Unknown)
        if best.value == value:
            return best
        settled = reconcile(best.value, value) if reconcile else None
        if settled is not None:
            return best if settled == best.value else Claim(claim.source, settled)
        self._contradictions.append(
            _Contradiction(subject, fact, best.source, str(best.value), claim.source, str(value))
        )
        return best

    def warnings(self) -> tuple[str, ...]:
        """One line per fact and pair of sources, with the first device it was seen on and how many more."""
        first: dict[tuple[str, str, str], _Contradiction] = {}
        more: dict[tuple[str, str, str], int] = {}
        for found in self._contradictions:
            kind = (found.fact, found.winner, found.loser)
            more[kind] = more.get(kind, -1) + 1
            first.setdefault(kind, found)
        lines = [_line(found, more[kind]) for kind, found in first.items()]
        if len(lines) > WARNINGS_MAX:
            lines[WARNINGS_MAX:] = [f"{len(lines) - WARNINGS_MAX} more contradictions between the sources"]
        return tuple(lines)


def _line(found: _Contradiction, more: int) -> str:
    others = f" (and {more} more like it)" if more else ""
    return (
        f"{found.subject}: {found.fact} is {found.winning} by {found.winner} and {found.losing} by {found.loser}"
        f"{others}; {found.winner} wins"
    )


def longer_list(a: CpuSet, b: CpuSet) -> CpuSet | None:
    """A CPU list cut by a cpuset or by offline CPUs contradicts nothing; the longer one is the machine's."""
    if a & b == a:
        return b
    return a if a & b == b else None


def uncut_size(a: int, b: int) -> int | None:
    """Tools cut sizes to whole MiB (`numactl -H`, `nvidia-smi`), so within one MiB the larger is the exact one."""
    return max(a, b) if abs(a - b) < _MEBIBYTE else None


def fuller_name(a: str, b: str) -> str | None:
    """`A100-SXM4-40GB`, `NVIDIA A100-SXM4-40GB` and `GA100 [A100 SXM4 40GB]` are one model; the driver's name wins."""
    short, long = sorted((a, b), key=lambda name: (len(model_words(name)), name))
    if not model_words(short) <= model_words(long):
        return None
    return min((a, b), key=lambda name: ("[" in name, -len(name), name))


def model_words(name: str) -> frozenset[str]:
    """The words of a model name that tell one model from another, whoever spells it."""
    text = name.lower()
    for sign in "[]()/-_,":
        text = text.replace(sign, " ")
    return frozenset(text.split()) - {"nvidia", "corporation", "tesla", "amd", "ati", "instinct", "inc."}
