"""How closely a set of GPUs and a set of NICs can be paired: sums over nested blocks, by tables that fill on demand."""

from __future__ import annotations

from collections.abc import Sequence

from topoalloc.placement.nearness import Part

# A table has at most 2^8 rows. 8 GPUs and 8 NICs make some hundred tables; when more are wanted all are dropped.
TABLES_MAX = 512


class PartTable(dict[int, int]):
    """Sums over the blocks of one part for given free NICs, keyed by the GPUs chosen in it; each worked out once.

    `idle` None: the closeness of the best pairing, `seats` NICs at each GPU. Else: how many NICs of the best pairing
    can be had in each block without the idle GPUs that are not chosen missing them, one for each.
    In a wide part only the number of GPUs counts, so there the key is that many ones.
    """

    __slots__ = ("rows", "seats")

    def __init__(self, part: Part, seats: int, nics: int, idle: int | None) -> None:
        super().__init__()
        self.seats = seats
        counts = [(block, (block.nics & nics).bit_count()) for block in part.blocks]
        self.rows = [
            (
                -1 if part.wide else block.gpus,
                block.weight,
                count,
                count if idle is None else count - (block.gpus & idle).bit_count(),
            )
            for block, count in counts
            if count
        ]

    def __missing__(self, gpus: int) -> int:
        total = 0
        for mask, weight, count, surplus in self.rows:
            chosen = (mask & gpus).bit_count()
            total += weight * max(0, min(self.seats * chosen, count, surplus + chosen))
        self[gpus] = total
        return total


class Pairings:
    """The tables of a board. They depend on nothing but the board: filling them changes no answer."""

    __slots__ = ("parts", "tables")

    def __init__(self, parts: tuple[Part, ...]) -> None:
        self.parts = parts
        self.tables: dict[tuple[int, int, int, int | None], PartTable] = {}

    def closeness(self, gpus: int, seats: int, nics: int) -> int:
        """The closeness of the best pairing of these NICs with these GPUs, `seats` NICs at each GPU."""
        total = 0
        for number, part in enumerate(self.parts):
            near = part.nics & nics
            if near:
                inside = gpus & part.gpus
                total += self._table(number, seats, near, None)[_ones(inside) if part.wide else inside]
        return total

    def closenesses(self, gpu_sets: Sequence[int], seats: int, nics: int) -> list[int]:
        """The same for many sets."""
        return self._sums(gpu_sets, seats, nics, None)

    def unmissed(self, gpu_sets: Sequence[int], seats: int, nics: int, idle: int) -> list[int]:
        """How many of the NICs of the best pairing no idle GPU outside the set would miss, for each set."""
        return self._sums(gpu_sets, seats, nics, idle)

    def _sums(self, gpu_sets: Sequence[int], seats: int, nics: int, idle: int | None) -> list[int]:
        totals = [0] * len(gpu_sets)
        for number, part in enumerate(self.parts):
            mask, near = part.gpus, part.nics & nics
            if not near:
                continue
            table = self._table(number, seats, near, None if idle is None else idle & mask)
            if part.wide:
                sizes = [table[(1 << size) - 1] for size in range(mask.bit_count() + 1)]
                totals = [
                    total + sizes[(gpus & mask).bit_count()] for total, gpus in zip(totals, gpu_sets, strict=True)
                ]
            else:
                totals = [total + table[gpus & mask] for total, gpus in zip(totals, gpu_sets, strict=True)]
        return totals

    def _table(self, number: int, seats: int, nics: int, idle: int | None) -> PartTable:
        key = number, seats, nics, idle
        table = self.tables.get(key)
        if table is None:
            if len(self.tables) >= TABLES_MAX:
                self.tables.clear()
            table = self.tables[key] = PartTable(self.parts[number], seats, nics, idle)
        return table


def _ones(mask: int) -> int:
    return (1 << mask.bit_count()) - 1
