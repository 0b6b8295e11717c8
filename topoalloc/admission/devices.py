"""The device manager's bookkeeping, and how it chooses devices, as steps between which the plugin may be asked.

Semantics of pkg/kubelet/cm/devicemanager/manager.go (1.36, 1.37). Every choice that the kubelet leaves to the
order of a Go map is a call of `pick`, so that a seed decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from topoalloc.admission.hints import DeviceView, HintNodes, Hints, device_hints
from topoalloc.admission.numa_mask import partial_mask_of
from topoalloc.admission.pod import Container, Pod, device_requests, pod_limits

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
    """GetPreferredAllocation has to be called; then `finish`, or `ask_failed` on an RPC error.

    Its arguments are `available`, `must_include` and `size`. The rest is for `finish`: `candidates` are the devices
    among which the answer may choose, `fallbacks` those that fill up a short answer, in this order.
    """

    tables: DeviceTables
    want: Want
    available: frozenset[str]
    must_include: frozenset[str]
    candidates: frozenset[str]
    fallbacks: tuple[frozenset[str], ...]

    @property
    def size(self) -> int:
        """How many devices the answer is to name, the must-includes among them."""
        return self.want.required


@dataclass(frozen=True, slots=True)
class Refused:
    """The kubelet's error text, without the admission wrapping; `tables` may have leaked a reservation."""

    tables: DeviceTables
    text: str


def list_received(
    tables: DeviceTables, resource: str, nodes: Mapping[str, tuple[int, ...] | None], healthy: frozenset[str]
) -> DeviceTables:
    """A ListAndWatch message replaced the devices of the resource."""
    return _with_list(tables, resource, ListedDevices(dict(nodes), healthy))


def stream_ended(tables: DeviceTables, resource: str) -> DeviceTables:
    """The last plugin of the resource is gone: all its devices are unhealthy, none is forgotten.

    A plugin that went before it sent a list leaves no trace.
    """
    listed = tables.listed.get(resource)
    return tables if listed is None else _with_list(tables, resource, replace(listed, healthy=frozenset()))


def grace_period_ended(tables: DeviceTables, resource: str) -> DeviceTables:
    """Five minutes after the stream ended the resource is no longer registered; its device table stays."""
    listed = tables.listed.get(resource)
    if listed is None:
        return tables
    return _with_list(tables, resource, replace(listed, healthy=frozenset(), registered=False))


def kubelet_restarted(tables: DeviceTables) -> DeviceTables:
    """What the checkpoint brings back: records; every registered resource with an empty list."""
    listed = {resource: ListedDevices() for resource, devices in tables.listed.items() if devices.registered}
    return rebuild(DeviceTables(listed=listed, recorded=tables.recorded))


def collect(tables: DeviceTables, active_pods: frozenset[str]) -> DeviceTables:
    """Free the devices of pods that are no longer active (UpdateAllocatedDevices).

    Nothing happens unless such a pod has records; then `allocated` is rebuilt, and whatever only it knew is lost.
    """
    kept = {owner: devices for owner, devices in tables.recorded.items() if owner.pod_uid in active_pods}
    return tables if len(kept) == len(tables.recorded) else rebuild(replace(tables, recorded=kept))


def rebuild(tables: DeviceTables) -> DeviceTables:
    """`allocated` again from `recorded`, as after an Allocate RPC error."""
    allocated: dict[str, frozenset[str]] = {}
    for owner, devices in tables.recorded.items():
        allocated[owner.resource] = allocated.get(owner.resource, frozenset()) | devices
    return replace(tables, allocated=allocated)


def is_device_resource(tables: DeviceTables, resource: str) -> bool:
    """Whether the device manager looks after this resource at all; others are skipped in silence."""
    listed = tables.listed.get(resource)
    return (listed is not None and listed.registered) or resource in tables.allocated


def view(tables: DeviceTables, resource: str) -> DeviceView:
    """The devices of a resource as hints see them."""
    listed = tables.listed.get(resource, ListedDevices())
    return DeviceView(listed.nodes, listed.healthy, tables.allocated.get(resource, frozenset()))


def container_hints(
    tables: DeviceTables,
    pod: Pod,
    container: Container,
    machine_nodes: Sequence[int],
    hint_nodes: HintNodes = HintNodes.DEVICE,
) -> dict[str, Hints]:
    """The device manager's answer in container scope. Call `collect` before, as the kubelet does."""
    reusable = tables.reusable if tables.reuse_pod == pod.uid else {}
    return {
        resource: device_hints(
            view(tables, resource),
            request,
            machine_nodes,
            recorded=tables.recorded.get(Owner(pod.uid, container.name, resource), frozenset()),
            reusable=reusable.get(resource, frozenset()),
            hint_nodes=hint_nodes,
        )
        for resource, request in device_requests(container).items()
        if is_device_resource(tables, resource)
    }


