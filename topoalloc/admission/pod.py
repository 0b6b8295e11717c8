"""Pods as far as admission looks at them: containers, their resources, quality of service, effective requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from topoalloc.admission.quantity import ZERO, Quantity, parse_quantity
from topoalloc.errors import InputError

Resources = Mapping[str, Quantity]

HUGE_PAGES_PREFIX = "hugepages-"
CPU = "cpu"
MEMORY = "memory"


class Qos(StrEnum):
    """Quality of service class; only Guaranteed pods get CPUs and memory of their own."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


@dataclass(frozen=True, slots=True)
class Container:
    """One container. `restartable` marks an init container that keeps running (a sidecar)."""

    name: str
    requests: Resources = field(default_factory=dict)
    limits: Resources = field(default_factory=dict)
    init: bool = False
    restartable: bool = False

    def __post_init__(self) -> None:
        assert self.init or not self.restartable, "only init containers are restartable"


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. `containers` holds init containers first, then app containers, each group in the order of the spec.

    `requests` and `limits` are pod-level resources (`spec.resources`); empty when the pod has none.
    """

    name: str
    namespace: str
    uid: str
    containers: tuple[Container, ...]
    requests: Resources = field(default_factory=dict)
    limits: Resources = field(default_factory=dict)
    overhead: Resources = field(default_factory=dict)

    def __post_init__(self) -> None:
        groups = [container.init for container in self.containers]
        assert groups == sorted(groups, reverse=True), "init containers come first"

    @property
    def has_pod_level_resources(self) -> bool:
        """Whether `spec.resources` names cpu, memory or huge pages: then CPU and memory managers say nothing."""
        return any(_pod_level(name) for name in (*self.requests, *self.limits))


def checked_container(
    name: str,
    requests: Mapping[str, str],
    limits: Mapping[str, str],
    *,
    init: bool = False,
    restartable: bool = False,
) -> Container:
    """A container as the API server would store it: quantities parsed, requests defaulted from limits.

    Raises InputError for what the API server refuses: a malformed or negative quantity, a request above its
    limit, an extended resource that is not whole, or whose request is not its limit.
    """
    asked = _parsed(name, "requests", requests)
    capped = _parsed(name, "limits", limits)
    for resource in sorted(asked.keys() | capped.keys()):
        _check_resource(name, resource, asked.get(resource), capped.get(resource))
    return Container(name, {**capped, **asked}, capped, init, restartable)


def _parsed(container: str, kind: str, quantities: Mapping[str, str]) -> dict[str, Quantity]:
    parsed: dict[str, Quantity] = {}
    for resource, text in quantities.items():
        try:
            parsed[resource] = parse_quantity(text)
        except InputError as error:
            raise InputError(f"container {container!r}, {kind}.{resource}: {error}") from None
        if parsed[resource] < ZERO:
            raise InputError(f"container {container!r}, {kind}.{resource}: {text} must be greater than or equal to 0")
    return parsed


def _check_resource(container: str, resource: str, asked: Quantity | None, capped: Quantity | None) -> None:
    where = f"container {container!r}, {resource}"
    whole_only = is_extended(resource) or resource.startswith(HUGE_PAGES_PREFIX)
    if whole_only and any(quantity is not None and not quantity.is_whole for quantity in (asked, capped)):
        raise InputError(f"{where}: must be an integer")
    if whole_only and capped is None:
        raise InputError(f"{where}: Limit must be set for non overcommitable resources")
    if whole_only and asked is not None and asked != capped:
        raise InputError(f"{where}: the request {asked} must equal the limit {capped}")
    if asked is not None and capped is not None and asked > capped:
        raise InputError(f"{where}: the request {asked} must be less than or equal to the limit {capped}")


def is_extended(resource: str) -> bool:
    """Whether the name is one that a device plugin may serve (`vendor/thing`, outside kubernetes.io)."""
    return "/" in resource and "kubernetes.io/" not in resource and not resource.startswith("requests.")


def _pod_level(resource: str) -> bool:
    return resource in (CPU, MEMORY) or resource.startswith(HUGE_PAGES_PREFIX)


def qos(pod: Pod) -> Qos:
    """Quality of service class of the pod (pkg/apis/core/v1/helper/qos)."""
    if pod.has_pod_level_resources:
        return _qos_of(pod.requests, pod.limits)
    classes = {_qos_of(container.requests, container.limits) for container in pod.containers}
    if len(classes) == 1:
        return classes.pop()
    return Qos.BURSTABLE if classes else Qos.BEST_EFFORT


def _qos_of(requests: Resources, limits: Resources) -> Qos:
    """Guaranteed: cpu and memory both set, request equal to limit. Best effort: neither set. Else burstable."""
    pairs = [(requests.get(name, ZERO), limits.get(name, ZERO)) for name in (CPU, MEMORY)]
    if any(asked != capped for asked, capped in pairs):
        return Qos.BURSTABLE
    given = [asked != ZERO for asked, _ in pairs]
    if all(given):
        return Qos.GUARANTEED
    return Qos.BURSTABLE if any(given) else Qos.BEST_EFFORT


def pod_requests(pod: Pod) -> dict[str, Quantity]:
    """Effective requests of the whole pod, pod overhead left out."""
    effective = _aggregated([(container, container.requests) for container in pod.containers])
    effective.update({name: asked for name, asked in pod.requests.items() if _pod_level(name)})
    return effective


def pod_limits(pod: Pod) -> dict[str, Quantity]:
    """Effective limits of the whole pod, pod overhead left out; what pod-scope device hints ask for."""
    effective = _aggregated([(container, container.limits) for container in pod.containers])
    effective.update({name: capped for name, capped in pod.limits.items() if _pod_level(name)})
    return effective


def _aggregated(shares: list[tuple[Container, Resources]]) -> dict[str, Quantity]:
    """What has to be there at the worst moment of the pod's life (KEP 753).

    The larger of: all app containers and sidecars together; any ordinary init container together with the
    sidecars that were started before it.
    """
    running: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container, resources in shares:
        for name, quantity in resources.items():
            if not container.init:
                running[name] = running.get(name, 0) + quantity.nanos
            elif container.restartable:
                running[name] = running.get(name, 0) + quantity.nanos
                sidecars[name] = sidecars.get(name, 0) + quantity.nanos
            else:
                peak[name] = max(peak.get(name, 0), sidecars.get(name, 0) + quantity.nanos)
    return {name: Quantity(max(running.get(name, 0), peak.get(name, 0))) for name in {**running, **peak}}


def device_requests(container: Container) -> dict[str, int]:
    """Whole-number limits of a container; the kubelet keeps those whose name a device plugin has registered."""
    return {name: quantity.value for name, quantity in container.limits.items()}
