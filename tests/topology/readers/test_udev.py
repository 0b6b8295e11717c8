"""The kernel's own events over a real netlink socket; where the kernel sends none, a pair of sockets stands in."""

from __future__ import annotations

import errno
import select
import socket
from pathlib import Path

import pytest

from topoalloc.topology.readers.udev import EVENTS_MAX, HotplugMonitor, watch_hotplug
from topoalloc.topology.reading import SourceRefusal

LOOPBACK = Path("/sys/class/net/lo/uevent")
NOBODY_WAITS_S = 5


def monitor() -> HotplugMonitor:
    watching = watch_hotplug()
    if isinstance(watching, SourceRefusal):
        pytest.skip(str(watching))
    return watching


def trigger() -> None:
    """Make the kernel announce a change of the loopback interface."""
    try:
        LOOPBACK.write_text("change")
    except OSError as error:
        pytest.skip(f"this user cannot make the kernel announce a change ({error})")


def is_readable(watching: HotplugMonitor, timeout_s: float) -> bool:
    return bool(select.select([watching], [], [], timeout_s)[0])


def test_a_change_makes_the_monitor_readable_until_it_is_drained() -> None:
    with monitor() as watching:
        trigger()
        if not is_readable(watching, NOBODY_WAITS_S):
            pytest.skip("no kernel events reach this user namespace")
        assert watching.drain()
        assert not watching.drain()
        assert not is_readable(watching, 0)


def test_a_quiet_monitor_is_no_reason_to_rescan() -> None:
    with monitor() as watching:
        assert watching.fileno() >= 0
        assert not watching.drain()


def test_a_closed_monitor_is_quiet_and_has_no_descriptor() -> None:
    watching = monitor()
    descriptor = watching.fileno()
    watching.close()
    assert not watching.drain()
    with pytest.raises(ValueError, match="closed"):
        watching.fileno()
    with pytest.raises(OSError, match="Bad file descriptor"):
        socket.socket(fileno=descriptor)


class Flood:
    """A monitor whose events never end."""

    taken = 0

    def fileno(self) -> int:
        return 0

    def poll(self, timeout: float | None = None) -> object | None:
        assert timeout == 0
        self.taken += 1
        return object()


class Overrun(Flood):
    """A monitor whose socket lost events."""

    def poll(self, timeout: float | None = None) -> object | None:
        raise OSError(errno.ENOBUFS, "No buffer space available")


def test_a_flood_of_events_is_taken_in_bounded_parts() -> None:
    flood = Flood()
    assert HotplugMonitor(flood).drain()
    assert flood.taken == EVENTS_MAX


def test_lost_events_are_a_reason_to_rescan() -> None:
    assert HotplugMonitor(Overrun()).drain()
