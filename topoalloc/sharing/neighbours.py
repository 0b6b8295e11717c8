"""What the other shares of a GPU took lately, as a share's own library is told. Pure.

A timed launch is long because its kernel was, or because time slices of a neighbour lie in it. The library cannot tell,
so it judges what it charged by times in which there was no neighbour (shim/audit.c).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from topoalloc.sharing.share_file import CORES_FULL

# Looks whose highest figure is told: at one look a second they cover the library's longest window and its wait for the
# word (NEIGHBOURS_SEEN_NS), and a kernel of that length, which is charged when it is launched.
LOOKS_KEPT = 11


@dataclass(frozen=True, slots=True)
class Looks:
    """What each share of one GPU took between two looks, in hundredths of a percent, by name; the latest last."""

    taken: tuple[Mapping[str, int], ...] = ()


def with_look(looks: Looks, taken: Mapping[str, int]) -> Looks:
    """One look more. `taken`: a share of which nothing is known counts with all that it was granted."""
    return Looks((*looks.taken, taken)[-LOOKS_KEPT:])


def neighbours(looks: Looks) -> Mapping[str, int]:
    """For each share of the latest look the most that the others took together in one of the looks kept; nothing while
    there were too few of them."""
    if len(looks.taken) < LOOKS_KEPT:
        return {}
    return {
        name: min(CORES_FULL, max(sum(look.values()) - look.get(name, 0) for look in looks.taken))
        for name in looks.taken[-1]
    }
