"""Hypothesis strategies for conversations with the device manager: lists, pods, and what plugins answer."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.e2e.semantics.cpu_cases import affinities, hints
from tests.e2e.semantics.merge_cases import node_ids, rarely

Json = Any
RESOURCES = ("a.io/x", "b.io/y", "c.io/z")
NODES_MAX = 5
STYLES = ("single", "single", "single", "multi", "mixed", "none", "empty", "odd")


@st.composite
def device_lists(draw: st.DrawFn, nodes: list[int], resource: str) -> list[Json]:
    """Devices of one style: on one node, on several, without topology, with an empty one, on nodes that are not."""
    one = st.sampled_from(nodes).map(lambda node: [node])
    few = st.sets(st.sampled_from(nodes), min_size=1, max_size=3).map(sorted)
    nowhere = st.sampled_from(([-1], [63], [70], [40, nodes[0]]))
    topologies: dict[str, st.SearchStrategy[list[int] | None]] = {
        "single": one,
        "multi": few,
        "mixed": st.one_of(st.none(), st.just([]), one, few),
        "none": st.none(),
        "empty": st.just([]),
        "odd": st.one_of(one, nowhere),
    }
    topology = topologies[draw(st.sampled_from(STYLES))]
    devices = []
    for i in range(draw(st.integers(0, 10))):
        on = draw(topology)
        healthy = not draw(rarely(6))
        devices.append({"id": f"{resource[0]}{i}", "nodes": on or [], "topo": on is not None, "healthy": healthy})
    return devices


@st.composite
def pods(draw: st.DrawFn, uid: str) -> Json:
    containers = []
    for i in range(draw(st.integers(1, 4))):
        init = draw(st.booleans())
        most = 2 if draw(rarely(3)) else 1
        names = draw(st.lists(st.sampled_from(RESOURCES), unique=True, min_size=1, max_size=most))
        limits = {name: str(draw(st.integers(0, 6))) for name in names}
        sidecar = init and draw(rarely(3))
        containers.append({"name": f"c{i}", "requests": limits, "limits": limits, "init": init, "restartable": sidecar})
    return {"uid": uid, "containers": sorted(containers, key=lambda c: not c["init"])}


@st.composite
def plans(draw: st.DrawFn, resource: str) -> Json:
    """What the resource's plugin does while one container is allocated."""
    any_ids = st.lists(st.sampled_from([f"{resource[0]}{i}" for i in range(11)]), max_size=8)
    follow = st.just({"follow": True})
    return draw(
        st.one_of(
            follow,
            follow,
            any_ids.map(lambda ids: {"answer": ids}),
            any_ids.map(lambda ids: {"answer": ids}),
            st.just({}),
            st.sampled_from(({"gpa_error": "boom"}, {"error": "refused"}, {"empty": True})),
        )
    )


@st.composite
def one_pod(draw: st.DrawFn, pod: Json, nodes: list[int]) -> list[Json]:
    uid = pod["uid"]
    told: list[Json] = [{"do": "pod", "pod": pod}, hints(uid)]
    whole = draw(affinities(nodes))
    for container in pod["containers"]:
        step = {
            "do": "allocate",
            "uid": uid,
            "container": container["name"],
            "affinity": draw(affinities(nodes)) if draw(st.booleans()) else whole,
            "preferred": True,
            "plugins": {resource: draw(plans(resource)) for resource in container["limits"]},
        }
        told += [hints(uid, container["name"]), step]
    return told


@st.composite
def conversations(draw: st.DrawFn) -> Json:
    """A question of op devices."""
    nodes = draw(node_ids(NODES_MAX))
    told: list[Json] = []
    connected = [resource for resource in RESOURCES if not draw(rarely(8))]
    for resource in connected:
        quiet = draw(rarely(5))
        told.append({"do": "connect", "resource": resource, "plugins": {resource: {"no_gpa": quiet}}})
        if not draw(rarely(10)):
            told.append({"do": "list", "resource": resource, "devices": draw(device_lists(nodes, resource))})
    alive: list[str] = []
    for k in range(draw(st.integers(1, 5))):
        pod = draw(pods(f"p{k}"))
        alive.append(pod["uid"])
        told += draw(one_pod(pod, nodes))
        event = draw(st.sampled_from(("", "", "list", "remove", "disconnect", "again")))
        resource = draw(st.sampled_from(RESOURCES))
        if event == "list" and resource in connected:
            told.append({"do": "list", "resource": resource, "devices": draw(device_lists(nodes, resource))})
        elif event == "remove":
            gone = draw(st.sampled_from(alive))
            alive.remove(gone)
            told.append({"do": "remove", "uid": gone})
        elif event == "disconnect":
            told.append({"do": "disconnect", "resource": resource})
        elif event == "again":
            told += [hints(pod["uid"]), *(hints(pod["uid"], c["name"]) for c in pod["containers"])]
    return {"op": "devices", "nodes": nodes, "steps": told}
