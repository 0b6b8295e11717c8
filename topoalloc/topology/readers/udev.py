"""Kernel events that say "the devices may have changed"; the only module that touches pyudev.

The source is the kernel itself: events of a running udevd do not reach containers. Even kernel events do not reach a
user namespace of its own (pods with `hostUsers: false`), so a periodic rescan stays necessary beside them.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from topoalloc.topology.reading import SourceRefusal

SOURCE = "udev"
SUBSYSTEMS = ("pci", "net", "infiniband")
# Taken from the socket in one drain. More are left for the next one: the caller looks at the whole machine anyway.
EVENTS_MAX = 10_000


class _Monitor(Protocol):
    """The part of pyudev.Monitor that is used here."""

    def fileno(self) -> int: ...

    def poll(self, timeout: float | None = None) -> object | None: ...


class HotplugMonitor:
    """A socket that becomes readable when devices come or go. An event's content is not looked at."""

    def __init__(self, monitor: _Monitor) -> None:
        self._monitor: _Monitor | None = monitor

    def fileno(self) -> int:
        """For select; raises ValueError after close."""
        if self._monitor is None:
            raise ValueError("the monitor is closed")
        return self._monitor.fileno()

    def drain(self) -> bool:
        """Take all waiting events off the socket without blocking; whether there was any reason to rescan."""
        if self._monitor is None:
            return False
        for count in range(EVENTS_MAX):
            try:
                # `is None`: the truth of a pyudev device goes through a deprecated interface.
                if self._monitor.poll(timeout=0) is None:
                    return count > 0
            except OSError:  # ENOBUFS: events were lost, which is itself a reason
                return True
        return True

    def close(self) -> None:
        """Give the socket back."""
        self._monitor = None

    def __enter__(self) -> HotplugMonitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def watch_hotplug() -> HotplugMonitor | SourceRefusal:
    """Start to listen; a refusal where libudev or its socket is not to be had, which leaves the periodic rescan."""
    try:
        import pyudev

        monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
        for subsystem in SUBSYSTEMS:
            monitor.filter_by(subsystem)
        monitor.start()
    except (ImportError, OSError) as error:  # pyudev raises ImportError where it finds no libudev
        return SourceRefusal(SOURCE, f"device events cannot be watched ({error}); changes are found by rescans alone")
    return HotplugMonitor(monitor)
