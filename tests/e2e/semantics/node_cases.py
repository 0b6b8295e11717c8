"""Hypothesis strategies for whole admissions: pods with devices, CPUs and memory on one node, one after the other."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.e2e.semantics.merge_cases import rarely
from topoalloc.admission.policy import MAX_ALLOWABLE, PREFER_CLOSEST, Policy, Scope

Json = Any
CORES, NICS = "a.io/core", "b.io/nic"
DEVICES_A_NODE_MAX = {CORES: 6, NICS: 3}
# Upstream tries every combination of one hint per resource. On eight nodes a resource has up to 255 hints, so that
# a container with four resources would take it hours.
NODES_WITH_ALL_MANAGERS_MAX = 4
ALL_OF_THEM = (("cpu", "memory"), ("cpu", "memory"), ("cpu",), ("memory",), ())
ONE_OF_THEM = (("cpu",), ("memory",), ())


@st.composite
def pods(draw: st.DrawFn, uid: str, cpus_max: int, device_resources_max: int) -> Json:
    guaranteed, with_init = not draw(rarely(5)), draw(st.booleans())
    cpus = st.one_of(st.integers(1, cpus_max).map(str), st.just("500m"))
    containers = []
    for i in range(draw(st.integers(1, 3))):
        init = with_init and draw(st.booleans())
        limits = {"cpu": draw(cpus), "memory": draw(st.sampled_from(("1", "2", "4", "8", "12")))}
        for resource in draw(st.lists(st.sampled_from((CORES, NICS)), unique=True, max_size=device_resources_max)):
            limits[resource] = str(draw(st.integers(1, 6 if resource == CORES else 2)))
        requests = dict(limits) if guaranteed else {**limits, "cpu": "100m"}
        sidecar = init and draw(rarely(3))
        containers.append(
            {"name": f"c{i}", "requests": requests, "limits": limits, "init": init, "restartable": sidecar}
        )
    return {"uid": uid, "containers": sorted(containers, key=lambda c: not c["init"])}


@st.composite
def cpu_manager(draw: st.DrawFn, nodes: list[int], cpus_a_node: int) -> Json:
    threads = draw(st.sampled_from((1, 2)))
    places = {}
    for cpu in range(len(nodes) * cpus_a_node):
        node = cpu // cpus_a_node
        places[cpu] = (cpu - cpu % threads, node // 2 if len(nodes) > 2 else node, node)
    options = {}
    if draw(rarely(5)):
        options["full-pcpus-only"] = "true"
    # With both options and cores of several threads upstream can search for ever (cpu_assignment.go:1041), which
    # the questions about CPUs alone cover.
    if draw(rarely(5)) and not (options and threads > 1):
        options["distribute-cpus-across-numa"] = "true"
    sockets = len({socket for _, socket, _ in places.values()})
    return {"places": places, "sockets": sockets, "reserved": "", "count": draw(st.integers(1, 2)), "options": options}


@st.composite
def memory_manager(draw: st.DrawFn, nodes: list[int]) -> Json:
    memory = {node: draw(st.integers(4, 16)) for node in nodes}
    return {"memory": memory, "hugepages": {}, "reserved": {node: {"memory": 1} if node == 0 else {} for node in nodes}}


@st.composite
def plugins(draw: st.DrawFn, nodes: list[int]) -> list[Json]:
    """Both resources with devices on all nodes, on the first half, or on the last node."""
    told: list[Json] = []
    for resource, most in DEVICES_A_NODE_MAX.items():
        hosts = draw(st.sampled_from((nodes, nodes, nodes[: max(1, len(nodes) // 2)], nodes[-1:])))
        devices = [
            {"id": f"{resource[0]}{node}-{i}", "nodes": [node], "topo": True, "healthy": not draw(rarely(8))}
            for node in hosts
            for i in range(draw(st.integers(1, most)))
        ]
        told.append({"do": "connect", "resource": resource})
        told.append({"do": "list", "resource": resource, "devices": devices})
    return told


@st.composite
def options(draw: st.DrawFn) -> dict[str, str]:
    given = {}
    if draw(st.booleans()):
        given[PREFER_CLOSEST] = "true"
    if draw(rarely(4)):
        given[MAX_ALLOWABLE] = str(draw(st.integers(8, 12)))
    return given


@st.composite
def admissions(draw: st.DrawFn) -> Json:
    """A question of op node."""
    nodes = list(range(draw(st.sampled_from((1, 2, 2, 2, 4, 4, 8)))))
    many_nodes = len(nodes) > NODES_WITH_ALL_MANAGERS_MAX
    cpus_a_node = draw(st.sampled_from((2, 4, 8)))
    far = st.sampled_from((21, 32))
    rows = {a: [10 if a == b else 12 if a // 2 == b // 2 else draw(far) for b in nodes] for a in nodes}
    question: Json = {
        "op": "node",
        "nodes": nodes,
        "distances": rows,
        "policy": str(draw(st.sampled_from(list(Policy)))),
        "scope": str(draw(st.sampled_from(list(Scope)))),
        "options": draw(options()),
    }
    managers = draw(st.sampled_from(ONE_OF_THEM if many_nodes else ALL_OF_THEM))
    if "cpu" in managers:
        question["cpu"] = draw(cpu_manager(nodes, cpus_a_node))
    if "memory" in managers:
        question["memory"] = draw(memory_manager(nodes))
    told = draw(plugins(nodes))
    follow = {resource: {"follow": True} for resource in DEVICES_A_NODE_MAX}
    alive: list[str] = []
    for k in range(draw(st.integers(1, 6))):
        pod = draw(pods(f"p{k}", cpus_a_node, 1 if many_nodes else 2))
        alive.append(pod["uid"])
        told.append({"do": "admit", "pod": pod, "plugins": follow})
        if draw(rarely(4)):
            told.append({"do": "remove", "uid": alive.pop(draw(st.integers(0, len(alive) - 1)))})
    return {**question, "steps": told}
