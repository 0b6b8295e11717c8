"""Which NUMA nodes the kubelet has settled on: shown by its candidates, or predicted from its own merge."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from tests.handmade import GIB, UNTOLD, machine
from topoalloc.admission.policy import Policy, Scope
from topoalloc.allocation.affinity import Alignment, amounts_aligned, expected_nodes, learned, shown_nodes
from topoalloc.allocation.demand import ContainerDemand, PodDemand
from topoalloc.allocation.ledger import Holding, Owner, State
from topoalloc.allocation.vacancy import Question, View, view_for
from topoalloc.sharing.inventory import Inventory, inventory_of
from topoalloc.sharing.settings import CORE_RESOURCE, NIC_RESOURCE, SharingSettings

# NICs of unknown node, as a table of nvidia-smi often leaves them; GPUs 0-3 on node 0, 4-7 on node 1.
WHOLE = machine(memory_bytes=4 * GIB)
NODE = inventory_of(replace(WHOLE, nics=tuple(replace(nic, numa_node=UNTOLD) for nic in WHOLE.nics)), SharingSettings())
assert isinstance(NODE, Inventory)
INVENTORY: Inventory = NODE
CORES, NICS = INVENTORY.resources[0], INVENTORY.resources[2]
ME = Owner("ns", "pod", "app")
KNOWN = Alignment(Policy.BEST_EFFORT)


def cores_of(*gpus: int) -> tuple[str, ...]:
    return tuple(device.id for device in CORES.devices if device.position in gpus)


def view(*gpus_held: int, mate: bool = False) -> tuple[State, View]:
    other = Owner("ns", "pod" if mate else "other", "neighbour")
    held = Holding(frozenset(cores_of(*gpus_held)), confirmed=True, call=1, granted_at_s=1.0)
    state = State(holdings=MappingProxyType({other: held} if gpus_held else {}))
    return state, view_for(state, INVENTORY, ME)


def asked(*gpus: int, size: int = 100) -> Question:
    return Question(CORES, cores_of(*gpus), frozenset(), size)


def test_a_node_with_free_devices_none_of_which_is_offered_is_outside_the_affinity():
    assert shown_nodes(asked(4, 5, 6, 7), view()[1]) == {1}


def test_a_node_that_is_full_shows_nothing_by_its_absence():
    assert shown_nodes(asked(4, 5, 6, 7), view(0, 1, 2, 3)[1]) is None


def test_candidates_on_every_node_show_nothing():
    assert shown_nodes(asked(*range(8)), view()[1]) is None


def test_a_resource_that_reports_no_nodes_shows_nothing():
    question = Question(NICS, tuple(device.id for device in NICS.devices), frozenset(), 1)

    assert shown_nodes(question, view()[1]) is None


def test_the_lowest_node_that_can_serve_is_expected():
    state, mine = view()

    assert expected_nodes(state, mine, {CORE_RESOURCE: 400}, KNOWN) == {0}


def test_a_node_without_room_is_not_expected():
    state, mine = view(0)

    assert expected_nodes(state, mine, {CORE_RESOURCE: 400, NIC_RESOURCE: 1}, KNOWN) == {1}


def test_what_needs_every_node_is_not_narrowed():
    state, mine = view()

    assert expected_nodes(state, mine, {CORE_RESOURCE: 500}, KNOWN) is None


def test_policy_none_narrows_nothing():
    state, mine = view()

    assert expected_nodes(state, mine, {CORE_RESOURCE: 100}, Alignment(Policy.NONE)) is None


def test_a_kubelet_that_was_seen_not_to_narrow_is_not_expected_to():
    state, mine = view()

    assert expected_nodes(replace(state, narrows=False), mine, {CORE_RESOURCE: 100}, Alignment()) is None
    assert expected_nodes(replace(state, narrows=True), mine, {CORE_RESOURCE: 100}, Alignment()) == {0}


def test_under_pod_scope_what_the_pod_was_given_already_still_counts_as_free():
    state, mine = view(0, mate=True)

    assert expected_nodes(state, mine, {CORE_RESOURCE: 400}, replace(KNOWN, scope=Scope.POD)) == {0}
    assert expected_nodes(state, mine, {CORE_RESOURCE: 400}, KNOWN) == {1}


def test_under_pod_scope_the_whole_pod_is_aligned():
    init = ContainerDemand("init", ((CORE_RESOURCE, 300),), init=True)
    apps = [ContainerDemand(f"app{n}", ((CORE_RESOURCE, 100), (NIC_RESOURCE, 1))) for n in range(2)]
    pod = PodDemand("ns", "pod", "uid", (init, *apps))

    assert amounts_aligned(pod, apps[0], replace(KNOWN, scope=Scope.POD)) == {CORE_RESOURCE: 300, NIC_RESOURCE: 2}
    assert amounts_aligned(pod, apps[0], KNOWN) == {CORE_RESOURCE: 100, NIC_RESOURCE: 1}


def test_narrowed_candidates_teach_that_the_kubelet_narrows():
    state, mine = view()

    assert learned(state, asked(0, 1, 2, 3), mine, {CORE_RESOURCE: 100}, Alignment()) is True


def test_candidates_that_would_have_been_narrowed_teach_that_it_does_not():
    state, mine = view()

    assert learned(state, asked(*range(8)), mine, {CORE_RESOURCE: 100}, Alignment()) is False


def test_a_question_that_would_look_the_same_either_way_teaches_nothing():
    state, mine = view()

    assert learned(state, asked(*range(8), size=500), mine, {CORE_RESOURCE: 500}, Alignment()) is None
