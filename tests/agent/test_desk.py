"""The desk between the kubelet's calls and the ledger, with evidence that a test writes down."""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest

from tests.handmade import GIB, machine
from topoalloc.agent.desk import Desk, Injecting
from topoalloc.allocation.demand import ContainerDemand, PodDemand
from topoalloc.allocation.ledger import CheckpointEntry, ListedContainer, Owner
from topoalloc.kubelet.evidence import Evidence
from topoalloc.kubelet.kubelet_config import KubeletConfig
from topoalloc.kubelet.plugin_server import Refused
from topoalloc.placement.board import Board, board_of
from topoalloc.sharing.edits import DeviceFiles, Injection
from topoalloc.sharing.inventory import Inventory, Resource, inventory_of
from topoalloc.sharing.settings import CORE_RESOURCE, MEMORY_RESOURCE, NIC_RESOURCE, SharingSettings

MACHINE = machine(memory_bytes=4 * GIB)
NODE = inventory_of(MACHINE, SharingSettings())
assert isinstance(NODE, Inventory)
INVENTORY: Inventory = NODE
BOARD = board_of(MACHINE)
INJECTING = Injecting(Injection.ENVVAR, DeviceFiles(), "nvidia.com/gpu")


class WrittenEvidence:
    """What the kubelet would say: `pods` None: it has no pods API; `containers` None: no PodResources."""

    def __init__(
        self, pods: tuple[PodDemand, ...] | None = None, containers: tuple[ListedContainer, ...] | None = None
    ) -> None:
        self.pods = pods
        self.containers = containers

    def roster(self) -> tuple[PodDemand, ...] | None:
        return self.pods

    def listed_containers(self, *, patient: bool) -> tuple[ListedContainer, ...] | None:
        return self.containers

    def kubelet_start(self) -> tuple[int, float]:
        return 1, 3600.0

    def checkpoint_entries(self) -> tuple[CheckpointEntry, ...]:
        return ()

    def holds(self, owner: Owner, ids: frozenset[str]) -> bool:
        listed = self.containers or ()
        return any(
            (item.namespace, item.pod, item.container) == (owner.namespace, owner.pod, owner.container)
            and item.ids & ids
            for item in listed
        )

    def has_pod(self, owner: Owner) -> bool:
        return any((item.namespace, item.pod) == (owner.namespace, owner.pod) for item in self.containers or ())


