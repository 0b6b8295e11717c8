"""The terms a choice is judged by, in order of importance, with what they mean and which way is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from topoalloc.placement.ask import Ask
from topoalloc.placement.board import Board
from topoalloc.placement.leftover import left_bandwidths, left_localities, set_bandwidths, set_localities
from topoalloc.placement.nearness import counts_of, mask_of
from topoalloc.placement.nics import Found, seats_of
from topoalloc.placement.offer import Offer, Want
from topoalloc.placement.share import opened, room_left
from topoalloc.sharing.settings import CORES_PER_GPU

Terms = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a term counts, in which unit; `higher_is_better` False: lower is."""

    what: str
    unit: str
    higher_is_better: bool


LINK_BANDWIDTH = "link_bandwidth"
NIC_TERMS = ("nics_on_same_switch", "nics_within_host_bridge", "nics_within_numa_node", "nics_one_bridge_away")
NEW_GPUS = "new_gpus_opened"
ROOM_LEFT = "room_left"
LEFTOVER_BANDWIDTH = "leftover_bandwidth"
LOCALITY = "locality"
SPARE_TERMS = ("spare_on_same_switch", "spare_within_host_bridge", "spare_within_numa_node", "spare_one_bridge_away")
LEFTOVER_LOCALITY = "leftover_locality"
SEARCH_COMPLETE = "search_complete"

MEANINGS: Mapping[str, Meaning] = MappingProxyType(
    {
        LINK_BANDWIDTH: Meaning("links between the GPUs of the set, over all pairs", "GB/s", True),
        NIC_TERMS[0]: Meaning("NICs below one PCIe switch with their GPU (PIX, PXB)", "NICs", True),
        NIC_TERMS[1]: Meaning("NICs below one host bridge with their GPU, or nearer (PHB)", "NICs", True),
        NIC_TERMS[2]: Meaning("NICs in one NUMA node with their GPU, or nearer (NODE)", "NICs", True),
        NIC_TERMS[3]: Meaning("NICs one bridge away from their GPU (PIX)", "NICs", True),
        NEW_GPUS: Meaning("untouched GPUs that the share would break into", "GPUs", False),
        ROOM_LEFT: Meaning(
            "cores and memory that stay free on the GPU of the share", "% of cores + % of memory", False
        ),
        LEFTOVER_BANDWIDTH: Meaning("bandwidth of the 2-, 4- and 8-sets that free GPUs still form", "millionths", True),
        LOCALITY: Meaning("PCIe and NUMA nearness of the GPUs, over all pairs", "points", True),
        SPARE_TERMS[0]: Meaning("free NICs below one switch with a free GPU of their own", "NICs", True),
        SPARE_TERMS[1]: Meaning("free NICs below one host bridge with a free GPU of their own", "NICs", True),
        SPARE_TERMS[2]: Meaning("free NICs in one NUMA node with a free GPU of their own", "NICs", True),
        SPARE_TERMS[3]: Meaning("free NICs one bridge away from a free GPU of their own", "NICs", True),
        LEFTOVER_LOCALITY: Meaning("nearness of the 2-, 4- and 8-sets that free GPUs still form", "millionths", True),
        SEARCH_COMPLETE: Meaning("1: nothing better exists; 0: a search limit was reached", "", True),
    }
)


def value_terms(board: Board, gpus: Sequence[int], nics: Sequence[Sequence[int]]) -> Terms:
    """What a given set is worth by itself: `gpus` positions, `nics` positions for each pool (may be empty)."""
    mask = mask_of(gpus)
    near = sum(board.pairings.closeness(mask, seats_of(len(pool), mask.bit_count()), mask_of(pool)) for pool in nics)
    return (
        (LINK_BANDWIDTH, set_bandwidths(board, [mask])[0]),
        *(_counted(NIC_TERMS, near) if any(nics) else ()),
        (LOCALITY, set_localities(board, [mask])[0]),
    )


def terms_of(board: Board, ask: Ask, want: Want, offer: Offer, found: Found) -> Terms:
    """The terms of a choice in the order in which they decided."""
    gpus, rest = found.gpus, ask.idle & ~found.gpus
    terms: list[tuple[str, int]] = []
    whole = want.cores >= CORES_PER_GPU
    if whole:
        terms.append((LINK_BANDWIDTH, set_bandwidths(board, [gpus])[0]))
    if ask.pools and gpus:
        terms += _counted(NIC_TERMS, found.picked.near)
    if gpus and not whole:
        gpu = gpus.bit_length() - 1
        terms += ((NEW_GPUS, opened(offer, gpu)), (ROOM_LEFT, room_left(offer, gpu, want)))
    if gpus:
        terms.append((LEFTOVER_BANDWIDTH, left_bandwidths(board, [rest])[0]))
    if whole:
        terms.append((LOCALITY, set_localities(board, [gpus])[0]))
    if ask.pools or ask.nics_idle:
        terms += _counted(SPARE_TERMS, found.picked.spare)
    if gpus:
        terms.append((LEFTOVER_LOCALITY, left_localities(board, [rest])[0]))
    terms.append((SEARCH_COMPLETE, int(found.complete)))
    return tuple(terms)


def _counted(names: tuple[str, ...], value: int) -> list[tuple[str, int]]:
    return list(zip(names, counts_of(value), strict=True))
