"""The real agent and the simulated kubelet together: pods come and go, the kubelet restarts, nothing is given twice."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from tests.handmade import machine
from topoalloc.admission.pod import Container, Pod, checked_container
from topoalloc.admission.policy import Policy
from topoalloc.agent.config import Config
from topoalloc.cli.simulation.outcome import PodOutcome, outcome_of
from topoalloc.cli.simulation.rehearsal import Node, running_node
from topoalloc.kubelet.simulated.kubelet import Admission, SimulatedKubelet
from topoalloc.kubelet.simulated.settings import Behaviour, KubeletSettings
from topoalloc.sharing.settings import CORE_RESOURCE, MEMORY_RESOURCE, NIC_RESOURCE

READY_LIMIT_S = 30.0
PODS = 40
UNITS_PER_CORE = 0.16  # a GPU of 4 GiB has 16 units of 256 MiB

KINDS = [(10, 2, 0), (30, 4, 0), (50, 8, 1), (100, 0, 1), (200, 0, 2), (20, 3, 1), (99, 16, 0)]


def container(chance: random.Random, name: str, *, init: bool = False) -> Container:
    cores, units, nics = chance.choice(KINDS)
    amounts = {CORE_RESOURCE: cores, MEMORY_RESOURCE: units, NIC_RESOURCE: nics}
    limits = {resource: str(amount) for resource, amount in amounts.items() if amount}
    return checked_container(name, limits, limits, init=init)


def pod(chance: random.Random, number: int) -> Pod:
    main = container(chance, "main")
    shape = chance.random()
    if shape < 0.2:
        return Pod(f"p{number}", "default", f"uid-{number}", (container(chance, "prep", init=True), main))
    if shape < 0.3:
        return Pod(f"p{number}", "default", f"uid-{number}", (main, container(chance, "second")))
    return Pod(f"p{number}", "default", f"uid-{number}", (main,))


def running(admissions: dict[str, Admission]) -> list[frozenset[str]]:
    """The devices of each pod that runs."""
    return [frozenset().union(*admission.devices.values()) for admission in admissions.values()]


def faults_of(outcome: PodOutcome) -> list[str]:
    """What must not be: shares across GPUs, halves apart, variables that say something else than the records."""
    faults = list(outcome.warnings)
    for one in outcome.containers:
        cores = len(one.devices.get(CORE_RESOURCE, ()))
        if 0 < cores < 100 and len(one.gpus) != 1:
            faults.append(f"{outcome.name}/{one.name}: a share on {len(one.gpus)} GPUs")
        if cores >= 100 and not all(share.whole for share in one.gpus):
            faults.append(f"{outcome.name}/{one.name}: whole GPUs that are not whole")
    return faults


def come_and_go(node: Node, chance: random.Random) -> tuple[int, list[str]]:
    """Admit pods, end some, restart the kubelet once; returns how many were admitted and every fault seen."""
    alive: dict[str, Admission] = {}
    admitted = 0
    faults: list[str] = []
    resources = frozenset(resource.name for resource in node.agent.inventory.resources)

    def agent_is_back(kubelet: SimulatedKubelet) -> None:
        assert kubelet.wait_for(resources, READY_LIMIT_S)

    for number in range(PODS):
        if number == PODS // 2:
            again = node.kubelet.restart(agent_is_back)
            faults += [f"{one.pod.name} did not survive the restart" for one in again if not one.admitted]
        admission = node.kubelet.admit(pod(chance, number))
        if admission.admitted:
            admitted += 1
            faults += faults_of(outcome_of(admission, node.agent.inventory))
            alive[admission.pod.uid] = admission
        twice = [a & b for a, b in combinations(running(alive), 2) if a & b]
        faults += [f"given twice after {admission.pod.name}: {sorted(both)}" for both in twice]
        while alive and chance.random() < 0.4:
            gone = chance.choice(sorted(alive))
            del alive[gone]
            node.kubelet.finish(gone)
    return admitted, faults


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("pods_api", [True, False], ids=["with pods API", "without pods API"])
def test_pods_come_and_go_and_the_kubelet_restarts(policy: Policy, pods_api: bool) -> None:
    behaviour = Behaviour(pods_api=pods_api, limits_requests=False)
    settings = KubeletSettings(policy=policy)
    chance = random.Random(f"{policy} {pods_api}")
    with running_node(machine(nvlinks=4), Config(), settings, behaviour, 1) as node:
        admitted, faults = come_and_go(node, chance)
    assert faults == []
    assert admitted > PODS // 4


def test_a_machine_with_nothing_to_serve_starts_and_ends() -> None:
    for _ in range(5):
        with running_node(machine(gpus=0, nics=0), Config(), KubeletSettings(), Behaviour(), 0) as node:
            assert node.agent.inventory.resources == ()
