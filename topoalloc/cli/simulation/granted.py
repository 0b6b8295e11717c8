"""What a container really got, read from the variables that the agent put into it and not from the device ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from topoalloc.sharing.edits import CORES_VARIABLE, MEMORY_VARIABLE, WHOLE_GPUS_VARIABLE, nic_variable
from topoalloc.sharing.inventory import Inventory, ResourceKind
from topoalloc.topology.machine import known


@dataclass(frozen=True, slots=True)
class GpuShare:
    """Part of one GPU, or a whole one with all its memory. `memory_bytes` is None where unlimited or unknown."""

    id: str
    cores: int
    memory_bytes: int | None
    whole: bool


@dataclass(frozen=True, slots=True)
class Granted:
    """GPUs and NICs of one container in the order of the machine; `faults` says what in the variables is wrong."""

    gpus: tuple[GpuShare, ...]
    nics: tuple[str, ...]
    faults: tuple[str, ...]


def granted(environment: Mapping[str, str], inventory: Inventory, recorded: Mapping[str, frozenset[str]]) -> Granted:
    """Read the variables; `recorded` are the kubelet's device ids by resource, which have to say the same."""
    faults: list[str] = []
    cores = _amounts(environment, CORES_VARIABLE, faults)
    memory = _amounts(environment, MEMORY_VARIABLE, faults)
    whole = frozenset(_names(environment, WHOLE_GPUS_VARIABLE))
    gpus = []
    for gpu, key in zip(inventory.machine.gpus, inventory.gpu_keys, strict=True):
        if key not in cores and key not in memory:
            continue
        # Where memory is served, none granted means a limit of 0; where it is not, a share is not limited.
        limit = memory.get(key, 0 if inventory.memory_served else None)
        memory_bytes = known(gpu.memory_bytes) if key in whole else limit
        gpus.append(GpuShare(gpu.id, cores.get(key, 0), memory_bytes, key in whole))
    pools = [resource.name for resource in inventory.resources if resource.kind is ResourceKind.NIC]
    keys = [key for pool in pools for key in _names(environment, nic_variable(pool))]
    nics = tuple(nic.id for nic, key in zip(inventory.machine.nics, inventory.nic_keys, strict=True) if key in keys)
    faults.extend(_disagreements(inventory, recorded, cores, memory, frozenset(keys)))
    return Granted(tuple(gpus), nics, tuple(faults))


def _names(environment: Mapping[str, str], variable: str) -> list[str]:
    return [name for name in environment.get(variable, "").split(",") if name]


def _amounts(environment: Mapping[str, str], variable: str, faults: list[str]) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for part in _names(environment, variable):
        key, equals, amount = part.rpartition("=")
        if not equals or not amount.isascii() or not amount.isdigit():
            faults.append(f"{variable} holds {part[:80]!r}, which is no <key>=<amount>")
        else:
            amounts[key] = int(amount)
    return amounts


def _disagreements(
    inventory: Inventory,
    recorded: Mapping[str, frozenset[str]],
    cores: Mapping[str, int],
    memory: Mapping[str, int],
    nics: frozenset[str],
) -> list[str]:
    """Where the variables and the kubelet's records name different devices."""
    counted: dict[ResourceKind, dict[str, int]] = {kind: {} for kind in ResourceKind}
    for resource, ids in recorded.items():
        for device_id in ids:
            device = inventory.devices.get(device_id)
            if device is None:
                return [f"{resource}: the kubelet recorded {device_id}, which was never offered"]
            of_kind = counted[device.kind]
            of_kind[device.key] = of_kind.get(device.key, 0) + 1
    unit_bytes = inventory.settings.memory_unit_bytes
    pairs = (
        (CORES_VARIABLE, counted[ResourceKind.CORE], dict(cores)),
        (MEMORY_VARIABLE, {key: n * unit_bytes for key, n in counted[ResourceKind.MEMORY].items()}, dict(memory)),
        ("the NIC variables", dict.fromkeys(counted[ResourceKind.NIC], 1), dict.fromkeys(nics, 1)),
    )
    return [f"{name}: injected {said}, recorded {kept}" for name, kept, said in pairs if kept != said]
