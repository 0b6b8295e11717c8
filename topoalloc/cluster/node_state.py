"""The state of all of the kubelet's managers, put together from what PodResources and the machine tell.

What is not told stays out: who holds a device matters to nobody here, only that it is held.
"""

from __future__ import annotations

from topoalloc.admission import memory
from topoalloc.admission.cpu_topology import CpuTopology, cpu_topology
from topoalloc.admission.cpus import CpuManager, CpuOptions, CpuState
from topoalloc.admission.devices import DeviceTables, ListedDevices
from topoalloc.admission.exclusive import Exclusive
from topoalloc.admission.occupancy import Occupancy
from topoalloc.admission.policy import NumaInfo, numa_info
from topoalloc.admission.prediction import NodeState
from topoalloc.errors import InputError
from topoalloc.sharing.inventory import Inventory
from topoalloc.topology.machine import Machine


def node_state(inventory: Inventory, occupancy: Occupancy, cpu_options: CpuOptions) -> NodeState:
    """The managers' state as if a kubelet had given out what is held now."""
    numa = numa_info(inventory.machine)
    return NodeState(
        numa=numa if numa.nodes else NumaInfo((0,), {}),  # a kubelet always knows at least one node
        devices=DeviceTables(listed=_listed(inventory, occupancy), allocated=occupancy.devices_in_use()),
        exclusive=Exclusive(_cpus(inventory.machine, occupancy, cpu_options), _memory(occupancy)),
    )


def _listed(inventory: Inventory, occupancy: Occupancy) -> dict[str, ListedDevices]:
    """All devices of ours, and of other plugins the healthy ones, which are all that is told of them."""
    told = occupancy.allocatable.devices
    listed = {
        resource: ListedDevices({device: nodes or None for device, nodes in devices.items()}, frozenset(devices))
        for resource, devices in told.items()
    }
    for resource in inventory.resources:
        nodes = {device.id: device.numa_nodes or None for device in resource.devices}
        listed[resource.name] = ListedDevices(nodes, frozenset(told.get(resource.name, ())) & nodes.keys())
    return listed


def _cpus(machine: Machine, occupancy: Occupancy, options: CpuOptions) -> tuple[CpuManager, CpuState] | None:
    """None where the CPU manager gives out no CPUs, or the machine does not say where they are."""
    allocatable = occupancy.allocatable.cpus
    try:
        topology: CpuTopology = cpu_topology(machine)
    except InputError:
        return None
    if not allocatable or allocatable - topology.cpus:
        return None
    manager = CpuManager(topology, topology.cpus - allocatable, options)
    return manager, CpuState(topology.cpus - occupancy.exclusive_cpus())


def _memory(occupancy: Occupancy) -> memory.MemoryState | None:
    if not occupancy.allocatable.memory_bytes:
        return None
    blocks = {(f"{use.namespace}/{use.pod}", use.container): use.memory for use in occupancy.containers if use.memory}
    return memory.restored(occupancy.allocatable.memory_bytes, blocks)
