"""Every device id this node offers: which GPU or NIC stands behind it and which NUMA nodes are reported for it.

The physical device is in the id: `0000:3b:00.0-c07` is core 7 of the GPU at that PCI address, `-m0012` its 13th
memory unit, `0000:5e:00.0` a NIC. The address is stable over restarts and survives the loss of another GPU, which
an index does not; where no source tells addresses (tables), `GPU3` and `NIC2` take their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from topoalloc.sharing.settings import CORES_PER_GPU, NumaReporting, SharingSettings, pool_of
from topoalloc.topology.machine import Gpu, Machine, Nic, Unknown
from topoalloc.topology.pci import PciAddress

# The kubelet's gRPC client receives at most this much; one byte more ends ListAndWatch with ResourceExhausted and the
# resource shows 0 (k/k #109304, never raised).
LIST_BYTES_MAX = 4 * 1024**2
# A device without an id and without NUMA nodes: more devices than this cannot fit, so they are not even made.
DEVICE_BYTES_MIN = 2 + 2 + 2 + len("Unhealthy")
DEVICES_MAX = LIST_BYTES_MAX // DEVICE_BYTES_MIN
DEVICE_ID_CHARACTERS_USUAL = 30  # `0000:3b:00.0-m123456` and the NUMA node beside it, generously
DEVICE_ID_CHARACTERS_MAX = 63  # the API's text; enforced nowhere, so it is enforced here
NUMA_NODES_REPORTED_MAX = 8  # the Topology Manager's default limit; hints grow as 2^nodes


class ResourceKind(StrEnum):
    """What one device of a resource stands for."""

    CORE = "core"
    MEMORY = "memory"
    NIC = "nic"


@dataclass(frozen=True, slots=True)
class Device:
    """One id offered to the kubelet. `position` indexes `Machine.gpus` (core, memory) or `Machine.nics`."""

    id: str
    resource: str
    kind: ResourceKind
    key: str
    position: int
    unit: int
    numa_nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Resource:
    """One extended resource and its devices, in the order they are listed to the kubelet."""

    name: str
    kind: ResourceKind
    numa: NumaReporting
    devices: tuple[Device, ...]
    pool: int | None = None  # NIC resources: position in SharingSettings.nic_pools


@dataclass(frozen=True, slots=True)
class Inventory:
    """All resources of a node; `notes` is what an operator should hear once at start."""

    machine: Machine
    settings: SharingSettings
    resources: tuple[Resource, ...]
    devices: Mapping[str, Device]
    gpu_keys: tuple[str, ...]
    nic_keys: tuple[str, ...]
    memory_units: tuple[int | None, ...]  # per GPU; None: its memory is unknown or not served
    notes: tuple[str, ...]

    def resource(self, name: str) -> Resource | None:
        return next((resource for resource in self.resources if resource.name == name), None)

    @property
    def memory_served(self) -> bool:
        return any(resource.kind is ResourceKind.MEMORY for resource in self.resources)


@dataclass(frozen=True, slots=True)
class InventoryRefusal:
    """Why this configuration cannot be served, and what would fit."""

    reason: str


def inventory_of(machine: Machine, settings: SharingSettings) -> Inventory | InventoryRefusal:
    """Cut a machine into resources; refuses a device list that the kubelet could not receive."""
    gpu_keys = _keys([(gpu.bdf, gpu.id, 0) for gpu in machine.gpus])
    nic_keys = _keys(_nic_ports(machine.nics))
    notes: list[str] = []
    units = _memory_units(machine, settings, notes)
    resources: list[Resource] = []
    if 0 in units:
        small = machine.gpus[units.index(0)].id
        unit_mib = settings.memory_unit_bytes // 1024**2
        return InventoryRefusal(f"memory_unit: {unit_mib}MiB is more than {small} has; use a smaller one")
    if sum(count or 0 for count in units) > DEVICES_MAX:
        size = sum(count or 0 for count in units) * (DEVICE_BYTES_MIN + DEVICE_ID_CHARACTERS_USUAL)
        return InventoryRefusal(_too_large(settings, settings.memory_resource, ResourceKind.MEMORY, size))
    if machine.gpus:
        resources.append(_core_resource(machine, settings, gpu_keys, notes))
        if all(count is not None for count in units):
            resources.append(_memory_resource(machine, settings, gpu_keys, units, notes))
    resources.extend(_nic_resources(machine, settings, nic_keys, notes))
    notes.extend(_bandwidth_note(machine, resources))
    devices = {device.id: device for resource in resources for device in resource.devices}
    refusal = _refusal(settings, resources, devices)
    if refusal is not None:
        return refusal
    return Inventory(
        machine=machine,
        settings=settings,
        resources=tuple(resources),
        devices=MappingProxyType(devices),
        gpu_keys=gpu_keys,
        nic_keys=nic_keys,
        memory_units=units,
        notes=tuple(notes),
    )


def list_bytes(devices: tuple[Device, ...]) -> int:
    """Encoded size of a ListAndWatchResponse in which every device is Unhealthy (the longest word)."""
    total = 0
    for device in devices:
        nodes = sum(2 if node == 0 else 4 if node < 128 else 5 for node in device.numa_nodes)
        body = 2 + len(device.id) + 2 + len("Unhealthy") + (2 + nodes if device.numa_nodes else 0)
        total += body + (2 if body < 128 else 3)
    return total


def _keys(ports: list[tuple[PciAddress | Unknown, str, int]]) -> tuple[str, ...]:
    """PCI addresses when every device has one; a mixture would make the same device change its id between readings."""
    if any(isinstance(bdf, Unknown) for bdf, _, _ in ports) or len({(str(b), p) for b, _, p in ports}) < len(ports):
        return tuple(name for _, name, _ in ports)
    several = {str(bdf) for bdf, _, port in ports if port > 0}
    return tuple(f"{bdf}-p{port}" if str(bdf) in several else str(bdf) for bdf, _, port in ports)


def _nic_ports(nics: tuple[Nic, ...]) -> list[tuple[PciAddress | Unknown, str, int]]:
    """Each NIC with its number among the ports of its PCI function, by name."""
    ports: list[tuple[PciAddress | Unknown, str, int]] = []
    for nic in nics:
        siblings = sorted(other.name for other in nics if other.bdf == nic.bdf)
        port = siblings.index(nic.name) if isinstance(nic.bdf, PciAddress) else 0
        ports.append((nic.bdf, nic.id, port))
    return ports


def _memory_units(machine: Machine, settings: SharingSettings, notes: list[str]) -> tuple[int | None, ...]:
    """Whole units per GPU; the rest of a GPU's memory belongs to nobody, so no unit straddles two GPUs."""
    silent = [gpu for gpu in machine.gpus if isinstance(gpu.memory_bytes, Unknown)]
    if not silent:
        return tuple(
            gpu.memory_bytes // settings.memory_unit_bytes for gpu in machine.gpus if isinstance(gpu.memory_bytes, int)
        )
    names = ", ".join(gpu.id for gpu in silent)
    evidence = silent[0].memory_bytes.evidence if isinstance(silent[0].memory_bytes, Unknown) else ""
    notes.append(
        f"memory of {names} is unknown ({evidence}): {settings.memory_resource} is not served, only cores and whole "
        "GPUs; set gpu_memory (or --gpu-memory) to serve it"
    )
    return tuple(None for _ in machine.gpus)


