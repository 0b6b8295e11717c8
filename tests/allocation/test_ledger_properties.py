"""What holds in every history: nothing given twice, shares on one GPU, halves together, a rebuildable ledger."""

from __future__ import annotations

from collections import Counter
from functools import cache

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.allocation.miniature import Habits, Miniature
from tests.handmade import GIB, machine
from topoalloc.allocation.demand import ContainerDemand, PodDemand
from topoalloc.allocation.ledger import confirmed_ids
from topoalloc.sharing.inventory import Inventory, ResourceKind, inventory_of
from topoalloc.sharing.settings import CORE_RESOURCE, MEMORY_RESOURCE, NIC_RESOURCE, SharingSettings

SHARE_CORES = [10, 25, 30, 50, 60, 99]
WHOLE_CORES = [100, 200]


@cache
def small_node() -> Inventory:
    inventory = inventory_of(machine(switches=1, nics=2, memory_bytes=2 * GIB, nvlinks=2), SharingSettings())
    assert isinstance(inventory, Inventory)
    return inventory


@st.composite
def containers(draw: st.DrawFn, name: str, init: bool, halves: bool) -> ContainerDemand:
    cores = draw(st.sampled_from([0, *SHARE_CORES, *WHOLE_CORES, 150]))
    memory = draw(st.integers(0, 8))
    if not halves:
        memory = 0 if cores == 0 else max(1, memory)
    nics = draw(st.integers(0, 2))
    amounts = ((CORE_RESOURCE, cores), (MEMORY_RESOURCE, memory), (NIC_RESOURCE, nics))
    return ContainerDemand(name, tuple((r, n) for r, n in amounts if n), init=init)


@st.composite
def pods(draw: st.DrawFn, halves: bool = True) -> PodDemand:
    inits = draw(st.lists(st.booleans(), max_size=1))
    made = [draw(containers(f"init{i}", True, halves)) for i, _ in enumerate(inits)]
    made += [draw(containers(f"app{i}", False, halves)) for i in range(draw(st.integers(1, 2)))]
    return PodDemand("ns", "", "", tuple(made))


def events_with(pod: st.SearchStrategy[PodDemand]) -> st.SearchStrategy[list[tuple[str, object]]]:
    other = st.tuples(st.sampled_from(["end", "list", "crash"]), st.integers(0, 50))
    return st.lists(st.one_of(st.tuples(st.just("admit"), pod), other), min_size=1, max_size=14)


EVENTS = events_with(pods())
CHANCE = st.sampled_from([0.0, 0.2, 0.5])


def run(kubelet: Miniature, events: list[tuple[str, object]]) -> None:
    for number, event in enumerate(events):
        happen(kubelet, number, event)


def happen(kubelet: Miniature, number: int, event: tuple[str, object]) -> None:
    kind, what = event
    if kind == "admit":
        assert isinstance(what, PodDemand)
        kubelet.admit(PodDemand("ns", f"pod{number}", f"uid{number}", what.containers))
    elif kind == "end" and kubelet.active:
        assert isinstance(what, int)
        kubelet.end(sorted(kubelet.active)[what % len(kubelet.active)])
    elif kind == "list" and kubelet.habits.tells_devices:
        kubelet.list_devices()
    elif kind == "crash" and kubelet.habits.tells_devices:
        kubelet.crash()
    check_node(kubelet)


def check_node(kubelet: Miniature) -> None:
    """The promises, judged on what the kubelet has on record."""
    devices = kubelet.inventory.devices
    used: Counter[str] = Counter()
    owners_of_gpu: dict[int, set[tuple[str, str]]] = {}
    whole: dict[int, tuple[str, str]] = {}
    for key, ids in kubelet.held().items():
        used.update(ids)
        cores = Counter(devices[i].position for i in ids if devices[i].kind is ResourceKind.CORE)
        memory = {devices[i].position for i in ids if devices[i].kind is ResourceKind.MEMORY}
        if 0 < cores.total() < 100 and not kubelet.records[key].container.init:
            assert len(cores) == 1, "a share lies on one GPU"
        if cores and memory:
            assert memory <= set(cores), "memory and cores of a container are on the same GPUs"
        # Who speaks cannot always be told without the pods API; a container with memory alone gets no GPU opened.
        opened = {*cores, *memory} if kubelet.habits.tells_pods else set(cores)
        for position in opened:
            owners_of_gpu.setdefault(position, set()).add(key)
        whole.update({position: key for position, count in cores.items() if count == 100})
    assert all(count == 1 for count in used.values()), "a device belongs to one container"
    for position, key in whole.items():
        others = {other for other in owners_of_gpu[position] if other[0] != key[0]}
        assert not others, "a whole GPU is nobody else's, its memory included"


