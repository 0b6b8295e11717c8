"""Which GPUs and NICs a container gets, by one documented order of terms (docs/PLACEMENT.md).

Integers only; the last term is the lowest mask of positions, so no two answers are ever equal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from topoalloc.placement.ask import Ask, ask_of, whole_free
from topoalloc.placement.board import Board
from topoalloc.placement.large import best_large
from topoalloc.placement.nearness import positions
from topoalloc.placement.nics import Found, pick_nics
from topoalloc.placement.offer import Offer, Want
from topoalloc.placement.refusal import malformed, reasons_against
from topoalloc.placement.share import best_share
from topoalloc.placement.terms import MEANINGS, Meaning, Terms, terms_of, value_terms
from topoalloc.placement.whole import best_whole
from topoalloc.sharing.settings import CORES_PER_GPU

__all__ = ["MEANINGS", "Choice", "Meaning", "NoChoice", "choose", "value_terms"]

# Whole-GPU answers remembered for each board, about 1 KiB each; an 8-GPU node without NICs has a few hundred states.
MEMO_MAX = 4096


@dataclass(frozen=True, slots=True)
class Choice:
    """The answer: sorted positions of GPUs (one for a share, none if only NICs are asked) and of NICs for each pool.

    `terms`: what decided, most important first; `MEANINGS` explains the names.
    """

    gpus: tuple[int, ...]
    nics: tuple[tuple[int, ...], ...]
    terms: Terms


@dataclass(frozen=True, slots=True)
class NoChoice:
    """Nothing fits: what is missing, and what would have had to be free."""

    reasons: tuple[str, ...]


def choose(board: Board, want: Want, offer: Offer) -> Choice | NoChoice:
    """The best answer to a want, or why there is none. Same arguments, same answer."""
    if want.memory_units or 0 < want.cores < CORES_PER_GPU:
        return _chosen(board, want, offer)
    # All that an answer without memory and shares depends on.
    gpus = len(offer.gpus), whole_free(offer), offer.gpus_fixed, offer.gpus_closed, offer.gpus_idle
    key = want, gpus, offer.nics_free, offer.nics_fixed, offer.nics_idle
    known = board.memo.get(key)
    if isinstance(known, Choice | NoChoice):
        return known
    answer = _chosen(board, want, offer)
    if len(board.memo) >= MEMO_MAX:
        board.memo.clear()
    board.memo[key] = answer
    return answer


def _chosen(board: Board, want: Want, offer: Offer) -> Choice | NoChoice:
    fault = malformed(board, want, offer)
    if fault is not None:
        return NoChoice((fault,))
    ask = ask_of(want, offer)
    if not ask.satisfiable():
        return NoChoice(reasons_against(board, want, offer, ask))
    found = _search(board, ask, want, offer)
    return Choice(
        gpus=positions(found.gpus),
        nics=tuple(map(positions, found.picked.nics)),
        terms=terms_of(board, ask, want, offer, found),
    )


def _search(board: Board, ask: Ask, want: Want, offer: Offer) -> Found:
    if want.cores >= CORES_PER_GPU:
        found = best_whole(board, board.tables, ask) if board.tables else best_large(board, ask)
    elif ask.size:
        found = best_share(board, ask, want, offer)
    else:
        found = Found(0, pick_nics(board, ask, 0), complete=True)
    # Pools that share NICs take turns, which need not be the best for them together.
    return found if not ask.entangled else replace(found, complete=False)
