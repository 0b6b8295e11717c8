"""What one container could still get: the ledger and the kubelet's candidates seen as an offer to placement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from topoalloc.allocation.ledger import Owner, State
from topoalloc.placement.offer import GpuOffer, Offer, Want
from topoalloc.sharing.inventory import Device, Inventory, Resource, ResourceKind
from topoalloc.sharing.settings import CORES_PER_GPU, NumaReporting


@dataclass(frozen=True, slots=True)
class Question:
    """A GetPreferredAllocation: `available` and `must_include` as sent, `size` including the must-include ones."""

    resource: Resource
    available: tuple[str, ...]
    must_include: frozenset[str]
    size: int


@dataclass(frozen=True, slots=True)
class View:
    """The node as one container sees it.

    `own`: ids it holds already; `foreign`: ids that others hold, those of other containers of its pod (`mates`) too.
    `reusable`: ids of its pod's finished init containers, which the kubelet takes first and without asking.
    `withheld`: free ids that the kubelet is not going to offer: it was told that they are Unhealthy (a list that it has
    not read yet may still offer them), or it has just started and has them on record for pods that are gone.
    """

    inventory: Inventory
    own: frozenset[str]
    foreign: frozenset[str]
    mates: frozenset[str]
    reusable: frozenset[str]
    unhealthy: frozenset[str]
    withheld: frozenset[str] = frozenset()

    def own_gpus(self, kind: ResourceKind) -> frozenset[int]:
        """Positions of the GPUs (or NICs) the container already has devices of."""
        devices = (self.inventory.devices[device_id] for device_id in self.own)
        return frozenset(device.position for device in devices if device.kind is kind)


def view_for(state: State, inventory: Inventory, owner: Owner) -> View:
    """Ids of the pod's own finished init containers are nobody's: the kubelet hands them on within the pod."""
    pod = (owner.namespace, owner.pod)
    foreign: set[str] = set()
    mates: set[str] = set()
    reusable: set[str] = set()
    for other, held in state.holdings.items():
        same_pod = owner.named and (other.namespace, other.pod) == pod
        if other == owner:
            continue
        if held.init and same_pod:
            reusable |= held.ids
            continue
        foreign |= held.ids
        if same_pod:
            mates |= held.ids
    holding = state.holdings.get(owner)
    own = holding.ids if holding else frozenset[str]()
    withheld = (state.withheld | state.restored) - own - foreign - reusable
    return View(inventory, own, frozenset(foreign), frozenset(mates), frozenset(reusable), state.unhealthy, withheld)


def candidates(question: Question, foreign: frozenset[str]) -> tuple[Device, ...]:
    """The devices that may be answered: must-include first, then those our ledger has free, in listing order.

    The kubelet can lose a reservation and offer what another container holds, so such devices come last.
    """
    offered = set(question.available) | question.must_include
    devices = (device for device in question.resource.devices if device.id in offered)
    return tuple(sorted(devices, key=lambda device: (device.id not in question.must_include, device.id in foreign)))


def offer_for(
    question: Question, view: View, want: Want, wanted_pools: tuple[str, ...], nodes: frozenset[int] | None
) -> Offer:
    """The offer for a container whose resource `question.resource` is asked for now.

    For that resource the kubelet's candidates count, for the others what the ledger has free (within `nodes` where the
    resource reports NUMA nodes).
    """
    inventory = view.inventory
    free = _free_counts(question, view, nodes)
    must = {inventory.devices[i] for i in question.must_include if i in inventory.devices}
    own_cores, own_memory = view.own_gpus(ResourceKind.CORE), view.own_gpus(ResourceKind.MEMORY)
    gpus_must = frozenset(device.position for device in must if device.kind is not ResourceKind.NIC)
    fixed, closed = _bound_by_reuse(question, view, want)
    if own_cores:
        closed = frozenset(range(len(inventory.gpu_keys))) - own_cores
    foreign = [inventory.devices[device_id] for device_id in view.foreign]
    shared = {device.position for device in foreign if device.kind is ResourceKind.MEMORY}
    cores_held = Counter(device.position for device in foreign if device.kind is ResourceKind.CORE)
    # The kubelet counts the memory of a GPU that is held whole as free; it is not.
    memory = {
        p: 0 if cores_held[p] == CORES_PER_GPU else free[ResourceKind.MEMORY][p] for p in range(len(inventory.gpu_keys))
    }
    gpus = tuple(
        GpuOffer(
            cores_free=free[ResourceKind.CORE][position],
            memory_units_free=memory[position] if inventory.memory_served else None,
            whole_free=free[ResourceKind.CORE][position] == CORES_PER_GPU and position not in shared,
            memory_units=inventory.memory_units[position],
        )
        for position in range(len(inventory.gpu_keys))
    )
    return Offer(
        gpus=gpus,
        nics_free=tuple(_nics_free(pool, question, view, nodes) for pool in wanted_pools),
        gpus_fixed=own_cores | own_memory | gpus_must | fixed,
        gpus_closed=closed - gpus_must,
        nics_fixed=tuple(
            _nics_fixed(pool, count, question, must, view) for pool, count in zip(wanted_pools, want.nics, strict=True)
        ),
        gpus_idle=_idle(view, inventory.gpu_keys, nics=False),
        nics_idle=_idle(view, inventory.nic_keys, nics=True),
    )


def _idle(view: View, keys: tuple[str, ...], *, nics: bool) -> frozenset[int]:
    """What nobody holds, offered or not: the next container's choice is judged by it."""
    held = {
        device.position
        for device in (view.inventory.devices[device_id] for device_id in view.foreign)
        if (device.kind is ResourceKind.NIC) == nics
    }
    return frozenset(p for p, key in enumerate(keys) if p not in held and key not in view.unhealthy)


