"""What a container wants and what may be given to it, in positions of the machine's GPUs and NICs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuOffer:
    """What may be used on one GPU; what the container itself already holds there counts as free.

    `cores_free`: 0..100. `memory_units_free`: None where memory is not served. `whole_free`: nobody else holds any
    core or memory unit of it and it may be given whole. `memory_units`: all units of the GPU; None: taken to be as
    many as the freest GPU of the offer has free.
    """

    cores_free: int
    memory_units_free: int | None
    whole_free: bool
    memory_units: int | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """What may be given. Sets hold positions; `nics_free` and `nics_fixed` follow the order of `Want.nics`.

    `gpus_fixed` and `nics_fixed` must be part of the answer, `gpus_closed` must not. `gpus_idle` and `nics_idle` are
    what nobody holds, offered to this container or not: what is left for the next one is judged by them. None: the
    whole-free GPUs, and the free NICs of the wanted pools.
    """

    gpus: tuple[GpuOffer, ...]
    nics_free: tuple[frozenset[int], ...]
    gpus_fixed: frozenset[int]
    gpus_closed: frozenset[int]
    nics_fixed: tuple[frozenset[int], ...]
    gpus_idle: frozenset[int] | None = None
    nics_idle: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Want:
    """A container's request: `cores` 0, 1..99 (a share of one GPU) or k*100 (k whole GPUs).

    `memory_units` 0: none asked; whole GPUs take all of theirs anyway. `nics`: a count per NIC pool.
    """

    cores: int
    memory_units: int
    nics: tuple[int, ...]
