"""A machine as placement needs it: positions instead of devices, integers instead of facts, tables built once."""

from __future__ import annotations

from dataclasses import dataclass, field

from topoalloc.placement.nearness import Block, NicClass, mask_of, nested_blocks, nic_classes, parts_of
from topoalloc.placement.pairing import Pairings
from topoalloc.placement.rates import (
    PCIE_POINTS,
    class_by_nics,
    home,
    nic_home,
    node_distances,
    numa_points,
    pair_bandwidth,
    pair_class,
    same_home,
)
from topoalloc.placement.subsets import SUBSET_TABLE_GPUS_MAX, SubsetTables, subset_tables
from topoalloc.topology.machine import LinkClass, Machine

Matrix = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Board:
    """Position i stands for `machine.gpus[i]` or `machine.nics[i]`; a set of devices is a bit mask of positions.

    `bandwidth` (GB/s) and `locality` (points) of every pair of GPUs; `blocks` and `nic_classes` say which NICs are
    near (see `nearness`), `classes_of_block` which classes lie in a block. `twins`: sets of GPUs that nothing tells
    apart. `tables` is None beyond 16 GPUs. `pairings` and `memo` only remember what was worked out from the rest (and,
    `memo`, from the arguments of `choose`): they are no part of the value.
    """

    gpu_ids: tuple[str, ...]
    nic_ids: tuple[str, ...]
    bandwidth: Matrix
    locality: Matrix
    blocks: tuple[Block, ...]
    nic_classes: tuple[NicClass, ...]
    classes_of_block: tuple[tuple[int, ...], ...]
    twins: tuple[int, ...]
    tables: SubsetTables | None
    pairings: Pairings = field(compare=False, repr=False)
    memo: dict[object, object] = field(default_factory=dict, compare=False, repr=False)


def board_of(machine: Machine) -> Board:
    """The board of a machine. With 16 GPUs this takes about a second, with 8 about a millisecond."""
    nic_distances = _nic_distances(machine)
    bandwidth, locality = _pairs(machine, nic_distances)
    blocks = nested_blocks(nic_distances)
    classes = nic_classes(blocks, len(machine.nics))
    count = len(machine.gpus)
    return Board(
        gpu_ids=tuple(gpu.id for gpu in machine.gpus),
        nic_ids=tuple(nic.id for nic in machine.nics),
        bandwidth=bandwidth,
        locality=locality,
        blocks=blocks,
        nic_classes=classes,
        classes_of_block=tuple(
            tuple(number for number, nics in enumerate(classes) if index in nics.blocks) for index in range(len(blocks))
        ),
        twins=_twins(bandwidth, locality, blocks),
        tables=subset_tables(bandwidth, locality) if count <= SUBSET_TABLE_GPUS_MAX else None,
        pairings=Pairings(parts_of(blocks, count)),
    )


def _pairs(machine: Machine, nic_distances: list[list[LinkClass]]) -> tuple[Matrix, Matrix]:
    links = machine.links_by_pair()
    distances = node_distances(machine)
    homes = [home(gpu) for gpu in machine.gpus]
    count = len(machine.gpus)
    speeds = [[0] * count for _ in range(count)]
    points = [[0] * count for _ in range(count)]
    for i, a in enumerate(machine.gpus):
        for j, b in enumerate(machine.gpus[:i]):
            link = links.get((a.id, b.id))
            farthest = class_by_nics(nic_distances[i], nic_distances[j])
            pcie = pair_class(link, same_home(homes[i], homes[j]), farthest)
            speeds[i][j] = speeds[j][i] = pair_bandwidth(link, pcie, a, b)
            points[i][j] = points[j][i] = PCIE_POINTS[pcie] + numa_points(homes[i], homes[j], distances)
    return tuple(map(tuple, speeds)), tuple(map(tuple, points))


def _nic_distances(machine: Machine) -> list[list[LinkClass]]:
    """The PCIe class of every GPU (row) and NIC (column)."""
    links = machine.links_by_pair()
    nic_homes = [nic_home(nic) for nic in machine.nics]
    return [
        [
            pair_class(links.get((gpu.id, nic.id)), same_home(home(gpu), there))
            for nic, there in zip(machine.nics, nic_homes, strict=True)
        ]
        for gpu in machine.gpus
    ]


def _twins(bandwidth: Matrix, locality: Matrix, blocks: tuple[Block, ...]) -> tuple[int, ...]:
    """Classes of GPUs that can change places without changing any pair, nor any GPU's NICs."""
    classes: list[list[int]] = []
    for gpu in range(len(bandwidth)):
        alike = (members for members in classes if _alike(bandwidth, locality, blocks, members[0], gpu))
        found = next(alike, None)
        if found is None:
            classes.append([gpu])
        else:
            found.append(gpu)
    return tuple(mask_of(members) for members in classes)


def _alike(bandwidth: Matrix, locality: Matrix, blocks: tuple[Block, ...], a: int, b: int) -> bool:
    others = [gpu for gpu in range(len(bandwidth)) if gpu not in (a, b)]
    pairs = all(pair[a][gpu] == pair[b][gpu] for pair in (bandwidth, locality) for gpu in others)
    return pairs and all(block.gpus >> a & 1 == block.gpus >> b & 1 for block in blocks)
