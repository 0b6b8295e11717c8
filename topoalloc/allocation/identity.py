"""Who is being admitted: the one container whose request the kubelet has not yet had answered.

Pods enter the kubelet one at a time, each right before its own admission, and a rejected pod is active no longer. So
among the active pods the one under admission is the only one that asks for something it does not hold. Nobody promises
this; what is concluded here is verified in Allocate.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from topoalloc.allocation.demand import ContainerDemand, PodDemand
from topoalloc.allocation.ledger import Owner, State
from topoalloc.sharing.inventory import Inventory, ResourceKind


@dataclass(frozen=True, slots=True)
class Identified:
    """The container under admission, by elimination."""

    pod: PodDemand
    container: ContainerDemand

    @property
    def owner(self) -> Owner:
        return Owner(self.pod.namespace, self.pod.name, self.container.name)


@dataclass(frozen=True, slots=True)
class Unidentified:
    """Why nobody could be named."""

    reason: str


def identify(
    state: State,
    inventory: Inventory,
    roster: tuple[PodDemand, ...] | None,
    resource: str,
    amount: int,
    now_s: float,
) -> Identified | Unidentified:
    """Name the container that a call for `amount` devices of `resource` belongs to."""
    if roster is None:
        return Unidentified("no list of pods with their requests is available")
    candidates = [
        Identified(pod, container)
        for pod in roster
        if not state.just_refused(pod.uid, now_s)
        for container in _next_container(state, inventory, pod)
        if container.amount(resource) == amount and not _held(state, inventory, pod, container, resource)
    ]
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        return Unidentified(f"no active pod still waits for {amount} of {resource}")
    names = ", ".join(str(candidate.owner) for candidate in candidates[:3])
    return Unidentified(f"several containers wait for {amount} of {resource}: {names}")


def is_speaking(state: State, inventory: Inventory, roster: tuple[PodDemand, ...] | None, now_s: float) -> bool:
    """Whether the container of the latest call, or a later one of its pod, may be about to ask for more.

    `roster` None: the pods are not told; then a list that shows cores and memory of the container settles it.
    """
    talk = state.conversation
    if talk is None or not talk.open_at(now_s):
        return False
    if talk.uid and roster is not None:
        pod = next((pod for pod in roster if pod.uid == talk.uid), None)
        return pod is not None and bool(_next_container(state, inventory, pod))
    holding = state.holdings.get(talk.owner)
    if holding is None or not holding.confirmed:
        return True
    kinds = {inventory.devices[device_id].kind for device_id in holding.ids}
    return not kinds >= {ResourceKind.CORE, ResourceKind.MEMORY}


def _next_container(state: State, inventory: Inventory, pod: PodDemand) -> tuple[ContainerDemand, ...]:
    """The first container in admission order that does not hold all it asks for.

    Containers before one that holds something have been through admission, whatever became of their devices.
    """
    start = 0
    for position, container in enumerate(pod.containers):
        holds = Owner(pod.namespace, pod.name, container.name) in state.holdings
        if holds or container.past_admission:
            start = position
    for container in pod.containers[start:]:
        if container.past_admission:
            continue
        if any(not _held(state, inventory, pod, container, resource) for resource, _ in container.amounts):
            return (container,)
    return ()


def _held(state: State, inventory: Inventory, pod: PodDemand, container: ContainerDemand, resource: str) -> bool:
    holding = state.holdings.get(Owner(pod.namespace, pod.name, container.name))
    if holding is None or (holding.uid and holding.uid != pod.uid):
        return False
    counts = Counter(inventory.devices[device_id].resource for device_id in holding.ids)
    return counts[resource] == container.amount(resource)
