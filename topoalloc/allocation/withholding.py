"""Which free ids are kept back from the kubelet, so that what it counts can be used together.

The kubelet and the scheduler count free ids, per NUMA node or per machine, and see no GPUs: 40 free cores on each of
four GPUs look like room for 60. So of the GPUs that are partly used only one in each group offers what is left of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from topoalloc.sharing.inventory import Inventory, ResourceKind
from topoalloc.sharing.settings import CORES_PER_GPU, NumaReporting

SHARE_CORES_MAX = CORES_PER_GPU - 1  # 100 cores are a whole GPU, which a partly used one is not
PARTS = 10_000  # of a GPU, by which shares of cores and of memory are compared in whole numbers


@dataclass(frozen=True, slots=True)
class Leftover:
    """The ids nobody holds of a GPU of which somebody holds some, in listing order. `memory_units`: all that it has."""

    position: int
    cores: tuple[str, ...]
    memory: tuple[str, ...]
    memory_units: int | None

    def is_usable(self) -> bool:
        """Whether a share fits: it needs cores, and memory where that is served."""
        return bool(self.cores) and (self.memory_units is None or bool(self.memory))

    def rank(self) -> tuple[int, int, int, int]:
        """The higher is offered: what serves the largest share with memory in proportion, then more cores, then more
        memory, then the lower position.

        By cores alone a GPU with 99 cores and one memory unit left would keep back all others that have some of both.
        """
        cores = len(self.cores) * PARTS // CORES_PER_GPU
        memory = len(self.memory) * PARTS // self.memory_units if self.memory_units else cores
        return min(cores, memory), len(self.cores), len(self.memory), -self.position


def withheld_ids(
    inventory: Inventory, held: Collection[str], unhealthy: frozenset[str] = frozenset(), *, by_node: bool = True
) -> frozenset[str]:
    """The free ids to report Unhealthy. `held`: ids that must stay as they are; `unhealthy`: keys of whole devices.

    `by_node` False: the kubelet's policy is `none`, so it counts by NUMA node nowhere, and neither does the scheduler.
    Never an id of `held`, of a GPU that nobody uses, or of a NIC; and of no resource every id.
    """
    groups: dict[int | None, list[Leftover]] = {}
    for leftover in leftovers(inventory, held, unhealthy):
        group = _group(inventory, leftover.position) if by_node else None
        groups.setdefault(group, []).append(leftover)
    withheld: set[str] = set()
    for members in groups.values():
        offered = max((one for one in members if one.is_usable()), key=Leftover.rank, default=None)
        for leftover in members:
            if leftover is offered:
                withheld.update(leftover.cores[SHARE_CORES_MAX:])
            else:
                withheld.update(leftover.cores, leftover.memory)
    return frozenset(withheld.difference(_last_ones(inventory, withheld, unhealthy)))


def leftovers(inventory: Inventory, held: Collection[str], unhealthy: frozenset[str]) -> Iterator[Leftover]:
    """What is left of every GPU in order that somebody uses, by position."""
    used = {
        device.position
        for device in (inventory.devices[device_id] for device_id in held)
        if device.kind is not ResourceKind.NIC and device.key not in unhealthy
    }
    free: dict[tuple[int, ResourceKind], list[str]] = {}
    for resource in inventory.resources:
        if resource.kind is ResourceKind.NIC:
            continue
        for device in resource.devices:
            if device.position in used and device.id not in held:
                free.setdefault((device.position, device.kind), []).append(device.id)
    for position in sorted(used):
        yield Leftover(
            position,
            tuple(free.get((position, ResourceKind.CORE), ())),
            tuple(free.get((position, ResourceKind.MEMORY), ())),
            inventory.memory_units[position] if inventory.memory_served else None,
        )


def _last_ones(inventory: Inventory, withheld: Collection[str], unhealthy: frozenset[str]) -> Iterator[str]:
    """An id of each resource that would have no healthy one left.

    The kubelet takes such a resource's plugin to be gone and fails even pods that ask for none of it
    (devicesToAllocate). The id misleads nobody: then no GPU offers anything of the other resource, and a share needs
    both.
    """
    for resource in inventory.resources:
        devices = [device for device in resource.devices if device.key not in unhealthy]
        if devices and all(device.id in withheld for device in devices):
            yield devices[0].id


def _group(inventory: Inventory, position: int) -> int | None:
    """The GPU's NUMA node where the kubelet counts cores and memory by node; else None, the whole machine.

    Where it counts one of them by node and the other not, the larger group makes both counts true of one GPU.
    """
    if any(r.numa is not NumaReporting.NODE for r in inventory.resources if r.kind is not ResourceKind.NIC):
        return None
    node = inventory.machine.gpus[position].numa_node
    assert isinstance(node, int), "a resource reports nodes only where each is known"
    return node
