"""What Allocate grants and refuses, and the words of each refusal."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from tests.handmade import GIB, machine
from topoalloc.allocation.claiming import Claim, Grant, ProofNeeded, Refusal, claim_devices
from topoalloc.allocation.demand import ContainerDemand, PodDemand
from topoalloc.allocation.ledger import Conversation, Holding, Owner, State
from topoalloc.sharing.inventory import Inventory, inventory_of
from topoalloc.sharing.settings import CORE_RESOURCE, MEMORY_RESOURCE, NIC_RESOURCE, SharingSettings

NODE = inventory_of(machine(memory_bytes=4 * GIB), SharingSettings())
assert isinstance(NODE, Inventory)
INVENTORY: Inventory = NODE
NOW_S = 100.0
OTHER = Owner("ns", "other", "app")


def cores(gpu: int, count: int, first: int = 0) -> frozenset[str]:
    return frozenset(device.id for device in INVENTORY.resources[0].devices[gpu * 100 + first :][:count])


def memory(gpu: int, count: int, first: int = 0) -> frozenset[str]:
    return frozenset(device.id for device in INVENTORY.resources[1].devices[gpu * 16 + first :][:count])


def nic(position: int) -> frozenset[str]:
    return frozenset({INVENTORY.nic_keys[position]})


def pod(**amounts: int) -> PodDemand:
    names = {"cores": CORE_RESOURCE, "memory": MEMORY_RESOURCE, "nics": NIC_RESOURCE}
    container = ContainerDemand("app", tuple((names[key], amount) for key, amount in amounts.items()))
    return PodDemand("ns", "pod", "uid", (container,))


OTHER_POD = PodDemand("ns", "other", "uid-other", ())


def holding(*ids: frozenset[str], confirmed: bool = True, init: bool = False) -> Holding:
    return Holding(frozenset().union(*ids), confirmed, 1, 1.0, init=init)


def ledger(holdings: dict[Owner, Holding]) -> State:
    return State(holdings=MappingProxyType(holdings))


def judge(
    state: State,
    resource: str,
    ids: frozenset[str],
    roster: tuple[PodDemand, ...] | None,
    still_held: bool = True,
) -> tuple[State, Grant | Refusal]:
    found = INVENTORY.resource(resource)
    assert found is not None
    claim = Claim(found, ids)
    after, answer = claim_devices(state, INVENTORY, claim, roster, {}, frozenset(), NOW_S)
    if isinstance(answer, ProofNeeded):
        released = {} if still_held else answer.contested
        asked = frozenset(answer.contested)
        after, answer = claim_devices(state, INVENTORY, claim, roster, released, asked, NOW_S)
    assert not isinstance(answer, ProofNeeded)
    return after, answer


def words(
    state: State, resource: str, ids: frozenset[str], roster: tuple[PodDemand, ...] | None, still_held: bool = True
) -> str:
    after, answer = judge(state, resource, ids, roster, still_held)
    assert isinstance(answer, Refusal), answer
    held = {owner: holding.ids for owner, holding in state.holdings.items()}
    assert {owner: holding.ids for owner, holding in after.holdings.items()} == held, "a refusal changes nothing"
    return answer.reason


def test_a_share_on_one_gpu_is_granted_to_the_container_that_waits():
    state, answer = judge(State(), CORE_RESOURCE, cores(2, 30), (pod(cores=30, memory=4),))

    assert answer == Grant(Owner("ns", "pod", "app"), cores(2, 30))
    assert state.holdings[Owner("ns", "pod", "app")].ids == cores(2, 30)


def test_an_id_that_is_not_ours_is_named():
    assert "'0000:aa:00.0-c00' is no device of this node" in words(
        State(), CORE_RESOURCE, frozenset({"0000:aa:00.0-c00"}), (pod(cores=1, memory=1),)
    )


def test_a_share_over_two_gpus_is_refused_with_what_each_gave():
    reason = words(State(), CORE_RESOURCE, cores(0, 10) | cores(1, 20), (pod(cores=30, memory=4),))

    assert "GPU0 (10) and GPU1 (20)" in reason


def test_room_on_another_numa_node_is_named_with_the_setting_that_opens_it():
    full = {Owner("ns", "other", f"app{gpu}"): holding(cores(gpu, 80)) for gpu in range(4)}
    state = replace(ledger(full), narrows=True)
    reason = words(state, CORE_RESOURCE, cores(0, 15, 80) | cores(1, 15, 80), (pod(cores=30, memory=4), OTHER_POD))

    assert "GPU4 and GPU5 and GPU6 would have had room on another NUMA node" in reason
    assert "with leftovers: withhold it counts right for a pod created again" in reason


def test_the_topology_manager_is_not_blamed_where_it_does_not_narrow():
    full = {Owner("ns", "other", f"app{gpu}"): holding(cores(gpu, 80)) for gpu in range(4)}
    state = replace(ledger(full), narrows=False)
    reason = words(state, CORE_RESOURCE, cores(0, 15, 80) | cores(1, 15, 80), (pod(cores=30, memory=4), OTHER_POD))

    assert "Topology Manager" not in reason


def test_why_no_better_pick_existed_is_said_with_what_the_pick_breaks():
    owner = Owner("ns", "pod", "app")
    talk = Conversation(
        owner, "uid", None, (MEMORY_RESOURCE, 4), frozenset(), NOW_S, reasons=("no GPU has both free at once",)
    )
    state = replace(ledger({OTHER: holding(cores(0, 100))}), conversation=talk)

    assert "(no GPU has both free at once)" in words(
        state, MEMORY_RESOURCE, memory(0, 4), (pod(cores=30, memory=4), OTHER_POD)
    )


def test_room_on_the_offered_numa_node_is_not_said_to_be_elsewhere():
    reason = words(State(), CORE_RESOURCE, cores(0, 15) | cores(4, 15), (pod(cores=30, memory=4),))

    assert "another NUMA node" not in reason


def test_a_share_scattered_by_a_larger_init_container_is_refused_with_what_to_change():
    init = Owner("ns", "pod", "init")
    state = ledger({init: holding(cores(0, 100), cores(1, 100), init=True, confirmed=False)})

    reason = words(state, CORE_RESOURCE, cores(0, 5) | cores(1, 5), (pod(cores=10, memory=4),))

    assert "let it ask for as much as the app" in reason


def test_whole_gpus_that_are_not_whole_are_refused():
    reason = words(State(), CORE_RESOURCE, cores(0, 60) | cores(1, 40), (pod(cores=100),))

    assert "100 needs 1 GPU with all 100 cores free; the kubelet could only offer GPU0 (60) and GPU1 (40)" in reason


def test_memory_on_another_gpu_than_the_cores_is_refused():
    state = ledger({Owner("ns", "pod", "app"): holding(cores(0, 30))})

    assert "the cores are on GPU0 but the memory on GPU1" in words(
        state, MEMORY_RESOURCE, memory(1, 4), (pod(cores=30, memory=4),)
    )


def test_cores_on_another_gpu_than_the_memory_are_refused():
    state = ledger({Owner("ns", "pod", "app"): holding(memory(1, 4))})

    assert "the cores are on GPU0 but the memory on GPU1" in words(
        state, CORE_RESOURCE, cores(0, 30), (pod(cores=30, memory=4),)
    )


def test_memory_of_whole_gpus_may_lie_on_any_of_them():
    state = ledger({Owner("ns", "pod", "app"): holding(cores(0, 100), cores(1, 100))})

    _, answer = judge(state, MEMORY_RESOURCE, memory(0, 2) | memory(1, 2), (pod(cores=200, memory=4),))

    assert isinstance(answer, Grant)


def test_a_gpu_that_somebody_shares_is_not_given_whole():
    state = ledger({OTHER: holding(memory(0, 4))})

    reason = words(state, CORE_RESOURCE, cores(0, 100), (pod(cores=100), OTHER_POD))

    assert "GPU0 cannot be given whole, ns/other/app has a share of it" in reason


def test_memory_of_a_gpu_held_whole_is_not_given():
    state = ledger({OTHER: holding(cores(0, 100))})

    reason = words(state, MEMORY_RESOURCE, memory(0, 4), (pod(cores=30, memory=4), OTHER_POD))

    assert "GPU0 is held whole by ns/other/app, its memory included" in reason


def test_a_device_offered_twice_is_refused_while_its_holder_still_runs():
    state = ledger({OTHER: holding(nic(0))})

    reason = words(state, NIC_RESOURCE, nic(0), (pod(nics=1), OTHER_POD))

    assert "is held by ns/other/app, which still runs" in reason


def test_a_device_whose_holder_does_not_hold_it_any_more_is_granted():
    state = ledger({OTHER: holding(nic(0), cores(5, 30))})

    after, answer = judge(state, NIC_RESOURCE, nic(0), (pod(nics=1), OTHER_POD), still_held=False)

    assert isinstance(answer, Grant)
    assert after.holdings[OTHER].ids == cores(5, 30), "only what was contested is released"


def test_a_pod_that_is_gone_needs_no_proof():
    state = ledger({OTHER: holding(nic(0))})

    _, answer = judge(state, NIC_RESOURCE, nic(0), (pod(nics=1),))

    assert isinstance(answer, Grant)


def test_an_app_container_takes_over_from_its_pods_init_container():
    init = Owner("ns", "pod", "init")
    state = ledger({init: holding(nic(0), nic(1), init=True, confirmed=False)})

    after, answer = judge(state, NIC_RESOURCE, nic(0), (pod(nics=1),))

    assert isinstance(answer, Grant)
    assert after.holdings[init].ids == nic(1)


def test_the_same_allocate_again_changes_nothing():
    roster = (pod(cores=30, memory=4),)
    once, _ = judge(State(), CORE_RESOURCE, cores(2, 30), roster)
    asked = replace(once.conversation, asked=(CORE_RESOURCE, 30)) if once.conversation else None

    again, answer = judge(replace(once, conversation=asked), CORE_RESOURCE, cores(2, 30), roster)

    assert isinstance(answer, Grant)
    assert {o: h.ids for o, h in again.holdings.items()} == {o: h.ids for o, h in once.holdings.items()}


def test_unnamed_devices_the_kubelet_hands_out_again_were_given_up():
    state = ledger({Owner(serial=7): holding(nic(0), cores(1, 10), confirmed=False)})

    after, answer = judge(state, NIC_RESOURCE, nic(0), None)

    assert isinstance(answer, Grant)
    assert Owner(serial=7) not in after.holdings


def unasked_then(*ids: frozenset[str]) -> State:
    """Memory claimed on GPU0 without a question, by an admission that may have been given up, then `ids` of cores."""
    state, _ = judge(State(), MEMORY_RESOURCE, memory(0, 1), None)
    for claimed in ids:
        state, answer = judge(state, CORE_RESOURCE, claimed, None)
        assert isinstance(answer, Grant)
    return state


def test_memory_claimed_again_apart_from_the_cores_is_refused_where_one_container_may_be_speaking():
    assert "no GPU of those offered has both free" in words(
        unasked_then(cores(0, 10)), MEMORY_RESOURCE, memory(1, 1), None
    )


def test_memory_claimed_again_beside_the_cores_is_granted_where_one_container_may_be_speaking():
    _, answer = judge(unasked_then(cores(0, 10)), MEMORY_RESOURCE, memory(0, 1, 5), None)

    assert isinstance(answer, Grant)


def test_memory_is_granted_anywhere_after_a_container_of_memory_alone():
    _, answer = judge(unasked_then(), MEMORY_RESOURCE, memory(1, 1), None)

    assert isinstance(answer, Grant)


def test_memory_is_refused_apart_from_cores_that_may_have_been_granted_under_the_name_before():
    state, _ = judge(State(), NIC_RESOURCE, nic(0), None)
    for resource, ids in ((CORE_RESOURCE, cores(0, 10)), (NIC_RESOURCE, nic(1))):
        state, answer = judge(state, resource, ids, None)
        assert isinstance(answer, Grant)

    assert "no GPU of those offered has both free" in words(state, MEMORY_RESOURCE, memory(1, 1), None)


def handed_on(gpu: int) -> tuple[State, Grant | Refusal]:
    """Cores that the open speaker nobody could name holds, handed out again unasked; its memory is on GPU 0."""
    speaker = Owner(serial=1)
    talk = Conversation(speaker, "", None, None, memory(0, 1), NOW_S - 0.1)
    state = replace(ledger({speaker: holding(cores(0, 100), cores(1, 100), memory(0, 1), confirmed=False)}), serials=1)
    return judge(replace(state, conversation=talk), CORE_RESOURCE, cores(gpu, 5), None)


def test_cores_handed_on_by_an_init_container_apart_from_the_memory_granted_since_are_refused():
    _, answer = handed_on(1)

    assert isinstance(answer, Refusal)
    assert "the cores are on GPU1 but the memory on GPU0" in answer.reason


def test_cores_handed_on_by_an_init_container_beside_the_memory_granted_since_are_granted():
    assert isinstance(handed_on(0)[1], Grant)