def pod_hints(
    tables: DeviceTables, pod: Pod, machine_nodes: Sequence[int], hint_nodes: HintNodes = HintNodes.DEVICE
) -> dict[str, Hints]:
    """The device manager's answer in pod scope. Call `collect` before, as the kubelet does."""
    return {
        resource: device_hints(
            view(tables, resource),
            request.value,
            machine_nodes,
            recorded=_recorded_of_pod(tables, pod.uid, resource),
            hint_nodes=hint_nodes,
        )
        for resource, request in pod_limits(pod).items()
        if is_device_resource(tables, resource)
    }


def crash_reason(tables: DeviceTables, pod: Pod, container: Container | None) -> str | None:
    """Why generating these hints would crash the kubelet; None when it would not. No container: pod scope.

    A device that the pod has, or could reuse, and that has left the list is a nil pointer in
    generateDeviceTopologyHints.
    """
    for resource in pod_limits(pod) if container is None else device_requests(container):
        devices = view(tables, resource)
        if not devices.has_topology:
            continue
        if container is None:
            held = _recorded_of_pod(tables, pod.uid, resource)
        else:
            held = tables.recorded.get(Owner(pod.uid, container.name, resource), frozenset())
            if not held and tables.reuse_pod == pod.uid:
                held = tables.reusable.get(resource, frozenset())
        vanished = sorted(held - devices.nodes.keys())
        if vanished:
            return f"the kubelet crashes: {vanished[0]} of {resource}, which pod {pod.name} has, left the device list"
    return None


def container_opened(tables: DeviceTables, pod_uid: str) -> DeviceTables:
    """Allocation for a container of this pod begins: what init containers of other pods left is forgotten."""
    return tables if tables.reuse_pod == pod_uid else replace(tables, reuse_pod=pod_uid, reusable={})


def container_closed(tables: DeviceTables, pod_uid: str, container: Container) -> DeviceTables:
    """All resources of the container are recorded: an ordinary init container's devices become reusable; those of
    app containers and sidecars, which keep running, no longer are."""
    reusable = dict(tables.reusable)
    gives_back = container.init and not container.restartable
    for owner, devices in tables.recorded.items():
        if (owner.pod_uid, owner.container) != (pod_uid, container.name):
            continue
        before = reusable.get(owner.resource, frozenset())
        reusable[owner.resource] = before | devices if gives_back else before - devices
    return replace(tables, reusable=reusable)


def begin(tables: DeviceTables, want: Want, pick: Pick) -> Done | Ask | Refused:
    """Choose devices as far as that goes without asking the plugin.

    Step numbers: 1 to 6 what is there already, 7 reuse, 8 what is free, 9 split by affinity, 10 and 12 whether
    the plugin is asked before or after the aligned devices are taken, 11 take all aligned.
    """
    resource = want.owner.resource
    have = tables.recorded.get(want.owner)
    # 1
    if have is not None and len(have) != want.required:
        changed = f"changed request for resource {_quoted(resource)} from {len(have)} to {want.required}"
        who = f"pod {_quoted(want.owner.pod_uid)} container {_quoted(want.owner.container)}"
        return Refused(tables, f"{who} {changed}")
    needed = 0 if have is not None else want.required
    # 2
    if not want.sources_ready and want.was_running:
        return Done(tables, frozenset())
    # 3 to 5
    fault = _fault_of_list(tables.listed.get(resource), have or frozenset(), resource)
    if fault is not None:
        return Refused(tables, fault)
    # 6
    if needed == 0:
        return Done(tables, frozenset())
    return _begin_choice(_Choice(tables, resource, needed), want, pick)


def _fault_of_list(listed: ListedDevices | None, have: frozenset[str], resource: str) -> str | None:
    if listed is None or not listed.registered:
        return f"cannot allocate unregistered device {resource}"
    if not listed.healthy:
        return f"no healthy devices present; cannot allocate unhealthy devices {resource}"
    if not have <= listed.healthy:
        return f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
    return None


def _begin_choice(choice: _Choice, want: Want, pick: Pick) -> Done | Ask | Refused:
    tables, resource = choice.tables, choice.resource
    # 7: left-over devices of init containers, in no particular order
    reusable = tables.reusable if tables.reuse_pod == want.owner.pod_uid else {}
    choice = choice.take(reusable.get(resource, frozenset()), pick)
    if choice.needed == 0:
        return Done(choice.tables, choice.taken)
    # 8
    free = view(choice.tables, resource).free
    if len(free) < choice.needed:
        counts = f"Requested: {choice.needed}, Available: {len(free)}"
        return Refused(choice.tables, f"requested number of devices unavailable for {resource}. {counts}")
    # 9
    split = _split_by_affinity(view(choice.tables, resource), free, want.affinity)
    fallbacks: tuple[frozenset[str], ...]
    if choice.needed < len(split.aligned):
        # 10
        candidates, fallbacks = split.aligned, (split.aligned,)
    else:
        # 11: the plugin is not asked when this is enough
        choice = choice.take(split.aligned, pick)
        if choice.needed == 0:
            return Done(choice.tables, choice.taken)
        # 12: the aligned ones are still among the candidates, and are must-includes now; 13 is in `finish`
        candidates, fallbacks = free, (split.unaligned, split.no_affinity)
    ask = Ask(
        tables=choice.tables,
        want=want,
        available=candidates | choice.taken,
        must_include=choice.taken,
        candidates=candidates,
        fallbacks=fallbacks,
    )
    return ask if want.asks_plugin else finish(ask, None, pick)


