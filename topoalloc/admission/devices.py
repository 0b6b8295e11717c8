"""The device manager's bookkeeping, and how it chooses devices, as steps between which the plugin may be asked.

Semantics of pkg/kubelet/cm/devicemanager/manager.go (1.36, 1.37). Every choice that the kubelet leaves to the
order of a Go map is a call of `pick`, so that a seed decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from topoalloc.admission.hints import DeviceView, HintNodes, Hints
from topoalloc.admission.pod import Container, Pod

# pick(candidates, count) returns `count` distinct members of `candidates`; candidates come sorted.
Pick = Callable[[Sequence[str], int], Sequence[str]]


class Owner(NamedTuple):
    """Who holds devices: one resource of one container of one pod."""

    pod_uid: str
    container: str
    resource: str


@dataclass(frozen=True, slots=True)
class ListedDevices:
    """The latest device list of one resource. `registered` is False once the grace period of a stopped plugin ended.

    `nodes` holds every device: its NUMA ids, `()` for an empty topology message, None for none.
    """

    nodes: Mapping[str, tuple[int, ...] | None] = field(default_factory=dict)
    healthy: frozenset[str] = frozenset()
    registered: bool = True


@dataclass(frozen=True, slots=True)
class DeviceTables:
    """Everything the device manager remembers.

    `allocated` (by resource) is what it believes is given out; `recorded` what finished Allocate calls gave to
    whom. The first is rebuilt from the second now and then, and loses what only it knew. `reusable` are devices
    of finished init containers of the pod `reuse_pod`.
    """

    listed: Mapping[str, ListedDevices] = field(default_factory=dict)
    allocated: Mapping[str, frozenset[str]] = field(default_factory=dict)
    recorded: Mapping[Owner, frozenset[str]] = field(default_factory=dict)
    reuse_pod: str = ""
    reusable: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Want:
    """One devicesToAllocate call.

    `affinity` is the stored mask of the container, None for none. `asks_plugin` is the plugin's option
    get_preferred_allocation_available. `sources_ready` is False while a restarted kubelet has not seen all
    pods; `was_running` tells then that the runtime found the container running.
    """

    owner: Owner
    required: int
    affinity: int | None
    asks_plugin: bool = True
    sources_ready: bool = True
    was_running: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """The devices to hand to Allocate; none: there is nothing to call."""

    tables: DeviceTables
    devices: frozenset[str]


@dataclass(frozen=True, slots=True)
class Ask:
    """GetPreferredAllocation has to be called with these arguments; then `finish`. On an RPC error: `ask_failed`."""

    tables: DeviceTables
    want: Want
    available: frozenset[str]
    must_include: frozenset[str]
    size: int
    needed: int
    aligned: frozenset[str]
    unaligned: frozenset[str]
    no_affinity: frozenset[str]


@dataclass(frozen=True, slots=True)
class Refused:
    """The kubelet's error text, without the admission wrapping; `tables` may have leaked a reservation."""

    tables: DeviceTables
    text: str


def list_received(
    tables: DeviceTables, resource: str, nodes: Mapping[str, tuple[int, ...] | None], healthy: frozenset[str]
) -> DeviceTables:
    """A ListAndWatch message replaced the devices of the resource."""
    raise NotImplementedError


def stream_ended(tables: DeviceTables, resource: str) -> DeviceTables:
    """The last plugin of the resource is gone: all its devices are unhealthy, none is forgotten."""
    raise NotImplementedError


def grace_period_ended(tables: DeviceTables, resource: str) -> DeviceTables:
    """Five minutes after the stream ended the resource is no longer registered."""
    raise NotImplementedError


def kubelet_restarted(tables: DeviceTables) -> DeviceTables:
    """What the checkpoint brings back: records; every resource registered with an empty list."""
    raise NotImplementedError


def collect(tables: DeviceTables, active_pods: frozenset[str]) -> DeviceTables:
    """Free the devices of pods that are no longer active (UpdateAllocatedDevices)."""
    raise NotImplementedError


def rebuild(tables: DeviceTables) -> DeviceTables:
    """`allocated` again from `recorded`, as after an Allocate RPC error."""
    raise NotImplementedError


def is_device_resource(tables: DeviceTables, resource: str) -> bool:
    """Whether the device manager looks after this resource at all; others are skipped in silence."""
    raise NotImplementedError


def view(tables: DeviceTables, resource: str) -> DeviceView:
    """The devices of a resource as hints see them."""
    raise NotImplementedError


def container_hints(
    tables: DeviceTables,
    pod: Pod,
    container: Container,
    machine_nodes: Sequence[int],
    hint_nodes: HintNodes = HintNodes.DEVICE,
) -> dict[str, Hints]:
    """The device manager's answer in container scope. Call `collect` before, as the kubelet does."""
    raise NotImplementedError


def pod_hints(
    tables: DeviceTables, pod: Pod, machine_nodes: Sequence[int], hint_nodes: HintNodes = HintNodes.DEVICE
) -> dict[str, Hints]:
    """The device manager's answer in pod scope. Call `collect` before, as the kubelet does."""
    raise NotImplementedError


def container_opened(tables: DeviceTables, pod_uid: str) -> DeviceTables:
    """Allocation for a container of this pod begins: what init containers of other pods left is forgotten."""
    raise NotImplementedError


def container_closed(tables: DeviceTables, pod_uid: str, container: Container) -> DeviceTables:
    """All resources of the container are recorded: an init container's devices become reusable, others' do not."""
    raise NotImplementedError


def begin(tables: DeviceTables, want: Want, pick: Pick) -> Done | Ask | Refused:
    """Choose devices as far as that goes without asking the plugin."""
    raise NotImplementedError


def finish(ask: Ask, answer: frozenset[str] | None, pick: Pick, tables: DeviceTables | None = None) -> Done | Refused:
    """Go on with the plugin's answer (any ids; None or empty: no preference).

    `tables` are the current ones where something happened during the call (it runs without the manager's lock).
    """
    raise NotImplementedError


def ask_failed(ask: Ask, error: str, tables: DeviceTables | None = None) -> Refused:
    """GetPreferredAllocation failed with this RPC error text: what had been taken stays reserved (a leak)."""
    raise NotImplementedError


def allocate_succeeded(tables: DeviceTables, owner: Owner, devices: frozenset[str]) -> DeviceTables | Refused:
    """Record the devices of a finished Allocate call. Refused with the crash it causes when one left the list."""
    raise NotImplementedError
