"""The order of one admission: hints of all providers, merge, allocation; per container or for the whole pod.

The order is that of Kubernetes 1.37 (pkg/kubelet/cm/topologymanager, scope_*.go): devices, CPUs, memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from topoalloc.admission.explain import Explanation, explain
from topoalloc.admission.hints import Hint, ProviderAnswer
from topoalloc.admission.pod import Container, Pod
from topoalloc.admission.policy import NumaInfo, Policy, Scope, merge
from topoalloc.admission.prediction import DEVICE_MANAGER, NO_AFFINITY, Answers, requested_supplies
from topoalloc.admission.refusal import TOPOLOGY_AFFINITY, Refusal, unexpected
from topoalloc.kubelet.simulated.device_manager import DeviceManager
from topoalloc.kubelet.simulated.exclusive import ExclusiveResources
from topoalloc.kubelet.simulated.settings import KubeletSettings


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of a pod: the refusal or None, the affinity of every container that got as far as having one."""

    refusal: Refusal | None
    affinities: Mapping[str, Hint]
    explanation: Explanation | None = None


class TopologyManager:
    """Drives the providers for one pod at a time."""

    def __init__(
        self, settings: KubeletSettings, numa: NumaInfo, devices: DeviceManager, exclusive: ExclusiveResources
    ) -> None:
        self._settings = settings
        self._numa = numa
        self._devices = devices
        self._exclusive = exclusive

    def admit(self, pod: Pod, running: frozenset[str] = frozenset()) -> Judged:
        """Judge a pod and allocate for it. `running`: containers the runtime found running at the kubelet's start."""
        affinities: dict[str, Hint] = {}
        if self._settings.policy is not Policy.NONE and self._settings.scope is Scope.POD:
            answers = self._answers(pod, None)
            verdict = merge(self._settings.policy, self._settings.options, self._said(answers), self._numa)
            if not verdict.admit:
                return Judged(TOPOLOGY_AFFINITY, affinities, self._explain(pod, None, answers))
            affinities = {container.name: verdict.hint for container in pod.containers}
        for container in pod.containers:
            refused = self._admit_container(pod, container, affinities, container.name in running)
            if refused is not None:
                return refused
        return Judged(None, affinities)

    def _admit_container(
        self, pod: Pod, container: Container, affinities: dict[str, Hint], was_running: bool
    ) -> Judged | None:
        settings = self._settings
        if settings.policy is not Policy.NONE and settings.scope is Scope.CONTAINER:
            answers = self._answers(pod, container)
            verdict = merge(settings.policy, settings.options, self._said(answers), self._numa)
            if not verdict.admit:
                return Judged(TOPOLOGY_AFFINITY, affinities, self._explain(pod, container, answers))
            affinities[container.name] = verdict.hint
        affinity = affinities.get(container.name, NO_AFFINITY)
        fault = self._devices.allocate(pod, container, affinity.mask, was_running)
        refusal = unexpected(fault) if fault is not None else self._exclusive.allocate(pod, container, affinity)
        return None if refusal is None else Judged(refusal, affinities)

    def _answers(self, pod: Pod, container: Container | None) -> Answers:
        if container is None:
            devices = self._devices.pod_hints(pod, self._numa.nodes)
        else:
            devices = self._devices.container_hints(pod, container, self._numa.nodes)
        return (DEVICE_MANAGER, devices), *self._exclusive.hints(pod, container)

    @staticmethod
    def _said(answers: Answers) -> Iterable[ProviderAnswer]:
        return (answer for _, answer in answers)

    def _explain(self, pod: Pod, container: Container | None, answers: Answers) -> Explanation | None:
        supplies = requested_supplies(self._devices.tables, self._exclusive.now, pod, container)
        return explain(self._settings.policy, self._settings.options, answers, self._numa, supplies)
