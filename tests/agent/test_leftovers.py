"""When the desk keeps leftovers back, and the agent beside a simulated kubelet: every GPU of the node is used."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import cast

import pytest

from tests.agent.test_desk import (
    BOARD,
    INJECTING,
    INVENTORY,
    Clock,
    WrittenEvidence,
    first,
    free,
    gpus_of,
    pod,
    resource,
)
from topoalloc.admission.pod import Pod, checked_container
from topoalloc.admission.policy import Policy
from topoalloc.agent.config import Config
from topoalloc.agent.desk import Desk
from topoalloc.allocation.demand import ContainerDemand, PodDemand
from topoalloc.allocation.ledger import CheckpointEntry, ListedContainer, Owner
from topoalloc.cli.simulation.rehearsal import Node, running_node
from topoalloc.kubelet.evidence import Evidence
from topoalloc.kubelet.kubelet_config import KubeletConfig
from topoalloc.kubelet.simulated.settings import Behaviour, KubeletSettings
from topoalloc.sharing.settings import CORE_RESOURCE, MEMORY_RESOURCE, NIC_RESOURCE
from topoalloc.topology.sources import load_machine

MACHINE = "tests/machines/azure-ndv5.nccl-topo.xml"
LIMIT_S = 60.0


class Told(WrittenEvidence):
    """What the kubelet would say, its age and its checkpoint."""

    age_s = 3600.0
    entries: tuple[CheckpointEntry, ...] = ()

    def kubelet_start(self) -> tuple[int, float]:
        return 1, self.age_s

    def checkpoint_entries(self) -> tuple[CheckpointEntry, ...]:
        return self.entries


@dataclass
class Kubelet:
    """A desk, and what it had kept back by then."""

    evidence: Told
    clock: Clock = field(default_factory=Clock)
    told: list[frozenset[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        evidence = cast(Evidence, self.evidence)
        self.desk = Desk(INVENTORY, BOARD, evidence, KubeletConfig(None), INJECTING, self.told.append, self.clock)

    def allocate(self, name: str, size: int, available: tuple[str, ...] | None = None) -> frozenset[str]:
        kept = self.told[-1] if self.told else frozenset()
        usual = tuple(device_id for device_id in free(self.desk, name) if device_id not in kept)
        ids = frozenset(self.desk.prefer(resource(name), available or usual, frozenset(), size))
        self.desk.allocate(resource(name), ids)
        return ids

    def admit(self, name: str, cores: int, memory: int) -> frozenset[str]:
        self.evidence.pods = (*(self.evidence.pods or ()), pod(name, cores=cores, memory=memory))
        ids = self.allocate(CORE_RESOURCE, cores) | self.allocate(MEMORY_RESOURCE, memory)
        self.evidence.containers = (*(self.evidence.containers or ()), ListedContainer("ns", name, "app", ids))
        return ids

    def end(self, name: str) -> None:
        self.evidence.pods = tuple(one for one in self.evidence.pods or () if one.name != name)
        self.evidence.containers = tuple(one for one in self.evidence.containers or () if one.pod != name)


def started(pods: tuple[PodDemand, ...] | None = (), containers: tuple[ListedContainer, ...] | None = ()) -> Kubelet:
    kubelet = Kubelet(Told(pods, containers))
    kubelet.desk.rebuild()
    return kubelet


def test_once_a_second_gpu_is_partly_used_the_smaller_leftover_is_kept_back(caplog: pytest.LogCaptureFixture) -> None:
    kubelet = started()
    with caplog.at_level(logging.INFO):
        ids = kubelet.admit("a", 70, 10), kubelet.admit("b", 60, 8)

    (position,) = gpus_of(ids[0])
    assert gpus_of(kubelet.told[-1]) == {position}
    assert len(kubelet.told) == 1
    assert kubelet.told[-1].isdisjoint(ids[0] | ids[1])
    assert f"{INVENTORY.gpu_keys[position]} 30 cores 6 memory units" in caplog.text


def test_between_the_calls_of_a_container_nothing_is_kept_back() -> None:
    kubelet = started()
    kubelet.admit("a", 60, 8)
    kubelet.evidence.pods = (*(kubelet.evidence.pods or ()), pod("b", cores=60, memory=8))

    kubelet.allocate(CORE_RESOURCE, 60)
    kubelet.desk.reconcile()

    assert kubelet.told == []


def test_while_later_containers_of_the_pod_are_to_come_nothing_is_kept_back() -> None:
    kubelet = started()
    kubelet.admit("a", 60, 8)
    asked = ((CORE_RESOURCE, 60), (MEMORY_RESOURCE, 8))
    two = PodDemand("ns", "b", "uid-b", (ContainerDemand("one", asked), ContainerDemand("two", asked)))
    kubelet.evidence.pods = (*(kubelet.evidence.pods or ()), two)

    kubelet.allocate(CORE_RESOURCE, 60)
    kubelet.allocate(MEMORY_RESOURCE, 8)
    assert kubelet.told == []
    kubelet.allocate(CORE_RESOURCE, 60)
    kubelet.allocate(MEMORY_RESOURCE, 8)

    assert len(kubelet.told) == 1


def test_an_id_that_was_just_kept_back_is_still_granted_when_the_kubelet_hands_it_out() -> None:
    kubelet = started()
    kubelet.admit("a", 60, 8)
    kubelet.admit("b", 60, 8)
    kept = kubelet.told[-1]
    kubelet.evidence.pods = (*(kubelet.evidence.pods or ()), pod("c", cores=10, memory=2))

    late = [frozenset(sorted(i for i in kept if f"-{kind}" in i)[:count]) for kind, count in (("c", 10), ("m", 2))]
    kubelet.desk.allocate(resource(CORE_RESOURCE), late[0])
    kubelet.desk.allocate(resource(MEMORY_RESOURCE), late[1])

    assert kubelet.told[-1].isdisjoint(late[0] | late[1])


def test_both_halves_are_granted_where_a_kubelet_that_reads_late_offers_nothing_but_what_is_kept_back() -> None:
    kubelet = started()
    (position,) = gpus_of(kubelet.admit("a", 70, 10))
    kubelet.admit("b", 60, 8)
    assert gpus_of(kubelet.told[-1]) == {position}
    kubelet.evidence.pods = (*(kubelet.evidence.pods or ()), pod("c", cores=10, memory=2))

    late = tuple(i for i in sorted(kubelet.told[-1]) if "-c" in i)
    cores = kubelet.allocate(CORE_RESOURCE, 10, late)
    assert kubelet.told[-1] == frozenset()
    memory = kubelet.allocate(MEMORY_RESOURCE, 2)

    assert gpus_of(cores) == gpus_of(memory) == {position}
    assert gpus_of(kubelet.told[-1]) == {position}


def test_what_ended_pods_leave_is_offered_again_after_the_next_look() -> None:
    kubelet = started()
    kubelet.admit("a", 60, 8)
    kubelet.admit("b", 60, 8)

    kubelet.end("a")
    kubelet.clock.now_s += 2.0
    kubelet.desk.reconcile()

    assert kubelet.told[-1] == frozenset()


def test_what_is_left_of_a_gpu_that_goes_out_of_order_makes_room_for_another_ones() -> None:
    kubelet = started()
    better, worse = gpus_of(kubelet.admit("a", 60, 8)), gpus_of(kubelet.admit("b", 70, 8))
    assert gpus_of(kubelet.told[-1]) == worse

    kubelet.desk.set_unhealthy(frozenset({INVENTORY.gpu_keys[min(better)]}))

    assert kubelet.told[-1] == frozenset()


def test_until_podresources_answers_nothing_is_kept_back() -> None:
    kubelet = started(containers=None)

    kubelet.evidence.pods = (pod("a", cores=100),)
    kubelet.allocate(CORE_RESOURCE, 100)

    assert kubelet.told == []


def test_at_a_start_beside_running_pods_leftovers_are_kept_back_at_once() -> None:
    taken = [first(CORE_RESOURCE, 60, gpu) | first(MEMORY_RESOURCE, 8, gpu) for gpu in (0, 1)]
    pods = tuple(pod(name, cores=60, memory=8) for name in "ab")
    listed = tuple(ListedContainer("ns", name, "app", ids) for name, ids in zip("ab", taken, strict=True))

    assert gpus_of(started(pods, listed).told[-1]) == {1}


def test_what_an_init_container_left_over_is_not_kept_back() -> None:
    app, rest = first(CORE_RESOURCE, 30), first(CORE_RESOURCE, 60) - first(CORE_RESOURCE, 30)
    other = first(CORE_RESOURCE, 50, 1) | first(MEMORY_RESOURCE, 1, 1)
    prepares = ContainerDemand("prepare", ((CORE_RESOURCE, 60),), init=True)
    pods = (PodDemand("ns", "a", "uid-a", (prepares, ContainerDemand("app", ((CORE_RESOURCE, 30),)))),)
    kubelet = Kubelet(Told(pods, (ListedContainer("ns", "a", "app", app), ListedContainer("ns", "b", "app", other))))
    kubelet.evidence.entries = (CheckpointEntry("uid-a", "prepare", app | rest), CheckpointEntry("uid-b", "app", other))
    kubelet.desk.rebuild()

    assert gpus_of(kubelet.told[-1]) == {0}
    assert kubelet.told[-1].isdisjoint(app | rest)


def test_what_a_young_kubelets_checkpoint_shows_is_not_kept_back() -> None:
    early = first(CORE_RESOURCE, 60) | first(MEMORY_RESOURCE, 8)
    later = first(CORE_RESOURCE, 60, 1) | first(MEMORY_RESOURCE, 8, 1)
    recorded = frozenset(d.id for d in resource(CORE_RESOURCE).devices if d.position == 1) - later
    kubelet = Kubelet(Told((), tuple(ListedContainer("ns", n, "app", ids) for n, ids in (("a", early), ("b", later)))))
    kubelet.evidence.age_s = 1.0
    kubelet.evidence.entries = (CheckpointEntry("uid-c", "app", recorded),)

    kubelet.desk.rebuild()

    assert kubelet.told == [] or kubelet.told[-1].isdisjoint(recorded)


@pytest.mark.parametrize(("checkpoint", "kept"), [(True, True), (False, False)], ids=["read", "not read"])
def test_without_the_pods_api_the_checkpoint_tells_what_init_containers_hold(checkpoint: bool, kept: bool) -> None:
    taken = [first(CORE_RESOURCE, 60, gpu) | first(MEMORY_RESOURCE, 8, gpu) for gpu in (0, 1)]
    prepared = first(CORE_RESOURCE, 80, 1) - first(CORE_RESOURCE, 60, 1)
    listed = tuple(ListedContainer("ns", name, "app", ids) for name, ids in zip("ab", taken, strict=True))
    kubelet = Kubelet(Told(None, listed))
    if checkpoint:
        kubelet.evidence.entries = tuple(CheckpointEntry("uid", "c", ids) for ids in (*taken, prepared))

    kubelet.desk.rebuild()

    assert bool(kubelet.told) == kept
    assert all(ids.isdisjoint(prepared) for ids in kubelet.told)


def asking(name: str, cores: int = 60) -> Pod:
    limits = {CORE_RESOURCE: str(cores), MEMORY_RESOURCE: "32"}
    return Pod(name, "default", f"uid-{name}", (checked_container("app", {}, limits),))


def full_node(node: Node) -> None:
    for number in range(8):
        assert node.kubelet.admit(asking(f"p{number}")).admitted
        node.wait_for_lists()


@pytest.mark.parametrize("policy", list(Policy))
def test_eight_shares_that_fill_more_than_half_of_a_gpu_take_eight_gpus_and_a_ninth_is_refused(policy: Policy) -> None:
    machine, settings = load_machine([MACHINE], 80 * 1024**3), KubeletSettings(policy=policy)
    with running_node(machine, Config(leftovers="withhold"), settings, Behaviour(), 0) as node:
        full_node(node)

        assert not node.kubelet.admit(asking("ninth")).admitted


@pytest.mark.parametrize("policy", [Policy.NONE, Policy.SINGLE_NUMA_NODE])
def test_what_two_of_eight_leave_is_given_to_the_next_two(policy: Policy) -> None:
    machine, settings = load_machine([MACHINE], 80 * 1024**3), KubeletSettings(policy=policy)
    with running_node(machine, Config(leftovers="withhold"), settings, Behaviour(limits_requests=False), 0) as node:
        full_node(node)
        for name in ("uid-p1", "uid-p6"):
            node.kubelet.finish(name)
            node.kubelet.delete(name)

        # Two GPUs are untouched again, and two of the six others offer their 40 cores: in all, or of each NUMA node.
        offered = 800 - (5 if policy is Policy.NONE else 4) * 40
        assert node.kubelet.devices.wait_until(lambda listed: len(listed[CORE_RESOURCE].healthy) == offered, LIMIT_S)

        assert all(node.kubelet.admit(asking(name, 100)).admitted for name in ("next", "last"))


def test_leftovers_that_are_offered_are_counted_together_as_ever() -> None:
    machine = load_machine([MACHINE], 80 * 1024**3)
    settings = KubeletSettings(policy=Policy.SINGLE_NUMA_NODE)
    with running_node(machine, Config(leftovers="offer"), settings, Behaviour(), 0) as node:
        admitted = [node.kubelet.admit(asking(f"p{number}")).admitted for number in range(8)]

    assert admitted == [True] * 4 + [False] * 4


def test_what_an_init_container_left_that_ran_while_the_pods_were_not_told_is_learned_when_they_are():
    kubelet = Kubelet(Told((), ()))
    kubelet.desk.rebuild()
    kubelet.evidence.pods = None
    ids = kubelet.allocate(CORE_RESOURCE, 100)

    init = ContainerDemand("init", ((CORE_RESOURCE, 100),), init=True)
    demand = PodDemand("ns", "first", "uid-first", (init, ContainerDemand("app", ())))
    kubelet.evidence.pods = (demand,)
    kubelet.evidence.containers = (ListedContainer("ns", "first", "app", frozenset()),)
    kubelet.evidence.entries = (CheckpointEntry("uid-first", "init", ids),)
    kubelet.clock.now_s += LIMIT_S
    kubelet.desk.reconcile()

    assert kubelet.desk.state.holdings[Owner("ns", "first", "init")].ids == ids


def given_without_a_name(resource_name: str) -> tuple[Kubelet, frozenset[str]]:
    kubelet = started(None, ())
    ids = kubelet.allocate(resource_name, 1)
    kubelet.evidence.pods = (pod("next", cores=30, memory=1, nics=1),)
    return kubelet, ids


def test_what_nobody_known_was_given_is_free_once_the_pods_are_told_and_ask_for_the_same_again():
    kubelet, ids = given_without_a_name(NIC_RESOURCE)

    assert kubelet.allocate(NIC_RESOURCE, 1, tuple(device.id for device in resource(NIC_RESOURCE).devices)) == ids
    assert list(kubelet.desk.state.holdings) == [Owner("ns", "next", "app")]


def test_a_container_in_the_middle_of_its_calls_keeps_what_it_was_given_without_a_name():
    kubelet, ids = given_without_a_name(MEMORY_RESOURCE)

    kubelet.allocate(CORE_RESOURCE, 30)

    assert ids <= frozenset().union(*(holding.ids for holding in kubelet.desk.state.holdings.values()))
