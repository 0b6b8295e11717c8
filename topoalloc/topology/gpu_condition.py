"""What a driver says of a GPU's health: faults as they happen, and the condition when asked."""

from __future__ import annotations

from dataclasses import dataclass

from topoalloc.topology.pci import PciAddress


@dataclass(frozen=True, slots=True)
class GpuFault:
    """Something went wrong on a GPU. `xid` is the number in NVIDIA's list of Xid errors; `address` None: the driver
    does not tell which GPU it was."""

    address: PciAddress | None
    xid: int


@dataclass(frozen=True, slots=True)
class GpuCondition:
    """One GPU's answers. `lost`: the driver has lost it (False: it answers); `rows_failed`: a bad memory row could not
    be replaced; `needs_recovery`: the driver asks for a reset or a reboot. None: it does not say."""

    address: PciAddress
    lost: bool | None = None
    rows_failed: bool | None = None
    needs_recovery: bool | None = None