def _free_counts(question: Question, view: View, nodes: frozenset[int] | None) -> Mapping[ResourceKind, Counter[int]]:
    """Devices per GPU that the container could have, what it already holds included."""
    offered = set(question.available) | question.must_include
    counts: dict[ResourceKind, Counter[int]] = {ResourceKind.CORE: Counter(), ResourceKind.MEMORY: Counter()}
    for resource in view.inventory.resources:
        if resource.kind is ResourceKind.NIC:
            continue
        asked = resource.name == question.resource.name
        narrowed = nodes if resource.numa is NumaReporting.NODE and not asked else None
        for device in resource.devices:
            absent = device.id not in offered if asked else device.id in view.withheld
            if device.id in view.own:
                counts[resource.kind][device.position] += 1
            elif device.id in view.foreign or device.key in view.unhealthy or absent:
                continue
            elif narrowed is None or narrowed.issuperset(device.numa_nodes):
                counts[resource.kind][device.position] += 1
    return counts


def _nics_free(pool: str, question: Question, view: View, nodes: frozenset[int] | None) -> frozenset[int]:
    resource = view.inventory.resource(pool)
    assert resource is not None
    asked = pool == question.resource.name
    offered = set(question.available) | question.must_include
    free = [
        device
        for device in resource.devices
        if device.id not in view.foreign
        and device.key not in view.unhealthy
        and (device.id in offered if asked else device.id not in view.withheld)
    ]
    if nodes is not None and resource.numa is NumaReporting.NODE and not asked:
        free = [device for device in free if nodes.issuperset(device.numa_nodes)]
    return frozenset(device.position for device in free)


def _nics_fixed(pool: str, count: int, question: Question, must: set[Device], view: View) -> frozenset[int]:
    """NICs the container has or cannot help getting: its pod's init containers' ones come first."""
    fixed = must | {view.inventory.devices[device_id] for device_id in view.own}
    if pool != question.resource.name:
        handed_on = {view.inventory.devices[device_id] for device_id in view.reusable}
        reused = frozenset(device.position for device in handed_on if device.resource == pool)
        if len(reused) <= count:
            fixed |= handed_on
    return frozenset(device.position for device in fixed if device.resource == pool)


def _bound_by_reuse(question: Question, view: View, want: Want) -> tuple[frozenset[int], frozenset[int]]:
    """GPUs the container cannot help getting, and those it cannot get, because an init container of its pod had some.

    The kubelet takes from these devices first; which of them, when there are more than needed, is left to chance.
    """
    fixed: frozenset[int] = frozenset()
    closed: frozenset[int] = frozenset()
    gpus_wanted = max(1, want.cores // CORES_PER_GPU)
    for kind, amount in ((ResourceKind.CORE, want.cores), (ResourceKind.MEMORY, want.memory_units)):
        if not amount or question.resource.kind is kind or view.own_gpus(kind):
            continue
        handed_on = (view.inventory.devices[device_id] for device_id in view.reusable)
        positions = frozenset(device.position for device in handed_on if device.kind is kind)
        if len(positions) <= gpus_wanted:
            fixed |= positions
        else:
            closed |= frozenset(range(len(view.inventory.gpu_keys))) - positions
    return fixed, closed