@given(EVENTS, st.integers(0, 2**32), CHANCE, CHANCE, CHANCE)
def test_with_the_pods_api_nothing_is_given_twice_or_apart(
    events: list[tuple[str, object]], seed: int, skips: float, overrules: float, aborts: float
):
    run(Miniature(small_node(), Habits(skips=skips, overrules=overrules, aborts=aborts), seed), events)


@given(events_with(pods(halves=False)), st.integers(0, 2**32), CHANCE, CHANCE)
def test_with_pod_resources_alone_nothing_is_given_twice_or_apart_while_questions_are_asked(
    events: list[tuple[str, object]], seed: int, overrules: float, aborts: float
):
    habits = Habits(tells_pods=False, overrules=overrules, aborts=aborts)
    run(Miniature(small_node(), habits, seed), events)


@given(events_with(pods(halves=False)), st.integers(0, 2**32), CHANCE, CHANCE, CHANCE)
def test_with_pod_resources_alone_skipped_questions_part_no_container_that_asks_for_both_halves(
    events: list[tuple[str, object]], seed: int, skips: float, overrules: float, aborts: float
):
    habits = Habits(tells_pods=False, skips=skips, overrules=overrules, aborts=aborts)
    run(Miniature(small_node(), habits, seed), events)


@given(EVENTS, st.integers(0, 2**32), CHANCE, st.booleans())
def test_an_answer_is_exactly_the_size_from_the_candidates_with_all_that_must_be_in_it(
    events: list[tuple[str, object]], seed: int, aborts: float, tells: bool
):
    kubelet = Miniature(small_node(), Habits(tells_pods=tells, aborts=aborts), seed)

    run(kubelet, events)

    for question, preference in kubelet.preferences:
        assert len(preference.ids) == len(set(preference.ids)) == question.size
        assert question.must_include <= set(preference.ids) <= set(question.available) | question.must_include


@given(EVENTS, st.integers(0, 2**32), CHANCE, CHANCE)
def test_a_ledger_rebuilt_after_a_crash_is_the_ledger_before_it_at_every_point(
    events: list[tuple[str, object]], seed: int, skips: float, aborts: float
):
    kubelet = Miniature(small_node(), Habits(skips=skips, aborts=aborts), seed)

    for number, event in enumerate(events):
        happen(kubelet, number, event)
        kubelet.list_devices()
        before = confirmed_ids(kubelet.state)
        kubelet.crash()
        assert confirmed_ids(kubelet.state) == before


@given(EVENTS, st.integers(0, 2**32), CHANCE)
def test_the_same_history_gives_the_same_ledger(events: list[tuple[str, object]], seed: int, aborts: float):
    first = Miniature(small_node(), Habits(aborts=aborts), seed)
    second = Miniature(small_node(), Habits(aborts=aborts), seed)

    run(first, events)
    run(second, events)

    assert first.state == second.state
    assert [p for _, p in first.preferences] == [p for _, p in second.preferences]


@given(pods(), st.permutations([CORE_RESOURCE, MEMORY_RESOURCE, NIC_RESOURCE]), st.integers(0, 2**32))
def test_the_choice_does_not_depend_on_which_resource_is_asked_first(pod: PodDemand, order: list[str], seed: int):
    container = next((c for c in pod.containers if not c.init and len(c.amounts) == 3), None)
    assume(container is not None)
    assert container is not None
    outcomes = []
    for names in (sorted(order), order):
        kubelet = Miniature(small_node(), Habits(), seed)
        kubelet.random.shuffle = lambda amounts, names=names: (  # type: ignore[method-assign]
            amounts.sort(key=lambda item: names.index(item[0])) if amounts and isinstance(amounts[0], tuple) else None
        )
        kubelet.admit(PodDemand("ns", "pod", "uid", (container,)))
        outcomes.append(kubelet.held())

    assert outcomes[0] == outcomes[1]
