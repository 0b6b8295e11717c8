"""The one owner of the ledger: takes the kubelet's calls one at a time, gathers evidence, lets the ledger decide."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from topoalloc.admission.policy import Policy
from topoalloc.agent.enforcer import Enforcer
from topoalloc.allocation.asking import Preference, ask, valid_set
from topoalloc.allocation.claiming import Claim, Grant, ProofNeeded, Refusal, claim_devices, names_itself, revoked
from topoalloc.allocation.demand import PodDemand
from topoalloc.allocation.identity import is_speaking
from topoalloc.allocation.ledger import (
    CheckpointEntry,
    Listing,
    Owner,
    State,
    confirmed_ids,
    double_use,
    held_ids,
    listed,
    only_active,
    with_leftovers,
    without_nameless,
)
from topoalloc.allocation.vacancy import Question
from topoalloc.allocation.withholding import withheld_ids
from topoalloc.errors import MachineError
from topoalloc.kubelet.evidence import Evidence
from topoalloc.kubelet.kubelet_config import KubeletConfig
from topoalloc.kubelet.plugin_server import Refused
from topoalloc.placement.board import Board
from topoalloc.sharing.edits import ContainerEdits, DeviceFiles, Injection, edits_of
from topoalloc.sharing.inventory import Inventory, Resource, ResourceKind

log = logging.getLogger(__name__)

# The kubelet waits without a deadline, and every other pod of the node with it; no call may queue longer than this. A
# call itself asks for a roster (1 s at most) and a list (1.5 s), or for a roster and proofs.
DESK_WAIT_MAX_S = 3.0
PROOFS_MAX_S = 1.0  # containers in a claim's way that were not asked about by then are taken to be there
# Grants that PodResources has not shown yet are looked for this often, everything else much more rarely: a List has
# side effects in the kubelet.
RECONCILE_SOON_S = 1.0
RECONCILE_LATER_S = 15.0
# While ids are kept back: pods that end make them usable again, and only the kubelet tells of an end.
RECONCILE_WITHHOLDING_S = 2.0
PROOF_ROUNDS_MAX = 3  # the second round has every proof the first one asked for; the third is for a change in between
KUBELET_SETTLES_S = 15.0  # a kubelet's pod sources are ready within a few seconds of its start
QUIET_S = 0.25  # no List this soon after a call of the kubelet: the container's next call is about to come


@dataclass(frozen=True, slots=True)
class Injecting:
    """How granted devices reach a container on this node. `enforcer` None: nothing holds it to a share."""

    injection: Injection
    files: DeviceFiles
    cdi_kind: str
    enforcer: Enforcer | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One answered call, for the log."""

    name: str
    resource: Resource
    owner: Owner
    count: int
    took_s: float


