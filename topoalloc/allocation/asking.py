"""The answer to GetPreferredAllocation: whoever is asked first chooses for all of the container's resources.

The answer is always a valid set: exactly the size asked, from the candidates, with every must-include id. Whatever
makes a request impossible is refused in Allocate, because the kubelet skips this call at will, overrules it silently,
and leaks the reservation when it fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from topoalloc.allocation.affinity import Alignment, amounts_aligned, expected_nodes, learned, shown_nodes
from topoalloc.allocation.demand import Demand, PodDemand, core_fault, demand_fault, demand_of
from topoalloc.allocation.identity import Identified, Unidentified, identify
from topoalloc.allocation.ledger import Conversation, Owner, State, only_active
from topoalloc.allocation.vacancy import Question, View, candidates, offer_for, view_for
from topoalloc.placement.board import Board
from topoalloc.placement.choose import Choice, NoChoice, choose
from topoalloc.placement.offer import Want
from topoalloc.sharing.inventory import Device, Inventory, Resource, ResourceKind
from topoalloc.sharing.settings import CORES_PER_GPU, NumaReporting

OTHER_HALF = {ResourceKind.CORE: ResourceKind.MEMORY, ResourceKind.MEMORY: ResourceKind.CORE}
WIDOWED_MAX_S = 60.0  # the kubelet gives a call of a plugin up at ten seconds; an admission has a few of them

# Cores an unnamed container may be about to ask beside its memory, most first: more room serves more of them.
LIKELY_CORES = (99, 50, 25, 10, 1)


@dataclass(frozen=True, slots=True)
class Preference:
    """The ids to answer, who they are believed to be for, and why these; `choice` is None for a mere valid set."""

    ids: tuple[str, ...]
    owner: Owner
    guess: str | None  # why the container could not be named
    choice: Choice | None
    refusal: tuple[str, ...]  # why no proper placement exists


def ask(
    state: State,
    inventory: Inventory,
    board: Board,
    question: Question,
    roster: tuple[PodDemand, ...] | None,
    alignment: Alignment,
    now_s: float,
) -> tuple[State, Preference]:
    """Choose devices for one GetPreferredAllocation and remember whose conversation it opens or continues."""
    if roster is not None:
        state = only_active(state, roster)
    just_listed = state.listed_at_call == state.calls
    state = replace(state, calls=state.calls + 1)
    who = identify(state, inventory, roster, question.resource.name, question.size, now_s)
    if isinstance(who, Identified):
        owner, uid, container, guess = who.owner, who.pod.uid, who.container, None
        amounts = amounts_aligned(who.pod, who.container, alignment)
    else:
        state, owner = unnamed_owner(state, inventory, question.resource.name, now_s)
        uid, container, guess = "", None, who.reason
        amounts = _usual_amounts(question, inventory)
    doubted: Owner | None = None
    view = view_for(state, inventory, owner)
    nodes = shown_nodes(question, view)
    if question.resource.numa is NumaReporting.NONE:
        nodes = expected_nodes(state, view, amounts, alignment)
    if isinstance(who, Unidentified):
        choice = _guessed(board, question, view, nodes)
        doubted = doubted_owner(state, inventory, question.resource, now_s)
        goes_on = state.conversation is not None and state.conversation.owner == owner
        half = doubted or (None if goes_on else widowed_owner(state, inventory, question.resource, now_s))
        if half is not None:
            choice = _beside(board, question, view_for(state, inventory, half), nodes) or choice
    else:
        choice = _wanted(board, question, who, view, nodes)
    preference = _preference(question, view, owner, guess, choice)
    before = state.conversation if state.conversation and state.conversation.owner == owner else None
    talk = Conversation(
        owner=owner,
        uid=uid,
        demand=container,
        asked=(question.resource.name, question.size),
        last_ids=before.last_ids if before else frozenset(),
        last_at_s=now_s,
        listed=just_listed or (before is not None and before.listed),
        reasons=preference.refusal,
        doubtful=before is not None and before.doubtful,
        beside=before.beside if before is not None else doubted,
    )
    state = replace(state, conversation=talk, narrows=learned(state, question, view, amounts, alignment))
    return state, preference


def unnamed_owner(state: State, inventory: Inventory, resource: str, now_s: float) -> tuple[State, Owner]:
    """The speaker of the open conversation if this resource can still be part of it, else a new unnamed one."""
    talk = state.conversation
    if talk is not None and talk.open_at(now_s):
        holding = state.holdings.get(talk.owner)
        ids = holding.ids if holding else frozenset[str]()
        if all(inventory.devices[device_id].resource != resource for device_id in ids):
            return state, talk.owner
    return _new_owner(state)


def doubted_owner(state: State, inventory: Inventory, resource: Resource, now_s: float) -> Owner | None:
    """Another name under which the present speaker may have been speaking until now.

    The open conversation has this resource already, so another container has to be speaking; but if that grant was of
    a pod given up since, what came after it is the present speaker's. Or it has been so before, and the other half of
    a share went to that name.
    """
    talk = state.conversation
    if talk is None or not talk.open_at(now_s):
        return None
    own = _held_by(state, inventory, talk.owner)
    resources = {device.resource for device in own}
    if talk.doubtful and resource.name in resources:
        return talk.owner if len(resources) > 1 else talk.beside
    if talk.beside is None or resource.kind is ResourceKind.NIC:
        return None
    other = OTHER_HALF[resource.kind]
    elsewhere = any(device.kind is other for device in _held_by(state, inventory, talk.beside))
    return talk.beside if elsewhere and all(device.kind is not other for device in own) else None


def _held_by(state: State, inventory: Inventory, owner: Owner) -> list[Device]:
    holding = state.holdings.get(owner)
    return [inventory.devices[device_id] for device_id in holding.ids] if holding else []


def widowed_owner(state: State, inventory: Inventory, resource: Resource, now_s: float) -> Owner | None:
    """Whoever was last granted one half of a share and not yet the other.

    A kubelet that is ended between a container's two calls asks for the second when it runs again, after those of other
    pods; and one under load can pause for longer than a conversation lasts. A place beside that half is right for its
    container and does no harm to another. Whole GPUs miss no half: their memory goes with them, and nobody else finds
    a place there.
    """
    if resource.kind is ResourceKind.NIC:
        return None
    halves = {
        owner: holding.call
        for owner, holding in state.holdings.items()
        if now_s - holding.granted_at_s <= WIDOWED_MAX_S
        and not holding.init
        and _kinds(inventory, holding.ids) == {OTHER_HALF[resource.kind]}
        and _cores(inventory, holding.ids) < CORES_PER_GPU
    }
    return max(halves, key=lambda owner: (halves[owner], owner), default=None)


def _kinds(inventory: Inventory, ids: frozenset[str]) -> set[ResourceKind]:
    return {inventory.devices[device_id].kind for device_id in ids} - {ResourceKind.NIC}


def _cores(inventory: Inventory, ids: frozenset[str]) -> int:
    return sum(inventory.devices[device_id].kind is ResourceKind.CORE for device_id in ids)


def _new_owner(state: State) -> tuple[State, Owner]:
    return replace(state, serials=state.serials + 1), Owner(serial=state.serials + 1)


def _wanted(
    board: Board, question: Question, who: Identified, view: View, nodes: frozenset[int] | None
) -> Choice | NoChoice:
    """Place a known request, unless Allocate will refuse it anyway.

    The devices of an ordinary init container are handed on to the pod's later containers, so it is placed where the
    largest of these fits too, if there is such a place among what the kubelet offers.
    """
    demand = demand_of(who.container, view.inventory)
    fault = demand_fault(view.inventory, demand)
    if fault is not None:
        return NoChoice((fault,))
    if who.container.init:
        choice = _chosen(board, question, _with_successors(who, demand, view.inventory), view, nodes)
        if isinstance(choice, Choice):
            choice = replace(choice, gpus=choice.gpus[: max(1, demand.whole_gpus)])
            if _carried_out(question, view, choice) is not None:
                return choice
    return _chosen(board, question, demand, view, nodes)


def _with_successors(who: Identified, demand: Demand, inventory: Inventory) -> Demand:
    """What the container and those after it in its pod need at most, resource by resource."""
    after = who.pod.containers[who.pod.containers.index(who.container) :]
    demands = [demand, *(demand_of(container, inventory) for container in after)]
    sound = [other for other in demands if demand_fault(inventory, other) is None]
    pools = sorted({pool for other in sound for pool in other.nics})
    return Demand(
        cores=max(other.cores for other in sound),
        memory_units=max(other.memory_units for other in sound),
        nics={pool: max(other.nics.get(pool, 0) for other in sound) for pool in pools},
    )


def _chosen(
    board: Board, question: Question, demand: Demand, view: View, nodes: frozenset[int] | None
) -> Choice | NoChoice:
    """Place a demand; give up first the affinity, then the NICs that are not asked for now.

    Last of all with what is kept back: a kubelet that has not read the latest list may offer it, and no better.
    """
    first: NoChoice | None = None
    for seen in (view, replace(view, withheld=frozenset())) if view.withheld else (view,):
        for want, pools, within in _attempts(question, demand, nodes):
            offer = offer_for(question, seen, want, pools, within)
            choice = choose(board, want, offer)
            if isinstance(choice, Choice):
                return choice
            first = first or choice
    assert first is not None
    return first


def _attempts(
    question: Question, demand: Demand, nodes: frozenset[int] | None
) -> Iterator[tuple[Want, tuple[str, ...], frozenset[int] | None]]:
    pools = tuple(sorted(demand.nics))
    want = Want(demand.cores, demand.memory_units, tuple(demand.nics[pool] for pool in pools))
    if nodes is not None:
        yield want, pools, nodes
    yield want, pools, None
    if question.resource.kind is ResourceKind.NIC:
        own = (question.resource.name,)
        yield Want(0, 0, (question.size,)), own, None
    elif pools:
        yield Want(demand.cores, demand.memory_units, ()), (), nodes
        yield Want(demand.cores, demand.memory_units, ()), (), None


def _guessed(board: Board, question: Question, view: View, nodes: frozenset[int] | None) -> Choice | NoChoice:
    """Place one resource of a container whose request is unknown, next to what it holds already.

    What does not fit there may be another container's: that cannot be told, and a refusal is safer than a split.
    Where it holds nothing yet a NIC is chosen as if a whole GPU went with it: a wrong guess only costs closeness,
    since nothing but the resource asked for is given.
    """
    kind, size = question.resource.kind, question.size
    held = [view.inventory.devices[device_id] for device_id in view.own]
    cores = size if kind is ResourceKind.CORE else sum(device.kind is ResourceKind.CORE for device in held)
    memory = size if kind is ResourceKind.MEMORY else sum(device.kind is ResourceKind.MEMORY for device in held)
    fault = core_fault(view.inventory, cores)
    if fault is not None:
        return NoChoice((fault,))
    if kind is ResourceKind.NIC and not held:
        pair = Want(size * CORES_PER_GPU, 0, (size,))
        choice = choose(board, pair, offer_for(question, view, pair, (question.resource.name,), nodes))
        if isinstance(choice, Choice):
            return choice
    nics = {question.resource.name: size} if kind is ResourceKind.NIC else {}
    for partner in _likely_partners(view.inventory, Demand(cores, memory, nics)):
        choice = _chosen(board, question, partner, view, nodes)
        if isinstance(choice, Choice):
            return choice
    return _chosen(board, question, Demand(cores, memory, nics), view, nodes)


def _beside(board: Board, question: Question, doubted: View, nodes: frozenset[int] | None) -> Choice | None:
    """A place beside what the doubted speaker holds of other resources: right for one container and for two."""
    name = question.resource.name
    same = frozenset(i for i in doubted.own if doubted.inventory.devices[i].resource == name)
    view = replace(doubted, own=doubted.own - same, foreign=doubted.foreign | same)
    choice = _guessed(board, question, view, nodes)
    return choice if isinstance(choice, Choice) and _carried_out(question, view, choice) is not None else None


def _likely_partners(inventory: Inventory, demand: Demand) -> Iterator[Demand]:
    """Fuller requests of which this may be the first half: the other half has to find room on the same GPU."""
    if demand.cores == 0 and demand.memory_units > 0:
        for cores in LIKELY_CORES:
            yield replace(demand, cores=cores)
    if 0 < demand.cores < CORES_PER_GPU and demand.memory_units == 0 and inventory.memory_served:
        most = max(units or 0 for units in inventory.memory_units)
        for share in (demand.cores, demand.cores // 2):
            yield replace(demand, memory_units=max(1, most * share // CORES_PER_GPU))
        yield replace(demand, memory_units=1)


def _usual_amounts(question: Question, inventory: Inventory) -> Mapping[str, int]:
    """What is asked, and for a NIC the whole GPU it is usually asked with."""
    amounts = {question.resource.name: question.size}
    if question.resource.kind is ResourceKind.NIC:
        amounts[inventory.settings.core_resource] = question.size * CORES_PER_GPU
    return amounts


def valid_set(question: Question, foreign: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Exactly `size` candidates with every must-include id, on as few GPUs as can be: what Allocate judges next."""
    devices = candidates(question, foreign)
    must = [device for device in devices if device.id in question.must_include]
    others = [device for device in devices if device.id not in question.must_include]
    room: dict[int, int] = {}
    for device in others:
        room[device.position] = room.get(device.position, 0) + 1
    begun = {device.position for device in must}
    order = sorted(others, key=lambda d: (d.position not in begun, -room[d.position], d.position, d.unit))
    ids = [device.id for device in (*must, *order)]
    # Ids of an older list: a short answer would be filled at random, so they come last and are refused by name.
    ids.extend(sorted((question.must_include | set(question.available)) - set(ids)))
    return tuple(ids[: max(0, question.size)])


def _preference(
    question: Question, view: View, owner: Owner, guess: str | None, choice: Choice | NoChoice
) -> Preference:
    if isinstance(choice, NoChoice):
        return Preference(valid_set(question, view.foreign), owner, guess, None, choice.reasons)
    ids = _carried_out(question, view, choice)
    if ids is not None:
        return Preference(ids, owner, guess, choice, ())
    reason = "the kubelet's candidates rule the best choice out"
    return Preference(valid_set(question, view.foreign), owner, guess, None, (reason,))


def _carried_out(question: Question, view: View, choice: Choice) -> tuple[str, ...] | None:
    """The candidates that carry out a choice; None where they do not: too few, or not with every must-include id."""
    kind = question.resource.kind
    positions = {p for chosen in choice.nics for p in chosen} if kind is ResourceKind.NIC else set(choice.gpus)
    devices = candidates(question, view.foreign)
    ids = tuple(device.id for device in devices if device.position in positions)[: question.size]
    return ids if len(ids) == question.size and question.must_include <= set(ids) else None
