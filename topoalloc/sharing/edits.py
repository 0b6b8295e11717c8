"""What a grant puts into a container: the seam between an accounted share and whatever enforces it.

The kubelet merges the answers of a container's resources in random order and keeps the first value of a key, so no two
resources here ever set one key to different values.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from topoalloc.sharing.inventory import Device, Inventory, Resource, ResourceKind
from topoalloc.sharing.settings import CORES_PER_GPU
from topoalloc.topology.machine import Gpu, Unknown

# What describes a grant inside a container, by resource; NIC resources have one each, see `nic_variable`.
CORES_VARIABLE = "TOPOALLOC_CORES"
WHOLE_GPUS_VARIABLE = "TOPOALLOC_WHOLE_GPUS"
MEMORY_VARIABLE = "TOPOALLOC_MEMORY"

# Where images made for NVIDIA's GPUs look for the driver's libraries (LD_LIBRARY_PATH and ld.so.conf of theirs).
DRIVER_DIRECTORY = "/usr/local/nvidia/lib64"
SEARCH_PATH_VARIABLE = "LD_LIBRARY_PATH"


class Injection(StrEnum):
    """How a container gets to its devices."""

    DEVICE_NODES = "device-nodes"  # paths below /dev, as far as they exist on this node
    MOUNTS = "mounts"  # the same and the driver's libraries, for nodes without NVIDIA's container toolkit
    ENVVAR = "envvar"  # NVIDIA_VISIBLE_DEVICES, for the NVIDIA container runtime
    CDI = "cdi"  # fully qualified CDI device names
    NONE = "none"  # only the variables that describe the grant


@dataclass(frozen=True, slots=True)
class Mount:
    """A path of the node shown to a container, read-only unless said otherwise."""

    host_path: str
    container_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class DeviceFiles:
    """Device nodes that exist on this node, by device key, plus those every user of a GPU needs, and the driver's
    libraries by the name that programs load them under (`libcuda.so.1`)."""

    by_key: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    every_gpu: tuple[str, ...] = ()
    libraries: tuple[tuple[str, str], ...] = ()  # name, path on the node


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """What Allocate returns for one resource of one container."""

    envs: tuple[tuple[str, str], ...] = ()
    device_paths: tuple[str, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()

    def joined(self, other: ContainerEdits) -> ContainerEdits:
        """Both; of a variable or a place that both set, `other`'s value stays."""
        set_there = {name for name, _ in other.envs}
        placed = {mount.container_path for mount in other.mounts}
        return ContainerEdits(
            envs=(*(pair for pair in self.envs if pair[0] not in set_there), *other.envs),
            device_paths=tuple(dict.fromkeys((*self.device_paths, *other.device_paths))),
            cdi_devices=tuple(dict.fromkeys((*self.cdi_devices, *other.cdi_devices))),
            mounts=(*(mount for mount in self.mounts if mount.container_path not in placed), *other.mounts),
        )


def edits_of(
    inventory: Inventory,
    resource: Resource,
    ids: Iterable[str],
    injection: Injection,
    files: DeviceFiles,
    cdi_kind: str,
) -> ContainerEdits:
    """The edits of one granted resource; `ids` all belong to it."""
    devices = sorted(
        (inventory.devices[device_id] for device_id in ids), key=lambda device: (device.position, device.unit)
    )
    keys = tuple(dict.fromkeys(device.key for device in devices))
    if resource.kind is ResourceKind.MEMORY:
        return ContainerEdits(envs=((MEMORY_VARIABLE, _memory_text(inventory, devices)),))
    envs = _nic_envs(resource, keys) if resource.kind is ResourceKind.NIC else _core_envs(devices)
    if injection in {Injection.DEVICE_NODES, Injection.MOUNTS}:
        shared = files.every_gpu if resource.kind is ResourceKind.CORE else ()
        paths = tuple(path for key in keys for path in files.by_key.get(key, ())) + shared
        nodes = ContainerEdits(envs, device_paths=paths)
        with_driver = injection is Injection.MOUNTS and resource.kind is ResourceKind.CORE
        return nodes.joined(driver_edits(files)) if with_driver else nodes
    if injection is Injection.ENVVAR and resource.kind is ResourceKind.CORE:
        visible = ",".join(_names(inventory, devices))
        return ContainerEdits((*envs, ("NVIDIA_VISIBLE_DEVICES", visible)))
    if injection is Injection.CDI and resource.kind is ResourceKind.CORE:
        return ContainerEdits(envs, cdi_devices=tuple(f"{cdi_kind}={name}" for name in _names(inventory, devices)))
    return ContainerEdits(envs)


def driver_edits(files: DeviceFiles) -> ContainerEdits:
    """The driver's libraries where images made for NVIDIA's GPUs look for them, and a search path for those that do
    not. The variable takes the place of one that the image may set; a pod's own wins over it."""
    if not files.libraries:
        return ContainerEdits()
    mounts = tuple(Mount(path, f"{DRIVER_DIRECTORY}/{name}") for name, path in files.libraries)
    return ContainerEdits(envs=((SEARCH_PATH_VARIABLE, DRIVER_DIRECTORY),), mounts=mounts)


def _core_envs(devices: list[Device]) -> tuple[tuple[str, str], ...]:
    cores = Counter(device.key for device in devices)
    whole = [key for key, count in cores.items() if count == CORES_PER_GPU]
    envs = [(CORES_VARIABLE, ",".join(f"{key}={count}" for key, count in cores.items()))]
    if whole:
        envs.append((WHOLE_GPUS_VARIABLE, ",".join(whole)))
    return tuple(envs)


def _memory_text(inventory: Inventory, devices: list[Device]) -> str:
    units = Counter(device.key for device in devices)
    unit_bytes = inventory.settings.memory_unit_bytes
    return ",".join(f"{key}={count * unit_bytes}" for key, count in units.items())


def nic_variable(resource_name: str) -> str:
    """The variable that names the NICs granted from one pool."""
    return "TOPOALLOC_" + re.sub(r"[^A-Z0-9]", "_", resource_name.rpartition("/")[2].upper())


def _nic_envs(resource: Resource, keys: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return ((nic_variable(resource.name), ",".join(keys)),)


def _names(inventory: Inventory, devices: list[Device]) -> tuple[str, ...]:
    """The GPUs as NVIDIA's runtime and CDI specs name them: by UUID, which means the same GPU in every process, or by
    index where no source told the UUID."""
    gpus = [inventory.machine.gpus[position] for position in dict.fromkeys(device.position for device in devices)]
    return tuple(gpu_name(gpu) for gpu in gpus)


def gpu_name(gpu: Gpu) -> str:
    """The name of a GPU in `NVIDIA_VISIBLE_DEVICES` and in CDI specifications."""
    return str(gpu.index) if isinstance(gpu.uuid, Unknown) else gpu.uuid
