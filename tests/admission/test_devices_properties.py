"""What holds for every choice of devices, whatever the plugin answers and whichever devices are picked."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from topoalloc.admission.devices import (
    Ask,
    DeviceTables,
    Done,
    ListedDevices,
    Owner,
    Refused,
    Want,
    allocate_succeeded,
    begin,
    collect,
    finish,
)

RESOURCE = "topoalloc.io/vgpu-core"
IDS = [f"d{i}" for i in range(10)]
places = st.one_of(st.none(), st.lists(st.integers(0, 2), unique=True, max_size=2).map(tuple))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[DeviceTables, Want, frozenset[str]]:
    nodes = {device: draw(places) for device in IDS[: draw(st.integers(0, 10))]}
    some = st.frozensets(st.sampled_from(sorted(nodes))) if nodes else st.just(frozenset[str]())
    reusable = draw(some)
    tables = DeviceTables(
        listed={RESOURCE: ListedDevices(nodes, draw(some))},
        allocated={RESOURCE: draw(some) | reusable},
        reuse_pod="pod",
        reusable={RESOURCE: reusable},
    )
    affinity = draw(st.one_of(st.none(), st.integers(1, 7)))
    want = Want(Owner("pod", "app", RESOURCE), draw(st.integers(0, 6)), affinity, asks_plugin=draw(st.booleans()))
    return tables, want, draw(st.frozensets(st.sampled_from([*IDS, "bogus"])))


def run(tables: DeviceTables, want: Want, answer: frozenset[str], seed: int) -> tuple[Done | Refused, Ask | None]:
    chance = random.Random(seed)

    def pick(candidates: Sequence[str], count: int) -> Sequence[str]:
        return chance.sample(candidates, count)

    step = begin(tables, want, pick)
    if isinstance(step, Ask):
        return finish(step, answer, pick), step
    return step, None


@given(worlds(), st.integers(0, 2**32))
def test_a_choice_has_the_exact_size_and_only_free_or_reusable_devices(
    world: tuple[DeviceTables, Want, frozenset[str]], seed: int
) -> None:
    tables, want, answer = world
    done, _ = run(tables, want, answer, seed)

    if isinstance(done, Done) and done.devices:
        listed, allocated = tables.listed[RESOURCE], tables.allocated[RESOURCE]
        assert len(done.devices) == want.required
        assert done.devices <= (listed.healthy - allocated) | tables.reusable[RESOURCE]
        assert done.devices <= done.tables.allocated[RESOURCE]


@given(worlds(), st.integers(0, 2**32))
def test_an_answer_of_the_right_size_from_the_candidates_is_followed_exactly(
    world: tuple[DeviceTables, Want, frozenset[str]], seed: int
) -> None:
    tables, want, _ = world
    _, ask = run(tables, want, frozenset(), seed)
    if ask is None:
        return
    more = sorted(ask.available - ask.must_include)
    answer = ask.must_include | frozenset(more[: ask.size - len(ask.must_include)])

    done = finish(ask, answer, lambda candidates, count: candidates[:count])

    assert isinstance(done, Done)
    assert done.devices == answer


@given(worlds(), st.integers(0, 2**32))
def test_a_question_offers_its_must_includes_and_enough_devices(
    world: tuple[DeviceTables, Want, frozenset[str]], seed: int
) -> None:
    tables, want, answer = world
    _, ask = run(tables, want, answer, seed)

    if ask is not None:
        assert ask.must_include < ask.available
        assert len(ask.must_include) < ask.size <= len(ask.available)


@given(worlds(), st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_choice(world: tuple[DeviceTables, Want, frozenset[str]], seed: int) -> None:
    tables, want, answer = world

    assert run(tables, want, answer, seed) == run(tables, want, answer, seed)


@given(st.lists(st.tuples(st.integers(1, 3), st.one_of(st.none(), st.integers(1, 7))), max_size=6), st.integers(0, 99))
def test_devices_are_never_given_twice_when_every_call_finishes(wants: list[tuple[int, int | None]], seed: int) -> None:
    nodes: dict[str, tuple[int, ...] | None] = {device: (i % 3,) for i, device in enumerate(IDS)}
    tables = DeviceTables(listed={RESOURCE: ListedDevices(nodes, frozenset(nodes))})
    pods: set[str] = set()
    for number, (required, affinity) in enumerate(wants):
        owner = Owner(f"pod{number}", "app", RESOURCE)
        pods.add(owner.pod_uid)
        tables = collect(tables, frozenset(pods))
        step, _ = run(tables, Want(owner, required, affinity), frozenset(), seed)
        if isinstance(step, Done):
            after = allocate_succeeded(step.tables, owner, step.devices)
            assert isinstance(after, DeviceTables)
            tables = after

    given_out = [device for devices in tables.recorded.values() for device in devices]
    assert len(given_out) == len(set(given_out))
