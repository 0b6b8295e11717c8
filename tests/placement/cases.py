"""Random wants and offers, for hypothesis and for sampled states."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hypothesis import strategies as st

from tests.placement.worlds import MEMORY_UNITS, RECORDED, TAKEN, UNTOUCHED, mesh, random_tree, recorded
from topoalloc.placement.offer import GpuOffer, Offer, Want
from topoalloc.topology.machine import Machine

Case = tuple[Machine, Want, Offer]


def small_machines() -> st.SearchStrategy[Machine]:
    """Recorded machines of at most 8 GPUs, and synthetic ones of at most 6 GPUs and NICs."""
    trees = st.builds(random_tree, _randoms(), st.integers(1, 6), st.integers(0, 6))
    meshes = st.builds(mesh, _randoms(), st.integers(1, 6))
    return st.one_of(st.sampled_from(RECORDED).map(recorded), trees, meshes)


@st.composite
def cases(draw: st.DrawFn, *, disjoint: bool = True) -> Case:
    """A machine, a want of any kind and an offer; pools share NICs unless `disjoint`."""
    machine = draw(small_machines())
    want, offer = random_case(draw(_randoms()), machine, disjoint=disjoint)
    return machine, want, offer


def _randoms() -> st.SearchStrategy[Random]:
    return st.integers(0, 2**32 - 1).map(Random)


def random_case(random: Random, machine: Machine, *, disjoint: bool = True) -> tuple[Want, Offer]:
    """Any kind of want, with GPUs in any state and NICs in up to two pools, a part of them fixed."""
    gpus = tuple(_random_gpu(random) for _ in machine.gpus)
    whole = sum(gpu.whole_free for gpu in gpus)
    kinds: dict[str, Callable[[], tuple[int, int]]] = {
        "whole": lambda: (100 * random.randint(1, max(1, whole)), random.choice((0, 0, 100, 400))),
        "share": lambda: (random.randint(1, 99), random.choice((0, random.randint(1, 200)))),
        "memory": lambda: (0, random.randint(1, 200)),
        "nics": lambda: (0, 0),
    }
    kind = random.choice(("whole", "whole", "share", "memory", "nics"))
    cores, memory = kinds[kind]()
    pools, free = _random_pools(random, len(machine.nics), disjoint=disjoint)
    counts = tuple(random.randint(0, min(4, len(members) + 1)) for members in free)
    fixed = tuple(
        frozenset(random.sample(sorted(pool), min(len(pool), random.randint(0, count))))
        if random.random() < 0.3
        else frozenset[int]()
        for pool, count in zip(pools, counts, strict=True)
    )
    gpus_fixed = frozenset[int]()
    if kind != "nics" and random.random() < 0.3:
        gpus_fixed = frozenset(random.sample(range(len(gpus)), min(len(gpus), random.randint(1, max(1, cores // 100)))))
    closed = _some(random, len(gpus), 0.3) - gpus_fixed if random.random() < 0.2 else frozenset[int]()
    offer = Offer(
        gpus=gpus,
        nics_free=free,
        gpus_fixed=gpus_fixed,
        gpus_closed=closed,
        nics_fixed=fixed,
        gpus_idle=_some(random, len(gpus), 0.3) if random.random() < 0.3 else None,
        nics_idle=_some(random, len(machine.nics), 0.7) if random.random() < 0.5 else None,
    )
    return Want(cores, memory, counts), offer


def _random_gpu(random: Random) -> GpuOffer:
    state = random.choice((UNTOUCHED, UNTOUCHED, TAKEN, None))
    return state or GpuOffer(random.randrange(100), random.randrange(MEMORY_UNITS), False, MEMORY_UNITS)


def _random_pools(
    random: Random, nics: int, *, disjoint: bool
) -> tuple[list[frozenset[int]], tuple[frozenset[int], ...]]:
    """Up to two pools of NICs, and which NICs of each are free."""
    number = random.choice((0, 1, 1, 1, 2)) if disjoint else 2
    members = list(range(nics))
    random.shuffle(members)
    cut = random.randint(0, nics) if number == 2 else nics
    pools = [frozenset(members[:cut]), frozenset(members[cut:])][:number]
    if not disjoint:
        pools = [_some(random, nics, 0.7), _some(random, nics, 0.7)]
    return pools, tuple(frozenset(nic for nic in pool if random.random() < 0.7) for pool in pools)


def _some(random: Random, count: int, share: float) -> frozenset[int]:
    return frozenset(position for position in range(count) if random.random() < share)
