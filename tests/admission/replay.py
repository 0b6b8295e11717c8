"""Replays conversations that Kubernetes 1.37.2's own packages were led through, on the pure parts.

A case is the JSON request and the answers that upstream's topology, device, CPU and memory managers gave to it.
Where upstream leaves a choice to chance (which devices are picked), its choice is taken from the answers, so that
everything else must agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from topoalloc.admission import cpus as cpu_rules
from topoalloc.admission import devices as device_rules
from topoalloc.admission import memory as memory_rules
from topoalloc.admission.cpu_distribute import HANGS, take_distributed
from topoalloc.admission.cpu_take import NotTaken, take_packed
from topoalloc.admission.cpu_topology import CpuPlace, CpuTopology
from topoalloc.admission.devices import Ask, DeviceTables, Owner, Refused, Want
from topoalloc.admission.hints import Hint, Hints, ProviderAnswer
from topoalloc.admission.numa_mask import nodes_of
from topoalloc.admission.pod import Container, Pod
from topoalloc.admission.policy import NumaInfo, Options, Policy, merge, parse_options, start_refusal
from topoalloc.admission.quantity import parse_quantity
from topoalloc.admission.refusal import Refusal
from topoalloc.errors import InputError
from topoalloc.topology.cpus import CpuSet

Json = Any
GATES = {"CPUManagerPolicyAlphaOptions": True}


class LeftToChance(Exception):  # noqa: N818 - not an error
    """Upstream's state from here on depends on the order in which it visited resources."""


def int_keys(table: Mapping[Any, Json]) -> dict[int, Json]:
    return {int(key): value for key, value in table.items()}


def hints_to_json(answer: ProviderAnswer) -> Json:
    if answer is None:
        return None
    return {
        resource: None if found is None else [{"mask": hint.mask, "preferred": hint.preferred} for hint in found]
        for resource, found in answer.items()
    }


def hints_from_json(answer: Json) -> ProviderAnswer:
    if answer is None:
        return None
    read: dict[str, Hints] = {}
    for resource, found in answer.items():
        read[resource] = None if found is None else tuple(Hint(hint["mask"], hint["preferred"]) for hint in found)
    return read


def read_pod(value: Json) -> Pod:
    def quantities(table: Mapping[str, str] | None) -> dict[str, Any]:
        return {name: parse_quantity(text) for name, text in (table or {}).items()}

    containers = tuple(
        Container(c["name"], quantities(c["requests"]), quantities(c["limits"]), c["init"], c["restartable"])
        for c in value["containers"]
    )
    pod_level = quantities(value.get("requests")), quantities(value.get("limits"))
    return Pod(value["uid"], "default", value["uid"], containers, *pod_level, quantities(value.get("overhead")))


def container_of(pod: Pod, name: str) -> Container | None:
    return next((container for container in pod.containers if container.name == name), None)


def numa_of(request: Json) -> NumaInfo:
    distances = {node: tuple(row) for node, row in int_keys(request.get("distances") or {}).items()}
    return NumaInfo(tuple(request["nodes"]), distances)


def options_of(request: Json) -> Options:
    """Policy none does not look at its options."""
    return Options() if request["policy"] == Policy.NONE else parse_options(request["options"])


def merged(request: Json) -> Json:
    """The merged hint and the verdict, or why the kubelet would not start."""
    policy, numa = Policy(request["policy"]), numa_of(request)
    try:
        options = options_of(request)
    except InputError as refused:
        return {"error": str(refused)}
    reason = start_refusal(policy, options, numa)
    if reason is not None:
        return {"error": reason}
    verdict = merge(policy, options, [hints_from_json(answer) for answer in request["answers"]], numa)
    return {"mask": verdict.hint.mask, "preferred": verdict.hint.preferred, "admit": verdict.admit}


# CPUs ---------------------------------------------------------------------------------------------------------


