"""How long a choice takes: `make bench PYTEST_ARGS="-k placement"`. Figures are printed, never judged.

Each round is another random state: so many GPUs free, so many asked, and where NICs are wanted as many as GPUs out of
those free. `fresh` forgets all remembered answers before every round, `seen` asks what was asked before.
"""

from __future__ import annotations

from random import Random

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.placement.worlds import (
    DGX_A100,
    HGX_H100,
    PCIE_UNEVEN,
    V100_MESH,
    GpuOffer,
    even_tree,
    mesh,
    random_tree,
    recorded,
    whole_offer,
)
from topoalloc.placement.board import Board, board_of
from topoalloc.placement.choose import choose
from topoalloc.placement.offer import Offer, Want
from topoalloc.topology.machine import Machine

pytestmark = pytest.mark.slow

ROUNDS = 500


def machine(name: str) -> Machine:
    made = {
        "V100 mesh, 8": lambda: recorded(V100_MESH),
        "A100 NPS4, 8": lambda: recorded(DGX_A100),
        "H100, 8": lambda: recorded(HGX_H100),
        "PCIe, 8": lambda: recorded(PCIE_UNEVEN),
        "uniform, 16": lambda: even_tree(16, 8, nodes=2, switches=8, nvlinks=6),
        "PCIe, 16": lambda: even_tree(16, 8, nodes=2, switches=4),
        "random, 16": lambda: random_tree(Random(5), 16, 8),
        "mesh, 16": lambda: mesh(Random(5), 16),
        "all equal, 16": lambda: even_tree(16, 16, nodes=1, switches=16, nvlinks=6),
        "8 x 8, 64": lambda: even_tree(64, 8, nodes=8, switches=8),
    }
    return made[name]()


SMALL = ("V100 mesh, 8", "A100 NPS4, 8", "H100, 8", "PCIe, 8")
SIXTEEN = ("uniform, 16", "PCIe, 16", "random, 16", "mesh, 16", "all equal, 16")


def states(board: Board, *, nics: bool) -> list[tuple[Want, Offer]]:
    random, gpus, ports = Random(1), len(board.gpu_ids), len(board.nic_ids)
    made: list[tuple[Want, Offer]] = []
    for _ in range(ROUNDS):
        size = random.randint(1, gpus)
        free = random.sample(range(gpus), random.randint(size, gpus))
        free_nics = frozenset(nic for nic in range(ports) if random.random() < 0.8)
        wanted = (min(size, len(free_nics)),) if nics else ()
        made.append((Want(100 * size, 0, wanted), whole_offer(gpus, free, (free_nics,) if nics else ())))
    return made


def run(benchmark: BenchmarkFixture, board: Board, calls: list[tuple[Want, Offer]], *, fresh: bool) -> None:
    for call in calls:
        choose(board, *call)
    following = iter(calls * 2)

    def state() -> tuple[tuple[Board, Want, Offer], dict[str, object]]:
        if fresh:
            board.memo.clear()
        return (board, *next(following)), {}

    benchmark.pedantic(choose, setup=state, rounds=len(calls), warmup_rounds=0)


@pytest.mark.parametrize("name", (*SMALL, *SIXTEEN, "8 x 8, 64"))
def test_bench_whole_gpus_fresh(benchmark: BenchmarkFixture, name: str) -> None:
    board = board_of(machine(name))
    run(benchmark, board, states(board, nics=False), fresh=True)


@pytest.mark.parametrize("name", SMALL)
def test_bench_whole_gpus_seen(benchmark: BenchmarkFixture, name: str) -> None:
    board = board_of(machine(name))
    run(benchmark, board, states(board, nics=False), fresh=False)


@pytest.mark.parametrize(
    "name", ("V100 mesh, 8", "A100 NPS4, 8", "H100, 8", "uniform, 16", "PCIe, 16", "all equal, 16")
)
def test_bench_whole_gpus_with_nics_fresh(benchmark: BenchmarkFixture, name: str) -> None:
    board = board_of(machine(name))
    run(benchmark, board, states(board, nics=True), fresh=True)


@pytest.mark.parametrize("nics", [False, True], ids=["alone", "with a NIC"])
def test_bench_a_share(benchmark: BenchmarkFixture, *, nics: bool) -> None:
    random, board = Random(1), board_of(machine("H100, 8"))
    calls: list[tuple[Want, Offer]] = []
    for _ in range(ROUNDS):
        gpus = tuple(GpuOffer(random.randrange(30, 100), random.randrange(100, 320), False, 320) for _ in range(8))
        offer = whole_offer(8, [], (frozenset(random.sample(range(13), 6)),) if nics else ())
        offer = Offer(gpus, offer.nics_free, offer.gpus_fixed, offer.gpus_closed, offer.nics_fixed)
        calls.append((Want(30, 50, (1,) if nics else ()), offer))
    run(benchmark, board, calls, fresh=True)


@pytest.mark.parametrize("name", ("H100, 8", "uniform, 16", "random, 16"))
def test_bench_building_a_board(benchmark: BenchmarkFixture, name: str) -> None:
    made = machine(name)
    benchmark.pedantic(board_of, args=(made,), rounds=5)
