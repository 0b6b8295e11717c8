"""Who is speaking: named by elimination, or not named at all."""

from __future__ import annotations

from types import MappingProxyType

from tests.handmade import machine
from topoalloc.allocation.demand import ContainerDemand, PodDemand
from topoalloc.allocation.identity import Identified, Unidentified, identify
from topoalloc.allocation.ledger import REFUSAL_FRESH_S, Holding, Owner, State
from topoalloc.sharing.inventory import Inventory, inventory_of
from topoalloc.sharing.settings import CORE_RESOURCE, MEMORY_RESOURCE, SharingSettings

INVENTORY = inventory_of(machine(), SharingSettings())
assert isinstance(INVENTORY, Inventory)
NODE = INVENTORY
NOW_S = 100.0


def pod(name: str, *containers: ContainerDemand, uid: str = "") -> PodDemand:
    return PodDemand("ns", name, uid or f"uid-{name}", containers)


def share(name: str = "app", cores: int = 30, memory: int = 4, **kind: bool) -> ContainerDemand:
    return ContainerDemand(name, ((CORE_RESOURCE, cores), (MEMORY_RESOURCE, memory)), **kind)


def cores_of(gpu: int, first: int, count: int) -> frozenset[str]:
    return frozenset(device.id for device in NODE.resources[0].devices[gpu * 100 + first :][:count])


def memory_of(gpu: int, first: int, count: int) -> frozenset[str]:
    return frozenset(device.id for device in NODE.resources[1].devices[gpu * 16 + first :][:count])


def holding(*ids: frozenset[str], uid: str = "") -> Holding:
    return Holding(frozenset().union(*ids), confirmed=True, call=1, granted_at_s=1.0, uid=uid)


def ledger(**holdings: Holding) -> State:
    owners = {Owner("ns", *key.split("__")): value for key, value in holdings.items()}
    return State(holdings=MappingProxyType(owners))


def named(state: State, roster: tuple[PodDemand, ...], resource: str, amount: int) -> str | None:
    who = identify(state, NODE, roster, resource, amount, NOW_S)
    return str(who.owner) if isinstance(who, Identified) else None


def test_the_only_pod_that_waits_is_named():
    assert named(State(), (pod("a", share()),), CORE_RESOURCE, 30) == "ns/a/app"


def test_a_pod_that_holds_all_it_asks_for_is_not_named():
    state = ledger(a__app=holding(cores_of(0, 0, 30), memory_of(0, 0, 4)))

    assert named(state, (pod("a", share()), pod("b", share())), CORE_RESOURCE, 30) == "ns/b/app"


def test_a_second_half_is_named_by_the_first():
    state = ledger(a__app=holding(cores_of(0, 0, 30)))

    assert named(state, (pod("a", share()),), MEMORY_RESOURCE, 4) == "ns/a/app"
    assert named(state, (pod("a", share()),), CORE_RESOURCE, 30) is None


def test_containers_speak_in_their_order():
    roster = (pod("a", share("first"), share("second")),)

    assert named(State(), roster, CORE_RESOURCE, 30) == "ns/a/first"
    state = ledger(a__first=holding(cores_of(0, 0, 30), memory_of(0, 0, 4)))
    assert named(state, roster, CORE_RESOURCE, 30) == "ns/a/second"


def test_a_finished_init_container_that_is_listed_nowhere_does_not_speak_again():
    state = ledger(a__app=holding(cores_of(0, 0, 30)))
    roster = (pod("a", share("init", init=True), share("app")),)

    assert named(state, roster, MEMORY_RESOURCE, 4) == "ns/a/app"


def test_an_amount_that_fits_nobody_names_nobody():
    assert named(State(), (pod("a", share()),), CORE_RESOURCE, 31) is None


def test_two_pods_that_fit_name_nobody_and_both_are_told():
    who = identify(State(), NODE, (pod("a", share()), pod("b", share())), CORE_RESOURCE, 30, NOW_S)

    assert isinstance(who, Unidentified)
    assert "ns/a/app" in who.reason
    assert "ns/b/app" in who.reason


def test_a_pod_that_was_just_refused_does_not_speak_again():
    state = State(refused=MappingProxyType({"uid-a": NOW_S - REFUSAL_FRESH_S / 2}))

    assert named(state, (pod("a", share()), pod("b", share())), CORE_RESOURCE, 30) == "ns/b/app"


def test_a_pod_refused_long_ago_is_judged_anew_under_the_same_uid():
    state = State(refused=MappingProxyType({"uid-a": NOW_S - REFUSAL_FRESH_S}))

    assert named(state, (pod("a", share()),), CORE_RESOURCE, 30) == "ns/a/app"


def test_a_pod_of_the_same_name_with_another_uid_is_another_pod():
    state = ledger(a__app=holding(cores_of(0, 0, 30), memory_of(0, 0, 4), uid="uid-old"))

    assert named(state, (pod("a", share()),), CORE_RESOURCE, 30) == "ns/a/app"


def test_a_running_pod_is_past_admission_whatever_it_holds():
    roster = (pod("old", share(past_admission=True)), pod("new", share()))

    assert named(State(), roster, CORE_RESOURCE, 30) == "ns/new/app"


def test_without_a_roster_nobody_is_named():
    assert isinstance(identify(State(), NODE, None, CORE_RESOURCE, 30, NOW_S), Unidentified)