class Clock:
    """Time passes by a tenth of a second for each look."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        self.now_s += 0.1
        return self.now_s


def desk_with(evidence: WrittenEvidence, board: Board = BOARD) -> Desk:
    return Desk(INVENTORY, board, cast(Evidence, evidence), KubeletConfig(None), INJECTING, Clock())


def resource(name: str) -> Resource:
    found = INVENTORY.resource(name)
    assert found is not None
    return found


def pod(name: str, **amounts: int) -> PodDemand:
    names = {"cores": CORE_RESOURCE, "memory": MEMORY_RESOURCE, "nics": NIC_RESOURCE}
    asked = tuple(sorted((names[key], amount) for key, amount in amounts.items()))
    return PodDemand("ns", name, f"uid-{name}", (ContainerDemand("app", asked),))


def free(desk: Desk, name: str) -> tuple[str, ...]:
    held = {device_id for holding in desk.state.holdings.values() for device_id in holding.ids}
    return tuple(device.id for device in resource(name).devices if device.id not in held)


def admitted(desk: Desk, name: str, size: int) -> frozenset[str]:
    """One resource as the kubelet asks for it: preferred, then allocated."""
    ids = frozenset(desk.prefer(resource(name), free(desk, name), frozenset(), size))
    desk.allocate(resource(name), ids)
    return ids


def gpus_of(ids: frozenset[str]) -> set[int]:
    return {INVENTORY.devices[device_id].position for device_id in ids}


def first(name: str, count: int, position: int = 0) -> frozenset[str]:
    here = [device.id for device in resource(name).devices if device.position == position]
    return frozenset(here[:count])


@pytest.mark.parametrize("order", [(CORE_RESOURCE, MEMORY_RESOURCE), (MEMORY_RESOURCE, CORE_RESOURCE)])
@pytest.mark.parametrize("told", [True, False], ids=["pods told", "nothing told"])
def test_both_halves_of_a_container_are_of_one_gpu_in_either_order(order: tuple[str, str], told: bool) -> None:
    amounts = {CORE_RESOURCE: 30, MEMORY_RESOURCE: 8}
    desk = desk_with(WrittenEvidence((pod("a", cores=30, memory=8),) if told else None))

    halves = [admitted(desk, name, amounts[name]) for name in order]

    assert gpus_of(halves[0]) == gpus_of(halves[1])
    assert len(gpus_of(halves[0])) == 1


def test_a_named_container_is_in_the_ledger_with_all_it_was_given() -> None:
    desk = desk_with(WrittenEvidence((pod("a", cores=30, memory=8),)))

    ids = admitted(desk, CORE_RESOURCE, 30) | admitted(desk, MEMORY_RESOURCE, 8)

    (owner,) = desk.state.holdings
    assert (str(owner), desk.state.holdings[owner].ids) == ("ns/a/app", ids)


def test_what_was_granted_is_described_to_the_container() -> None:
    desk = desk_with(WrittenEvidence((pod("a", cores=30, memory=8),)))
    ids = frozenset(desk.prefer(resource(CORE_RESOURCE), free(desk, CORE_RESOURCE), frozenset(), 30))

    edits = desk.allocate(resource(CORE_RESOURCE), ids)

    (position,) = gpus_of(ids)
    assert dict(edits.envs) == {
        "TOPOALLOC_CORES": f"{INVENTORY.gpu_keys[position]}=30",
        "NVIDIA_VISIBLE_DEVICES": str(position),
    }


def test_a_share_that_the_kubelet_scattered_over_two_gpus_is_refused_by_its_name() -> None:
    desk = desk_with(WrittenEvidence((pod("a", cores=30, memory=8),)))

    with pytest.raises(Refused, match=r"a share of 30 from GPU0 \(15\) and GPU1 \(15\)"):
        desk.allocate(resource(CORE_RESOURCE), first(CORE_RESOURCE, 15) | first(CORE_RESOURCE, 15, position=1))


def test_a_refusal_leaves_the_ledger_without_the_devices() -> None:
    desk = desk_with(WrittenEvidence((pod("a", cores=30, memory=8),)))

    with pytest.raises(Refused):
        desk.allocate(resource(CORE_RESOURCE), first(CORE_RESOURCE, 15) | first(CORE_RESOURCE, 15, position=1))

    assert all(not holding.ids for holding in desk.state.holdings.values())


def test_devices_of_a_container_that_the_kubelet_still_lists_are_not_given_again() -> None:
    taken = first(CORE_RESOURCE, 30)
    evidence = WrittenEvidence(
        (pod("a", cores=30, memory=8), pod("b", cores=30, memory=8)), (ListedContainer("ns", "a", "app", taken),)
    )
    desk = desk_with(evidence)
    assert desk.rebuild()

    with pytest.raises(Refused, match="ns/a/app"):
        desk.allocate(resource(CORE_RESOURCE), taken)


def test_a_fault_inside_placement_is_answered_with_as_many_candidates_as_were_asked_for() -> None:
    desk = desk_with(WrittenEvidence((pod("a", cores=30),)), cast(Board, object()))
    candidates = free(desk, CORE_RESOURCE)
    must = first(CORE_RESOURCE, 3, position=2)

    ids = desk.prefer(resource(CORE_RESOURCE), candidates, must, 30)

    assert len(ids) == len(set(ids)) == 30
    assert must <= set(ids) <= set(candidates)
    assert len(gpus_of(frozenset(ids))) == 1


def test_a_fault_while_judging_is_told_to_the_user_and_grants_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = WrittenEvidence()
    desk = desk_with(evidence)
    evidence.pods = cast(tuple[PodDemand, ...], (object(),))

    with pytest.raises(Refused, match="its log on the node says why"):
        desk.allocate(resource(CORE_RESOURCE), first(CORE_RESOURCE, 30))

    assert not desk.state.holdings


def test_an_unhealthy_gpu_is_not_chosen_while_another_one_has_room() -> None:
    desk = desk_with(WrittenEvidence((pod("a", cores=100),)))
    usual = admitted(desk_with(WrittenEvidence((pod("a", cores=100),))), CORE_RESOURCE, 100)
    (position,) = gpus_of(usual)

    desk.set_unhealthy(frozenset({INVENTORY.gpu_keys[position]}))

    assert not gpus_of(admitted(desk, CORE_RESOURCE, 100)) & {position}


def test_what_the_kubelet_lists_at_the_start_is_in_the_ledger() -> None:
    taken = first(CORE_RESOURCE, 30) | first(MEMORY_RESOURCE, 8)
    desk = desk_with(WrittenEvidence((), (ListedContainer("ns", "a", "app", taken | {"of another life"}),)))

    assert desk.rebuild()
    assert {str(owner): holding.ids for owner, holding in desk.state.holdings.items()} == {"ns/a/app": taken}


def test_without_podresources_the_ledger_cannot_be_filled() -> None:
    assert not desk_with(WrittenEvidence(())).rebuild()


def test_two_containers_never_get_one_device() -> None:
    evidence = WrittenEvidence(())
    desk = desk_with(evidence)
    given: Counter[str] = Counter()
    for number in range(12):
        evidence.pods = (*(evidence.pods or ()), pod(f"p{number}", cores=40, memory=4))
        given.update(admitted(desk, CORE_RESOURCE, 40) | admitted(desk, MEMORY_RESOURCE, 4))

    assert set(given.values()) == {1}


def test_at_debug_level_each_question_is_logged_with_its_candidates_per_gpu(caplog: pytest.LogCaptureFixture) -> None:
    desk = desk_with(WrittenEvidence())
    cores = resource(CORE_RESOURCE)
    first_gpu = tuple(device.id for device in cores.devices if device.position == 0)

    with caplog.at_level("DEBUG", "topoalloc.agent.desk"):
        desk.prefer(cores, first_gpu, frozenset(first_gpu[:1]), 30)

    key = INVENTORY.gpu_keys[0]
    assert f"30 of [{key} x100], must include [{key} x1]: answered [{key} x30]" in caplog.text


def after_an_init_container_of_a_whole_gpu() -> tuple[Desk, WrittenEvidence]:
    """Its pod's app asked for a NIC alone, so the kubelet keeps the GPU for the pod and lists it nowhere."""
    demand = PodDemand(
        "ns",
        "first",
        "uid-first",
        (ContainerDemand("init", ((CORE_RESOURCE, 100),), init=True), ContainerDemand("app", ((NIC_RESOURCE, 1),))),
    )
    evidence = WrittenEvidence((demand,))
    desk = desk_with(evidence)
    assert gpus_of(admitted(desk, CORE_RESOURCE, 100)) == {0}
    nic = admitted(desk, NIC_RESOURCE, 1)
    evidence.pods = (demand, pod("second", cores=10, memory=1))
    evidence.containers = (ListedContainer("ns", "first", "app", nic),)
    return desk, evidence


def test_a_gpu_that_a_finished_init_container_left_to_its_pod_is_shared_with_nobody() -> None:
    desk, _ = after_an_init_container_of_a_whole_gpu()

    with pytest.raises(Refused, match="held whole by ns/first/init"):
        desk.allocate(resource(MEMORY_RESOURCE), first(MEMORY_RESOURCE, 1))
    assert sum(len(holding.ids) for owner, holding in desk.state.holdings.items() if owner.container == "init") == 100


def test_what_a_finished_init_container_left_is_free_once_its_pod_is_gone() -> None:
    desk, evidence = after_an_init_container_of_a_whole_gpu()
    evidence.containers = ()

    desk.allocate(resource(MEMORY_RESOURCE), first(MEMORY_RESOURCE, 1))


def test_what_the_kubelet_itself_hands_on_no_finished_init_container_holds() -> None:
    desk, evidence = after_an_init_container_of_a_whole_gpu()
    evidence.pods = (*(evidence.pods or ())[:1], pod("second", cores=100))

    desk.allocate(resource(CORE_RESOURCE), first(CORE_RESOURCE, 100))
