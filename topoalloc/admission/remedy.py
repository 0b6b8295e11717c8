"""What would have had to be free for a pod that an allocator or the fit check refused, worked out from its message."""

from __future__ import annotations

import re

from topoalloc.admission.refusal import Refusal

_DEVICES = re.compile(r"requested number of devices unavailable for (\S+)\. Requested: (\d+), Available: (\d+)")
_CPUS = re.compile(r"not enough cpus available to satisfy request: requested=(\d+), available=(\d+)")
_FIT = re.compile(r"enough resource: (\S+), requested: (\d+), used: (\d+), capacity: (\d+)")
_UNHEALTHY = re.compile(r"no healthy devices present; cannot allocate unhealthy devices (\S+),")


def remedy_of(refusal: Refusal) -> str | None:
    """One line, or None where the message itself says all there is (a plugin's own refusal does)."""
    message = refusal.message
    if found := _DEVICES.search(message):
        resource, wanted, free = found[1], int(found[2]), int(found[3])
        return f"{wanted - free} more of {resource} would have had to be free ({wanted} needed, {free} free)"
    if found := _CPUS.search(message):
        wanted, free = int(found[1]), int(found[2])
        return f"{wanted - free} more CPUs would have had to be free for the container alone"
    if found := _FIT.search(message):
        resource, wanted, used, capacity = found[1], int(found[2]), int(found[3]), int(found[4])
        if wanted > capacity:
            return f"ask for less: the whole node has {_amount(resource, capacity)} of {resource}"
        return f"{_amount(resource, wanted + used - capacity)} more of {resource} would have had to be free"
    if found := _UNHEALTHY.search(message):
        return f"the plugin that serves {found[1]} would have had to be back"
    return None


def _amount(resource: str, amount: int) -> str:
    """CPUs are counted in thousandths by the fit check."""
    return f"{amount / 1000:g}" if resource == "cpu" else str(amount)