def cpu_topology_of(config: Json) -> CpuTopology:
    return CpuTopology.of(
        {cpu: CpuPlace(*place) for cpu, place in int_keys(config["places"]).items()}, config["sockets"]
    )


def taken(request: Json) -> Json:
    """takeByTopology in upstream's words: `cpus`, `error` or `hang`."""
    wish, topology = request["take"], cpu_topology_of(request["cpu"])
    available = CpuSet.from_list(wish["available"])
    if wish["group"] == 0:
        result = take_packed(topology, available, wish["count"], spread_over_cores=wish["spread"])
    else:
        result = take_distributed(
            topology, available, wish["count"], group_size=wish["group"], align_by_socket=wish["align"]
        )
    if result == HANGS:
        return {"hang": True}
    return {"error": result.text} if isinstance(result, NotTaken) else {"cpus": str(result)}


def error_of(refusal: Refusal) -> str:
    return refusal.message.removeprefix("Allocate failed due to ").removesuffix(", which is unexpected")


def replay_cpus(request: Json) -> list[Json] | None:
    """Upstream's answers to the steps, the state at start first; None where the kubelet would not start."""
    config, policy = request["cpu"], Policy(request["policy"])
    reserved = CpuSet.from_list(config["reserved"]) if config["reserved"] else config["count"]
    try:
        options = cpu_rules.parse_cpu_options(config["options"], GATES)
        manager, state = cpu_rules.start(cpu_topology_of(config), reserved, options, policy)
    except InputError:
        return None
    answers: list[Json] = [{"shared": str(state.shared), "allocatable": str(manager.topology.cpus - manager.reserved)}]
    pods: dict[str, Pod] = {}
    for step in request["steps"]:
        answer: Json = None
        if step["do"] == "pod":
            pods[step["pod"]["uid"]] = read_pod(step["pod"])
        else:
            pod = pods[step["uid"]]
            state, answer = _cpu_step(manager, state, step, pod, container_of(pod, step["container"]))
        answers.append(answer)
    return answers


def _cpu_step(
    manager: cpu_rules.CpuManager, state: cpu_rules.CpuState, step: Json, pod: Pod, container: Container | None
) -> tuple[cpu_rules.CpuState, Json]:
    if container is None:
        return state, hints_to_json(cpu_rules.pod_hints(manager, state, pod))
    if step["do"] == "hints":
        return state, hints_to_json(cpu_rules.container_hints(manager, state, pod, container))
    if step["do"] == "removed":
        state = cpu_rules.removed(state, pod.uid, container.name)
        return state, {"shared": str(state.shared)}
    after = cpu_rules.allocate(manager, state, pod, container, step["affinity"])
    answer: Json = {}
    if isinstance(after, Refusal):
        if HANGS.text in after.message:
            raise LeftToChance
        answer["error"] = error_of(after)
    else:
        state = after
    answer["shared"] = str(state.shared)
    if (pod.uid, container.name) in state.assigned:
        answer["cpus"] = str(state.assigned[pod.uid, container.name])
    return state, answer


# Memory -------------------------------------------------------------------------------------------------------


def start_memory(config: Json) -> memory_rules.MemoryState:
    totals = {node: {"memory": size} for node, size in int_keys(config["memory"]).items()}
    for node, pages in int_keys(config["hugepages"]).items():
        for size_kib, count in int_keys(pages).items():
            name = f"hugepages-{size_kib // 1024}Mi" if size_kib < 1 << 20 else f"hugepages-{size_kib >> 20}Gi"
            totals[node][name] = size_kib * 1024 * count
    return memory_rules.start(totals, int_keys(config["reserved"]))


def memory_nodes(state: memory_rules.MemoryState) -> Json:
    return {
        str(node): {
            "kinds": {kind: [table.allocatable_bytes, table.free_bytes] for kind, table in memory.tables.items()},
            "cells": list(nodes_of(memory.group)),
            "assignments": memory.assignments,
        }
        for node, memory in state.nodes.items()
    }


