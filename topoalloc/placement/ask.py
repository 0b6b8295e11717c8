"""A want and an offer as bit masks: what the searches work on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

from topoalloc.placement.nearness import mask_of, mask_union, positions
from topoalloc.placement.offer import Offer, Want
from topoalloc.sharing.settings import CORES_PER_GPU


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
    `entangled`: pools compete for NICs. `partly_fixed`: a pool has fixed NICs and others still to be chosen.
    """

    size: int
    usable: int
    fixed: int
    idle: int
    pools: tuple[PoolAsk, ...]
    nics_idle: int
    memory_units: int
    memory: tuple[int, ...]
    entangled: bool
    partly_fixed: bool

    def enough_memory(self, gpus: int) -> bool:
        """Whether this set has the memory asked for."""
        return not self.memory or sum(self.memory[gpu] for gpu in positions(gpus)) >= self.memory_units

    def memory_most(self) -> int:
        """Units of the `size` GPUs with most memory that can be chosen."""
        others = sorted((self.memory[gpu] for gpu in positions(self.usable & ~self.fixed)), reverse=True)
        fixed = [self.memory[gpu] for gpu in positions(self.fixed)]
        return sum(fixed) + sum(others[: self.size - len(fixed)])

    def satisfiable(self) -> bool:
        """Whether any answer exists."""
        fixed = self.fixed.bit_count()
        if fixed > self.size or self.fixed & ~self.usable or self.usable.bit_count() < self.size:
            return False
        for pool in self.pools:
            if pool.free.bit_count() < pool.count or pool.fixed.bit_count() > pool.count or pool.fixed & ~pool.free:
                return False
        if self.memory and self.memory_most() < self.memory_units:
            return False
        return not self.entangled or contention(self.pools) is None


def ask_of(want: Want, offer: Offer) -> Ask:
    """The decision for a well-formed want."""
    whole = whole_free(offer)
    idle = whole | mask_of(offer.gpus_idle) if offer.gpus_idle else whole
    size = want.cores // CORES_PER_GPU
    usable = whole
    if not size:
        size = 1 if want.cores or want.memory_units else 0
        usable = mask_of([position for position in range(len(offer.gpus)) if fits_share(offer, position, want)])
    if offer.gpus_closed:
        usable &= ~mask_of(offer.gpus_closed)
    pools = _pools(want, offer) if want.nics else ()
    return Ask(
        size=size,
        usable=usable,
        fixed=mask_of(offer.gpus_fixed),
        idle=idle,
        pools=pools,
        nics_idle=mask_of(offer.nics_idle) if offer.nics_idle and not pools else 0,
        memory_units=want.memory_units,
        memory=_memory(want, offer, usable, size) if want.memory_units else (),
        entangled=len(pools) > 1 and _entangled(pools),
        partly_fixed=any(0 < pool.fixed.bit_count() < pool.count for pool in pools) if pools else False,
    )


def whole_free(offer: Offer) -> int:
    """The mask of the GPUs that can be given whole."""
    whole, bit = 0, 1
    for gpu in offer.gpus:
        if gpu.whole_free:
            whole |= bit
        bit <<= 1
    return whole


def fits_share(offer: Offer, position: int, want: Want) -> bool:
    """Whether a share has room on this GPU in both dimensions."""
    gpu = offer.gpus[position]
    return gpu.cores_free >= want.cores and (gpu.memory_units_free or 0) >= want.memory_units


def contention(pools: Sequence[PoolAsk]) -> tuple[PoolAsk, ...] | None:
    """A group of pools that has fewer NICs than it needs (Hall's condition); None if there is no such group."""
    for group in groups_of(pools):
        if mask_union(pool.free for pool in group).bit_count() < sum(pool.count for pool in group):
            return group
    return None


def groups_of(pools: Sequence[PoolAsk]) -> Iterator[tuple[PoolAsk, ...]]:
    """Every non-empty group of pools."""
    return chain.from_iterable(combinations(pools, size) for size in range(1, len(pools) + 1))


def _pools(want: Want, offer: Offer) -> tuple[PoolAsk, ...]:
    """The wanted pools; a NIC fixed for one pool is not free for another."""
    fixed = [mask_of(members) for members in offer.nics_fixed]
    pools: list[PoolAsk] = []
    for number, count in enumerate(want.nics):
        others = mask_union(mask for other, mask in enumerate(fixed) if other != number)
        free = (mask_of(offer.nics_free[number]) | fixed[number]) & ~others
        pools.append(PoolAsk(count, free, fixed[number]))
    return tuple(pools)


def _entangled(pools: Sequence[PoolAsk]) -> bool:
    union = 0
    for pool in pools:
        if pool.free & union:
            return True
        union |= pool.free
    return False


def _memory(want: Want, offer: Offer, usable: int, size: int) -> tuple[int, ...]:
    """Units of each GPU, if there are sets of `size` usable GPUs that hold less than is wanted."""
    if want.cores < CORES_PER_GPU:
        return ()
    units = tuple(gpu.memory_units_free or 0 for gpu in offer.gpus)
    smallest = sorted(units[position] for position in positions(usable))[:size]
    return units if sum(smallest) < want.memory_units else ()
