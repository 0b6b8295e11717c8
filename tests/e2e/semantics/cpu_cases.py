"""Hypothesis strategies for the CPU manager: machines, CPUs to take, conversations with the static policy."""

from __future__ import annotations

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from tests.e2e.semantics.merge_cases import rarely
from topoalloc.admission.numa_mask import mask_of
from topoalloc.admission.policy import Policy
from topoalloc.topology.cpus import CpuSet

Json = Any
Places = dict[int, tuple[int, int, int]]  # CPU: its core (named after its lowest CPU), socket, NUMA node
NODES_MAX = 8
OPTIONS = (
    "full-pcpus-only",
    "distribute-cpus-across-numa",
    "align-by-socket",
    "strict-cpu-reservation",
    "distribute-cpus-across-cores",
)


@st.composite
def machines(draw: st.DrawFn) -> tuple[Places, int]:
    """CPUs and the number of sockets, which the kubelet counts elsewhere and may get wrong."""
    shape = draw(st.sampled_from(("regular", "regular", "regular", "hybrid", "wild")))
    places = draw(wild_places()) if shape == "wild" else draw(grid_places(hybrid=shape == "hybrid"))
    assume(len({node for _, _, node in places.values()}) <= NODES_MAX)
    counted = len({socket for _, socket, _ in places.values()})
    return places, draw(st.integers(1, 4)) if draw(rarely(7)) else counted


@st.composite
def grid_places(draw: st.DrawFn, *, hybrid: bool) -> Places:
    """Sockets of NUMA nodes of cores of threads, threads numbered next to each other or a whole machine apart."""
    sockets, nodes, cores = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    threads = draw(st.sampled_from((1, 2, 2, 4)))
    two_sockets_a_node = draw(rarely(6))
    grid = [
        (socket, socket // 2 if two_sockets_a_node else socket * nodes + node)
        for socket in range(sockets)
        for node in range(nodes)
        for _ in range(cores)
    ]
    # Every third core of a hybrid machine has one thread only.
    there = [(t, c) for c in range(len(grid)) for t in range(threads) if t == 0 or not (hybrid and c % 3 == 0)]
    if draw(st.booleans()):
        there.sort()
    lowest: dict[int, int] = {}
    for cpu, (_, core) in enumerate(there):
        lowest.setdefault(core, cpu)
    return {cpu: (lowest[core], *grid[core]) for cpu, (_, core) in enumerate(there)}


@st.composite
def wild_places(draw: st.DrawFn) -> Places:
    """A few CPUs with holes in their numbers, in cores of any size."""
    lowest: dict[int, int] = {}
    places: Places = {}
    for cpu in sorted(draw(st.sets(st.integers(0, 30), min_size=1, max_size=16))):
        core = draw(st.integers(0, 6))
        places[cpu] = (lowest.setdefault(core, cpu), core % 3, core % 5)
    return places


@st.composite
def takes(draw: st.DrawFn) -> Json:
    """A question of op take."""
    places, sockets = draw(machines())
    some = st.sets(st.sampled_from(sorted(places)))
    all_but_few = st.sets(st.sampled_from(sorted(places)), max_size=4).map(lambda gone: places.keys() - gone)
    available = draw(st.one_of(some, all_but_few))
    group = draw(st.sampled_from((0, 0, 1, 1, 2, 2, 4)))
    return {
        "op": "take",
        "cpu": {"places": places, "sockets": sockets},
        "take": {
            "available": str(CpuSet.of(available)),
            "count": draw(st.integers(0, len(available) + 1)),
            "group": group,
            "spread": group == 0 and draw(st.booleans()),
            "align": draw(st.booleans()),
        },
    }


@st.composite
def pods(draw: st.DrawFn, uid: str, cpus_max: int) -> Json:
    guaranteed = not draw(rarely(7))
    amounts = st.one_of(
        st.integers(1, max(1, cpus_max)).map(str),
        st.integers(1, 4).map(str),
        st.sampled_from(("500m", "1500m", "2000m")),
    )
    containers = []
    for i in range(draw(st.integers(1, 4))):
        init = draw(st.booleans())
        limits = {"cpu": draw(amounts), "memory": "1Gi"}
        requests = dict(limits) if guaranteed or draw(st.booleans()) else {"cpu": "1", "memory": "1Gi"}
        sidecar = init and draw(rarely(3))
        containers.append(
            {"name": f"c{i}", "requests": requests, "limits": limits, "init": init, "restartable": sidecar}
        )
    pod: Json = {"uid": uid, "containers": sorted(containers, key=lambda c: not c["init"])}
    if draw(rarely(13)):
        whole = {"cpu": "2", "memory": "1Gi"}
        pod |= {"requests": whole, "limits": whole}
    return pod


def hints(uid: str, container: str = "") -> Json:
    return {"do": "hints", "uid": uid, "container": container}


def allocation(uid: str, container: str, affinity: int | None, *, preferred: bool = True) -> Json:
    return {"do": "allocate", "uid": uid, "container": container, "affinity": affinity, "preferred": preferred}


def affinities(nodes: list[int]) -> st.SearchStrategy[int | None]:
    return st.one_of(st.none(), st.sets(st.sampled_from(nodes), min_size=1).map(mask_of))


@st.composite
def steps(draw: st.DrawFn, nodes: list[int], cpus_max: int) -> list[Json]:
    """Pods that come, are asked for their hints, get CPUs, are asked again, and go."""
    told: list[Json] = []
    alive: list[Json] = []
    for k in range(draw(st.integers(1, 4))):
        pod = draw(pods(f"p{k}", cpus_max))
        names = [container["name"] for container in pod["containers"]]
        alive.append(pod)
        told += [{"do": "pod", "pod": pod}, hints(pod["uid"])]
        for name in names:
            told += [hints(pod["uid"], name), allocation(pod["uid"], name, draw(affinities(nodes)))]
        if draw(st.booleans()):
            told += [hints(pod["uid"]), *(hints(pod["uid"], name) for name in names)]
            told.append(allocation(pod["uid"], draw(st.sampled_from(names)), None))
        if draw(st.booleans()):
            gone = draw(st.sampled_from(alive))
            told += [{"do": "removed", "uid": gone["uid"], "container": c["name"]} for c in gone["containers"]]
    return told


@st.composite
def conversations(draw: st.DrawFn) -> Json:
    """A question of op cpu."""
    places, sockets = draw(machines())
    options = {name: draw(st.sampled_from(("true", "true", "false"))) for name in OPTIONS if draw(rarely(5))}
    reserved, count = "", 0
    if draw(st.booleans()):
        reserved = str(CpuSet.of(draw(st.sets(st.sampled_from(sorted(places)), min_size=1, max_size=3))))
    else:
        count = draw(st.integers(1, 3))
    nodes = sorted({node for _, _, node in places.values()})
    return {
        "op": "cpu",
        "cpu": {"places": places, "sockets": sockets, "reserved": reserved, "count": count, "options": options},
        "policy": str(draw(st.sampled_from(list(Policy)))),
        "nodes": nodes,
        "steps": draw(steps(nodes, len(places) // 2)),
    }
