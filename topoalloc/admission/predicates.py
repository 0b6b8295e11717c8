"""The kubelet's own fit check, which runs after the topology manager has allocated (pkg/kubelet/lifecycle)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from topoalloc.admission.pod import CPU, MEMORY, Pod, is_extended, pod_requests
from topoalloc.admission.refusal import Refusal, out_of
from topoalloc.topology.machine import Unknown

PODS_MAX_DEFAULT = 110  # `maxPods` of the kubelet configuration
EPHEMERAL_STORAGE = "ephemeral-storage"
# The kubelet names the first resource that lacks: these in this order, then the others. It visits the others in
# random order; here they come by name.
FIRST_CHECKED = (CPU, MEMORY, EPHEMERAL_STORAGE)


def fit(
    pod: Pod,
    others: Sequence[Pod],
    allocatable: Mapping[str, int | Unknown],
    *,
    pods_max: int = PODS_MAX_DEFAULT,
    devices_allocated: Mapping[str, int] | None = None,
) -> Refusal | None:
    """Whether the pod fits beside the `others` on the node; the first resource that does not is named.

    `allocatable`: whole numbers by resource, cpu in thousandths. An extended resource that it lacks and an amount
    that is unknown are not checked at all. `devices_allocated`: devices given out by resource, the pod's own
    included, or None when the pod holds none; allocatable is raised to it, so that pods placed before pass while a
    plugin is away.
    """
    if len(others) + 1 > pods_max:
        return out_of("pods", 1, len(others), pods_max)
    there = dict(allocatable)
    for resource, count in (devices_allocated or {}).items():
        shown = there.get(resource, 0)
        there[resource] = shown if isinstance(shown, Unknown) else max(shown, count)
    used: dict[str, int] = {}
    for other in others:
        for resource, amount in _requests(other).items():
            used[resource] = used.get(resource, 0) + amount
    asked = _requests(pod)
    for resource in sorted(asked, key=_check_order):
        if is_extended(resource) and resource not in there:
            continue
        capacity, taken = there.get(resource, 0), used.get(resource, 0)
        if isinstance(capacity, Unknown):
            continue
        if asked[resource] > 0 and asked[resource] > capacity - taken:
            return out_of(resource, asked[resource], taken, capacity)
    return None


def _check_order(resource: str) -> tuple[int, str]:
    first = FIRST_CHECKED.index(resource) if resource in FIRST_CHECKED else len(FIRST_CHECKED)
    return first, resource


def _requests(pod: Pod) -> dict[str, int]:
    """Effective requests with the pod's overhead, in the predicate's units."""
    effective = {resource: quantity.nanos for resource, quantity in pod_requests(pod).items()}
    for resource, quantity in pod.overhead.items():
        effective[resource] = effective.get(resource, 0) + quantity.nanos
    return {resource: -(-nanos // (10**6 if resource == CPU else 10**9)) for resource, nanos in effective.items()}