def memory_blocks(state: memory_rules.MemoryState) -> Json:
    return {
        f"{uid}/{container}": {
            block.kind: {"size": block.size_bytes, "nodes": list(nodes_of(block.mask))} for block in blocks
        }
        for (uid, container), blocks in state.blocks.items()
    }


def replay_memory(request: Json) -> list[Json] | str:
    """Upstream's answers to the steps, the state at start first; the reason where the kubelet crashes."""
    state = start_memory(request["memory"])
    answers: list[Json] = [memory_nodes(state)]
    pods: dict[str, Pod] = {}
    for step in request["steps"]:
        answer: Json = None
        if step["do"] == "pod":
            pod = pods[step["pod"]["uid"]] = read_pod(step["pod"])
            crash = memory_rules.crash_reason(state, pod)
            if crash is not None:
                return crash
        else:
            pod = pods[step["uid"]]
            state, answer = _memory_step(state, step, pod, container_of(pod, step["container"]))
        answers.append(answer)
    return answers


def _memory_step(
    state: memory_rules.MemoryState, step: Json, pod: Pod, container: Container | None
) -> tuple[memory_rules.MemoryState, Json]:
    if container is None:
        return state, hints_to_json(memory_rules.pod_hints(state, pod))
    if step["do"] == "hints":
        return state, hints_to_json(memory_rules.container_hints(state, pod, container))
    answer: Json = {}
    if step["do"] == "removed":
        state = memory_rules.removed(state, pod.uid, container.name)
    else:
        after = memory_rules.allocate(state, pod, container, Hint(step["affinity"], step["preferred"]))
        if isinstance(after, Refusal):
            answer["error"] = error_of(after)
        else:
            state = after
    return state, {**answer, "state": memory_nodes(state), "blocks": memory_blocks(state)}


# Devices ------------------------------------------------------------------------------------------------------


