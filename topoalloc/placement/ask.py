"""A want and an offer as bit masks: what the searches work on."""

from __future__ import annotations

from dataclasses import dataclass

from topoalloc.placement.board import Board
from topoalloc.placement.nearness import mask_of, positions
from topoalloc.placement.offer import CORES_WHOLE, Offer, Want


@dataclass(frozen=True, slots=True)
class PoolAsk:
    """`count` NICs out of `free`, among them all of `fixed` (part of `free`)."""

    count: int
    free: int
    fixed: int

    @property
    def reach(self) -> int:
        """The NICs that can be part of an answer."""
        return self.fixed if self.fixed.bit_count() == self.count else self.free


@dataclass(frozen=True, slots=True)
class Ask:
    """One decision: `size` GPUs out of `usable`, among them all of `fixed`, and NICs from each of `pools`.

    `idle`: GPUs nobody holds, the whole-free ones among them. `nics_idle`: NICs nobody holds, where no NIC is wanted.
    `memory`: units of each GPU where the set chosen must reach `memory_units` and not every set does, else empty.
    """

    size: int
    usable: int
    fixed: int
    idle: int
    pools: tuple[PoolAsk, ...]
    nics_idle: int
    memory_units: int
    memory: tuple[int, ...]

    @property
    def entangled(self) -> bool:
        """Whether pools compete for NICs."""
        seen = 0
        for pool in self.pools:
            if pool.free & seen:
                return True
            seen |= pool.free
        return False

    @property
    def partly_fixed(self) -> bool:
        """Whether some NICs of a pool are fixed and others still to be chosen."""
        return any(0 < pool.fixed.bit_count() < pool.count for pool in self.pools)

    def enough_memory(self, gpus: int) -> bool:
        """Whether this set has the memory asked for."""
        return not self.memory or sum(self.memory[gpu] for gpu in positions(gpus)) >= self.memory_units


def ask_of(board: Board, want: Want, offer: Offer) -> Ask:
    """The decision for a want; whether it can be met at all is judged by `refusal`."""
    whole = mask_of([position for position, gpu in enumerate(offer.gpus) if gpu.whole_free])
    idle = whole if offer.gpus_idle is None else whole | mask_of(offer.gpus_idle)
    size = want.cores // CORES_WHOLE
    if size:
        usable = whole
    elif want.cores or want.memory_units:
        size, usable = 1, mask_of([p for p, _ in enumerate(offer.gpus) if fits_share(offer, p, want)])
    else:
        usable = 0
    usable &= ~mask_of(offer.gpus_closed)
    return Ask(
        size=size,
        usable=usable,
        fixed=mask_of(offer.gpus_fixed),
        idle=idle,
        pools=_pools(want, offer),
        nics_idle=mask_of(offer.nics_idle) if offer.nics_idle and not any(want.nics) else 0,
        memory_units=want.memory_units,
        memory=_memory(want, offer, usable, size),
    )


def fits_share(offer: Offer, position: int, want: Want) -> bool:
    """Whether a share has room on this GPU in both dimensions."""
    gpu = offer.gpus[position]
    return gpu.cores_free >= want.cores and (gpu.memory_units_free or 0) >= want.memory_units


def _pools(want: Want, offer: Offer) -> tuple[PoolAsk, ...]:
    fixed = [mask_of(positions_) for positions_ in offer.nics_fixed]
    pools: list[PoolAsk] = []
    for number, count in enumerate(want.nics):
        others = 0
        for other, mask in enumerate(fixed):
            others |= 0 if other == number else mask
        free = mask_of(offer.nics_free[number]) & ~others | fixed[number]
        pools.append(PoolAsk(count, free, fixed[number]))
    return tuple(pools)


def _memory(want: Want, offer: Offer, usable: int, size: int) -> tuple[int, ...]:
    """Units of each GPU, if there are sets of `size` usable GPUs that hold less than is wanted."""
    if want.cores < CORES_WHOLE or not want.memory_units:
        return ()
    units = tuple(gpu.memory_units_free or 0 for gpu in offer.gpus)
    smallest = sorted(units[position] for position in positions(usable))[:size]
    return units if sum(smallest) < want.memory_units else ()