def _core_resource(machine: Machine, settings: SharingSettings, keys: tuple[str, ...], notes: list[str]) -> Resource:
    name = settings.core_resource
    numa = _reporting(name, settings, machine.gpus, notes)
    devices = tuple(
        Device(f"{key}-c{unit:02d}", name, ResourceKind.CORE, key, position, unit, _nodes(gpu, numa, machine))
        for position, (gpu, key) in enumerate(zip(machine.gpus, keys, strict=True))
        for unit in range(CORES_PER_GPU)
    )
    return Resource(name, ResourceKind.CORE, numa, devices)


def _memory_resource(
    machine: Machine,
    settings: SharingSettings,
    keys: tuple[str, ...],
    units: tuple[int | None, ...],
    notes: list[str],
) -> Resource:
    name = settings.memory_resource
    numa = _reporting(name, settings, machine.gpus, notes)
    devices = tuple(
        Device(f"{key}-m{unit:04d}", name, ResourceKind.MEMORY, key, position, unit, _nodes(gpu, numa, machine))
        for position, (gpu, key) in enumerate(zip(machine.gpus, keys, strict=True))
        for unit in range(units[position] or 0)
    )
    return Resource(name, ResourceKind.MEMORY, numa, devices)


def _nic_resources(
    machine: Machine, settings: SharingSettings, keys: tuple[str, ...], notes: list[str]
) -> list[Resource]:
    resources: list[Resource] = []
    pools = [pool_of(nic, machine, settings.nic_pools) for nic in machine.nics]
    for number, pool in enumerate(settings.nic_pools):
        members = [position for position, chosen in enumerate(pools) if chosen == number]
        if not members:
            if machine.nics:
                count = len(machine.nics)
                notes.append(f"{pool.resource}: its selector fits none of the {count} NICs, so it is not served")
            continue
        numa = _reporting(pool.resource, settings, tuple(machine.nics[position] for position in members), notes)
        devices = tuple(
            Device(
                keys[position],
                pool.resource,
                ResourceKind.NIC,
                keys[position],
                position,
                0,
                _nodes(machine.nics[position], numa, machine),
            )
            for position in members
        )
        resources.append(Resource(pool.resource, ResourceKind.NIC, numa, devices, number))
    return resources


