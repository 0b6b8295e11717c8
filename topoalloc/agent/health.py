"""Which devices are out of order, and why: from what was seen of the machine and what drivers said. Pure.

A device that is not there, or whose driver complains of it, is out of order for as long as that lasts. A fault is an
event and leaves nothing to see, so it stays until the driver says for a while that nothing has to be recovered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

from topoalloc.sharing.inventory import Inventory
from topoalloc.topology.gpu_condition import GpuCondition, GpuFault
from topoalloc.topology.machine import Machine, Unknown
from topoalloc.topology.pci import PciAddress
from topoalloc.topology.pci_classes import NVIDIA

# Faults of the program that ran on a GPU, not of the GPU (NVIDIA's catalogue of Xid errors): 13 and 31 its memory
# accesses, 43 it stopped, 45 it was ended, 68 its video work, 109 it was switched too slowly.
APPLICATION_XIDS = (13, 31, 43, 45, 68, 109)
# How long the driver has to say that a GPU with a fault needs no recovery. A contained memory error ends one program
# and takes seconds; a GPU that goes on faulting does so within minutes.
CALM_S = 300.0


_LOST = "the driver has lost it"
_RESET = "it answers nothing before its reset"
_ROWS = "a row of its memory failed and could not be replaced"
_RECOVERY = "the driver asks for its reset, or for a reboot"


@dataclass(frozen=True, slots=True)
class Fault:
    """The last fault of a device, and since when its driver has been saying that all is well again (None: not)."""

    xid: int
    calm_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """What is known of the devices of one inventory, by key."""

    missing: frozenset[str] = frozenset()
    complaints: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, Fault] = field(default_factory=dict)

    @property
    def awaits_session(self) -> bool:
        """Whether a device is out of which only a new session with the driver may hear again."""
        return not {_LOST, _RESET}.isdisjoint(self.complaints.values())

    def reasons(self) -> dict[str, str]:
        """Why, by the key of each device that is out of order; in the order of keys."""
        why = {key: f"Xid {fault.xid}" for key, fault in self.faults.items()}
        why |= self.complaints
        why |= dict.fromkeys(self.missing, "it is not there")
        return dict(sorted(why.items()))


def after_look(health: Health, inventory: Inventory, machine: Machine) -> Health:
    """The machine was read again."""
    return replace(health, missing=missing_keys(inventory, machine))


def after_answers(health: Health, inventory: Inventory, conditions: Iterable[GpuCondition], now_s: float) -> Health:
    """The driver was asked about its GPUs. What it says nothing of stays: faults, and what it complained of."""
    complaints = dict(health.complaints)
    faults = {key: replace(fault, calm_since_s=None) for key, fault in health.faults.items()}
    for condition in conditions:
        for key in _keys_at(inventory, condition.address):
            complaint = _complaint(condition, complaints.pop(key, None))
            fault = health.faults.get(key)
            if complaint is not None:
                complaints[key] = complaint
            elif fault is not None and condition.needs_recovery is False:
                since_s = now_s if fault.calm_since_s is None else fault.calm_since_s
                faults[key] = replace(fault, calm_since_s=since_s)
    faults = {
        key: fault for key, fault in faults.items() if fault.calm_since_s is None or now_s - fault.calm_since_s < CALM_S
    }
    return replace(health, complaints=complaints, faults=faults)


def after_faults(health: Health, inventory: Inventory, faults: Iterable[GpuFault], ignored_xids: Set[int]) -> Health:
    """Faults came in, oldest first. One of which nobody knows whose it is counts for every GPU of that vendor."""
    known = dict(health.faults)
    for fault in faults:
        if fault.xid in ignored_xids:
            continue
        keys = _nvidia_keys(inventory) if fault.address is None else _keys_at(inventory, fault.address)
        known.update(dict.fromkeys(keys, Fault(fault.xid)))
    return replace(health, faults=known)


def missing_keys(inventory: Inventory, machine: Machine) -> frozenset[str]:
    """Keys of devices that were there at start and are not now. New ones are served after the next start.

    Devices are told apart by address (NICs of one function also by name), by number where the start knew no address.
    """
    gpus_now = {(gpu.bdf, gpu.index if isinstance(gpu.bdf, Unknown) else 0) for gpu in machine.gpus}
    nics_now = {(nic.bdf, nic.name) for nic in machine.nics}
    gpus = (
        key
        for gpu, key in zip(inventory.machine.gpus, inventory.gpu_keys, strict=True)
        if (gpu.bdf, gpu.index if isinstance(gpu.bdf, Unknown) else 0) not in gpus_now
    )
    nics = (
        key
        for nic, key in zip(inventory.machine.nics, inventory.nic_keys, strict=True)
        if (nic.bdf, nic.name) not in nics_now
    )
    return frozenset((*gpus, *nics))


def _complaint(condition: GpuCondition, before: str | None) -> str | None:
    """What the driver complains of; what it complained of before stands until it says otherwise of that very thing."""
    if condition.lost:
        return _LOST
    if condition.rows_failed:
        return _ROWS
    if condition.needs_recovery:
        return _RECOVERY if condition.lost is False else _RESET
    said = {
        _LOST: condition.lost,
        _RESET: condition.lost,
        _ROWS: condition.rows_failed,
        _RECOVERY: condition.needs_recovery,
    }
    return None if before is None or said[before] is False else before


def _keys_at(inventory: Inventory, address: PciAddress) -> Iterator[str]:
    for gpu, key in zip(inventory.machine.gpus, inventory.gpu_keys, strict=True):
        if gpu.bdf == address:
            yield key


def _nvidia_keys(inventory: Inventory) -> Iterator[str]:
    for gpu, key in zip(inventory.machine.gpus, inventory.gpu_keys, strict=True):
        if gpu.vendor == NVIDIA:
            yield key
