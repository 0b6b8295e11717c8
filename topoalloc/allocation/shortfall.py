"""What would have had to be free on one GPU, or in whole GPUs, for a container that the agent refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from topoalloc.admission.pod import Container, Pod, device_requests
from topoalloc.allocation.demand import ContainerDemand, Demand, demand_fault, demand_of
from topoalloc.sharing.inventory import Inventory, ResourceKind
from topoalloc.sharing.settings import CORES_PER_GPU, NumaReporting
from topoalloc.topology.machine import Unknown
from topoalloc.wording import plural


@dataclass(frozen=True, slots=True)
class Room:
    """What is free on one GPU. `memory_units` is None where memory is not served."""

    gpu: str
    cores: int
    memory_units: int | None
    untouched: bool


def hopeless(pod: Pod, inventory: Inventory) -> str | None:
    """What to ask for instead, where not even an empty node could serve a container; else None."""
    for container in pod.containers:
        amounts = device_requests(container)
        fault = demand_fault(inventory, demand_of(ContainerDemand(container.name, tuple(amounts.items())), inventory))
        if fault is not None:
            return fault
        for resource in inventory.resources:
            if amounts.get(resource.name, 0) > len(resource.devices):
                return f"ask for less: the whole node has {len(resource.devices)} of {resource.name}"
    return None


def shortfall(
    container: Container,
    inventory: Inventory,
    in_use: Iterable[str],
    nodes: tuple[int, ...] | None,
    *,
    from_init: bool = False,
) -> str | None:
    """One line, or None where nothing being free would have helped and the refusal itself says what to ask for.

    `in_use` are the device ids that others hold. `nodes`: the NUMA nodes that the topology manager chose, None for any.
    `from_init`: ordinary init containers of the pod leave devices to this one.
    """
    demand = demand_of(ContainerDemand(container.name, tuple(device_requests(container).items())), inventory)
    if demand.cores == 0 or demand_fault(inventory, demand) is not None:
        return None
    core = inventory.resource(inventory.settings.core_resource)
    if core is None or core.numa is not NumaReporting.NODE:
        nodes = None  # the kubelet does not know where the GPUs are, so its choice of nodes binds none of them
    rooms = rooms_of(inventory, frozenset(in_use), nodes)
    where = "" if nodes is None else f" on NUMA node {','.join(str(node) for node in nodes)}"
    if demand.whole_gpus:
        free = sum(room.untouched for room in rooms)
        if free >= demand.whole_gpus:
            return _scattered(f"{free} whole GPUs were free{where}", from_init)
        lacking = demand.whole_gpus - free
        return f"{plural(lacking, 'more whole GPU')} would have had to be free{where} ({free} free)"
    fitting = [room.gpu for room in rooms if not any(_lacking(room, demand).values())]
    if fitting:
        return _scattered(f"{' and '.join(fitting)} had room{where}", from_init)
    if not rooms:
        return None
    nearest = min(rooms, key=lambda room: sorted(_lacking(room, demand).values(), reverse=True))
    needed = " and ".join(f"{count} more {what}" for what, count in _lacking(nearest, demand).items() if count)
    return f"{needed} would have had to be free on one GPU{where}; {nearest.gpu} comes nearest"


def _scattered(there: str, from_init: bool) -> str:
    if from_init:
        return (
            f"{there}, but the kubelet takes what the pod's init containers had before anything else, at every "
            "attempt: let each of them ask for just as much as this container, or for no GPU"
        )
    return f"{there}, but the kubelet had taken other devices: the same pod may be admitted at the next attempt"


def _lacking(room: Room, demand: Demand) -> dict[str, int]:
    return {
        "cores": max(0, demand.cores - room.cores),
        "memory units": 0 if room.memory_units is None else max(0, demand.memory_units - room.memory_units),
    }


def rooms_of(inventory: Inventory, in_use: frozenset[str], nodes: tuple[int, ...] | None) -> list[Room]:
    """The GPUs on these nodes, with what nobody holds of them; a GPU held whole has no memory left either."""
    used: dict[tuple[str, ResourceKind], int] = {}
    for device_id in in_use:
        device = inventory.devices.get(device_id)
        if device is not None:
            used[device.key, device.kind] = used.get((device.key, device.kind), 0) + 1
    rooms = []
    for gpu, key, units in zip(inventory.machine.gpus, inventory.gpu_keys, inventory.memory_units, strict=True):
        if nodes is not None and not isinstance(gpu.numa_node, Unknown) and gpu.numa_node not in nodes:
            continue
        cores = CORES_PER_GPU - used.get((key, ResourceKind.CORE), 0)
        taken = used.get((key, ResourceKind.MEMORY), 0)
        left = None if units is None else units - taken if cores else 0
        rooms.append(Room(gpu.id, cores, left, cores == CORES_PER_GPU and taken == 0))
    return rooms
