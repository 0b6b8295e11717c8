"""A share lies on one GPU: beside its NICs, on the fullest GPU it fits, on a new one only where that harms least."""

from __future__ import annotations

from topoalloc.placement.ask import Ask
from topoalloc.placement.board import Board
from topoalloc.placement.leftover import left_bandwidths
from topoalloc.placement.nearness import positions
from topoalloc.placement.nics import Found, closeness_bounds, settle
from topoalloc.placement.offer import Offer, Want


def best_share(board: Board, ask: Ask, want: Want, offer: Offer) -> Found:
    """The GPU of a share and its NICs; `ask` is known to be satisfiable."""
    gpus = positions(ask.fixed or ask.usable)
    sets = [1 << gpu for gpu in gpus]
    left = left_bandwidths(board, [ask.idle & ~gpu for gpu in sets])
    middle: list[tuple[int, ...]] = [
        (-opened(offer, gpu), -room_left(offer, gpu, want), quality) for gpu, quality in zip(gpus, left, strict=True)
    ]
    return settle(board, ask, sets, closeness_bounds(board, ask, sets), middle)


def opened(offer: Offer, gpu: int) -> int:
    """1 if the share would be the first on a GPU that could be given whole, else 0."""
    return 1 if offer.gpus[gpu].whole_free else 0


def room_left(offer: Offer, gpu: int, want: Want) -> int:
    """Per cent of the GPU's cores that stay free plus per cent of its memory that does."""
    here = offer.gpus[gpu]
    cores = here.cores_free - want.cores
    if here.memory_units_free is None:
        return cores
    whole = here.memory_units or max(other.memory_units_free or 0 for other in offer.gpus)
    return cores + (here.memory_units_free - want.memory_units) * 100 // max(1, whole)
