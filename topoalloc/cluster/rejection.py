"""Why the kubelet rejected a pod, for the pod's events: the binding reason, what is free where, what was missing.

The kubelet judged a moment ago and nobody was asked then; the same judgement is made again on what is there now, and
where it comes out differently the text says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topoalloc.admission.explain import Explanation, Supply
from topoalloc.admission.numa_mask import nodes_of, width_then_value
from topoalloc.admission.pod import CPU, HUGE_PAGES_PREFIX, MEMORY, Container, Pod, device_requests
from topoalloc.admission.prediction import NodeState, Prediction, Rules, predict, requested_supplies
from topoalloc.admission.refusal import STATUS_PREFIX, TOPOLOGY_AFFINITY, Refusal
from topoalloc.admission.remedy import remedy_of
from topoalloc.allocation.shortfall import hopeless
from topoalloc.errors import InputError
from topoalloc.sharing.inventory import Inventory
from topoalloc.topology.sizes import size_words

REASON = "TopologyRejected"
NOTE_BYTES_MAX = 1024  # of an event (apiserver pkg/apis/core/validation, NoteLengthLimit)
NAME_CHARACTERS_MAX = 253
HASH_CHARACTERS = 16
COMPONENT = "topoalloc"
RESOURCES_SHOWN_MAX = 4
PLACES_SHOWN_MAX = 8  # NUMA nodes; more are rarely told apart by anybody
# What gRPC puts before a plugin's own words: such a message says why by itself.
PLUGIN_SPOKE = "rpc error:"
UNEXPECTED = "UnexpectedAdmissionError"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A pod that the kubelet rejected. `pod` None: its spec could not be read."""

    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    pod: Pod | None

    @property
    def concerns_topology(self) -> bool:
        """Whether an event of ours adds something to what the kubelet's own event says."""
        if self.reason == TOPOLOGY_AFFINITY.reason:
            return True
        return self.reason == UNEXPECTED and PLUGIN_SPOKE not in self.message


def note_of(
    rejection: Rejection,
    state: NodeState | None,
    kubelet: Rules | None,
    inventory: Inventory,
    before: NodeState | None = None,
) -> str | None:
    """The event's text, at most NOTE_BYTES_MAX bytes; None where there is nothing to add.

    `state` and `kubelet` are None where the node or the kubelet's configuration cannot be read. `before` is the state
    as it was last seen before the rejection, for when the pod would fit now.
    """
    refusal = Refusal(rejection.reason, rejection.message.removeprefix(STATUS_PREFIX))
    judged_alone = refusal.reason == TOPOLOGY_AFFINITY.reason
    try:
        if judged_alone:
            parts = _topology_parts(rejection.pod, state, kubelet, inventory, before)
        else:
            parts = _allocation_parts(rejection.pod, refusal, state, inventory)
    except InputError as error:
        # A machine or pod that the rules do not cover: more NUMA nodes than are enumerated, for one.
        parts = [_UNTOLD.format(error)] if judged_alone else []
    return _fitting(". ".join(part for part in parts if part)) if parts else None


_UNTOLD = "No set of NUMA nodes could serve what the pod asks for; which resource was in the way cannot be told: {}"
_FITS_NOW = (
    "It would fit now as far as PodResources tells. At the time no set of NUMA nodes could serve all that it asks for "
    "together: what was in the way has been freed since, or the agent was away at that moment. Create the pod again"
)
_NOT_SERVED = (
    "No device of {} is healthy at the kubelet: the agent is away at this moment, or every device is out of order. "
    "Create the pod again once the node shows it as allocatable"
)


def _allocation_parts(pod: Pod | None, refusal: Refusal, state: NodeState | None, inventory: Inventory) -> list[str]:
    """Of a pod whose NUMA nodes were settled: what one of the allocators lacked."""
    remedy = (hopeless(pod, inventory) if pod is not None else None) or remedy_of(refusal)
    if remedy is None:
        return []
    return [remedy, "" if state is None or pod is None else _free(state, pod, None)]