def _reporting(
    name: str, settings: SharingSettings, devices: tuple[Gpu, ...] | tuple[Nic, ...], notes: list[str]
) -> NumaReporting:
    """The configured reporting, or `node`; `node` needs every node known, since the kubelet never picks a device
    without topology once another device of the resource has one."""
    wanted = settings.numa.get(name, NumaReporting.NODE)
    if wanted is not NumaReporting.NODE:
        return wanted
    for device in devices:
        if isinstance(device.numa_node, Unknown):
            notes.append(
                f"{name}: NUMA node of {device.id} is unknown ({device.numa_node.evidence}), so none is reported for "
                "any device of the resource"
            )
            return NumaReporting.NONE
    return NumaReporting.NODE


def _nodes(device: Gpu | Nic, numa: NumaReporting, machine: Machine) -> tuple[int, ...]:
    if numa is NumaReporting.NODE:
        assert not isinstance(device.numa_node, Unknown)
        return (device.numa_node,)
    if numa is NumaReporting.ALL:
        # Memory-only nodes never host a container's CPUs; naming them only multiplies the kubelet's hints.
        with_cpus = tuple(node.id for node in machine.numa_nodes if isinstance(node.cpus, Unknown) or node.cpus)
        return with_cpus[:NUMA_NODES_REPORTED_MAX]
    return ()


def _bandwidth_note(machine: Machine, resources: list[Resource]) -> list[str]:
    """Hints narrow a request to one NUMA node before we are asked; where NVLinks cross nodes unevenly that costs
    link bandwidth which no preferred allocation can win back."""
    node_of = {gpu.id: gpu.numa_node for gpu in machine.gpus}
    counts = [
        (link.nvlinks, node_of[link.a] == node_of[link.b])
        for link in machine.links
        if link.a in node_of and link.b in node_of and isinstance(link.nvlinks, int)
    ]
    uneven = len({count for count, _ in counts}) > 1
    crosses = any(count > 0 and not same_node for count, same_node in counts)
    names = [r.name for r in resources if r.kind is not ResourceKind.NIC and r.numa is NumaReporting.NODE]
    if not (uneven and crosses and names):
        return []
    note = (
        f"NVLinks of this machine cross NUMA nodes unevenly: NUMA hints for {' and '.join(names)} cost link bandwidth "
        "of multi-GPU containers; set numa.<resource>: none to put links before NUMA"
    )
    return [note]


def _refusal(
    settings: SharingSettings, resources: list[Resource], devices: Mapping[str, Device]
) -> InventoryRefusal | None:
    count = sum(len(resource.devices) for resource in resources)
    if len({resource.name for resource in resources}) < len(resources) or len(devices) < count:
        return InventoryRefusal("two resources have the same name or two devices the same id; give each its own name")
    for resource in resources:
        size = list_bytes(resource.devices)
        if size <= LIST_BYTES_MAX:
            continue
        return InventoryRefusal(_too_large(settings, resource.name, resource.kind, size))
    long = next((device_id for device_id in devices if len(device_id) > DEVICE_ID_CHARACTERS_MAX), None)
    if long is not None:
        return InventoryRefusal(f"device id {long} is longer than {DEVICE_ID_CHARACTERS_MAX} characters")
    return None


def _too_large(settings: SharingSettings, name: str, kind: ResourceKind, size: int) -> str:
    remedy = "serve fewer NICs in one pool"
    if kind is ResourceKind.MEMORY:
        remedy = f"use memory_unit: {_unit_that_fits(settings, size) // 1024**2}MiB or larger"
    return (
        f"{name}: its device list needs {size} bytes or more, the kubelet receives at most {LIST_BYTES_MAX}; {remedy}"
    )


def _unit_that_fits(settings: SharingSettings, size: int) -> int:
    """The smallest doubling of the unit whose list fits; sizes shrink in proportion, so this ends quickly."""
    unit = settings.memory_unit_bytes
    while size > LIST_BYTES_MAX:
        unit *= 2
        size = (size + 1) // 2
    return unit
