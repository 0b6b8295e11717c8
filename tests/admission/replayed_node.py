"""Replays whole admissions of Kubernetes 1.37.2 on the pure parts: all managers together, one pod after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tests.admission.replay import (
    GATES,
    DeviceReplay,
    Json,
    LeftToChance,
    answer_of,
    cpu_topology_of,
    memory_nodes,
    numa_of,
    options_of,
    picking,
    read_pod,
    start_memory,
)
from topoalloc.admission import cpus as cpu_rules
from topoalloc.admission import devices as device_rules
from topoalloc.admission import memory as memory_rules
from topoalloc.admission.cpu_distribute import HANGS
from topoalloc.admission.devices import Ask, DeviceTables, Owner, Refused, Want
from topoalloc.admission.hints import Hint, ProviderAnswer
from topoalloc.admission.pod import Container, Pod
from topoalloc.admission.policy import Policy, Verdict, merge
from topoalloc.admission.refusal import TOPOLOGY_AFFINITY, Refusal, unexpected


class NodeReplay:
    """Pods judged one after the other by policy, device, CPU and memory manager together."""

    def __init__(self, request: Json) -> None:
        self.policy, self.scope = Policy(request["policy"]), request["scope"]
        self.options, self.numa = options_of(request), numa_of(request)
        self.devices = DeviceReplay(request["nodes"])
        self.cpu: tuple[cpu_rules.CpuManager, cpu_rules.CpuState] | None = None
        self.memory: memory_rules.MemoryState | None = None
        self.outcomes: Counter[str] = Counter()
        if request.get("cpu"):
            config = request["cpu"]
            options = cpu_rules.parse_cpu_options(config["options"], GATES)
            self.cpu = cpu_rules.start(cpu_topology_of(config), config["count"], options, self.policy)
        if request.get("memory"):
            self.memory = start_memory(request["memory"])

    def step(self, step: Json, told: Json) -> None:
        active = self.devices.active
        if step["do"] == "admit":
            pod = read_pod(step["pod"])
            active.append(pod.uid)
            affinities: dict[str, Hint] = {}
            refusal = self._admit(pod, step, told, affinities)
            self.outcomes["admitted" if refusal is None else refusal.reason] += 1
            self._compare(pod, refusal, affinities, told)
            if refusal is not None:
                active.remove(pod.uid)
                self._collect()
        elif step["do"] == "remove":
            if step["uid"] in active:
                active.remove(step["uid"])
                self._collect()
        else:
            self.devices.step(step, told)

    def _compare(self, pod: Pod, refusal: Refusal | None, affinities: Mapping[str, Hint], told: Json) -> None:
        said = (True, "", "") if refusal is None else (False, refusal.reason, refusal.message)
        assert said == (told["admit"], told["reason"], told["message"]), (said, told)
        for container in pod.containers:
            hint = affinities.get(container.name, Hint(None, False))
            assert {"mask": hint.mask, "preferred": hint.preferred} == told["affinity"][container.name]
        recorded: dict[str, dict[str, list[str]]] = {}
        for owner, devices in self.devices.tables.recorded.items():
            if owner.pod_uid == pod.uid:
                recorded.setdefault(owner.container, {})[owner.resource] = sorted(devices)
        assert recorded == told["recorded"]
        if self.cpu is not None:
            state = self.cpu[1]
            assigned = {name: str(cpus) for (uid, name), cpus in state.assigned.items() if uid == pod.uid}
            assert (str(state.shared), assigned) == (told["shared"], told["cpus"])
        if self.memory is not None:
            assert memory_nodes(self.memory) == told["memory"]

    def answers(self, pod: Pod, container: Container | None) -> list[tuple[str, ProviderAnswer]]:
        found = [("device manager", self.devices.hints(pod, container))]
        if self.cpu is not None:
            answer = (
                cpu_rules.pod_hints(*self.cpu, pod)
                if container is None
                else cpu_rules.container_hints(*self.cpu, pod, container)
            )
            found.append(("CPU manager", answer))
        if self.memory is not None:
            answer = (
                memory_rules.pod_hints(self.memory, pod)
                if container is None
                else memory_rules.container_hints(self.memory, pod, container)
            )
            found.append(("memory manager", answer))
        return found

    def _verdict(self, pod: Pod, container: Container | None) -> Verdict:
        return merge(self.policy, self.options, [a for _, a in self.answers(pod, container)], self.numa)

    def _admit(self, pod: Pod, step: Json, told: Json, affinities: dict[str, Hint]) -> Refusal | None:
        whole = None
        if self.policy is not Policy.NONE and self.scope == "pod":
            whole = self._verdict(pod, None)
            if not whole.admit:
                return TOPOLOGY_AFFINITY
        for container in pod.containers:
            if self.policy is not Policy.NONE:
                verdict = whole or self._verdict(pod, container)
                if not verdict.admit:
                    return TOPOLOGY_AFFINITY
                affinities[container.name] = verdict.hint
            refusal = self._allocate(pod, container, step, told, affinities.get(container.name, Hint(None, False)))
            if refusal is not None:
                return refusal
        return None

    def _allocate(self, pod: Pod, container: Container, step: Json, told: Json, hint: Hint) -> Refusal | None:
        fault = self._allocate_devices(pod, container, told, hint)
        if fault is not None:
            return unexpected(fault)
        if self.cpu is not None:
            manager, state = self.cpu
            after = cpu_rules.allocate(manager, state, pod, container, hint.mask)
            if isinstance(after, Refusal):
                if HANGS.text in after.message:
                    raise LeftToChance
                return after
            self.cpu = manager, after
        if self.memory is not None:
            left = memory_rules.allocate(self.memory, pod, container, hint)
            if isinstance(left, Refusal):
                return left
            self.memory = left
        return None

    def _allocate_devices(self, pod: Pod, container: Container, told: Json, hint: Hint) -> str | None:
        devices = self.devices
        devices.tables = device_rules.container_opened(devices.tables, pod.uid)
        devices.tables = device_rules.collect(devices.tables, frozenset(devices.active))
        known = [name for name in container.limits if device_rules.is_device_resource(devices.tables, name)]
        # Upstream visits them in random order. What it recorded came first, what it refused next, and nothing after.
        recorded_now = told["recorded"].get(container.name, {})
        known.sort(key=lambda name: (name not in recorded_now, name not in told["message"]))
        for resource in known:
            owner = Owner(pod.uid, container.name, resource)
            pick = picking(frozenset(told["recorded"].get(container.name, {}).get(resource, ())))
            want = Want(owner, container.limits[resource].value, hint.mask)
            choice = device_rules.begin(devices.tables, want, pick)
            if isinstance(choice, Ask):
                choice = device_rules.finish(choice, answer_of({"follow": True}, choice), pick)
            devices.tables = choice.tables
            if isinstance(choice, Refused):
                return choice.text
            if choice.devices:
                recorded = device_rules.allocate_succeeded(devices.tables, owner, choice.devices)
                assert isinstance(recorded, DeviceTables)
                devices.tables = recorded
        devices.tables = device_rules.container_closed(devices.tables, pod.uid, container)
        return None

    def _collect(self) -> None:
        active = frozenset(self.devices.active)
        if self.cpu is not None:
            self.cpu = self.cpu[0], cpu_rules.collect(self.cpu[1], active)
        if self.memory is not None:
            self.memory = memory_rules.collect(self.memory, active)