class Desk:
    """Serves `prefer` and `allocate` to the plugin servers; `reconcile` to the background."""

    def __init__(
        self,
        inventory: Inventory,
        board: Board,
        evidence: Evidence,
        kubelet_config: KubeletConfig,
        injecting: Injecting,
        tell_withheld: Callable[[frozenset[str]], None] | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tell_withheld` hands on the free ids to keep back (allocation/withholding); None: none are kept back."""
        self._inventory = inventory
        self._board = board
        self._evidence = evidence
        self._kubelet_config = kubelet_config
        self._injecting = injecting
        self._tell_withheld = tell_withheld
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._state = State()
        self._last_call_at_s = 0.0
        self._next_list_at_s = 0.0
        self._leftovers_known = False
        self._roster: tuple[PodDemand, ...] | None = None
        self._holdings_known = False
        self._listed_partly = True
        self._kubelet_seen: int | None = None
        self._restored: frozenset[str] = frozenset()

    @property
    def state(self) -> State:
        """The ledger as it is now (an immutable value)."""
        return self._state

    def prefer(
        self, resource: Resource, available: tuple[str, ...], must_include: frozenset[str], size: int
    ) -> tuple[str, ...]:
        """Answer GetPreferredAllocation; always a valid set, whatever happens."""
        question, began_at_s = Question(resource, available, must_include, size), self._clock_s()
        with self._held() as held:
            if not held:
                log.error("GetPreferredAllocation of %s waited %.0f s for the ledger", resource.name, DESK_WAIT_MAX_S)
                return valid_set(question)
            try:
                preference = self._prefer(question)
            except Exception:  # an error here would reject the pod and leak its reservation in the kubelet
                log.exception("placing %d of %s failed, answering any valid set", size, resource.name)
                return valid_set(question)
        terms = preference.choice.terms if preference.choice else ()
        reasons = preference.refusal or tuple(f"{name}={value}" for name, value in terms)
        guess = () if preference.guess is None else (f"unnamed: {preference.guess}",)
        took_s = self._clock_s() - began_at_s
        call = Call("GetPreferredAllocation", resource, preference.owner, len(preference.ids), took_s)
        _log_decision(call, (*reasons, *guess))
        self._log_question(question, preference)
        return preference.ids

    def allocate(self, resource: Resource, ids: frozenset[str]) -> ContainerEdits:
        """Answer Allocate; raises Refused with what the pod's user should read."""
        began_at_s = self._clock_s()
        with self._held() as held:
            if not held:
                raise Refused(f"topoalloc is busy for {DESK_WAIT_MAX_S:.0f} s already; create the pod again")
            before = self._state
            try:
                answer = self._claim(Claim(resource, ids))
                limits = self._carry_out(before, answer, resource) if isinstance(answer, Grant) else ContainerEdits()
            except Refused:
                raise
            except Exception as error:  # the user has to read something that helps, and the ledger is unchanged
                self._keep(before)
                log.exception("judging %d of %s failed", len(ids), resource.name)
                raise Refused("topoalloc failed to judge this request; its log on the node says why") from error
            if isinstance(answer, Grant):
                self._after_grant(ids)
        reasons = (answer.reason,) if isinstance(answer, Refusal) else ()
        _log_decision(Call("Allocate", resource, answer.owner, len(ids), self._clock_s() - began_at_s), reasons)
        if isinstance(answer, Refusal):
            raise Refused(f"topoalloc: {answer.reason}")
        injecting = self._injecting
        devices = edits_of(self._inventory, resource, ids, injecting.injection, injecting.files, injecting.cdi_kind)
        return devices.joined(limits)

    def rebuild(self) -> bool:
        """Fill the ledger from PodResources at start; False when it cannot be asked."""
        with self._lock:
            listed_now = self._list_now(patient=False)
            self._learn_leftovers(self._ask_roster())
            self._withhold()
            self._settle(self._evidence.checkpoint_entries(), remove_others=False)
            return listed_now

    def reconcile(self) -> None:
        """Compare the ledger with PodResources when that is due and no container is in the middle of its calls."""
        now_s = self._clock_s()
        if now_s < self._next_list_at_s or now_s - self._last_call_at_s < QUIET_S:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._list_now(patient=False):
                self._learn_from(self._ask_roster())
                self._withhold()
                self._settle((), remove_others=not self._listed_partly)
        finally:
            self._lock.release()

    def _learn_from(self, roster: tuple[PodDemand, ...] | None) -> None:
        """What the pods tell right after a list."""
        if roster is not None:
            self._keep(only_active(self._state, roster))
        if roster is not None and not self._leftovers_known and not self._listed_partly:
            self._keep(without_nameless(self._state, self._going_on(None)))
        self._learn_leftovers(roster)

    def set_unhealthy(self, keys: frozenset[str]) -> None:
        """Remember which devices are out of order, so that none of them is chosen."""
        with self._lock:
            self._state = replace(self._state, unhealthy=keys)
            self._withhold()

    def _prefer(self, question: Question) -> Preference:
        roster = self._ask_roster()
        # Only PodResources can tell whose the halves given so far are; List is safe here, not inside Allocate. When the
        # pods are told again after a kubelet's start, what was guessed in between is put right.
        is_listed = (roster is None or not self._leftovers_known) and self._list_now(patient=True)
        if is_listed and roster is not None:
            self._keep(without_nameless(self._state, self._going_on(question.resource)))
        self._learn_leftovers(roster)
        self._keep(replace(self._state, restored=self._restored if roster is None else frozenset()))
        alignment = self._kubelet_config.alignment()
        state, preference = ask(self._state, self._inventory, self._board, question, roster, alignment, self._clock_s())
        self._keep(state)
        return preference

    def _log_question(self, question: Question, preference: Preference) -> None:
        """What the kubelet offered and what was answered, per GPU and NIC (which of its ids they are says nothing)."""
        if log.isEnabledFor(logging.DEBUG):
            sets = (question.available, question.must_include, preference.ids)
            offered, must, answered = (counted(self._inventory, ids) for ids in sets)
            log.debug(
                "asked %s for %s: %d of [%s], must include [%s]: answered [%s]",
                *(question.resource.name, preference.owner, question.size, offered, must, answered),
            )

    def _claim(self, claim: Claim) -> Grant | Refusal:
        """Judge a claim, asking the kubelet about each container in its way, in as many rounds as there can be."""
        named = names_itself(self._state, claim, self._clock_s())
        roster = None if named else self._ask_roster()
        released: dict[Owner, frozenset[str]] = {}
        began_at_s = self._clock_s()
        asked: frozenset[Owner] = frozenset()
        for _ in range(PROOF_ROUNDS_MAX):
            now_s = self._clock_s()
            state, answer = claim_devices(self._state, self._inventory, claim, roster, released, asked, now_s)
            if not isinstance(answer, ProofNeeded):
                self._keep(state)
                return answer
            asked |= answer.contested.keys()
            released |= {
                owner: self._free_after_all(owner, ids, claim)
                for owner, ids in answer.contested.items()
                if self._clock_s() - began_at_s < PROOFS_MAX_S
            }
        raise Refused("topoalloc: the containers in the way change faster than they can be asked about; try again")

    def _free_after_all(self, owner: Owner, contested: frozenset[str], claim: Claim) -> frozenset[str]:
        """The contested ids that their owner turns out not to hold.

        No answer shows what a finished init container holds: it lasts as long as its pod, but for what the kubelet
        itself hands to somebody else.
        """
        if self._state.holdings[owner].init and self._evidence.has_pod(owner):
            return contested & claim.ids
        return frozenset() if self._evidence.holds(owner, contested) else contested

    def _carry_out(self, before: State, grant: Grant, resource: Resource) -> ContainerEdits:
        """Put the container's limits in their place, or take the grant back: nobody runs without the limits that are
        accounted."""
        enforcer = self._injecting.enforcer
        if enforcer is None:
            return ContainerEdits()
        try:
            return enforcer.granted(before, self._state, grant.owner, resource)
        except MachineError as fault:
            self._keep(revoked(self._state, grant, self._clock_s()))
            log.error("%s for %s is taken back, its limits cannot be set: %s", resource.name, grant.owner, fault)  # noqa: TRY400
            raise Refused(f"topoalloc: the limits of this share cannot be set on the node: {fault}") from fault

    def _settle(self, recorded: tuple[CheckpointEntry, ...], *, remove_others: bool) -> None:
        if self._injecting.enforcer is None:
            return
        try:
            self._injecting.enforcer.settle(self._state, recorded, remove_others=remove_others)
        except MachineError as fault:
            log.warning("%s", fault)

    def _ask_roster(self) -> tuple[PodDemand, ...] | None:
        self._roster = self._evidence.roster()
        if self._roster is None:
            self._leftovers_known = False  # init containers that run meanwhile have no names
        return self._roster

    def _learn_leftovers(self, roster: tuple[PodDemand, ...] | None) -> None:
        """As soon as the pods are told, after a start of ours or the kubelet's: what their finished init containers
        still hold."""
        if self._leftovers_known or roster is None:
            return
        self._leftovers_known = True
        entries = self._evidence.checkpoint_entries()
        known = self._inventory.devices.keys()
        ours = tuple(replace(entry, ids=entry.ids & known) for entry in entries)
        self._keep(with_leftovers(self._state, ours, roster))

    def _going_on(self, asked: Resource | None) -> Owner | None:
        """Whoever may be in the middle of its calls: a container asks for each resource once. `asked`: the kubelet
        waits for an answer about it."""
        talk = self._state.conversation
        if talk is None or not talk.open_at(self._clock_s()):
            return None
        holding = self._state.holdings.get(talk.owner)
        resources = {self._inventory.devices[device_id].resource for device_id in (holding.ids if holding else ())}
        return None if asked is not None and asked.name in resources else talk.owner

    def _list_now(self, *, patient: bool) -> bool:
        """Ask PodResources once and take its answer into the ledger."""
        began_at_s = self._clock_s()
        containers = self._evidence.listed_containers(patient=patient)
        if containers is None:
            self._next_list_at_s = began_at_s + RECONCILE_SOON_S
            return False
        known = self._inventory.devices.keys()
        ours = tuple(replace(item, ids=item.ids & known) for item in containers)
        # Until its pod sources are ready a new kubelet lists only the pods it has judged again; the pods API is silent
        # for as long.
        kubelet, age_s = self._evidence.kubelet_start()
        partial = self._roster is None and age_s < KUBELET_SETTLES_S
        self._keep(listed(self._state, Listing(ours, self._state.calls, began_at_s, partial, kubelet)))
        self._listed_partly = partial
        self._holdings_known = True
        self._remember_restored(kubelet, age_s)
        # What finished init containers leave over is never listed, so waiting for that would mean a List every second.
        unsettled = any(not (holding.confirmed or holding.init) for holding in self._state.holdings.values())
        later_s = RECONCILE_WITHHOLDING_S if self._state.withheld else RECONCILE_LATER_S
        self._next_list_at_s = began_at_s + (RECONCILE_SOON_S if unsettled else later_s)
        return True

    def _remember_restored(self, kubelet: int, age_s: float) -> None:
        """What a kubelet had on record when it started.

        Until it has judged its pods again its list shows only some of them, and it fails those of which a device is
        reported Unhealthy, finished init containers' ones included (devicesToAllocate, k/k #138446).
        """
        if age_s >= KUBELET_SETTLES_S:
            self._restored = frozenset()
        elif kubelet != self._kubelet_seen:
            self._restored = self._recorded()
        self._kubelet_seen = kubelet

    def _recorded(self) -> frozenset[str]:
        """Our ids that the kubelet's checkpoint shows for anybody."""
        entries = self._evidence.checkpoint_entries()
        return frozenset().union(*(entry.ids for entry in entries)) & self._inventory.devices.keys()

    def _after_grant(self, ids: frozenset[str]) -> None:
        """Where the pods are told a container's last grant is known. Until then, what the kubelet gave of a GPU that
        is kept back, by a list that it had not read yet, needs its other half."""
        self._offer_rest_of(ids)
        if self._roster is not None:
            self._withhold()

    def _offer_rest_of(self, ids: frozenset[str]) -> None:
        if ids & self._state.withheld:
            keys = {self._inventory.devices[device_id].key for device_id in ids}
            rest = frozenset(i for i in self._state.withheld if self._inventory.devices[i].key not in keys)
            if is_speaking(self._state, self._inventory, self._roster, self._clock_s()):
                self._keep_back(rest)

    def _withhold(self) -> None:
        """Judge anew what is kept back, unless a container is in the middle of its calls: what it is going to be
        given has to stay offered until then."""
        if self._tell_withheld is None or not self._holdings_known:
            return
        now_s = self._clock_s()
        if is_speaking(self._state, self._inventory, self._roster, now_s):
            self._next_list_at_s = min(self._next_list_at_s, now_s + RECONCILE_SOON_S)
            return
        held = held_ids(self._state) | self._restored
        if self._roster is None:
            # Nobody tells of init containers then, but the checkpoint has what they hold, if it is the kubelet's own.
            recorded = self._recorded()
            if not frozenset().union(*confirmed_ids(self._state).values()) <= recorded:
                return
            held |= recorded
        by_node = self._kubelet_config.alignment().policy is not Policy.NONE
        withheld = withheld_ids(self._inventory, held, self._state.unhealthy, by_node=by_node)
        if withheld != self._state.withheld:
            self._keep_back(withheld)

    def _keep_back(self, withheld: frozenset[str]) -> None:
        assert self._tell_withheld is not None
        self._state = replace(self._state, withheld=withheld)
        self._next_list_at_s = min(self._next_list_at_s, self._clock_s() + RECONCILE_WITHHOLDING_S)
        self._tell_withheld(withheld)
        kept = counted_by_gpu(self._inventory, withheld)
        log.info("kept back from the kubelet, not to be counted with what other GPUs have free: %s", kept or "nothing")

    def _keep(self, state: State) -> None:
        twice = double_use(state)
        assert not twice, f"the ledger gave {twice[0]} to two containers"
        self._state = state

    @contextmanager
    def _held(self) -> Iterator[bool]:
        """The ledger's lock, waited for at most DESK_WAIT_MAX_S."""
        held = self._lock.acquire(timeout=DESK_WAIT_MAX_S)
        try:
            yield held
        finally:
            self._last_call_at_s = self._clock_s()
            if held:
                self._next_list_at_s = min(self._next_list_at_s, self._last_call_at_s + RECONCILE_SOON_S)
                self._lock.release()


def counted(inventory: Inventory, ids: Collection[str]) -> str:
    """Ids as `<device> x<count>` per physical device, in the order of the inventory."""
    counts = Counter(inventory.devices[device].key for device in ids if device in inventory.devices)
    keys = (*inventory.gpu_keys, *inventory.nic_keys)
    return ", ".join(f"{key} x{counts[key]}" for key in keys if counts[key])


def counted_by_gpu(inventory: Inventory, ids: Collection[str]) -> str:
    """Cores and memory units among the ids as `<device> <cores> cores <units> memory units` per GPU."""
    devices = [inventory.devices[device_id] for device_id in ids]
    cores = Counter(device.key for device in devices if device.kind is ResourceKind.CORE)
    memory = Counter(device.key for device in devices if device.kind is ResourceKind.MEMORY)
    keys = [key for key in inventory.gpu_keys if cores[key] or memory[key]]
    return ", ".join(f"{key} {cores[key]} cores {memory[key]} memory units" for key in keys)


def _log_decision(call: Call, reasons: tuple[str, ...]) -> None:
    text = "; ".join(reasons) or "granted"
    took_ms = 1000 * call.took_s
    log.info(
        "%s %s for %s: %d devices in %.1f ms; %s", call.name, call.resource.name, call.owner, call.count, took_ms, text
    )
