"""A node over weeks: containers come and go, each gets what `choose` says; how good were the answers?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from topoalloc.placement.board import Board
from topoalloc.placement.choose import Choice, choose
from topoalloc.placement.offer import GpuOffer, Offer, Want

MEMORY_UNITS = 320
WHOLE_SIZES = ((1, 40), (2, 25), (4, 20), (8, 15))  # GPUs, per cent of requests


@dataclass
class Tally:
    """Counts over a stream; `bandwidth` and `bandwidth_best`: GB/s given, and of the best sets of an empty node."""

    asked: int = 0
    placed: int = 0
    with_nics: int = 0
    one_switch: int = 0
    one_node: int = 0
    bandwidth: int = 0
    bandwidth_best: int = 0


Demand = Callable[[Random], tuple[int, int]]


def whole_size(random: Random) -> int:
    return random.choices([size for size, _ in WHOLE_SIZES], [share for _, share in WHOLE_SIZES])[0]


def equal(random: Random) -> tuple[int, int]:
    """As many NICs as GPUs."""
    size = whole_size(random)
    return size, size


def mixed(random: Random) -> tuple[int, int]:
    """A quarter without NICs, some with fewer than GPUs."""
    size = whole_size(random)
    return size, random.choice((0, size, size, max(1, size // 2)))


def scarce(random: Random) -> tuple[int, int]:
    """A quarter wants a NIC only."""
    size = whole_size(random)
    return (0, 1) if random.random() < 0.25 else (size, size)


def stream(board: Board, demand: Demand, arrivals: int, seed: int, load: float = 0.75) -> Tally:
    """Whole GPUs and NICs of one pool, exponential gaps and holding times; what does not fit goes away."""
    random, tally = Random(seed), Tally()
    gpus, nics = set(range(len(board.gpu_ids))), set(range(len(board.nic_ids)))
    leaving: list[tuple[float, tuple[int, ...], tuple[int, ...]]] = []
    mean_size = sum(min(size, len(gpus)) * share for size, share in WHOLE_SIZES) / 100
    now = 0.0
    for _ in range(arrivals):
        now += random.expovariate(load * len(board.gpu_ids) / mean_size)
        for item in [item for item in leaving if item[0] <= now]:
            leaving.remove(item)
            gpus.update(item[1])
            nics.update(item[2])
        size, ports = demand(random)
        answer = choose(board, Want(100 * size, 0, (ports,) if ports else ()), _offer(board, gpus, nics, ports))
        tally.asked += 1
        if not isinstance(answer, Choice):
            continue
        taken = answer.nics[0] if answer.nics else ()
        _count(board, tally, answer)
        gpus.difference_update(answer.gpus)
        nics.difference_update(taken)
        leaving.append((now + random.expovariate(1.0), answer.gpus, taken))
    return tally


def _offer(board: Board, gpus: set[int], nics: set[int], ports: int) -> Offer:
    nobody = frozenset[int]()
    return Offer(
        gpus=tuple(
            GpuOffer(100 if gpu in gpus else 0, MEMORY_UNITS if gpu in gpus else 0, gpu in gpus, MEMORY_UNITS)
            for gpu in range(len(board.gpu_ids))
        ),
        nics_free=(frozenset(nics),) if ports else (),
        gpus_fixed=nobody,
        gpus_closed=nobody,
        nics_fixed=(nobody,) if ports else (),
        nics_idle=frozenset(nics),
    )


def _count(board: Board, tally: Tally, answer: Choice) -> None:
    terms = dict(answer.terms)
    tally.placed += 1
    if answer.gpus and answer.nics:
        tally.with_nics += 1
        tally.one_switch += terms["nics_on_same_switch"] == len(answer.nics[0])
        tally.one_node += terms["nics_within_numa_node"] == len(answer.nics[0])
    if len(answer.gpus) > 1 and board.tables:
        tally.bandwidth += terms["link_bandwidth"]
        tally.bandwidth_best += board.tables.bandwidth[board.tables.best_first[len(answer.gpus)][0]]
