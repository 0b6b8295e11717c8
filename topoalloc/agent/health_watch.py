"""Looks after the devices while they are served: a live node through sysfs, events and the driver, a recorded machine
through its files. What is seen goes to `health`, which decides."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from topoalloc.agent.fault_lines import FaultLines
from topoalloc.agent.health import Health, after_answers, after_faults, after_look
from topoalloc.errors import TopoallocError
from topoalloc.sharing.inventory import Inventory
from topoalloc.topology.gpu_condition import GpuCondition, GpuFault
from topoalloc.topology.machine import Machine
from topoalloc.topology.pci import PciAddress
from topoalloc.topology.pci_classes import NVIDIA
from topoalloc.topology.readers.nvml_events import open_gpu_watch
from topoalloc.topology.readers.udev import HotplugMonitor, watch_hotplug
from topoalloc.topology.reading import SourceRefusal

log = logging.getLogger(__name__)

LOOK_PERIOD_S = 5.0  # which PCI functions are there, and what the driver says of each GPU: both are cheap
RESCAN_PAUSE_S = 5.0  # every pod that starts makes network events; they are no reason to look without end
RESCAN_PERIOD_S = 60.0  # hot-plug events do not reach every pod (user namespaces get none), so look regardless
SESSION_PAUSE_S = 60.0  # between sessions with a driver that has lost a GPU or cannot be asked: to begin one is costly

Marks = tuple[tuple[int, int, int] | None, ...]


class Watch(Protocol):
    """Asked again and again by one thread."""

    def reasons(self, now_s: float) -> Mapping[str, str]:
        """Why, by the key of each device that is out of order now."""

    def close(self) -> None:
        """Let go of what is held open."""


class DriverSession(Protocol):
    """What `open_gpu_watch` opens."""

    is_stale: bool

    def conditions(self) -> tuple[GpuCondition, ...]: ...

    def faults(self) -> tuple[GpuFault, ...]: ...

    def close(self) -> None: ...


class LiveWatch:
    """The node this process runs on."""

    def __init__(
        self,
        inventory: Inventory,
        rescan: Callable[[], Machine],
        sysfs: str,
        ignored_xids: Sequence[int],
        open_session: Callable[[Sequence[PciAddress]], DriverSession | SourceRefusal] = open_gpu_watch,
        hotplug: Callable[[], HotplugMonitor | SourceRefusal] = watch_hotplug,
    ) -> None:
        self._inventory = inventory
        self._rescan = rescan
        self._functions = f"{sysfs}/bus/pci/devices"
        self._ignored_xids = frozenset(ignored_xids)
        self._health = Health()
        addresses = {gpu.bdf for gpu in inventory.machine.gpus} | {nic.bdf for nic in inventory.machine.nics}
        self._addresses = tuple(sorted(at for at in addresses if isinstance(at, PciAddress)))
        self._open_session = open_session
        self._session: DriverSession | None = None
        self._session_tried_at_s = -SESSION_PAUSE_S
        self._complaint = ""
        self._fault_lines = FaultLines()
        self._hotplug = hotplug()
        if isinstance(self._hotplug, SourceRefusal):
            log.info("%s", self._hotplug)
        self._looked_at_s = self._rescanned_at_s = float("-inf")
        self._changed = False
        self._absent = self._absent_functions()

    def reasons(self, now_s: float) -> Mapping[str, str]:
        if self._rescanned_at_s == float("-inf"):
            self._rescanned_at_s = now_s  # what is served was read a moment ago
        self._changed |= isinstance(self._hotplug, HotplugMonitor) and self._hotplug.drain()
        due = self._changed and now_s - self._rescanned_at_s >= RESCAN_PAUSE_S
        self._take_faults(now_s)  # before questions find a GPU lost, or end the session
        if now_s - self._looked_at_s >= LOOK_PERIOD_S:
            self._looked_at_s = now_s
            absent = self._absent_functions()
            due |= absent != self._absent
            self._absent = absent
            self._ask_driver(now_s)
        if due or now_s - self._rescanned_at_s >= RESCAN_PERIOD_S:
            self._rescanned_at_s, self._changed = now_s, False
            self._look_again()
        return self._health.reasons()

    def close(self) -> None:
        if isinstance(self._hotplug, HotplugMonitor):
            self._hotplug.close()
        if self._session is not None:
            self._session.close()
            self._session = None

    def _absent_functions(self) -> frozenset[PciAddress]:
        """A stat for each device, where reading the machine again would be thousands of files."""
        return frozenset(at for at in self._addresses if not os.path.exists(f"{self._functions}/{at}"))  # noqa: PTH110

    def _look_again(self) -> None:
        try:
            machine = self._rescan()
        except Exception:  # discovery reads whatever the node shows at this moment; the last good picture stays
            log.exception("looking at the machine again failed")
            return
        self._health = after_look(self._health, self._inventory, machine)

    def _ask_driver(self, now_s: float) -> None:
        gpus = [gpu.bdf for gpu in self._inventory.machine.gpus if gpu.vendor == NVIDIA]
        if now_s - self._session_tried_at_s >= SESSION_PAUSE_S and gpus:
            self._renew_session(tuple(at for at in gpus if isinstance(at, PciAddress)), now_s)
        if self._session is not None:
            conditions = self._session.conditions()
            self._health = after_answers(self._health, self._inventory, conditions, now_s)

    def _renew_session(self, gpus: tuple[PciAddress, ...], now_s: float) -> None:
        """Begin a session where there is none, or none that can still learn of a GPU that came back."""
        if self._session is not None:
            if not self._session.is_stale and not self._health.awaits_session:
                return
            self._session.close()
            self._session = None
        self._session_tried_at_s = now_s
        opened = self._open_session(gpus)
        if not isinstance(opened, SourceRefusal):
            self._session, self._complaint = opened, ""
        elif str(opened) != self._complaint:
            self._complaint = str(opened)
            log.warning("%s; faults of GPUs go unnoticed", opened)

    def _take_faults(self, now_s: float) -> None:
        faults = () if self._session is None else self._session.faults()
        for fault, count in self._fault_lines.due(faults, now_s):
            whose = fault.address or "a GPU that the driver does not name"
            is_ignored = fault.xid in self._ignored_xids
            words = (", ignored" if is_ignored else "") + (f", {count} times" if count > 1 else "")
            log.log(logging.INFO if is_ignored else logging.WARNING, "Xid %d on %s%s", fault.xid, whose, words)
        self._health = after_faults(self._health, self._inventory, faults, self._ignored_xids)


class RecordedWatch:
    """A recorded machine: its files are read again when they have changed and then kept still for one call."""

    def __init__(
        self, inventory: Inventory, paths: Sequence[str], marks_read: Marks, reread: Callable[[], Machine]
    ) -> None:
        """`marks_read`: the files' marks before they were read for `inventory`."""
        self._inventory = inventory
        self._paths = tuple(paths)
        self._reread = reread
        self._read = self._last = marks_read
        self._health = Health()

    def reasons(self, now_s: float) -> Mapping[str, str]:
        marks = file_marks(self._paths)
        if marks != self._read and marks == self._last:
            self._read = marks
            self._look_again()
        self._last = marks
        return self._health.reasons()

    def close(self) -> None:
        pass

    def _look_again(self) -> None:
        try:
            machine = self._reread()
        except TopoallocError as error:
            log.warning("%s; the devices stay as they were", error)
            return
        self._health = after_look(self._health, self._inventory, machine)
        log.info("the recorded machine was read again: %d GPUs, %d NICs", len(machine.gpus), len(machine.nics))


def file_marks(paths: Sequence[str]) -> Marks:
    """By which a changed file shows, without opening it; of a folder, whether anything was put into it or taken out."""
    return tuple(_mark(path) for path in paths)


def _mark(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - a `synthetic:` spelling need not be fit for a path
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
