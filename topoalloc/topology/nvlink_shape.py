"""Which GPUs NVLink (or XGMI) joins evenly, as a switch or full mesh does, and which pair by pair.

A picture needs the shape, not the table: eight GPUs behind NVSwitch are one fact, not 28.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from topoalloc.topology.machine import Link, Machine, Unknown

NVLINKS_PER_GPU_MAX = 18  # most links a GPU has so far (Hopper, Blackwell); more per GPU means the pairs share them
_MESH_GPUS_MIN = 3  # two GPUs without a switch are a pair


@dataclass(frozen=True, slots=True)
class EvenFabric:
    """GPUs of which every pair has `count` links. `switched`: the links run to NVSwitches, not pair by pair."""

    gpus: tuple[str, ...]
    count: int
    switched: bool

    @property
    def links_per_gpu(self) -> int:
        return self.count if self.switched else self.count * (len(self.gpus) - 1)


@dataclass(frozen=True, slots=True)
class NvlinkShape:
    """`fabrics` are even, `pairs` the remaining linked pairs; `unknown_pairs` counts GPU pairs nobody told about."""

    fabrics: tuple[EvenFabric, ...]
    pairs: tuple[Link, ...]
    unknown_pairs: int


def nvlink_shape(machine: Machine, mesh_gpus_min: int = _MESH_GPUS_MIN) -> NvlinkShape:
    """Sort the machine's GPU pairs into even fabrics and single pairs; every linked pair is in exactly one.

    A full mesh without a switch counts as a fabric from `mesh_gpus_min` GPUs up.
    """
    gpus = [gpu.id for gpu in machine.gpus]
    between = [link for link in machine.links if link.a.startswith("GPU") and link.b.startswith("GPU")]
    linked = [link for link in between if isinstance(link.nvlinks, int) and link.nvlinks > 0]
    counts = {pair: link.nvlinks for link in linked for pair in ((link.a, link.b), (link.b, link.a))}
    fabrics = []
    for component in _components(gpus, linked):
        of_pairs = {counts.get(pair) for pair in combinations(component, 2)}
        count = of_pairs.pop() if len(of_pairs) == 1 else None
        if not isinstance(count, int):
            continue
        switched = bool(machine.nvswitches) or count * (len(component) - 1) > NVLINKS_PER_GPU_MAX
        if switched or len(component) >= mesh_gpus_min:
            fabrics.append(EvenFabric(component, count, switched))
    even = {gpu for fabric in fabrics for gpu in fabric.gpus}
    unknown = sum(isinstance(link.nvlinks, Unknown) for link in between)
    return NvlinkShape(tuple(fabrics), tuple(link for link in linked if link.a not in even), unknown)


def _components(gpus: list[str], linked: list[Link]) -> list[tuple[str, ...]]:
    """Connected components, each in machine order, by merging the group of one end into that of the other."""
    group_of = {gpu: [gpu] for gpu in gpus}
    for link in linked:
        keep, drop = group_of[link.a], group_of[link.b]
        if keep is not drop:
            keep.extend(drop)
            group_of.update((gpu, keep) for gpu in drop)
    place = {gpu: position for position, gpu in enumerate(gpus)}
    groups = {id(group): group for group in group_of.values()}
    return [tuple(sorted(group, key=place.__getitem__)) for group in groups.values()]
