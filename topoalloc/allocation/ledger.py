"""Who holds what, as a value.

The ledger is changed only by the functions here and in `asking` and `claiming`; each takes a state and returns a new
one. A grant is provisional until PodResources shows it: the kubelet never says that an admission was aborted, so only
its list tells which grants came to life.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from topoalloc.allocation.demand import ContainerDemand, PodDemand

# The kubelet records a grant right after Allocate returns, before the container's next call. A list that began this
# long after the grant shows it even if no further call came.
RECORD_GRACE_S = 2.0

# Between two calls of one container the kubelet needs 11 ms (median), on a node with 100,000 devices a few seconds.
# After a longer pause another container is speaking.
PAIRING_WINDOW_S = 5.0

# The kubelet marks a refused pod Failed right after our refusal. A pod that asks later than this is being judged anew,
# as a restarted kubelet does with static pods, under the same uid.
REFUSAL_FRESH_S = 1.0


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """A container: named once we know it, else a number of our own (`serial`) for calls nobody could be named for."""

    namespace: str = ""
    pod: str = ""
    container: str = ""
    serial: int = 0

    @property
    def named(self) -> bool:
        return self.serial == 0

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.container}" if self.named else f"unnamed container {self.serial}"


@dataclass(frozen=True, slots=True)
class Holding:
    """The ids one container holds. `confirmed`: seen in PodResources. `call` and `granted_at_s`: the last grant.

    `kubelet`: the process that last vouched for it (any number that differs between its starts).
    """

    ids: frozenset[str]
    confirmed: bool
    call: int
    granted_at_s: float
    uid: str = ""
    init: bool = False
    kubelet: int = 0


@dataclass(frozen=True, slots=True)
class Conversation:
    """The container whose calls we believe are coming in.

    `demand` is None while its pod's request is unknown. `asked` is the resource and size of a GetPreferredAllocation
    whose Allocate is still to come, `reasons` why it had no proper answer; `last_ids` the ids of the latest grant.
    `listed`: a list has been made since the conversation began, so its pod was in that list.
    `doubtful`: it began with a claim that no question came before, for a container nobody could name. No list was made
    at that moment, so its first grant and what followed may be two pods', the first of which was given up.
    """

    owner: Owner
    uid: str
    demand: ContainerDemand | None
    asked: tuple[str, int] | None
    last_ids: frozenset[str]
    last_at_s: float
    listed: bool = False
    reasons: tuple[str, ...] = ()
    doubtful: bool = False
    beside: Owner | None = None

    def open_at(self, now_s: float) -> bool:
        """Whether a call at this time can still be the same container's."""
        return now_s - self.last_at_s <= PAIRING_WINDOW_S


@dataclass(frozen=True, slots=True)
class State:
    """The whole ledger. `calls` counts calls of the kubelet; `refused` tells when pods (by uid) got a refusal."""

    holdings: Mapping[Owner, Holding] = field(default_factory=lambda: MappingProxyType({}))
    conversation: Conversation | None = None
    calls: int = 0
    serials: int = 0
    refused: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    unhealthy: frozenset[str] = frozenset()  # device keys
    pods_listed: frozenset[tuple[str, str]] | None = None  # by the latest list
    kubelet: int = 0  # the process that made the latest list
    listed_at_call: int | None = None  # how many calls had come in before the latest list
    narrows: bool | None = None  # whether the kubelet has been seen to narrow candidates to NUMA nodes
    withheld: frozenset[str] = frozenset()  # free ids reported Unhealthy, see `withholding`
    # What a kubelet that has just started has on record: ids of pods that ended before it are offered to nobody until
    # its pod sources are ready (UpdateAllocatedDevices waits for them). Empty once they are.
    restored: frozenset[str] = frozenset()

    def just_refused(self, uid: str, now_s: float) -> bool:
        """Whether this pod was refused so lately that its next call cannot have come yet."""
        at_s = self.refused.get(uid)
        return at_s is not None and now_s - at_s < REFUSAL_FRESH_S


