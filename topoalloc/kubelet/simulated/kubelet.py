"""A simulated kubelet: its sockets, its pods, and one admission at a time. It starts no container.

Behaviour of Kubernetes 1.37; what is left out stands in docs/SIMULATION.md.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType

from topoalloc.admission.devices import Owner
from topoalloc.admission.explain import Explanation
from topoalloc.admission.hints import Hint
from topoalloc.admission.memory import MemoryBlock
from topoalloc.admission.pod import Pod
from topoalloc.admission.policy import NumaInfo, numa_info, start_refusal
from topoalloc.admission.predicates import fit
from topoalloc.admission.refusal import Refusal
from topoalloc.errors import InputError
from topoalloc.kubelet.simulated.device_manager import DeviceManager, PluginCall
from topoalloc.kubelet.simulated.exclusive import ExclusiveResources
from topoalloc.kubelet.simulated.node_capacity import node_allocatable, with_unknown
from topoalloc.kubelet.simulated.pod_store import Phase, PodStore
from topoalloc.kubelet.simulated.process import KubeletProcess, Sockets, Surroundings
from topoalloc.kubelet.simulated.settings import Behaviour, KubeletSettings
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Machine

NOTES_MAX = 1_000  # what is kept for a person to read when something went wrong
UNLIMITED_PODS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Admission:
    """What came of one pod: the verdict, and what its containers had been given when it fell.

    `devices` and `answers` (serialised ContainerAllocateResponse) are keyed by owner; `cpus` and `memory` by container.
    `others` is what containers of other active pods held then.
    """

    pod: Pod
    refusal: Refusal | None
    explanation: Explanation | None
    affinities: Mapping[str, Hint]
    devices: Mapping[Owner, frozenset[str]]
    answers: Mapping[Owner, bytes]
    others: Mapping[Owner, frozenset[str]]
    cpus: Mapping[str, CpuSet]
    memory: Mapping[str, tuple[MemoryBlock, ...]]
    calls: tuple[PluginCall, ...]

    @property
    def admitted(self) -> bool:
        return self.refusal is None


class SimulatedKubelet:
    """One node's kubelet over several of its lives. `with` starts and stops it."""

    def __init__(
        self,
        sockets: Sockets,
        machine: Machine,
        settings: KubeletSettings,
        behaviour: Behaviour | None = None,
        seed: int = 0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises InputError where a kubelet so configured would not start on this machine."""
        numa = numa_info(machine)
        if not numa.nodes:
            numa = NumaInfo((0,), {})  # a kubelet always knows at least one node
        reason = start_refusal(settings.policy, settings.options, numa)
        if reason is not None:
            raise InputError(f"the kubelet would not start: {reason}")
        self.notes: deque[str] = deque(maxlen=NOTES_MAX)
        self._settings = settings
        self._node = node_allocatable(machine, settings)
        self._admitting = threading.Lock()
        self._calls: list[PluginCall] = []
        self._pods = PodStore()
        self._process: KubeletProcess | None = None
        self._exclusive = ExclusiveResources(machine, settings)
        self._around = Surroundings(
            sockets=sockets,
            settings=settings,
            behaviour=behaviour or Behaviour(),
            numa=numa,
            exclusive=self._exclusive,
            chance=random.Random(seed),  # noqa: S311 -- a seed, so that a run can be repeated
            now_s=now_s,
            on_call=self._calls.append,
            note=self.notes.append,
        )

    def __enter__(self) -> SimulatedKubelet:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def devices(self) -> DeviceManager:
        return self._running().devices

    @property
    def pods(self) -> PodStore:
        return self._pods

    def start(self, *, sources_ready: bool = True) -> None:
        """Read the checkpoint, delete every socket in the plugin directory, listen anew."""
        assert self._process is None, "already started"
        self._process = KubeletProcess(self._around, self._pods, sources_ready=sources_ready)

    def stop(self) -> None:
        """The process ends: streams are cancelled, nothing is said to anybody."""
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def restart(
        self,
        before_pods: Callable[[SimulatedKubelet], object] | None = None,
        arrivals: Iterable[Pod] = (),
    ) -> tuple[Admission, ...]:
        """Stop, start, and admit the active pods again in their order, then `arrivals`, which came while the kubelet
        was away; returns what came of each.

        `before_pods` runs between the start and the first re-admission: plugins that shall be back by then are
        waited for there. All of this is one batch: the pod sources are ready after it.
        """
        self.stop()
        known = self._pods.all()
        self._pods = PodStore()
        self.start(sources_ready=False)
        if before_pods is not None:
            before_pods(self)
        admissions = []
        for stored in known:
            if stored.phase is Phase.RUNNING:
                alive = frozenset(c.name for c in stored.pod.containers if c.restartable or not c.init)
                admissions.append(self.admit(stored.pod, alive))
            elif stored.phase is not Phase.PENDING:
                self._pods.add(stored.pod)
                self._pods.set_phase(stored.pod.uid, stored.phase, stored.refusal)
        admissions.extend(self.admit(pod) for pod in arrivals)
        self.devices.sources_ready = True
        return tuple(admissions)

    def wait_for(self, resources: frozenset[str], limit_s: float) -> bool:
        """Wait until a device list of each resource has arrived; False when `limit_s` passed."""
        return self.devices.wait_until(
            lambda listed: all(name in listed and listed[name].nodes for name in resources), limit_s
        )

    def admit(self, pod: Pod, running: frozenset[str] = frozenset()) -> Admission:
        """Let a pod enter and judge it; a refused one is Failed afterwards, an admitted one runs at once."""
        with self._admitting:
            process = self._running()
            self._calls.clear()
            self._pods.add(pod)
            if process.devices.sources_ready:  # not before a restarted kubelet has seen all its pods again
                self._exclusive.collect(frozenset(active.uid for active in self._pods.active()))
            judged = process.topology_manager.admit(pod, running)
            refusal = judged.refusal or self._fit(pod)
            admission = self._admission(pod, refusal, judged.explanation, judged.affinities)
            if refusal is None:
                self._exclusive.containers_started(pod)
            self._pods.set_phase(pod.uid, Phase.RUNNING if refusal is None else Phase.FAILED, refusal)
            return admission

    def finish(self, uid: str) -> None:
        """A running pod has fully terminated. Runs beside an admission, as the pod's own worker does."""
        self._pods.set_phase(uid, Phase.SUCCEEDED)

    def delete(self, uid: str) -> None:
        """The pod object is gone from the API server."""
        self._pods.remove(uid)

    def _running(self) -> KubeletProcess:
        assert self._process is not None, "the kubelet is stopped"
        return self._process

    def _fit(self, pod: Pod) -> Refusal | None:
        """The predicates, which run after everything has been allocated."""
        devices = self.devices
        shown = {resource: allocatable for resource, (_, allocatable) in devices.capacity().items()}
        tables = devices.tables
        holds = any(owner.pod_uid == pod.uid for owner in tables.recorded)
        given_out = {resource: len(ids) for resource, ids in tables.allocated.items()}
        others = [active for active in self._pods.active() if active.uid != pod.uid]
        return fit(
            pod,
            others,
            with_unknown({**self._node, **shown}, pod),
            pods_max=UNLIMITED_PODS if self._settings.pods_max is None else self._settings.pods_max,
            devices_allocated=given_out if holds else None,
        )

    def _admission(
        self, pod: Pod, refusal: Refusal | None, explanation: Explanation | None, affinities: Mapping[str, Hint]
    ) -> Admission:
        everything = self.devices.tables.recorded
        recorded = {owner: ids for owner, ids in everything.items() if owner.pod_uid == pod.uid}
        active = {other.uid for other in self._pods.active()} - {pod.uid}
        answers = self.devices.answers()
        return Admission(
            pod=pod,
            refusal=refusal,
            explanation=explanation,
            affinities=dict(affinities),
            devices=recorded,
            answers={owner: answers[owner] for owner in recorded if owner in answers},
            others={owner: ids for owner, ids in everything.items() if owner.pod_uid in active},
            cpus={container.name: self._exclusive.cpus_of(pod.uid, container.name) for container in pod.containers},
            memory={one.name: self._exclusive.memory_of(pod.uid, one.name) for one in pod.containers},
            calls=tuple(self._calls),
        )