def finish(ask: Ask, answer: frozenset[str] | None, pick: Pick, tables: DeviceTables | None = None) -> Done | Refused:
    """Go on with the plugin's answer (any ids; None or empty: no preference).

    `tables` are the current ones where something happened during the call (it runs without the manager's lock).
    The answer is not validated: ids that were not candidates are ignored, missing ones are filled up, of too
    many an arbitrary part is taken.
    """
    want = ask.want
    needed = want.required - len(ask.must_include)
    choice = _Choice(tables or ask.tables, want.owner.resource, needed, ask.must_include)
    for source in ((answer or frozenset()) & ask.candidates, *ask.fallbacks):
        choice = choice.take(source, pick)
        if choice.needed == 0:
            return Done(choice.tables, choice.taken)
    counts = f"Requested: {want.required}, Got: {want.required - choice.needed}"
    return Refused(choice.tables, f"unexpectedly allocated less resources than required. {counts}")


def ask_failed(ask: Ask, error: str, tables: DeviceTables | None = None) -> Refused:
    """GetPreferredAllocation failed with this RPC error text: what had been taken stays reserved (a leak)."""
    return Refused(tables or ask.tables, f"device plugin GetPreferredAllocation rpc failed with err: {error}")


def allocate_succeeded(tables: DeviceTables, owner: Owner, devices: frozenset[str]) -> DeviceTables | Refused:
    """Record the devices of a finished Allocate call.

    Refused with the crash it causes when one of them has left the list since it was chosen.
    """
    vanished = sorted(devices - view(tables, owner.resource).nodes.keys())
    if vanished:
        text = f"the kubelet crashes: {vanished[0]} of {owner.resource} left the device list while it was allocated"
        return Refused(tables, text)
    return replace(tables, recorded={**tables.recorded, owner: devices})


@dataclass(frozen=True, slots=True)
class _Choice:
    """Devices taken so far for one request; taking them marks them allocated at once."""

    tables: DeviceTables
    resource: str
    needed: int
    taken: frozenset[str] = frozenset()

    def take(self, source: frozenset[str], pick: Pick) -> _Choice:
        """Take from `source` what is still needed, or all of it; which ones is left to `pick`."""
        candidates = sorted(source - self.taken)
        if self.needed < len(candidates):
            chosen = frozenset(pick(candidates, self.needed))
            assert len(chosen) == self.needed, "pick returns as many distinct devices as asked for"
            assert chosen.issubset(candidates), "pick returns candidates"
        else:
            chosen = frozenset(candidates)
        allocated = self.tables.allocated.get(self.resource, frozenset()) | chosen
        tables = replace(self.tables, allocated={**self.tables.allocated, self.resource: allocated})
        return _Choice(tables, self.resource, self.needed - len(chosen), self.taken | chosen)


@dataclass(frozen=True, slots=True)
class _Split:
    aligned: frozenset[str]
    unaligned: frozenset[str]
    no_affinity: frozenset[str]


def _split_by_affinity(devices: DeviceView, free: frozenset[str], affinity: int | None) -> _Split:
    """Free devices with a node in the affinity, with nodes elsewhere only, and without any node."""
    if affinity is None or not devices.has_topology:
        return _Split(frozenset(), frozenset(), free)
    nodes_of = {device: nodes for device in free if (nodes := devices.nodes.get(device))}
    inside = {nodes for nodes in set(nodes_of.values()) if partial_mask_of(nodes) & affinity}
    aligned = frozenset(device for device, nodes in nodes_of.items() if nodes in inside)
    with_nodes = frozenset(nodes_of)
    return _Split(aligned, with_nodes - aligned, free - with_nodes)


def _recorded_of_pod(tables: DeviceTables, pod_uid: str, resource: str) -> frozenset[str]:
    of_pod = [
        devices for owner, devices in tables.recorded.items() if owner.pod_uid == pod_uid and owner.resource == resource
    ]
    return frozenset().union(*of_pod)


def _with_list(tables: DeviceTables, resource: str, devices: ListedDevices) -> DeviceTables:
    return replace(tables, listed={**tables.listed, resource: devices})


def _quoted(text: str) -> str:
    return f'"{text}"'
