"""The answer to Allocate: verify what the kubelet picked, then write it into the ledger or refuse with a reason.

This is the only place where a request is refused. An error here rolls the kubelet's reservation back at once, and its
text is what the user reads in the pod's status and event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from topoalloc.allocation.asking import doubted_owner, unnamed_owner
from topoalloc.allocation.demand import ContainerDemand, Demand, PodDemand, core_fault, demand_fault, demand_of
from topoalloc.allocation.identity import Identified, identify
from topoalloc.allocation.ledger import Conversation, Holding, Owner, State, only_active, with_holding, without
from topoalloc.sharing.inventory import DEVICE_ID_CHARACTERS_MAX, Device, Inventory, Resource, ResourceKind
from topoalloc.sharing.settings import CORES_PER_GPU

TOOK_A_SHARE = "the kubelet took a share of"
GPUS_NAMED_MAX = 3  # in one refusal; more of them say the same


@dataclass(frozen=True, slots=True)
class Grant:
    """These ids now belong to `owner`."""

    owner: Owner
    ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the pod is refused, in words its user can act on."""

    owner: Owner
    reason: str


@dataclass(frozen=True, slots=True)
class ProofNeeded:
    """Whether these owners still hold the ids that stand in the claim's way; ask, then claim again."""

    contested: Mapping[Owner, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Claim:
    """An Allocate call: `ids` as sent."""

    resource: Resource
    ids: frozenset[str]


def names_itself(state: State, claim: Claim, now_s: float) -> bool:
    """Whether the claim follows a question just answered, so that no roster is needed to name it."""
    talk = state.conversation
    asked = (claim.resource.name, len(claim.ids))
    return talk is not None and talk.asked == asked and talk.open_at(now_s)


def claim_devices(
    state: State,
    inventory: Inventory,
    claim: Claim,
    roster: tuple[PodDemand, ...] | None,
    released: Mapping[Owner, frozenset[str]],
    asked: frozenset[Owner],
    now_s: float,
) -> tuple[State, Grant | Refusal | ProofNeeded]:
    """Judge one Allocate.

    `asked`: owners of an earlier ProofNeeded; `released`: the contested ids that some of them turned out not to hold.
    """
    if roster is not None:
        state = only_active(state, roster)
    state = without(state, released)
    speaker = _speaker(state, inventory, claim, roster, now_s)
    state = speaker.state
    # Where two containers cannot be told from one, what would part the one is refused.
    with_it = state.holdings.get(speaker.doubted or speaker.owner)
    state = _released_by_kubelet(state, speaker, claim.ids)
    fault = _fault_of_ids(inventory, claim) or _fault_of_demand(inventory, claim, speaker)
    if fault is None:
        fault = _fault_of_pairing(state, inventory, claim, speaker, with_it)
    if fault is None:
        rivals = _rivals(state, inventory, claim, speaker)
        unproved = {owner: ids for owner, ids in rivals.items() if owner not in asked}
        if unproved:
            return state, ProofNeeded(MappingProxyType(unproved))
        if rivals:
            fault = _fault_of_rivals(state, inventory, claim, min(rivals))
    state = replace(state, calls=state.calls + 1)
    if fault is not None:
        fault = _with_reason(fault, state.conversation, speaker)
        refused = {**state.refused, speaker.uid: now_s} if speaker.uid else state.refused
        state = replace(state, refused=MappingProxyType(dict(refused)), conversation=None)
        return state, Refusal(speaker.owner, fault)
    return _granted(state, inventory, claim, speaker, now_s), Grant(speaker.owner, claim.ids)


def revoked(state: State, grant: Grant, now_s: float) -> State:
    """The ledger after a grant that could not be carried out: the kubelet takes it back as after any refusal."""
    uid = state.holdings[grant.owner].uid
    refused = {**state.refused, uid: now_s} if uid else state.refused
    state = without(state, {grant.owner: grant.ids})
    return replace(state, refused=MappingProxyType(dict(refused)), conversation=None)


def _with_reason(fault: str, talk: Conversation | None, speaker: _Speaker) -> str:
    """What the kubelet's pick breaks, and why no better pick existed when it asked."""
    reasons = talk.reasons if talk is not None and talk.owner == speaker.owner else ()
    said = not reasons or reasons[0] in fault or TOOK_A_SHARE in fault  # that one tells of free cores by itself
    return fault if said else f"{fault} ({'; '.join(reasons)})"


@dataclass(frozen=True, slots=True)
class _Speaker:
    state: State
    owner: Owner
    uid: str
    container: ContainerDemand | None
    doubted: Owner | None = None  # another name under which it may have been speaking until now


def _speaker(
    state: State, inventory: Inventory, claim: Claim, roster: tuple[PodDemand, ...] | None, now_s: float
) -> _Speaker:
    talk = state.conversation
    if talk is not None and names_itself(state, claim, now_s):
        doubted = doubted_owner(state, inventory, claim.resource, now_s) if talk.demand is None else None
        return _Speaker(state, talk.owner, talk.uid, talk.demand, doubted)
    who = identify(state, inventory, roster, claim.resource.name, len(claim.ids), now_s)
    if isinstance(who, Identified):
        return _Speaker(state, who.owner, who.pod.uid, who.container)
    doubted = doubted_owner(state, inventory, claim.resource, now_s) or _handed_on_by(state, claim, now_s)
    state, owner = unnamed_owner(state, inventory, claim.resource.name, now_s)
    return _Speaker(state, owner, "", None, doubted)


def _handed_on_by(state: State, claim: Claim, now_s: float) -> Owner | None:
    """The open speaker nobody could name, if the kubelet hands some of its devices out again without a question: an
    init container's go to the app in that way, and what was granted to that name since may be the app's other half."""
    talk = state.conversation
    if talk is None or talk.owner.named or not talk.open_at(now_s):
        return None
    holding = state.holdings.get(talk.owner)
    return talk.owner if holding is not None and holding.ids & claim.ids else None


def _released_by_kubelet(state: State, speaker: _Speaker, ids: frozenset[str]) -> State:
    """Drop unnamed holdings the kubelet hands out again: it would not, had their container not ended or been given up.

    A holding nobody confirmed and nobody can be asked about has no better witness than the kubelet's own table.
    """
    stale = {
        owner: holding.ids
        for owner, holding in state.holdings.items()
        if not owner.named and owner != speaker.owner and not holding.confirmed and holding.ids & ids
    }
    return without(state, stale)


def _fault_of_ids(inventory: Inventory, claim: Claim) -> str | None:
    """Ids that are not ours, and numbers that are neither a share nor whole GPUs."""
    name = claim.resource.name
    for device_id in sorted(claim.ids):
        device = inventory.devices.get(device_id)
        if device is None or device.resource != name:
            shown = repr(device_id[:DEVICE_ID_CHARACTERS_MAX])  # whoever sends it, a message has to stay readable
            return f"{name}: {shown} is no device of this node; the kubelet's list may be older than this agent"
    if claim.resource.kind is not ResourceKind.CORE:
        return None
    return core_fault(inventory, len(claim.ids))


def _fault_of_demand(inventory: Inventory, claim: Claim, speaker: _Speaker) -> str | None:
    if speaker.container is None:
        return None
    return demand_fault(inventory, demand_of(speaker.container, inventory))


def _fault_of_pairing(
    state: State, inventory: Inventory, claim: Claim, speaker: _Speaker, holding: Holding | None
) -> str | None:
    """The rules that bind a container's devices to each other. `holding`: what it has, or may have, besides."""
    if claim.resource.kind is ResourceKind.NIC:
        return None
    held = [inventory.devices[device_id] for device_id in (holding.ids if holding else ())]
    devices = [inventory.devices[device_id] for device_id in claim.ids]
    demand = demand_of(speaker.container, inventory) if speaker.container else None
    if claim.resource.kind is ResourceKind.CORE:
        memory = [device for device in held if device.kind is ResourceKind.MEMORY]
        handed_on = _taken_from_init(state, claim, speaker)
        fault = _fault_of_cores(state, inventory, devices, handed_on=handed_on)
        if fault is not None and handed_on:
            fault += (
                "; the kubelet hands on an init container's devices at random and before any other, at every attempt, "
                "so let it ask for as much as the app"
            )
        return fault or _fault_of_halves(inventory, devices, memory)
    cores = [device for device in held if device.kind is ResourceKind.CORE]
    return _fault_of_memory(inventory, devices, demand) or _fault_of_halves(inventory, cores, devices)


def _taken_from_init(state: State, claim: Claim, speaker: _Speaker) -> bool:
    """Whether some of the claimed ids were an init container's of the same pod."""
    pod = (speaker.owner.namespace, speaker.owner.pod)
    return any(
        holding.init and (owner.namespace, owner.pod) == pod and holding.ids & claim.ids
        for owner, holding in state.holdings.items()
        if owner != speaker.owner
    )


def _fault_of_cores(state: State, inventory: Inventory, devices: list[Device], *, handed_on: bool) -> str | None:
    """A share lies on one GPU; whole GPUs are whole. `handed_on`: some were an init container's."""
    per_gpu = Counter(device.position for device in devices)
    name = inventory.settings.core_resource
    if len(devices) < CORES_PER_GPU and len(per_gpu) > 1:
        elsewhere = "" if handed_on else _room_elsewhere(state, inventory, devices)
        return (
            f"{name}: {TOOK_A_SHARE} {len(devices)} from {_names(inventory, per_gpu)}; a share needs that "
            f"many free cores on one GPU of those it offered{elsewhere}"
        )
    if len(devices) >= CORES_PER_GPU and any(count != CORES_PER_GPU for count in per_gpu.values()):
        whole = len(devices) // CORES_PER_GPU
        return (
            f"{name}: {len(devices)} needs {whole} GPU{'s' if whole > 1 else ''} with all 100 cores free; "
            f"the kubelet could only offer {_names(inventory, per_gpu)}"
        )
    return None


def _room_elsewhere(state: State, inventory: Inventory, devices: list[Device]) -> str:
    """GPUs outside the NUMA nodes the kubelet kept to that would have had room: it counts cores and sees no GPUs."""
    nodes = {node for device in devices for node in device.numa_nodes} if state.narrows else set[int]()
    held = Counter(
        inventory.devices[device_id].position
        for holding in state.holdings.values()
        for device_id in holding.ids
        if inventory.devices[device_id].kind is ResourceKind.CORE
    )
    roomy = [
        gpu.id
        for position, gpu in enumerate(inventory.machine.gpus)
        if nodes and gpu.numa_node not in nodes and CORES_PER_GPU - held[position] >= len(devices)
    ]
    if not roomy:
        return ""
    return (
        f". {' and '.join(roomy[:GPUS_NAMED_MAX])} would have had room on another NUMA node, but the Topology Manager "
        f"counts free cores per node and not per GPU; with leftovers: withhold it counts right for a pod created again"
    )


def _fault_of_memory(inventory: Inventory, devices: list[Device], demand: Demand | None) -> str | None:
    """Memory of a share lies on one GPU; memory of whole GPUs on no more GPUs than are asked."""
    per_gpu = Counter(device.position for device in devices)
    if demand is not None:
        gpus_max = max(1, demand.whole_gpus)
    else:
        # An unnamed container: more than one GPU has can only be memory of whole GPUs, less is taken to be a share's.
        most = max((units or 0 for units in inventory.memory_units), default=0)
        gpus_max = 1 if len(devices) <= most else len(inventory.gpu_keys)
    if len(per_gpu) <= gpus_max:
        return None
    return (
        f"{inventory.settings.memory_resource}: {len(devices)} units were taken from {_names(inventory, per_gpu)}; "
        f"they have to be free on {'one GPU' if gpus_max == 1 else f'{gpus_max} GPUs'}"
    )


def _fault_of_halves(inventory: Inventory, cores: list[Device], memory: list[Device]) -> str | None:
    """Cores and memory of a container are on the same GPUs."""
    core_gpus = {device.position for device in cores}
    memory_gpus = {device.position for device in memory}
    if not core_gpus or not memory_gpus or memory_gpus <= core_gpus:
        return None
    return (
        f"the cores are on {_names(inventory, core_gpus)} but the memory on {_names(inventory, memory_gpus)}: no GPU "
        f"of those offered has both free ({len(cores)} cores, {len(memory)} memory units)"
    )


def _rivals(state: State, inventory: Inventory, claim: Claim, speaker: _Speaker) -> Mapping[Owner, frozenset[str]]:
    """Other containers in the way, each with its ids that are: those claimed, or on a GPU that cannot be shared."""
    pod = (speaker.owner.namespace, speaker.owner.pod)
    rivals: dict[Owner, frozenset[str]] = {}
    gpus = _gpus(inventory, claim.ids)
    whole = _takes_whole(inventory, claim, speaker)
    for owner, holding in state.holdings.items():
        same_pod_init = holding.init and (owner.namespace, owner.pod) == pod
        if owner == speaker.owner or same_pod_init:
            continue
        exclusive = gpus if whole else gpus & _whole_gpus(inventory, holding.ids)
        beside = _on_gpus(inventory, holding.ids, exclusive) if exclusive else frozenset[str]()
        contested = (holding.ids & claim.ids) | beside
        if contested:
            rivals[owner] = contested
    return rivals


def _on_gpus(inventory: Inventory, ids: frozenset[str], gpus: frozenset[int]) -> frozenset[str]:
    devices = ((device_id, inventory.devices[device_id]) for device_id in ids)
    return frozenset(i for i, device in devices if device.kind is not ResourceKind.NIC and device.position in gpus)


def _takes_whole(inventory: Inventory, claim: Claim, speaker: _Speaker) -> bool:
    if claim.resource.kind is ResourceKind.NIC:
        return False
    if speaker.container is not None:
        return demand_of(speaker.container, inventory).whole_gpus > 0
    return claim.resource.kind is ResourceKind.CORE and len(claim.ids) >= CORES_PER_GPU


def _fault_of_rivals(state: State, inventory: Inventory, claim: Claim, rival: Owner) -> str:
    shared = sorted(state.holdings[rival].ids & claim.ids)
    if shared:
        return (
            f"{claim.resource.name}: {shared[0]} is held by {rival}, which still runs; the kubelet offered it twice, "
            f"so a new pod may succeed"
        )
    where = _names(inventory, _gpus(inventory, claim.ids) & _gpus(inventory, state.holdings[rival].ids))
    if _whole_gpus(inventory, state.holdings[rival].ids):
        return f"{claim.resource.name}: {where} is held whole by {rival}, its memory included"
    return f"{claim.resource.name}: {where} cannot be given whole, {rival} has a share of it"


def _granted(state: State, inventory: Inventory, claim: Claim, speaker: _Speaker, now_s: float) -> State:
    """Write the grant; a repeated Allocate of one resource replaces what the container held of it."""
    known = state.holdings.get(speaker.owner)
    kept = frozenset(i for i in (known.ids if known else ()) if inventory.devices[i].resource != claim.resource.name)
    holding = Holding(
        ids=kept | claim.ids,
        confirmed=False,
        call=state.calls,
        granted_at_s=now_s,
        uid=speaker.uid,
        init=speaker.container.init if speaker.container else False,
        kubelet=state.kubelet,
    )
    before = state.conversation
    goes_on = before is not None and before.owner == speaker.owner
    talk = Conversation(
        owner=speaker.owner,
        uid=speaker.uid,
        demand=speaker.container,
        asked=None,
        last_ids=claim.ids,
        last_at_s=now_s,
        listed=before is not None and goes_on and before.listed,
        doubtful=before.doubtful if before is not None and goes_on else not speaker.owner.named,
        beside=before.beside if before is not None and goes_on else speaker.doubted,
    )
    return replace(with_holding(state, speaker.owner, holding), conversation=talk)


def _gpus(inventory: Inventory, ids: frozenset[str]) -> frozenset[int]:
    devices = (inventory.devices[device_id] for device_id in ids)
    return frozenset(device.position for device in devices if device.kind is not ResourceKind.NIC)


def _whole_gpus(inventory: Inventory, ids: frozenset[str]) -> frozenset[int]:
    cores = Counter(d.position for d in (inventory.devices[i] for i in ids) if d.kind is ResourceKind.CORE)
    return frozenset(position for position, count in cores.items() if count == CORES_PER_GPU)


def _names(inventory: Inventory, positions: frozenset[int] | set[int] | Counter[int]) -> str:
    """`GPU0 and GPU3`, with the number taken where that is given."""
    names = []
    for position in sorted(positions):
        count = f" ({positions[position]})" if isinstance(positions, Counter) else ""
        names.append(f"{inventory.machine.gpus[position].id}{count}")
    return " and ".join(names)