def _topology_parts(
    pod: Pod | None, state: NodeState | None, kubelet: Rules | None, inventory: Inventory, before: NodeState | None
) -> list[str]:
    if pod is None:
        return [_UNTOLD.format("the pod's spec could not be read")]
    beyond = hopeless(pod, inventory)
    if beyond is not None:
        return [beyond]
    if kubelet is None:
        return [_UNTOLD.format("the kubelet's configuration cannot be read on this node")]
    if state is None:
        return [_UNTOLD.format("the kubelet's PodResources does not answer")]
    unserved = _unserved(state, pod, inventory)
    if unserved:
        return [_NOT_SERVED.format(" and ".join(unserved))]
    prediction = predict(state, pod, kubelet)
    if prediction.explanation is not None:
        return _explained(pod, state, prediction, prediction.explanation)
    earlier = None if before is None else predict(before, pod, kubelet)
    if before is not None and earlier is not None and earlier.explanation is not None:
        return [*_explained(pod, before, earlier, earlier.explanation), "It would fit now: create the pod again"]
    if prediction.refusal is None:
        return [_FITS_NOW, _free(state, pod, None)]
    why = remedy_of(prediction.refusal) or prediction.refusal.message
    now = "At the time no set of NUMA nodes could serve what the pod asks for; now one can, but"
    return [f"{now} {_where(pod, prediction)}{why}", _free(state, pod, _refused(pod, prediction))]


def _unserved(state: NodeState, pod: Pod, inventory: Inventory) -> list[str]:
    """Resources of ours that the pod asks for and of which the kubelet has no healthy device."""
    asked = {resource for container in pod.containers for resource in device_requests(container)}
    ours = [resource.name for resource in inventory.resources if resource.name in asked]
    listed = state.devices.listed
    return [name for name in ours if name not in listed or not listed[name].healthy]


def _explained(pod: Pod, state: NodeState, prediction: Prediction, explanation: Explanation) -> list[str]:
    said = f"{_where(pod, prediction)}{explanation.sentence}; {explanation.remedy}"
    return [said, _free(state, pod, _refused(pod, prediction), [one.resource for one in explanation.conflict])]


def _refused(pod: Pod, prediction: Prediction) -> Container | None:
    return next((one for one in pod.containers if one.name == prediction.container), None)


def _where(pod: Pod, prediction: Prediction) -> str:
    """Which of several containers it was."""
    return f"container {prediction.container}: " if prediction.container and len(pod.containers) > 1 else ""


def _free(state: NodeState, pod: Pod, container: Container | None, first: Sequence[str] = ()) -> str:
    """`Free by NUMA node: cpu 3/16 on 0, 12/16 on 1; ...`, the resources in `first` alone where there are any."""
    supplies = requested_supplies(state.devices, state.exclusive, pod, container)
    names = [name for name in first if name in supplies] or sorted(supplies)
    shown = [words for name in names if (words := _places(name, supplies[name]))][:RESOURCES_SHOWN_MAX]
    return f"Free by NUMA node: {'; '.join(shown)}" if shown else ""


def _places(resource: str, supply: Supply) -> str:
    if not supply.mask or any(mask.bit_count() != 1 for mask in supply.total):
        return ""  # devices that are on several nodes, or on none, are free nowhere in particular
    masks = sorted(supply.total, key=width_then_value)
    parts = [
        f"{_amount(resource, supply.free, mask)}/{_amount(resource, supply.total, mask)} on {nodes_of(mask)[0]}"
        for mask in masks[:PLACES_SHOWN_MAX]
    ]
    more = [f"and {len(masks) - PLACES_SHOWN_MAX} more"] if len(masks) > PLACES_SHOWN_MAX else []
    return f"{resource} {', '.join((*parts, *more))}"


def _amount(resource: str, amounts: Mapping[int, int], mask: int) -> str:
    amount = amounts.get(mask, 0)
    in_bytes = resource == MEMORY or resource.startswith(HUGE_PAGES_PREFIX)
    assert in_bytes or resource == CPU or "/" in resource, "only what managers and plugins count is supplied"
    return size_words(amount) if in_bytes else str(amount)


def _fitting(text: str) -> str:
    """The text, or its beginning, within the limit of an event's note."""
    encoded = text.encode()
    if len(encoded) <= NOTE_BYTES_MAX:
        return text
    return encoded[: NOTE_BYTES_MAX - 3].decode(errors="ignore") + "..."


def event_name(rejection: Rejection) -> str:
    """The same for the same rejection whoever asks, so that the API server refuses a second one."""
    digest = hashlib.sha256(f"{rejection.uid}/{REASON}".encode()).hexdigest()[:HASH_CHARACTERS]
    stem = rejection.name[: NAME_CHARACTERS_MAX - HASH_CHARACTERS - 1].rstrip("-.")
    return f"{stem}.{digest}"


def event_object(rejection: Rejection, note: str, node: str, time: str) -> dict[str, object]:
    """A core/v1 Event on the pod; `time` in RFC 3339."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event_name(rejection), "namespace": rejection.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": rejection.namespace,
            "name": rejection.name,
            "uid": rejection.uid,
        },
        "type": "Warning",
        "reason": REASON,
        "message": note,
        "source": {"component": COMPONENT, "host": node},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }
