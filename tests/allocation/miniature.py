"""A kubelet in miniature for properties of the ledger: serial admission, random order, skipped and overruled questions,
aborted admissions, init containers, lists, crashes of the agent. Written from the kubelet's contract, not our code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from topoalloc.allocation.affinity import UNKNOWN_ALIGNMENT
from topoalloc.allocation.asking import Preference, ask
from topoalloc.allocation.claiming import Claim, Grant, ProofNeeded, Refusal, claim_devices, names_itself
from topoalloc.allocation.demand import ContainerDemand, PodDemand
from topoalloc.allocation.ledger import (
    CheckpointEntry,
    ListedContainer,
    Listing,
    Owner,
    State,
    double_use,
    listed,
    with_leftovers,
)
from topoalloc.allocation.vacancy import Question
from topoalloc.placement.board import Board, board_of
from topoalloc.sharing.inventory import Inventory, Resource

PROOF_ROUNDS_MAX = 4


@dataclass
class Habits:
    """What this kubelet does and tells."""

    tells_pods: bool = True
    tells_devices: bool = True
    skips: float = 0.0  # chance that a question is not asked
    overrules: float = 0.0  # chance that an answer is replaced by a random pick
    aborts: float = 0.0  # chance that the admission ends after an Allocate


@dataclass
class Recorded:
    """What the kubelet has on record for one container."""

    pod: PodDemand
    container: ContainerDemand
    ids: dict[str, frozenset[str]] = field(default_factory=dict)


class Miniature:
    def __init__(self, inventory: Inventory, habits: Habits, seed: int) -> None:
        self.inventory = inventory
        self.board: Board = board_of(inventory.machine)
        self.habits = habits
        self.random = Random(seed)
        self.state = State()
        self.now_s = 100.0
        self.active: dict[str, PodDemand] = {}
        self.records: dict[tuple[str, str], Recorded] = {}
        self.preferences: list[tuple[Question, Preference]] = []
        self.refusals: list[str] = []

    def admit(self, pod: PodDemand) -> bool:
        """One pod's admission; a refused or aborted one leaves no record."""
        self.active[pod.uid] = pod
        reusable: dict[str, set[str]] = {}
        for container in pod.containers:
            record = self.records.setdefault((pod.uid, container.name), Recorded(pod, container))
            amounts = list(container.amounts)
            self.random.shuffle(amounts)
            for name, amount in amounts:
                resource = self.inventory.resource(name)
                if resource is None:
                    continue
                done = self._allocate(record, resource, amount, reusable.setdefault(name, set()))
                if not done or self.random.random() < self.habits.aborts:
                    self.end(pod.uid)
                    return False
        return True

    def end(self, uid: str) -> None:
        """The pod has ended, or its admission has."""
        self.active.pop(uid, None)
        for key in [key for key in self.records if key[0] == uid]:
            del self.records[key]

    def list_devices(self) -> None:
        """A PodResources List that the agent reads between two calls."""
        self.now_s += 10.0
        self.state = listed(self.state, Listing(self._listing(), self.state.calls, self.now_s))
        self.check()

    def crash(self) -> None:
        """The agent is killed and rebuilds its ledger from PodResources and the kubelet's checkpoint."""
        self.state = listed(State(), Listing(self._listing(), 0, self.now_s))
        if self.habits.tells_pods:
            entries = tuple(
                CheckpointEntry(uid, name, frozenset().union(*record.ids.values()))
                for (uid, name), record in self.records.items()
            )
            self.state = with_leftovers(self.state, entries, tuple(self.active.values()))
        self.check()

    def check(self) -> None:
        assert double_use(self.state) == ()

    def held(self) -> Mapping[tuple[str, str], frozenset[str]]:
        """Ids on record by container."""
        return {key: frozenset().union(*record.ids.values()) for key, record in self.records.items()}

    def _allocate(self, record: Recorded, resource: Resource, amount: int, reusable: set[str]) -> bool:
        taken = {i for r in self.records.values() if r is not record for i in r.ids.get(resource.name, frozenset())}
        reused = self.random.sample(sorted(reusable), min(amount, len(reusable)))
        free = [device.id for device in resource.devices if device.id not in taken]
        if len(free) + len(reused) < amount:
            return False
        chosen = set(reused)
        if len(chosen) < amount:
            answer: tuple[str, ...] = ()
            if self.random.random() >= self.habits.skips:
                self.random.shuffle(free)
                answer = self._ask(Question(resource, (*free, *reused), frozenset(reused), amount))
            if self.random.random() < self.habits.overrules:
                answer = ()
            wanted = [i for i in answer if i not in chosen]
            chosen |= set(wanted[: amount - len(chosen)])
            chosen |= set(self.random.sample(sorted(set(free) - chosen), amount - len(chosen)))
        return self._claim(record, resource, frozenset(chosen), reusable)

    def _ask(self, question: Question) -> tuple[str, ...]:
        self.now_s += 0.01
        roster = tuple(self.active.values()) if self.habits.tells_pods else None
        if roster is None and self.habits.tells_devices:
            self.state = listed(self.state, Listing(self._listing(), self.state.calls, self.now_s))
        self.state, preference = ask(
            self.state, self.inventory, self.board, question, roster, UNKNOWN_ALIGNMENT, self.now_s
        )
        self.preferences.append((question, preference))
        self.check()
        return preference.ids

    def _claim(self, record: Recorded, resource: Resource, ids: frozenset[str], reusable: set[str]) -> bool:
        self.now_s += 0.01
        claim = Claim(resource, ids)
        named = names_itself(self.state, claim, self.now_s)
        roster = tuple(self.active.values()) if self.habits.tells_pods and not named else None
        released: dict[Owner, frozenset[str]] = {}
        asked: frozenset[Owner] = frozenset()
        for _ in range(PROOF_ROUNDS_MAX):
            state, answer = claim_devices(self.state, self.inventory, claim, roster, released, asked, self.now_s)
            if not isinstance(answer, ProofNeeded):
                break
            asked |= answer.contested.keys()
            released.update({o: ids for o, ids in answer.contested.items() if not self._holds(o, ids)})
        self.state = state
        self.check()
        if isinstance(answer, Refusal):
            self.refusals.append(answer.reason)
            return False
        assert isinstance(answer, Grant)
        for other in self.records.values():
            if other is not record:
                other.ids = {name: kept - ids for name, kept in other.ids.items()}
        record.ids[resource.name] = ids
        if record.container.init:
            reusable |= ids
        else:
            reusable -= ids
        return True

    def _holds(self, owner: Owner, ids: frozenset[str]) -> bool:
        if not self.habits.tells_devices or not owner.named:
            return True
        return any(
            item.container == owner.container and item.pod == owner.pod and item.ids & ids for item in self._listing()
        )

    def _listing(self) -> tuple[ListedContainer, ...]:
        """Active pods' app containers with what is on record; init containers are never listed."""
        return tuple(
            ListedContainer(
                pod.namespace,
                pod.name,
                container.name,
                frozenset().union(*self.records[uid, container.name].ids.values())
                if (uid, container.name) in self.records
                else frozenset(),
            )
            for uid, pod in self.active.items()
            for container in pod.containers
            if not container.init
        )
