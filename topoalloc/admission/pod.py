"""Pods as far as admission looks at them: containers, their resources, quality of service, effective requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """A Kubernetes quantity, exact to a billionth, the finest the API keeps."""

    nanos: int

    @property
    def value(self) -> int:
        """The whole number, rounded up (Quantity.Value)."""
        raise NotImplementedError

    @property
    def milli(self) -> int:
        """Thousandths, rounded up (Quantity.MilliValue)."""
        raise NotImplementedError


def parse_quantity(text: str) -> Quantity:
    """Read `100m`, `1.5`, `2e3`, `1Gi` ... Raises InputError that quotes the text."""
    raise NotImplementedError


Resources = Mapping[str, Quantity]


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

    @property
    def has_pod_level_resources(self) -> bool:
        """Whether `spec.resources` names cpu, memory or hugepages: then CPU and memory managers say nothing."""
        raise NotImplementedError


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
    raise NotImplementedError


def is_extended(resource: str) -> bool:
    """Whether the name is one that a device plugin may serve (`vendor/thing`, outside kubernetes.io)."""
    raise NotImplementedError


def qos(pod: Pod) -> Qos:
    """Quality of service class of the pod (pkg/apis/core/v1/helper/qos)."""
    raise NotImplementedError


def pod_requests(pod: Pod) -> dict[str, Quantity]:
    """Effective requests of the whole pod, pod overhead left out."""
    raise NotImplementedError


def pod_limits(pod: Pod) -> dict[str, Quantity]:
    """Effective limits of the whole pod, pod overhead left out; what pod-scope device hints ask for."""
    raise NotImplementedError


def device_requests(container: Container) -> dict[str, int]:
    """Whole-number limits of a container; the kubelet keeps those whose name a device plugin has registered."""
    raise NotImplementedError
