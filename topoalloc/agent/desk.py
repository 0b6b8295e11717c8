"""The one owner of the ledger: takes the kubelet's calls one at a time, gathers evidence, lets the ledger decide."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from topoalloc.allocation.asking import Preference, ask, valid_set
from topoalloc.allocation.claiming import Claim, Grant, ProofNeeded, Refusal, claim_devices, names_itself
from topoalloc.allocation.demand import PodDemand
from topoalloc.allocation.ledger import Listing, Owner, State, double_use, listed, with_leftovers
from topoalloc.allocation.vacancy import Question
from topoalloc.kubelet.evidence import Evidence
from topoalloc.kubelet.kubelet_config import KubeletConfig
from topoalloc.kubelet.plugin_server import Refused
from topoalloc.placement.board import Board
from topoalloc.sharing.edits import ContainerEdits, DeviceFiles, Injection, edits_of
from topoalloc.sharing.inventory import Inventory, Resource

log = logging.getLogger(__name__)

# The kubelet waits without a deadline, and every other pod of the node with it; no call may queue longer than this. A
# call itself asks for a roster (1 s at most) and a list (1.5 s), or for a roster and proofs.
DESK_WAIT_MAX_S = 3.0
PROOFS_MAX_S = 1.0  # containers in a claim's way that were not asked about by then are taken to be there
# Grants that PodResources has not shown yet are looked for this often, everything else much more rarely: a List has
# side effects in the kubelet.
RECONCILE_SOON_S = 1.0
RECONCILE_LATER_S = 15.0
PROOF_ROUNDS_MAX = 3  # the second round has every proof the first one asked for; the third is for a change in between
KUBELET_SETTLES_S = 15.0  # a kubelet's pod sources are ready within a few seconds of its start
QUIET_S = 0.25  # no List this soon after a call of the kubelet: the container's next call is about to come


@dataclass(frozen=True, slots=True)
class Injecting:
    """How granted devices reach a container on this node."""

    injection: Injection
    files: DeviceFiles
    cdi_kind: str


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
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inventory = inventory
        self._board = board
        self._evidence = evidence
        self._kubelet_config = kubelet_config
        self._injecting = injecting
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._state = State()
        self._last_call_at_s = 0.0
        self._next_list_at_s = 0.0
        self._leftovers_known = False
        self._roster_known = False

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
            try:
                answer = self._claim(Claim(resource, ids))
            except Refused:
                raise
            except Exception as error:  # the user has to read something that helps, and the ledger is unchanged
                log.exception("judging %d of %s failed", len(ids), resource.name)
                raise Refused("topoalloc failed to judge this request; its log on the node says why") from error
        reasons = (answer.reason,) if isinstance(answer, Refusal) else ()
        _log_decision(Call("Allocate", resource, answer.owner, len(ids), self._clock_s() - began_at_s), reasons)
        if isinstance(answer, Refusal):
            raise Refused(f"topoalloc: {answer.reason}")
        injecting = self._injecting
        return edits_of(self._inventory, resource, ids, injecting.injection, injecting.files, injecting.cdi_kind)

    def rebuild(self) -> bool:
        """Fill the ledger from PodResources at start; False when it cannot be asked."""
        with self._lock:
            listed_now = self._list_now(patient=False)
            self._learn_leftovers(self._ask_roster())
            return listed_now

    def reconcile(self) -> None:
        """Compare the ledger with PodResources when that is due and no container is in the middle of its calls."""
        now_s = self._clock_s()
        if now_s < self._next_list_at_s or now_s - self._last_call_at_s < QUIET_S:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._list_now(patient=False)
        finally:
            self._lock.release()

    def set_unhealthy(self, keys: frozenset[str]) -> None:
        """Remember which devices are out of order, so that none of them is chosen."""
        with self._lock:
            self._state = replace(self._state, unhealthy=keys)

    def _prefer(self, question: Question) -> Preference:
        had_roster = self._roster_known
        roster = self._ask_roster()
        if roster is None or not had_roster:
            # Only PodResources can tell whose the halves given so far are; List is safe here, not inside Allocate.
            # When the pods are told again after a kubelet's start, what was guessed in between is put right.
            self._list_now(patient=True)
        self._learn_leftovers(roster)
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
                owner: ids
                for owner, ids in answer.contested.items()
                if self._clock_s() - began_at_s < PROOFS_MAX_S and not self._evidence.holds(owner, ids)
            }
        raise Refused("topoalloc: the containers in the way change faster than they can be asked about; try again")

    def _ask_roster(self) -> tuple[PodDemand, ...] | None:
        roster = self._evidence.roster()
        self._roster_known = roster is not None
        return roster

    def _learn_leftovers(self, roster: tuple[PodDemand, ...] | None) -> None:
        """Once after a start, as soon as the pods are told: what their finished init containers still hold."""
        if self._leftovers_known or roster is None:
            return
        self._leftovers_known = True
        entries = self._evidence.checkpoint_entries()
        known = self._inventory.devices.keys()
        ours = tuple(replace(entry, ids=entry.ids & known) for entry in entries)
        self._keep(with_leftovers(self._state, ours, roster))

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
        partial = not self._roster_known and age_s < KUBELET_SETTLES_S
        self._keep(listed(self._state, Listing(ours, self._state.calls, began_at_s, partial, kubelet)))
        # What finished init containers leave over is never listed, so waiting for that would mean a List every second.
        unsettled = any(not (holding.confirmed or holding.init) for holding in self._state.holdings.values())
        self._next_list_at_s = began_at_s + (RECONCILE_SOON_S if unsettled else RECONCILE_LATER_S)
        return True

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


def _log_decision(call: Call, reasons: tuple[str, ...]) -> None:
    text = "; ".join(reasons) or "granted"
    took_ms = 1000 * call.took_s
    log.info(
        "%s %s for %s: %d devices in %.1f ms; %s", call.name, call.resource.name, call.owner, call.count, took_ms, text
    )
