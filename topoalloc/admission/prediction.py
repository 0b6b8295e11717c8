"""What the kubelet would say to a pod now, from the state of all its managers as one value.

The order is that of Kubernetes 1.37 (pkg/kubelet/cm/topologymanager, scope_*.go): hints of devices, CPUs and memory,
their merge, then allocation container by container.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from topoalloc.admission import devices as rules
from topoalloc.admission.devices import DeviceTables, Owner, Want
from topoalloc.admission.exclusive import Exclusive
from topoalloc.admission.explain import Explanation, Supply, device_supply, explain
from topoalloc.admission.hints import Hint, ProviderAnswer
from topoalloc.admission.pod import Container, Pod, device_requests, pod_limits, pod_requests
from topoalloc.admission.policy import NumaInfo, Options, Policy, Scope, merge
from topoalloc.admission.refusal import TOPOLOGY_AFFINITY, Refusal, unexpected

DEVICE_MANAGER = "device manager"
# With policy none no affinity is ever stored; what the allocators read then is the zero value.
NO_AFFINITY = Hint(None, False)

Answers = tuple[tuple[str, ProviderAnswer], ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """What the kubelet was configured to do about NUMA nodes."""

    policy: Policy = Policy.NONE
    scope: Scope = Scope.CONTAINER
    options: Options = field(default_factory=Options)


@dataclass(frozen=True, slots=True)
class NodeState:
    """Everything on the node that decides an admission."""

    numa: NumaInfo
    devices: DeviceTables
    exclusive: Exclusive


@dataclass(frozen=True, slots=True)
class Prediction:
    """`refusal` None: the pod would be admitted. `explanation` where the merge refused it.

    `container` is the one that was refused, None for the whole pod; `affinity` what had been stored for it by then.
    """

    refusal: Refusal | None
    explanation: Explanation | None = None
    container: str | None = None
    affinity: Hint = NO_AFFINITY


def predict(state: NodeState, pod: Pod, kubelet: Rules) -> Prediction:
    """Judge a pod as the kubelet would, each device plugin agreeing to whatever the kubelet chooses."""
    crash = state.exclusive.crash_reason(pod)
    if crash is not None:
        return Prediction(unexpected(crash))
    pod_scope = kubelet.policy is not Policy.NONE and kubelet.scope is Scope.POD
    affinity = NO_AFFINITY
    if pod_scope:
        merged = _merged(state, pod, None, kubelet)
        if isinstance(merged, Prediction):
            return merged
        affinity = merged
    for container in pod.containers:
        if kubelet.policy is not Policy.NONE and not pod_scope:
            merged = _merged(state, pod, container, kubelet)
            if isinstance(merged, Prediction):
                return merged
            affinity = merged
        after = _allocated(state, pod, container, affinity)
        if isinstance(after, Refusal):
            return Prediction(after, None, container.name, affinity)
        state = after
    return Prediction(None)


def requested_supplies(
    devices: DeviceTables, exclusive: Exclusive, pod: Pod, container: Container | None
) -> dict[str, Supply]:
    """What the nodes have, and have free, of the resources asked for; no container: by the pod as a whole."""
    limits = pod_limits(pod) if container is None else container.limits
    requests = pod_requests(pod) if container is None else container.requests
    supplies = exclusive.supplies(requests)
    for resource, quantity in limits.items():
        if rules.is_device_resource(devices, resource):
            supplies[resource] = device_supply(rules.view(devices, resource), quantity.value)
    return supplies


def _merged(state: NodeState, pod: Pod, container: Container | None, kubelet: Rules) -> Hint | Prediction:
    nodes = state.numa.nodes
    if container is None:
        from_devices = rules.pod_hints(state.devices, pod, nodes)
    else:
        from_devices = rules.container_hints(state.devices, pod, container, nodes)
    answers: Answers = ((DEVICE_MANAGER, from_devices), *state.exclusive.hints(pod, container))
    verdict = merge(kubelet.policy, kubelet.options, (answer for _, answer in answers), state.numa)
    if verdict.admit:
        return verdict.hint
    supplies = requested_supplies(state.devices, state.exclusive, pod, container)
    why = explain(kubelet.policy, kubelet.options, answers, state.numa, supplies)
    return Prediction(TOPOLOGY_AFFINITY, why, None if container is None else container.name)


def _allocated(state: NodeState, pod: Pod, container: Container, affinity: Hint) -> NodeState | Refusal:
    tables = rules.container_opened(state.devices, pod.uid)
    for resource, count in sorted(device_requests(container).items()):
        if not rules.is_device_resource(tables, resource):
            continue
        want = Want(Owner(pod.uid, container.name, resource), count, affinity.mask, asks_plugin=False)
        step = rules.begin(tables, want, _first)
        if isinstance(step, rules.Refused):
            return unexpected(step.text)
        assert isinstance(step, rules.Done), "without a plugin to ask there is nothing to wait for"
        tables = step.tables
        if step.devices:
            tables = replace(tables, recorded={**tables.recorded, want.owner: step.devices})
    tables = rules.container_closed(tables, pod.uid, container)
    exclusive, refusal = state.exclusive.allocated(pod, container, affinity)
    return refusal if refusal is not None else replace(state, devices=tables, exclusive=exclusive)


def _first(candidates: Sequence[str], count: int) -> Sequence[str]:
    """The lowest ids: a prediction has to be the same every time."""
    return candidates[:count]