@dataclass(frozen=True, slots=True)
class ListedContainer:
    """One container of a PodResources answer, with the ids of ours it holds (possibly none)."""

    namespace: str
    pod: str
    container: str
    ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Listing:
    """A PodResources List: what it showed, and how many kubelet calls had come in when it began.

    `partial`: the kubelet has just started and knows only the pods it has judged again so far, so what an earlier
    `kubelet` vouched for may be missing for that reason.
    """

    containers: tuple[ListedContainer, ...]
    calls_before: int
    began_at_s: float
    partial: bool = False
    kubelet: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """One entry of the kubelet's device checkpoint: ids of one resource of one container."""

    uid: str
    container: str
    ids: frozenset[str]


def without_nameless(state: State, going_on: Owner | None) -> State:
    """The ledger after the pods are told again and a complete list was made: grants that got no name meanwhile and are
    not in the list never came to life, or are an init container's, which its pod's entry in the checkpoint tells.

    Only a container that may be in the middle of its calls (`going_on`) keeps what it has.
    """
    gone = {
        owner: holding.ids
        for owner, holding in state.holdings.items()
        if not (owner.named or holding.confirmed or owner == going_on)
    }
    return without(state, gone)


def with_leftovers(state: State, entries: tuple[CheckpointEntry, ...], roster: tuple[PodDemand, ...]) -> State:
    """The ledger with what finished init containers of active pods still hold by the kubelet's checkpoint.

    Entries of pods that are gone say nothing, and what anybody is known to hold is not left over.
    """
    pods = {pod.uid: pod for pod in roster}
    table = dict(state.holdings)
    held = frozenset(device_id for holding in table.values() for device_id in holding.ids)
    for entry in sorted(entries, key=lambda entry: (entry.uid, entry.container, sorted(entry.ids))):
        pod = pods.get(entry.uid)
        rest = entry.ids - held
        if pod is None or not rest or not any(c.init and c.name == entry.container for c in pod.containers):
            continue
        owner = Owner(pod.namespace, pod.name, entry.container)
        known = table.get(owner)
        table[owner] = Holding(
            ids=rest | (known.ids if known else frozenset()),
            confirmed=False,
            call=0,
            granted_at_s=0.0,
            uid=entry.uid,
            init=True,
        )
        held |= rest
    return replace(state, holdings=_frozen(table))


def with_holding(state: State, owner: Owner, holding: Holding) -> State:
    """State in which exactly `owner` holds these ids; whoever held one of them before does not any more."""
    table = {
        other: replace(kept, ids=kept.ids - holding.ids) if kept.ids & holding.ids else kept
        for other, kept in state.holdings.items()
        if other != owner
    }
    table[owner] = holding
    return replace(state, holdings=_frozen(table))


def without(state: State, gone: Mapping[Owner, frozenset[str]]) -> State:
    """State in which these owners do not hold these ids any more."""
    table = {
        owner: replace(holding, ids=holding.ids - gone[owner]) if owner in gone else holding
        for owner, holding in state.holdings.items()
    }
    return replace(state, holdings=_frozen(table))


def listed(state: State, listing: Listing) -> State:
    """The ledger after a PodResources List: what it shows is held; what it must show and does not is not.

    Ordinary init containers are never listed. What the app containers do not take over from them stays with the pod
    until it ends (k/k #71312), so it is kept as long as the pod is listed.
    """
    shown = {Owner(item.namespace, item.pod, item.container): item.ids for item in listing.containers if item.ids}
    taken = frozenset(device_id for ids in shown.values() for device_id in ids)
    pods = frozenset((item.namespace, item.pod) for item in listing.containers)
    table: dict[Owner, Holding] = {}
    for owner, holding in state.holdings.items():
        left_by_init = holding.init and (owner.namespace, owner.pod) in pods
        rest = holding.ids - taken
        unjudged = listing.partial and holding.kubelet != listing.kubelet
        if owner not in shown and rest and (left_by_init or unjudged or _too_young(holding, listing)):
            table[owner] = replace(holding, ids=rest)
    for owner, ids in shown.items():
        table[owner] = _confirmed(state.holdings.get(owner), ids, taken, listing)
    before = pods if state.pods_listed is None else state.pods_listed
    # Calls end with the kubelet that made them; what its successor still asks for a container stands beside its half.
    same_kubelet = state.pods_listed is None or state.kubelet == listing.kubelet
    talk = _going_on(_named(state.conversation, shown), pods - before) if same_kubelet else None
    return replace(
        state,
        holdings=_frozen(table),
        conversation=talk,
        pods_listed=pods,
        listed_at_call=listing.calls_before,
        kubelet=listing.kubelet,
    )


def only_active(state: State, roster: tuple[PodDemand, ...]) -> State:
    """The ledger without pods that are gone, and with the uids of those that are here.

    A pod of the same name with another uid is another pod.
    """
    uids = {(pod.namespace, pod.name): pod.uid for pod in roster}
    table: dict[Owner, Holding] = {}
    for owner, holding in state.holdings.items():
        if not owner.named:
            table[owner] = holding
            continue
        uid = uids.get((owner.namespace, owner.pod))
        if uid is None or (holding.uid and holding.uid != uid):
            continue
        table[owner] = holding if holding.uid == uid else replace(holding, uid=uid)
    here = frozenset(uids.values())
    refused = {uid: at_s for uid, at_s in state.refused.items() if uid in here}
    return replace(state, holdings=_frozen(table), refused=MappingProxyType(refused))


def confirmed_ids(state: State) -> Mapping[Owner, frozenset[str]]:
    """The part of the ledger that the kubelet itself vouches for."""
    return {owner: holding.ids for owner, holding in state.holdings.items() if holding.confirmed}


def held_ids(state: State) -> frozenset[str]:
    """Every id that somebody holds."""
    return frozenset().union(*(holding.ids for holding in state.holdings.values()))


def double_use(state: State) -> tuple[str, ...]:
    """Ids held by two owners; empty in every state that these functions produce."""
    seen: set[str] = set()
    twice: set[str] = set()
    for holding in state.holdings.values():
        twice |= seen & holding.ids
        seen |= holding.ids
    return tuple(sorted(twice))


def _too_young(holding: Holding, listing: Listing) -> bool:
    """Whether the kubelet may not yet have recorded this grant when the list was made."""
    if holding.confirmed:
        return False
    recorded = listing.calls_before > holding.call or listing.began_at_s - holding.granted_at_s >= RECORD_GRACE_S
    return not recorded


def _confirmed(known: Holding | None, ids: frozenset[str], taken: frozenset[str], listing: Listing) -> Holding:
    if known is None:
        return Holding(ids, confirmed=True, call=0, granted_at_s=0.0, kubelet=listing.kubelet)
    # A second half granted while the list was being made is not in it yet.
    kept = ids | (known.ids - taken) if _too_young(known, listing) else ids
    return replace(known, ids=kept, confirmed=kept == ids, kubelet=listing.kubelet)


def _named(conversation: Conversation | None, shown: Mapping[Owner, frozenset[str]]) -> Conversation | None:
    """The conversation under the name of the container that the latest grant turned out to belong to."""
    if conversation is None or not conversation.last_ids:
        return conversation
    owner = next((owner for owner, ids in sorted(shown.items()) if conversation.last_ids <= ids), None)
    return conversation if owner is None else replace(conversation, owner=owner)


def _going_on(conversation: Conversation | None, new_pods: frozenset[tuple[str, str]]) -> Conversation | None:
    """The conversation, unless a pod that is new in the list must be the one that speaks now.

    A pod enters the list right before its admission. So a new one is speaking; it is the speaker we know if that one
    has its name, or has no name yet and began to speak after the list before.
    """
    if conversation is None:
        return None
    owner = conversation.owner
    known = (owner.namespace, owner.pod) in new_pods if owner.named else not conversation.listed
    return replace(conversation, listed=True) if known or not new_pods else None


def _frozen(table: dict[Owner, Holding]) -> Mapping[Owner, Holding]:
    """Owners in a fixed order, none without ids."""
    return MappingProxyType({owner: table[owner] for owner in sorted(table) if table[owner].ids})
