"""Why a pod was rejected: the same verdict and reason as the kubelet's, in a text that fits an event."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.published import asking, machine, pod_resources_of, simulated_node
from topoalloc.admission.cpus import CpuOptions
from topoalloc.admission.occupancy import Occupancy
from topoalloc.admission.pod import Pod
from topoalloc.admission.policy import Policy, Scope
from topoalloc.admission.prediction import Rules, predict
from topoalloc.admission.refusal import TOPOLOGY_AFFINITY
from topoalloc.agent.config import Config
from topoalloc.agent.process import inventory_for
from topoalloc.cluster.node_state import node_state
from topoalloc.cluster.rejection import NOTE_BYTES_MAX, Rejection, event_name, event_object, note_of
from topoalloc.kubelet.node_occupancy import NodeOccupancy
from topoalloc.kubelet.simulated.settings import CpuSettings, KubeletSettings
from topoalloc.sharing.inventory import Inventory
from topoalloc.topology.cpus import CpuSet

PODS = 40
RESERVED = CpuSet.from_list("0-1")


def rejection(pod: Pod | None = None, reason: str = "TopologyAffinityError", message: str = "no") -> Rejection:
    return Rejection("ns", "p", "uid", reason, message, pod)


def random_pod(chance: random.Random, number: int) -> Pod:
    amounts: dict[str, int | str] = {"vgpu_core": chance.choice((100, 200, 300))}
    if chance.random() < 0.6:
        amounts["nic"] = chance.randint(1, 2)
    if chance.random() < 0.7:
        amounts |= {"cpu": chance.choice((4, 20, 30, 50)), "memory": "1Gi"}
    return asking(f"p{number}", **amounts)


def occupancy_at(socket: Path) -> Occupancy:
    client = NodeOccupancy(socket)
    try:
        return Occupancy(client.containers(), client.allocatable())
    finally:
        client.close()


@pytest.mark.parametrize("policy", [Policy.BEST_EFFORT, Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE])
@pytest.mark.parametrize("scope", list(Scope))
def test_what_pod_resources_tells_predicts_the_kubelets_verdict_and_its_reason(policy: Policy, scope: Scope):
    chance = random.Random(f"{policy} {scope}")
    settings = KubeletSettings(policy=policy, scope=scope, cpu=CpuSettings(RESERVED))
    rejected = 0
    with simulated_node(settings) as node:
        running: list[str] = []
        for number in range(PODS):
            pod = random_pod(chance, number)
            state = node_state(node.agent.inventory, occupancy_at(pod_resources_of(node)), CpuOptions())
            predicted = predict(state, pod, Rules(policy, scope))
            admission = node.kubelet.admit(pod)
            if admission.admitted:
                running.append(pod.uid)
            if TOPOLOGY_AFFINITY in (admission.refusal, predicted.refusal):
                rejected += 1
                assert predicted.refusal == admission.refusal
                assert predicted.explanation == admission.explanation
            if len(running) > 3 and chance.random() < 0.5:
                node.kubelet.finish(running.pop(chance.randrange(len(running))))
    assert rejected or policy is Policy.BEST_EFFORT


@pytest.fixture(scope="module")
def full() -> tuple[Inventory, Occupancy]:
    """A node whose NUMA node 0 has one GPU left and node 1 two."""
    with simulated_node(KubeletSettings(policy=Policy.SINGLE_NUMA_NODE, cpu=CpuSettings(RESERVED))) as node:
        assert node.kubelet.admit(asking("a", vgpu_core=300)).admitted
        assert node.kubelet.admit(asking("b", vgpu_core=200, cpu=44, memory="1Gi")).admitted
        return node.agent.inventory, occupancy_at(pod_resources_of(node))


def told(full: tuple[Inventory, Occupancy], pod: Pod | None, rules: Rules | None) -> str:
    inventory, occupancy = full
    note = note_of(rejection(pod), node_state(inventory, occupancy, CpuOptions()), rules, inventory)
    assert note is not None
    return note


SINGLE = Rules(Policy.SINGLE_NUMA_NODE, Scope.CONTAINER)


def test_the_binding_resource_and_what_would_have_to_be_free_are_named(full: tuple[Inventory, Occupancy]):
    assert told(full, asking("c", vgpu_core=200, cpu=10, memory="1Gi"), SINGLE) == (
        "single-numa-node: topoalloc.io/vgpu-core needs {1}, cpu would use {0}; "
        "100 more topoalloc.io/vgpu-core would have to be free on {0}. "
        "Free by NUMA node: topoalloc.io/vgpu-core 100/400 on 0, 200/400 on 1; cpu 46/48 on 0, 4/48 on 1"
    )


def test_a_request_that_no_empty_node_could_serve_is_said_to_be_one(full: tuple[Inventory, Occupancy]):
    assert "ask for less: the whole node has 8 of topoalloc.io/nic" in told(full, asking("c", nic=9), SINGLE)


def test_a_pod_that_came_while_the_agent_was_away_is_told_so(full: tuple[Inventory, Occupancy]):
    inventory, occupancy = full
    away = replace(occupancy, allocatable=replace(occupancy.allocatable, devices={}))

    assert "No device of topoalloc.io/vgpu-core is healthy" in told(
        (inventory, away), asking("c", vgpu_core=100), SINGLE
    )


def test_without_the_kubelets_configuration_the_note_says_what_is_missing(full: tuple[Inventory, Occupancy]):
    assert "the kubelet's configuration cannot be read" in told(full, asking("c", vgpu_core=300), None)


def test_a_pod_whose_spec_cannot_be_read_gets_an_honest_note(full: tuple[Inventory, Occupancy]):
    assert "the pod's spec could not be read" in told(full, None, SINGLE)


def test_a_message_of_the_kubelet_without_numbers_gets_no_event_of_ours(full: tuple[Inventory, Occupancy]):
    inventory, _ = full

    assert note_of(rejection(None, "UnexpectedAdmissionError", "[memorymanager] no"), None, None, inventory) is None


@given(st.text(min_size=1, max_size=400).map(lambda text: re.sub(r"\s", "x", text) * 9))
def test_a_note_fits_an_event(resource: str):
    long = f"requested number of devices unavailable for {resource}. Requested: 9, Available: 7"
    note = note_of(rejection(None, "UnexpectedAdmissionError", long), None, None, inventory_for(Config(), machine()))

    assert note is None or len(note.encode()) <= NOTE_BYTES_MAX


NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?){0,3}", fullmatch=True)
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@given(NAMES.filter(lambda name: len(name) <= 253), st.uuids())
def test_the_events_name_is_valid_and_depends_on_the_pods_uid_alone(name: str, uid: object):
    one = Rejection("ns", name, str(uid), "TopologyAffinityError", "no", None)
    other = Rejection("ns", name, f"{uid}x", "TopologyAffinityError", "no", None)

    assert SUBDOMAIN.fullmatch(event_name(one))
    assert len(event_name(one)) <= 253
    assert event_name(one) == event_name(one)
    assert event_name(one) != event_name(other)


def test_an_event_names_the_node_as_its_source():
    event = event_object(rejection(), "because", "n1", "2026-01-01T00:00:00Z")

    assert event["source"] == {"component": "topoalloc", "host": "n1"}
    assert event["message"] == "because"
