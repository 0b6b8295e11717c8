"""Hypothesis strategies for conversations with the memory manager: nodes, huge pages, pods that come and go."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.e2e.semantics.cpu_cases import affinities, allocation, hints
from tests.e2e.semantics.merge_cases import node_ids, rarely

Json = Any
NODES_MAX = 5
HUGE = {2048: "hugepages-2Mi", 1 << 20: "hugepages-1Gi"}  # page size in KiB: resource
SMALL_SIZES = ("1", "2", "3", "4", "5", "8", "10", "15")


@st.composite
def pods(draw: st.DrawFn, uid: str, huge: tuple[int, ...]) -> Json:
    guaranteed = not draw(rarely(7))
    containers = []
    for i in range(draw(st.integers(1, 4))):
        init = draw(st.booleans())
        # The fraction of a byte is rounded up.
        memory = "1500m" if draw(rarely(30)) else draw(st.sampled_from(SMALL_SIZES))
        limits = {"cpu": "1", "memory": memory}
        for size in huge:
            if draw(st.booleans()):
                limits[HUGE[size]] = str(size * 1024 * draw(st.integers(0, 3)))
        requests = dict(limits) if guaranteed or draw(st.booleans()) else {"cpu": "500m"}
        sidecar = init and draw(rarely(3))
        containers.append(
            {"name": f"c{i}", "requests": requests, "limits": limits, "init": init, "restartable": sidecar}
        )
    return {"uid": uid, "containers": sorted(containers, key=lambda c: not c["init"])}


@st.composite
def configurations(draw: st.DrawFn, nodes: list[int], huge: tuple[int, ...]) -> Json:
    pages = {node: {size: draw(st.integers(0, 4)) for size in huge} for node in nodes}
    if huge and draw(rarely(10)):
        del pages[nodes[0]][huge[0]]
    memory = {
        node: draw(st.integers(0, 20)) + sum(size * 1024 * count for size, count in pages[node].items())
        for node in nodes
    }
    reserved: dict[int, dict[str, int]] = {node: {} for node in nodes}
    reserved[draw(st.sampled_from(nodes))]["memory"] = 1
    if draw(st.booleans()):
        reserved[draw(st.sampled_from(nodes))]["memory"] = draw(st.integers(1, 3))
    return {"memory": memory, "hugepages": pages, "reserved": reserved}


@st.composite
def steps(draw: st.DrawFn, nodes: list[int], huge: tuple[int, ...]) -> list[Json]:
    told: list[Json] = []
    alive: list[Json] = []
    for k in range(draw(st.integers(1, 5))):
        pod = draw(pods(f"p{k}", huge))
        uid, names = pod["uid"], [container["name"] for container in pod["containers"]]
        alive.append(pod)
        told += [{"do": "pod", "pod": pod}, hints(uid)]
        whole, preferred = draw(affinities(nodes)), draw(st.booleans())
        for name in names:
            affinity = draw(affinities(nodes)) if draw(st.booleans()) else whole
            told += [hints(uid, name), allocation(uid, name, affinity, preferred=preferred)]
            if draw(rarely(6)):
                told.append({"do": "removed", "uid": uid, "container": draw(st.sampled_from(names))})
        if draw(st.booleans()):
            told += [hints(uid), *(hints(uid, name) for name in names)]
            told.append(allocation(uid, draw(st.sampled_from(names)), None))
        if draw(rarely(3)):
            gone = draw(st.sampled_from(alive))
            told += [{"do": "removed", "uid": gone["uid"], "container": c["name"]} for c in gone["containers"]]
    return told


@st.composite
def conversations(draw: st.DrawFn) -> Json:
    """A question of op memory. Sizes are a few bytes, so that they run out."""
    nodes = draw(node_ids(NODES_MAX))
    huge = draw(st.sampled_from(((), (), (2048,), (2048, 1 << 20))))
    return {
        "op": "memory",
        "nodes": nodes,
        "memory": draw(configurations(nodes, huge)),
        "steps": draw(steps(nodes, huge)),
    }
