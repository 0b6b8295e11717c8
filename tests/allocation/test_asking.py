"""The answer to GetPreferredAllocation: one choice for all of a container's resources, always a valid set."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from tests.handmade import GIB, machine
from topoalloc.allocation.affinity import UNKNOWN_ALIGNMENT
from topoalloc.allocation.asking import Preference, ask, valid_set
from topoalloc.allocation.demand import ContainerDemand, PodDemand
from topoalloc.allocation.ledger import Conversation, Holding, Owner, State
from topoalloc.allocation.vacancy import Question
from topoalloc.placement.board import board_of
from topoalloc.sharing.inventory import Inventory, ResourceKind, inventory_of
from topoalloc.sharing.settings import CORE_RESOURCE, MEMORY_RESOURCE, NIC_RESOURCE, SharingSettings

WHOLE = machine(memory_bytes=4 * GIB, nvlinks=12)
NODE = inventory_of(WHOLE, SharingSettings())
assert isinstance(NODE, Inventory)
INVENTORY: Inventory = NODE
BOARD = board_of(WHOLE)
ME = Owner("ns", "pod", "app")
NOW_S = 100.0


def cores(gpu: int, count: int) -> frozenset[str]:
    return frozenset(device.id for device in INVENTORY.resources[0].devices[gpu * 100 :][:count])


def memory(gpu: int, count: int) -> frozenset[str]:
    return frozenset(device.id for device in INVENTORY.resources[1].devices[gpu * 16 :][:count])


def container(name: str = "app", init: bool = False, **amounts: int) -> ContainerDemand:
    names = {"cores": CORE_RESOURCE, "memory": MEMORY_RESOURCE, "nics": NIC_RESOURCE}
    return ContainerDemand(name, tuple((names[key], amount) for key, amount in amounts.items()), init=init)


def held(*ids: frozenset[str], init: bool = False) -> Holding:
    return Holding(frozenset().union(*ids), confirmed=not init, call=1, granted_at_s=1.0, init=init)


def answer(
    resource: str,
    size: int,
    *containers: ContainerDemand,
    holdings: dict[Owner, Holding] | None = None,
    without: frozenset[str] = frozenset(),
    must: frozenset[str] = frozenset(),
    talk: Conversation | None = None,
    restored: frozenset[str] = frozenset(),
) -> Preference:
    found = INVENTORY.resource(resource)
    assert found is not None
    state = State(holdings=MappingProxyType(holdings or {}), conversation=talk, restored=restored)
    taken = {device_id for holding in state.holdings.values() for device_id in holding.ids}
    available = tuple(d.id for d in found.devices if d.id not in taken | without) + tuple(must)
    others = tuple(
        PodDemand(owner.namespace, owner.pod, f"uid-{owner.pod}", ()) for owner in state.holdings if owner.pod != "pod"
    )
    roster = (PodDemand("ns", "pod", "uid", containers), *others) if containers else None
    _, preference = ask(
        state, INVENTORY, BOARD, Question(found, available, must, size), roster, UNKNOWN_ALIGNMENT, NOW_S
    )
    return preference


def positions(preference: Preference) -> set[int]:
    return {INVENTORY.devices[device_id].position for device_id in preference.ids}


@pytest.mark.parametrize(("resource", "size"), [(CORE_RESOURCE, 30), (MEMORY_RESOURCE, 4), (NIC_RESOURCE, 1)])
def test_the_same_gpu_and_nic_are_meant_whichever_resource_is_asked_first(resource: str, size: int):
    preference = answer(resource, size, container(cores=30, memory=4, nics=1))

    assert preference.owner == ME
    assert preference.choice is not None
    assert (preference.choice.gpus, preference.choice.nics) == ((0,), ((0,),))


def test_the_second_half_follows_the_first():
    preference = answer(MEMORY_RESOURCE, 4, container(cores=30, memory=4), holdings={ME: held(cores(5, 30))})

    assert positions(preference) == {5}


def test_a_gpu_with_cores_but_without_the_memory_asked_is_not_chosen():
    full = {Owner("ns", "other", "app"): held(cores(0, 10), memory(0, 14))}

    assert positions(answer(CORE_RESOURCE, 30, container(cores=30, memory=4), holdings=full)) != {0}


def test_a_gpu_whose_memory_somebody_holds_is_not_given_whole():
    shared = {Owner("ns", "other", "app"): held(memory(0, 1))}

    assert 0 not in positions(answer(CORE_RESOURCE, 100, container(cores=100), holdings=shared))


def test_the_gpu_of_the_pods_init_container_is_where_the_nic_has_to_be():
    init = {Owner("ns", "pod", "init"): held(cores(6, 100), init=True)}
    pod = (container("init", init=True, cores=100), container(cores=50, memory=4, nics=1))

    preference = answer(NIC_RESOURCE, 1, *pod, holdings=init)

    assert preference.choice is not None
    assert preference.choice.gpus == (6,)
    assert positions(preference) == {3}


def test_an_init_container_is_placed_where_its_pods_app_fits_too():
    busy = {Owner("ns", "other", "app"): held(cores(0, 80))}
    pod = (container("init", init=True, cores=10, memory=1), container(cores=50, memory=4))

    assert 0 not in positions(answer(CORE_RESOURCE, 10, *pod, holdings=busy))
    assert positions(answer(CORE_RESOURCE, 10, container(cores=10, memory=1), holdings=busy)) == {0}


def test_an_init_container_is_placed_for_itself_where_its_pods_app_fits_nowhere():
    busy = {Owner("ns", "other", f"app{gpu}"): held(cores(gpu, 80)) for gpu in range(8)}
    pod = (container("init", init=True, cores=10, memory=1), container(cores=50, memory=4))

    assert len(positions(answer(CORE_RESOURCE, 10, *pod, holdings=busy))) == 1


def test_an_init_container_is_placed_for_itself_where_its_pods_app_fits_only_outside_what_is_offered():
    busy = {Owner("ns", "other", f"app{gpu}"): held(cores(gpu, 100)) for gpu in range(4, 7)}
    pod = (container("init", init=True, cores=10, memory=1), container(cores=200))
    elsewhere = frozenset[str]().union(*(memory(gpu, 16) for gpu in range(4)))

    assert positions(answer(MEMORY_RESOURCE, 1, *pod, holdings=busy, without=elsewhere)) == {7}


def test_memory_is_chosen_where_the_init_containers_cores_will_be_handed_on():
    init = {Owner("ns", "pod", "init"): held(cores(6, 50), init=True)}
    pod = (container("init", init=True, cores=50), container(cores=50, memory=4))

    assert positions(answer(MEMORY_RESOURCE, 4, *pod, holdings=init)) == {6}


def test_what_must_be_included_decides_the_gpu():
    preference = answer(CORE_RESOURCE, 30, container(cores=30, memory=4), must=cores(3, 10), without=cores(3, 10))

    assert positions(preference) == {3}
    assert cores(3, 10) <= set(preference.ids)


@pytest.mark.parametrize("amounts", [{"cores": 150}, {"cores": 30}, {"memory": 3}, {"cores": 10, "memory": 17}])
def test_a_request_that_will_be_refused_still_gets_a_valid_set(amounts: dict[str, int]):
    resource = CORE_RESOURCE if "cores" in amounts else MEMORY_RESOURCE
    size = next(iter(amounts.values()))

    preference = answer(resource, size, container(**amounts))

    assert len(set(preference.ids)) == size
    assert preference.refusal


def test_an_unknown_container_that_asks_for_memory_gets_it_where_cores_are_left():
    busy = {Owner("ns", "other", f"app{gpu}"): held(cores(gpu, 95)) for gpu in range(7)}

    assert positions(answer(MEMORY_RESOURCE, 4, holdings=busy)) == {7}


def test_an_unknown_container_that_asks_for_a_nic_gets_one_beside_a_free_gpu():
    busy = {Owner("ns", "other", f"app{gpu}"): held(cores(gpu, 100)) for gpu in range(6)}

    assert positions(answer(NIC_RESOURCE, 1, holdings=busy)) == {3}


def test_ids_of_an_older_list_come_last_in_a_valid_set():
    found = INVENTORY.resources[2]
    question = Question(found, ("gone-1", *(device.id for device in found.devices), "gone-2"), frozenset(), 5)

    ids = valid_set(question)

    assert len(ids) == 5
    assert set(ids[:4]) == {device.id for device in found.devices}


def test_a_valid_set_stays_on_one_gpu_where_it_can():
    found = INVENTORY.resources[0]
    few = tuple(cores(0, 10))
    question = Question(found, few + tuple(cores(1, 40)), frozenset(), 30)

    assert {INVENTORY.devices[device_id].position for device_id in valid_set(question)} == {1}


def test_a_device_that_is_out_of_order_is_not_chosen():
    found = INVENTORY.resources[0]
    assert found.kind is ResourceKind.CORE
    state = State(unhealthy=frozenset({INVENTORY.gpu_keys[0]}))
    question = Question(found, tuple(device.id for device in found.devices), frozenset(), 100)
    roster = (PodDemand("ns", "pod", "uid", (container(cores=100, nics=1),)),)

    _, preference = ask(state, INVENTORY, BOARD, question, roster, UNKNOWN_ALIGNMENT, NOW_S)

    assert 0 not in positions(preference)


@pytest.mark.parametrize("doubtful", [True, False])
def test_memory_asked_again_goes_beside_the_cores_where_the_first_may_have_been_a_dead_containers(
    doubtful: bool,
):
    speaker = Owner(serial=9)
    talk = Conversation(speaker, "", None, None, frozenset(), NOW_S, listed=True, doubtful=doubtful)
    preference = answer(MEMORY_RESOURCE, 1, holdings={speaker: held(cores(5, 10), memory(5, 1))}, talk=talk)

    assert preference.owner != speaker
    assert (positions(preference) == {5}) is doubtful


@pytest.mark.parametrize(("granted_at_s", "beside"), [(NOW_S - 20, True), (NOW_S - 600, False)])
def test_memory_asked_after_a_long_pause_goes_beside_the_cores_that_still_wait_for_it(
    granted_at_s: float, beside: bool
):
    half = Holding(cores(5, 10), confirmed=True, call=1, granted_at_s=granted_at_s)
    preference = answer(MEMORY_RESOURCE, 1, holdings={Owner("ns", "pod", "app"): half})

    assert (positions(preference) == {5}) is beside


def test_memory_asked_by_nobody_known_goes_beside_cores_that_wait_for_it_while_another_is_speaking():
    other = Owner("ns", "other", "app")
    talk = Conversation(other, "uid-other", None, None, frozenset(), NOW_S, listed=True)
    half = Holding(cores(5, 10), confirmed=True, call=1, granted_at_s=NOW_S - 3)
    whole = Holding(cores(2, 10) | memory(2, 1), confirmed=True, call=2, granted_at_s=NOW_S - 1)

    preference = answer(MEMORY_RESOURCE, 1, holdings={Owner("ns", "pod", "app"): half, other: whole}, talk=talk)

    assert positions(preference) == {5}


def test_memory_asked_by_nobody_known_keeps_away_from_gpus_held_whole_which_miss_no_half():
    half = Holding(cores(0, 100), confirmed=True, call=1, granted_at_s=NOW_S - 3)

    preference = answer(MEMORY_RESOURCE, 1, holdings={Owner("ns", "whole", "app"): half})

    assert 0 not in positions(preference)


@pytest.mark.parametrize(("resource", "size", "place"), [(NIC_RESOURCE, 1, {1}), (MEMORY_RESOURCE, 4, {2})])
def test_what_is_asked_first_of_a_kubelet_that_has_just_started_is_where_its_own_record_leaves_cores(
    resource: str, size: int, place: set[int]
):
    gone = cores(0, 100) | cores(1, 100)

    assert positions(answer(resource, size)) == {0}
    assert positions(answer(resource, size, restored=gone)) == place
