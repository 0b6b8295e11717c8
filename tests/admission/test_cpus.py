"""The static CPU manager: hints by table, which CPUs, options, reuse, refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import handmade
from tests.admission.spelling import app, init, mask, pod, sidecar, spelt
from topoalloc.admission.cpu_topology import CpuPlace, CpuTopology, cpu_topology
from topoalloc.admission.cpus import (
    CpuManager,
    CpuOptions,
    CpuState,
    allocate,
    collect,
    container_hints,
    exclusive_cpus,
    parse_cpu_options,
    pod_hints,
    removed,
    start,
)
from topoalloc.admission.hints import ProviderAnswer
from topoalloc.admission.pod import Container, Pod, checked_container
from topoalloc.admission.policy import Policy
from topoalloc.admission.refusal import Refusal
from topoalloc.errors import InputError
from topoalloc.topology.cpus import CpuSet

ALPHA = {"CPUManagerPolicyAlphaOptions": True}
PLAIN = CpuOptions()


def flat(*per_node: int) -> CpuTopology:
    """NUMA nodes of so many single-thread cores, one socket each."""
    places: dict[int, CpuPlace] = {}
    for node, count in enumerate(per_node):
        for _ in range(count):
            places[len(places)] = CpuPlace(len(places), node, node)
    return CpuTopology.of(places)


def smt(nodes: int, cores: int, *, nodes_per_socket: int = 1) -> CpuTopology:
    """Two threads per core, numbered 0,1 on the first core and so on."""
    count = nodes * cores * 2
    places = {
        cpu: CpuPlace(cpu - cpu % 2, cpu // (2 * cores) // nodes_per_socket, cpu // (2 * cores)) for cpu in range(count)
    }
    return CpuTopology.of(places)


def started(
    topology: CpuTopology, reserved: str, options: CpuOptions = PLAIN, *, busy: str = ""
) -> tuple[CpuManager, CpuState]:
    manager, state = start(topology, CpuSet.from_list(reserved), options, Policy.RESTRICTED)
    taken = CpuSet.from_list(busy)
    return manager, CpuState(state.shared - taken, {("else", "app"): taken} if taken else {})


def guaranteed(cpu: str, name: str = "app") -> Container:
    return app(name, cpu=cpu, memory="1Gi")


def cpu_hints(answer: ProviderAnswer) -> str | None:
    return None if answer is None else spelt(answer["cpu"])


def hints_for(manager: CpuManager, state: CpuState, cpu: str) -> str | None:
    one = pod(guaranteed(cpu))
    return cpu_hints(container_hints(manager, state, one, one.containers[0]))


def given_to(manager: CpuManager, state: CpuState, cpu: str, affinity: str | None = None) -> tuple[CpuState, str]:
    one = pod(guaranteed(cpu))
    after = allocate(manager, state, one, one.containers[0], None if affinity is None else mask(affinity))
    assert isinstance(after, CpuState), after
    return after, str(after.assigned[one.uid, "app"])


def refused(manager: CpuManager, state: CpuState, cpu: str) -> Refusal:
    one = pod(guaranteed(cpu))
    after = allocate(manager, state, one, one.containers[0], None)
    assert isinstance(after, Refusal)
    return after


ONE = "{0}P {1}P {0,1}n"


@pytest.mark.parametrize(
    ("reserved", "busy", "request_", "found"),
    [
        ("0", "", 1, ONE),
        ("0", "", 8, ONE),
        ("0", "", 31, ONE),
        ("0", "", 32, "{1}P {0,1}n"),
        ("0", "", 33, "{0,1}P"),
        ("0", "", 63, "{0,1}P"),
        ("0", "", 64, ""),
        ("0", "1-21", 16, "{1}P {0,1}n"),
        ("0,32", "", 32, "{0,1}n"),
    ],
)
def test_hints_of_two_nodes_of_32_cpus(reserved: str, busy: str, request_: int, found: str) -> None:
    assert hints_for(*started(flat(32, 32), reserved, busy=busy), str(request_)) == found


@pytest.mark.parametrize("cpu", ["500m", "1500m"])
def test_fractions_of_a_cpu_have_no_opinion(cpu: str) -> None:
    assert hints_for(*started(flat(4, 4), "0"), cpu) is None


def test_a_whole_number_in_thousandths_counts() -> None:
    assert hints_for(*started(flat(4, 4), "0"), "2000m") == ONE


def test_a_burstable_pod_has_no_opinion_and_gets_no_cpus() -> None:
    manager, state = started(flat(4, 4), "0")
    one = pod(checked_container("app", {"cpu": "1", "memory": "1Gi"}, {"cpu": "2", "memory": "1Gi"}))

    assert container_hints(manager, state, one, one.containers[0]) is None
    assert pod_hints(manager, state, one) is None
    assert allocate(manager, state, one, one.containers[0], None) == state


def test_pod_level_resources_silence_the_cpu_manager() -> None:
    manager, state = started(flat(4, 4), "0")
    inner = guaranteed("2")
    one = Pod("p", "d", "p", (inner,), requests=inner.requests, limits=inner.limits)

    assert exclusive_cpus(one, inner) == 2
    assert container_hints(manager, state, one, inner) is None
    assert pod_hints(manager, state, one) is None
    assert allocate(manager, state, one, inner, None) == state


def test_assigned_cpus_give_their_own_hints_again_and_another_number_none() -> None:
    manager, state = started(flat(4, 4), "0")
    state, _ = given_to(manager, state, "2", "{1}")

    assert hints_for(manager, state, "2") == "{1}P {0,1}n"
    assert hints_for(manager, state, "3") == ""


def test_pod_hints_take_the_larger_of_init_and_running_containers() -> None:
    manager, state = started(flat(4, 4), "0")
    big_init = pod(init(cpu="5", memory="1Gi"), guaranteed("1"))
    with_sidecar = pod(sidecar(cpu="2", memory="1Gi"), guaranteed("3"))

    assert cpu_hints(pod_hints(manager, state, big_init)) == "{0,1}P"
    assert cpu_hints(pod_hints(manager, state, with_sidecar)) == "{0,1}P"


def test_cpus_come_from_the_affinity_first_and_then_from_elsewhere() -> None:
    manager, state = started(flat(4, 4), "0")

    assert given_to(manager, state, "3", "{1}")[1] == "4-6"
    assert given_to(manager, state, "5", "{1}")[1] == "1,4-7"


def test_without_affinity_the_fullest_node_is_used_up_first() -> None:
    assert given_to(*started(flat(4, 4), "0", busy="1"), "2")[1] == "2-3"


def test_a_whole_free_node_is_taken_whole() -> None:
    assert given_to(*started(flat(4, 4), "0"), "4")[1] == "4-7"


def test_whole_cores_before_single_threads() -> None:
    assert given_to(*started(smt(1, 4), "0", busy="2"), "3")[1] == "1,4-5"


def test_single_threads_fill_half_used_cores_first() -> None:
    assert given_to(*started(smt(1, 4), "0", busy="2"), "1")[1] == "1"


def test_spread_over_cores_takes_cpus_in_the_order_of_their_numbers() -> None:
    places = {cpu: CpuPlace(cpu % 4, 0, 0) for cpu in range(8)}  # siblings 0,4 1,5 2,6 3,7
    spread = CpuOptions(distribute_cpus_across_cores=True)

    assert given_to(*started(CpuTopology.of(places), "0", spread), "3")[1] == "1-3"
    assert given_to(*started(CpuTopology.of(places), "0", PLAIN), "3")[1] == "1,4-5"


def test_not_enough_cpus_is_said_in_the_kubelets_words() -> None:
    refusal = refused(*started(flat(2), "0"), "2")

    assert refusal.reason == "UnexpectedAdmissionError"
    assert "not enough cpus available to satisfy request: requested=2, available=1" in refusal.message


def test_full_cores_only_refuses_an_odd_number() -> None:
    refusal = refused(*started(smt(1, 4), "0-1", CpuOptions(full_pcpus_only=True)), "3")

    assert refusal == Refusal(
        "SMTAlignmentError", "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
    )


def test_full_cores_only_counts_the_sibling_of_a_reserved_cpu_as_taken() -> None:
    refusal = refused(*started(smt(1, 2), "0", CpuOptions(full_pcpus_only=True)), "4")

    assert refusal.message == (
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 2, requested CPUs = 4, "
        "CPUs per core = 2"
    )


def test_full_cores_only_splits_cores_all_the_same_beside_a_lone_reserved_thread() -> None:
    manager, state = started(smt(2, 2), "0", CpuOptions(full_pcpus_only=True))

    assert given_to(manager, state, "4", "{0}")[1] == "1-4"


def test_full_cores_only_leaves_what_was_assigned_before() -> None:
    manager, state = started(smt(1, 4), "0-1")
    state, before = given_to(manager, state, "3")
    strict = CpuManager(manager.topology, manager.reserved, CpuOptions(full_pcpus_only=True))

    assert given_to(strict, state, "3")[1] == before


def test_align_by_socket_prefers_hints_within_a_socket_and_takes_from_it() -> None:
    options = CpuOptions(align_by_socket=True)
    manager, state = started(smt(4, 2, nodes_per_socket=2), "0", options)

    assert hints_for(manager, state, "2") == (
        "{0}P {1}P {2}P {3}P {0,1}P {0,2}n {0,3}n {1,2}n {1,3}n {2,3}P {0,1,2}n {0,1,3}n {0,2,3}n {1,2,3}n {0,1,2,3}n"
    )
    assert given_to(manager, state, "6", "{3}")[1] == "8-13"


def test_distribution_takes_equal_parts_of_the_nodes_it_needs() -> None:
    manager, state = started(flat(4, 4, 4), "0", CpuOptions(distribute_cpus_across_numa=True))

    assert given_to(manager, state, "6")[1] == "4-6,8-10"


def test_strictly_reserved_cpus_are_not_even_shared() -> None:
    assert str(started(flat(4), "0", CpuOptions(strict_cpu_reservation=True))[1].shared) == "1-3"
    assert str(started(flat(4), "0")[1].shared) == "0-3"


def test_init_containers_leave_their_cpus_to_the_next_and_sidecars_do_not() -> None:
    manager, state = started(flat(8), "0")
    whole = pod(init("i", cpu="2", memory="1Gi"), sidecar("s", cpu="1", memory="1Gi"), guaranteed("2", "a"), uid="p")
    for container in whole.containers:
        after = allocate(manager, state, whole, container, mask("{0}"))
        assert isinstance(after, CpuState)
        state = after

    assert {name: str(cpus) for (_, name), cpus in state.assigned.items()} == {"i": "1-2", "s": "1", "a": "2-3"}
    assert str(state.shared) == "0,4-7"


def test_reusable_cpus_bind_the_hints_to_their_node() -> None:
    manager, state = started(flat(4, 4), "0")
    whole = pod(init("i", cpu="1", memory="1Gi"), guaranteed("2", "a"))
    after = allocate(manager, state, whole, whole.containers[0], mask("{1}"))
    assert isinstance(after, CpuState)

    assert cpu_hints(container_hints(manager, after, whole, whole.containers[1])) == "{1}P {0,1}n"


def test_removed_cpus_return_unless_a_sibling_has_them() -> None:
    shared = CpuSet.from_list("0")
    state = CpuState(shared, {("p", "i"): CpuSet.from_list("1-2"), ("p", "a"): CpuSet.from_list("2-3")})

    assert str(removed(state, "p", "i").shared) == "0-1"
    assert str(removed(removed(state, "p", "i"), "p", "a").shared) == "0-3"
    assert removed(state, "p", "unknown") == state


@pytest.mark.parametrize(
    ("given_options", "gates", "reason"),
    [
        ({"fast": "true"}, {}, "unknown CPU Manager Policy option: 'fast'"),
        ({"prefer-align-cpus-by-uncorecache": "true"}, {}, "'prefer-align-cpus-by-uncorecache' is not supported"),
        ({"full-pcpus-only": "maybe"}, {}, "bad value for option 'full-pcpus-only'"),
        ({"align-by-socket": "true"}, {}, "Alpha-level Options not enabled, but option 'align-by-socket' provided"),
        (
            {"distribute-cpus-across-numa": "true"},
            {"CPUManagerPolicyBetaOptions": False},
            "Beta-level Options not enabled",
        ),
        ({"full-pcpus-only": "true", "distribute-cpus-across-cores": "true"}, ALPHA, "can not be used at the same"),
        (
            {"distribute-cpus-across-numa": "1", "distribute-cpus-across-cores": "1"},
            ALPHA,
            "can not be used at the same",
        ),
    ],
)
def test_options_that_the_kubelet_or_we_do_not_take_are_refused_by_name(
    given_options: dict[str, str], gates: dict[str, bool], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        parse_cpu_options(given_options, gates)


def test_options_are_read() -> None:
    given_options = {"full-pcpus-only": "true", "strict-cpu-reservation": "f", "align-by-socket": "T"}

    assert parse_cpu_options(given_options, ALPHA) == CpuOptions(full_pcpus_only=True, align_by_socket=True)


def test_so_many_reserved_cpus_are_taken_from_the_lowest_cores() -> None:
    manager, state = start(smt(2, 2), 3, PLAIN, Policy.NONE)

    assert str(manager.reserved) == "0-2"
    assert str(manager.reserved_cores) == "0-3"
    assert state.shared == manager.topology.cpus


@pytest.mark.parametrize(
    ("reserved", "reason"),
    [(0, "greater than zero"), (9, "unable to reserve 9 CPUs"), (CpuSet.from_list("7-9"), "8-9 do not exist")],
)
def test_a_reservation_that_cannot_be_met_does_not_start(reserved: CpuSet | int, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        start(flat(4, 4), reserved, PLAIN, Policy.NONE)


def test_align_by_socket_does_not_start_with_single_numa_node_or_many_sockets() -> None:
    options = CpuOptions(align_by_socket=True)
    with pytest.raises(InputError, match="single-numa-node"):
        start(flat(4, 4), 1, options, Policy.SINGLE_NUMA_NODE)
    with pytest.raises(InputError, match="more sockets than NUMA nodes"):
        start(CpuTopology.of({0: CpuPlace(0, 0, 0), 1: CpuPlace(1, 1, 0)}), 1, options, Policy.NONE)


def test_distribution_over_too_many_nodes_does_not_start() -> None:
    with pytest.raises(InputError, match="at most 12 NUMA nodes"):
        start(flat(*[1] * 13), 1, CpuOptions(distribute_cpus_across_numa=True), Policy.NONE)


def test_a_machine_tells_cpus_and_nodes_and_each_cpu_is_its_own_core() -> None:
    seen = cpu_topology(handmade.machine(numa=2))

    assert seen.numa_nodes == (0, 1)
    assert seen.cpus_per_core == 1
    assert not seen.sockets_above_numa


def test_cpus_of_inactive_pods_are_collected() -> None:
    manager, fresh = started(flat(4, 4), "0")
    state, _ = given_to(manager, fresh, "2")

    assert collect(state, frozenset({"pod"})) == state
    assert collect(state, frozenset()).shared == fresh.shared


@st.composite
def histories(draw: st.DrawFn) -> tuple[CpuTopology, CpuOptions, list[tuple[int, int | None, bool]]]:
    topology = smt(draw(st.integers(1, 3)), draw(st.integers(1, 4)), nodes_per_socket=draw(st.sampled_from((1, 2))))
    options = CpuOptions(
        full_pcpus_only=draw(st.booleans()),
        distribute_cpus_across_numa=draw(st.booleans()),
        strict_cpu_reservation=draw(st.booleans()),
    )
    affinity = st.one_of(st.none(), st.integers(1, 2 ** len(topology.numa_nodes) - 1))
    return topology, options, draw(st.lists(st.tuples(st.integers(1, 6), affinity, st.booleans()), max_size=8))


@given(histories())
def test_cpus_are_exclusive_exact_and_never_reserved_whatever_comes_and_goes(
    history: tuple[CpuTopology, CpuOptions, list[tuple[int, int | None, bool]]],
) -> None:
    topology, options, wishes = history
    manager, state = start(topology, CpuSet.from_list("0-1"), options, Policy.NONE)
    everything = state.shared
    for number, (count, affinity, leaves) in enumerate(wishes):
        one = pod(guaranteed(str(count)), uid=f"p{number}")
        after = allocate(manager, state, one, one.containers[0], affinity)
        if isinstance(after, Refusal):
            continue
        state = after
        cpus = state.assigned[one.uid, "app"]
        assert len(cpus) == count
        assert not cpus & manager.reserved
        if options.full_pcpus_only:
            assert all(not topology.by_core[topology.places[cpu].core] - cpus for cpu in cpus)
        if leaves:
            state = removed(state, one.uid, "app")
        union = state.shared
        for others in state.assigned.values():
            assert not union & others
            union = union | others
        assert union == everything
