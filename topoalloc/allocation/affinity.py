"""Which NUMA nodes the Topology Manager has settled on for the container that speaks.

The kubelet never tells. For a resource that reports NUMA nodes the candidates show it; for one that does not, the
affinity is predicted from the hints the kubelet must have made for the container's other resources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from topoalloc.admission.hints import DeviceView, device_hints
from topoalloc.admission.numa_mask import nodes_of
from topoalloc.admission.policy import Options, Policy, Scope, merge, numa_info
from topoalloc.allocation.demand import ContainerDemand, PodDemand
from topoalloc.allocation.ledger import State
from topoalloc.allocation.vacancy import Question, View
from topoalloc.sharing.inventory import NUMA_NODES_REPORTED_MAX, Resource
from topoalloc.sharing.settings import NumaReporting


@dataclass(frozen=True, slots=True)
class Alignment:
    """What is known of the kubelet's Topology Manager; None: its configuration could not be read."""

    policy: Policy | None = None
    scope: Scope = Scope.CONTAINER
    options: Options = field(default_factory=Options)


UNKNOWN_ALIGNMENT = Alignment()


def shown_nodes(question: Question, view: View) -> frozenset[int] | None:
    """The affinity as far as the candidates show it.

    When devices of a node are free in our ledger and none of them is offered, that node is outside the affinity, and
    the container's other resources are narrowed the same way. None: nothing is shown.
    """
    if question.resource.numa is not NumaReporting.NODE:
        return None
    offered = set(question.available) | question.must_include
    nodes_offered = {node for d in question.resource.devices if d.id in offered for node in d.numa_nodes}
    nodes_free = {
        node
        for device in question.resource.devices
        if device.id not in view.foreign and device.key not in view.unhealthy and device.id not in view.withheld
        for node in device.numa_nodes
    }
    return frozenset(nodes_offered) if nodes_offered < nodes_free else None


def expected_nodes(state: State, view: View, amounts: Mapping[str, int], alignment: Alignment) -> frozenset[int] | None:
    """The affinity the kubelet's own merge gives for these amounts of our resources; None: no narrowing expected.

    CPUs and host memory can narrow further; what they do is not known here, so this is a guess where they are managed.
    """
    inactive = alignment.policy is Policy.NONE or (alignment.policy is None and state.narrows is False)
    numa = numa_info(view.inventory.machine)
    if inactive or not 1 < len(numa.nodes) <= NUMA_NODES_REPORTED_MAX:
        return None
    answers = {
        resource.name: device_hints(_device_view(resource, view, alignment.scope), amounts[resource.name], numa.nodes)
        for resource in view.inventory.resources
        if amounts.get(resource.name) and resource.numa is not NumaReporting.NONE
    }
    if not answers:
        return None
    merged = merge(alignment.policy or Policy.BEST_EFFORT, alignment.options, [answers], numa).hint.mask
    return None if merged is None or merged == numa.mask else frozenset(nodes_of(merged))


def amounts_aligned(pod: PodDemand | None, container: ContainerDemand, alignment: Alignment) -> Mapping[str, int]:
    """The amounts one affinity is made for: the container's, or under pod scope the whole pod's.

    A pod needs the most of what app containers and sidecars need together and what an init container needs beside the
    sidecars started before it (KEP 753).
    """
    if alignment.scope is Scope.CONTAINER or pod is None:
        return dict(container.amounts)
    running: Counter[str] = Counter()
    sidecars: Counter[str] = Counter()
    peak: dict[str, int] = {}
    for other in pod.containers:
        for resource, amount in other.amounts:
            if other.init:
                peak[resource] = max(peak.get(resource, 0), sidecars[resource] + amount)
                continue
            running[resource] += amount
            if other.sidecar:
                sidecars[resource] += amount
    return {resource: max(running[resource], peak.get(resource, 0)) for resource in {*running, *peak}}


def learned(
    state: State, question: Question, view: View, amounts: Mapping[str, int], alignment: Alignment
) -> bool | None:
    """Whether this kubelet narrows candidates at all, as far as this question can tell; else what was known before."""
    if alignment.policy is not None:
        return alignment.policy is not Policy.NONE
    if question.resource.numa is not NumaReporting.NODE:
        return state.narrows
    if shown_nodes(question, view) is not None:
        return True
    would_be = expected_nodes(state, view, amounts, Alignment(Policy.BEST_EFFORT, alignment.scope))
    return state.narrows if would_be is None else False


def _device_view(resource: Resource, view: View, scope: Scope) -> DeviceView:
    """The resource as the kubelet saw it when it made the hints: before anything they are for was allocated."""
    ids = frozenset(device.id for device in resource.devices)
    before = view.foreign if scope is Scope.CONTAINER else view.foreign - view.mates
    return DeviceView(
        nodes={device.id: device.numa_nodes or None for device in resource.devices},
        healthy=frozenset(
            device.id
            for device in resource.devices
            if device.key not in view.unhealthy and device.id not in view.withheld
        ),
        allocated=before & ids,
    )