class DeviceReplay:
    """Device manager steps. Raises AssertionError where upstream did otherwise, LeftToChance where it is left to it."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self.nodes = nodes
        self.tables = DeviceTables()
        self.pods: dict[str, Pod] = {}
        self.active: list[str] = []
        self.asks: dict[str, bool] = {}
        self.stopped: set[str] = set()
        self.seen: Counter[str] = Counter()

    def step(self, step: Json, told: Json) -> None:
        """One step and what upstream answered to it."""
        kind = step["do"]
        if kind == "connect":
            self.asks[step["resource"]] = not ((step.get("plugins") or {}).get(step["resource"]) or {}).get("no_gpa")
            self.stopped.discard(step["resource"])
        elif kind == "list":
            self.list(step)
        elif kind == "disconnect":
            if step["resource"] in self.asks and step["resource"] not in self.stopped:
                self.tables = device_rules.stream_ended(self.tables, step["resource"])
                self.stopped.add(step["resource"])
        elif kind == "pod":
            self.pods[step["pod"]["uid"]] = read_pod(step["pod"])
            self.active.append(step["pod"]["uid"])
        elif kind == "remove":
            self.active.remove(step["uid"])
        else:
            pod = self.pods[step["uid"]]
            container = container_of(pod, step["container"])
            if kind == "hints":
                assert hints_to_json(self.hints(pod, container)) == told, (step, told)
            else:
                assert container is not None
                self.allocate(pod, container, step, told)

    def list(self, step: Json) -> None:
        nodes = {d["id"]: tuple(d["nodes"]) if d["topo"] else None for d in step["devices"]}
        healthy = frozenset(d["id"] for d in step["devices"] if d["healthy"])
        self.tables = device_rules.list_received(self.tables, step["resource"], nodes, healthy)

    def hints(self, pod: Pod, container: Container | None) -> ProviderAnswer:
        self.seen["hints"] += 1
        self.tables = device_rules.collect(self.tables, frozenset(self.active))
        if container is None:
            return device_rules.pod_hints(self.tables, pod, self.nodes)
        return device_rules.container_hints(self.tables, pod, container, self.nodes)

    def allocate(self, pod: Pod, container: Container, step: Json, told: Json) -> None:
        """All resources of one container, in the order that upstream's calls show."""
        self.seen["allocations"] += 1
        calls = told["calls"] or []
        self.tables = device_rules.container_opened(self.tables, pod.uid)
        self.tables = device_rules.collect(self.tables, frozenset(self.active))
        error = ""
        for resource in visited(container, told["error"], [call["resource"] for call in calls]):
            if device_rules.is_device_resource(self.tables, resource):
                mine = [call for call in calls if call["resource"] == resource]
                error = error or self._one(Owner(pod.uid, container.name, resource), container, step, told, mine)
        assert error == told["error"], (error, told)
        if not error:
            self.tables = device_rules.container_closed(self.tables, pod.uid, container)

    def _one(self, owner: Owner, container: Container, step: Json, told: Json, calls: Sequence[Json]) -> str:
        plan = step["plugins"][owner.resource]
        given = next((call["devices"] for call in calls if call["kind"] == "allocate"), [])
        asked = [call for call in calls if call["kind"] == "gpa"]
        pick = picking(frozenset(given))
        required, stopped = container.limits[owner.resource].value, owner.resource in self.stopped
        want = Want(owner, required, step["affinity"], asks_plugin=self.asks.get(owner.resource, False))
        choice = device_rules.begin(self.tables, want, pick)
        if isinstance(choice, Ask):
            self.seen["asked"] += 1
            if stopped:
                choice = device_rules.ask_failed(choice, told["error"].partition("with err: ")[2])
            else:
                arguments = sorted(choice.available), sorted(choice.must_include), choice.size
                assert [(c["available"], c.get("must", []), c["size"]) for c in asked] == [arguments]
                answered = answer_of(plan, choice)
                if plan.get("gpa_error"):
                    choice = device_rules.ask_failed(choice, plan["gpa_error"])
                else:
                    choice = device_rules.finish(choice, answered, pick)
        else:
            assert not asked
        self.tables = choice.tables
        if isinstance(choice, Refused):
            self.seen["refused"] += 1
            return choice.text
        if stopped and choice.devices:
            self.tables = device_rules.rebuild(self.tables)
            return str(told["error"])
        assert sorted(choice.devices) == sorted(given)
        if not choice.devices:
            return ""
        if plan.get("error"):
            self.tables = device_rules.rebuild(self.tables)
            return str(plan["error"])
        if plan.get("empty"):
            return str(told["error"])  # the reservation leaks
        recorded = device_rules.allocate_succeeded(self.tables, owner, choice.devices)
        assert isinstance(recorded, DeviceTables)
        self.tables = recorded
        return ""


def visited(container: Container, error: str, called: Sequence[str]) -> list[str]:
    """The resources of a container in upstream's random order, as far as it came.

    Whatever was allocated shows in a call. What failed is the last that was called, or is named by the error.
    """
    silent = [resource for resource in container.limits if resource not in called]
    if error and len(silent) > 1:
        silent = [resource for resource in silent if resource in error]
        if not silent and not called:
            raise LeftToChance
    return list(dict.fromkeys([*called, *silent]))


def picking(preferred: frozenset[str]) -> device_rules.Pick:
    """Picks what upstream picked, as far as it is among the candidates."""

    def pick(candidates: Sequence[str], count: int) -> Sequence[str]:
        ordered = [*(c for c in candidates if c in preferred), *(c for c in candidates if c not in preferred)]
        return ordered[:count]

    return pick


def answer_of(plan: Json, ask: Ask) -> frozenset[str] | None:
    """What the plugin of the recording answers: fixed ids, none, or the first free ones in order."""
    if plan.get("follow"):
        more = sorted(ask.available - ask.must_include)
        return ask.must_include | frozenset(more[: max(0, ask.size - len(ask.must_include))])
    answer = plan.get("answer")
    return None if answer is None else frozenset(answer)
