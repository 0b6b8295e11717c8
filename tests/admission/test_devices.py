"""The device manager's bookkeeping and its choice of devices, step by step."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.admission.spelling import CORE, app, devices, init, mask, pod, sidecar, spelt
from topoalloc.admission.devices import (
    Ask,
    DeviceTables,
    Done,
    ListedDevices,
    Owner,
    Refused,
    Want,
    allocate_succeeded,
    ask_failed,
    begin,
    collect,
    container_closed,
    container_hints,
    container_opened,
    crash_reason,
    finish,
    grace_period_ended,
    is_device_resource,
    kubelet_restarted,
    list_received,
    pod_hints,
    rebuild,
    stream_ended,
)
from topoalloc.admission.pod import Container

POD = "pod"
OWNER = Owner(POD, "app", CORE)
ON_0 = mask("{0}")


def first(candidates: Sequence[str], count: int) -> Sequence[str]:
    return candidates[:count]


def last(candidates: Sequence[str], count: int) -> Sequence[str]:
    return candidates[-count:]


def tables(text: str, *, allocated: str = "", reusable: str = "", unhealthy: str = "") -> DeviceTables:
    nodes = devices(text)
    return DeviceTables(
        listed={CORE: ListedDevices(nodes, frozenset(nodes) - frozenset(unhealthy.split()))},
        allocated={CORE: frozenset(allocated.split())},
        reuse_pod=POD,
        reusable={CORE: frozenset(reusable.split())} if reusable else {},
    )


def recorded(before: DeviceTables, container: Container | str, *ids: str, pod_uid: str = POD) -> DeviceTables:
    name = container if isinstance(container, str) else container.name
    after = allocate_succeeded(before, Owner(pod_uid, name, CORE), frozenset(ids))
    assert isinstance(after, DeviceTables)
    return rebuild(after)


def asked(step: Done | Ask | Refused) -> Ask:
    assert isinstance(step, Ask), step
    return step


def chosen(step: Done | Ask | Refused) -> list[str]:
    assert isinstance(step, Done), step
    return sorted(step.devices)


def refusal(step: Done | Ask | Refused) -> str:
    assert isinstance(step, Refused), step
    return step.text


@pytest.mark.parametrize(
    ("listed", "allocated", "reusable", "required", "available", "must"),
    [
        ("D0-3@0", "", "", 1, "D0 D1 D2 D3", ""),
        ("D0-7@0", "D0 D5", "D0 D5", 4, "D0 D1 D2 D3 D4 D5 D6 D7", "D0 D5"),
        ("D0-7@0", "D0 D1 D4 D5", "D0 D5", 4, "D0 D2 D3 D5 D6 D7", "D0 D5"),
        ("D0-3@0 D4-7@1", "D1 D6", "D1 D6", 6, "D0 D1 D2 D3 D4 D5 D6 D7", "D0 D1 D2 D3 D6"),
        ("D0-3@0 D4-7@1", "D0 D1 D6 D7", "D1 D6", 6, "D1 D2 D3 D4 D5 D6", "D1 D2 D3 D6"),
    ],
)
def test_the_plugin_is_asked_with_the_candidates_that_upstream_offers(
    listed: str, allocated: str, reusable: str, required: int, available: str, must: str
) -> None:
    before = tables(listed, allocated=allocated, reusable=reusable)

    ask = asked(begin(before, Want(OWNER, required, ON_0), first))

    assert sorted(ask.available) == available.split()
    assert sorted(ask.must_include) == must.split()
    assert ask.size == required


HUNDREDS = "A0-99@0 B0-99@1"


@pytest.mark.parametrize(
    ("listed", "affinity", "answer", "outcome"),
    [
        (HUNDREDS, "{0}", "A7 A8 A9 A10 A11", "A7 A8 A9 A10 A11"),
        (HUNDREDS, "{0}", "A7 A8 A9 B0 B1", "A7 A8 A9 A0 A1"),
        ("B0-99@1", "{1}", "B7 B8 B9 X Y", "B7 B8 B9 B0 B1"),
        ("A0-2@0 B0-96@1", "{0}", "A0 A1 A2 B7 B8", "A0 A1 A2 B7 B8"),
        ("A0-2@0 B0-96@1", "{0}", "A0 A1 A2 B7 X", "A0 A1 A2 B7 B0"),
    ],
    ids=["all aligned", "unaligned ignored", "unknown ignored", "aligned given, rest free", "one unknown filled up"],
)
def test_the_answer_is_cut_to_the_candidates_and_filled_up(
    listed: str, affinity: str, answer: str, outcome: str
) -> None:
    ask = asked(begin(tables(listed), Want(OWNER, 5, mask(affinity)), first))

    assert chosen(finish(ask, frozenset(answer.split()), first)) == sorted(outcome.split())


@pytest.mark.parametrize(
    ("listed", "affinity", "by_node"),
    [("A0-2@0 B0-2@1", "{0}", {"A": 3, "B": 1}), ("A0-1@0 B0-1@1 C0-1@2 D0-1@3", "{1,3}", {"B": 2, "D": 2})],
)
def test_a_plugin_without_the_option_is_not_asked(listed: str, affinity: str, by_node: dict[str, int]) -> None:
    found = chosen(begin(tables(listed), Want(OWNER, 4, mask(affinity), asks_plugin=False), first))

    assert {name: sum(device.startswith(name) for device in found) for name in by_node} == by_node


def test_exactly_as_many_aligned_as_needed_are_taken_without_a_question() -> None:
    assert chosen(begin(tables("A0-1@0 B0-1@1"), Want(OWNER, 2, ON_0), first)) == ["A0", "A1"]


def test_without_affinity_the_plugin_is_asked_even_for_all_of_all() -> None:
    ask = asked(begin(tables("A0-1@0"), Want(OWNER, 2, None), first))

    assert (sorted(ask.available), ask.must_include) == (["A0", "A1"], frozenset())


def test_without_topology_an_affinity_changes_nothing() -> None:
    assert len(asked(begin(tables("A B C"), Want(OWNER, 2, ON_0), first)).available) == 3


def test_a_device_on_two_nodes_is_aligned_with_either() -> None:
    ask = asked(begin(tables("A0-1@0,1 B@1"), Want(OWNER, 1, ON_0), first))

    assert sorted(ask.available) == ["A0", "A1"]


def test_unaligned_devices_fill_up_before_those_without_a_node() -> None:
    step = begin(tables("A@0 B@1 C"), Want(OWNER, 2, ON_0, asks_plugin=False), first)

    assert chosen(step) == ["A", "B"]


def test_of_too_many_answered_an_arbitrary_part_is_taken() -> None:
    ask = asked(begin(tables("A0-9@0"), Want(OWNER, 2, ON_0), first))

    assert chosen(finish(ask, frozenset({"A3", "A4", "A5"}), last)) == ["A4", "A5"]


def test_a_must_include_that_the_answer_leaves_out_is_taken_all_the_same() -> None:
    ask = asked(begin(tables("A@0 B0-3@1"), Want(OWNER, 2, ON_0), first))

    assert chosen(finish(ask, frozenset({"B1", "B2"}), first)) == ["A", "B1"]


@pytest.mark.parametrize("answer", [None, frozenset[str]()])
def test_an_answer_without_preference_leaves_the_choice_to_the_kubelet(answer: frozenset[str] | None) -> None:
    ask = asked(begin(tables("A0-3@0"), Want(OWNER, 2, ON_0), first))

    assert chosen(finish(ask, answer, last)) == ["A2", "A3"]


def test_reusable_devices_that_suffice_are_picked_without_a_question() -> None:
    before = tables("A0-7@0", allocated="A0 A1 A2", reusable="A0 A1 A2")

    assert chosen(begin(before, Want(OWNER, 2, ON_0), last)) == ["A1", "A2"]


def test_devices_reusable_by_another_pod_are_not_reused() -> None:
    before = tables("A0-2@0", allocated="A0", reusable="A0")

    ask = asked(begin(before, Want(Owner("other", "app", CORE), 1, ON_0), first))

    assert sorted(ask.available) == ["A1", "A2"]


def test_a_request_of_nothing_calls_nothing() -> None:
    assert chosen(begin(tables("A@0"), Want(OWNER, 0, ON_0), first)) == []


def test_a_request_of_nothing_fails_without_a_healthy_device() -> None:
    assert "no healthy devices present" in refusal(begin(tables("A@0", unhealthy="A"), Want(OWNER, 0, ON_0), first))


def test_recorded_devices_need_no_new_call() -> None:
    before = recorded(tables("A0-3@0"), "app", "A1", "A2")

    assert chosen(begin(before, Want(OWNER, 2, ON_0), first)) == []


def test_a_changed_request_is_refused_in_the_kubelets_words() -> None:
    before = recorded(tables("A0-3@0"), "app", "A1")

    assert refusal(begin(before, Want(OWNER, 2, ON_0), first)) == (
        f'pod "pod" container "app" changed request for resource "{CORE}" from 1 to 2'
    )


def test_recorded_devices_that_are_no_longer_healthy_are_refused() -> None:
    before = list_received(recorded(tables("A0-1@0"), "app", "A1"), CORE, devices("A0-1@0"), frozenset({"A0"}))

    assert refusal(begin(before, Want(OWNER, 1, ON_0), first)) == (
        f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {CORE}"
    )


def test_an_unregistered_resource_is_refused() -> None:
    assert refusal(begin(DeviceTables(), Want(OWNER, 1, None), first)) == f"cannot allocate unregistered device {CORE}"


def test_too_few_free_devices_are_refused_with_both_numbers() -> None:
    step = begin(tables("A0-3@0", allocated="A0"), Want(OWNER, 4, ON_0), first)

    assert refusal(step) == f"requested number of devices unavailable for {CORE}. Requested: 4, Available: 3"


def test_a_container_running_since_before_the_restart_is_left_alone() -> None:
    before = recorded(tables("A0-1@0"), "app", "A1")
    gone = kubelet_restarted(before)

    assert chosen(begin(gone, Want(OWNER, 1, None, sources_ready=False, was_running=True), first)) == []
    assert "no healthy devices" in refusal(begin(gone, Want(OWNER, 1, None, sources_ready=False), first))


def test_a_failed_question_leaks_the_aligned_devices_until_a_rebuild() -> None:
    ask = asked(begin(tables("A0-1@0 B0-9@1"), Want(OWNER, 4, ON_0), first))

    failed = ask_failed(ask, "rpc error: code = Internal desc = broken")

    assert failed.text.startswith("device plugin GetPreferredAllocation rpc failed with err: rpc error")
    assert failed.tables.allocated[CORE] == {"A0", "A1"}
    assert not rebuild(failed.tables).allocated.get(CORE)


def test_chosen_devices_are_allocated_at_once_and_recorded_after_the_call() -> None:
    step = begin(tables("A0-1@0"), Want(OWNER, 2, ON_0), first)
    assert isinstance(step, Done)

    assert step.tables.allocated[CORE] == {"A0", "A1"}
    assert OWNER not in step.tables.recorded
    assert recorded(step.tables, "app", *step.devices).recorded[OWNER] == {"A0", "A1"}


def test_a_collection_during_the_call_loses_the_pending_reservation() -> None:
    before = recorded(tables("A0-3@0"), "app", "A3", pod_uid="ending")
    step = begin(before, Want(OWNER, 3, ON_0), first)
    assert isinstance(step, Done)

    during = collect(step.tables, frozenset({POD}))
    after = allocate_succeeded(during, OWNER, step.devices)

    assert isinstance(after, DeviceTables)
    assert not after.allocated.get(CORE)
    assert sorted(asked(begin(after, Want(Owner("next", "app", CORE), 1, ON_0), first)).available) == [
        "A0", "A1", "A2", "A3",
    ]  # fmt: skip


def test_collection_without_an_ended_pod_rebuilds_nothing() -> None:
    leaked = tables("A0-3@0", allocated="A2")

    assert collect(leaked, frozenset({POD})) is leaked


def test_a_device_that_leaves_the_list_while_it_is_allocated_crashes_the_kubelet() -> None:
    shorter = list_received(tables("A0-1@0"), CORE, devices("A0@0"), frozenset({"A0"}))

    after = allocate_succeeded(shorter, OWNER, frozenset({"A1"}))

    assert isinstance(after, Refused)
    assert after.text == f"the kubelet crashes: A1 of {CORE} left the device list while it was allocated"


def test_hints_for_a_pod_whose_device_left_the_list_crash_the_kubelet() -> None:
    before = recorded(tables("A0-1@0"), "app", "A1")
    shorter = list_received(before, CORE, devices("A0@0"), frozenset({"A0"}))
    one = pod(app(core="1"))

    assert crash_reason(before, one, one.containers[0]) is None
    assert "left the device list" in (crash_reason(shorter, one, one.containers[0]) or "")
    assert "left the device list" in (crash_reason(shorter, one, None) or "")


def test_a_stopped_plugin_leaves_its_devices_unhealthy_then_unregistered() -> None:
    stopped = stream_ended(tables("A0-1@0"), CORE)
    gone = grace_period_ended(stopped, CORE)
    one = pod(app(core="1"))

    assert spelt(container_hints(stopped, one, one.containers[0], (0, 1))[CORE]) == ""
    assert "no healthy devices" in refusal(begin(stopped, Want(OWNER, 1, None), first))
    assert "unregistered" in refusal(begin(gone, Want(OWNER, 1, None), first))


def test_a_plugin_that_went_before_its_first_list_leaves_no_trace() -> None:
    assert not is_device_resource(stream_ended(DeviceTables(), CORE), CORE)
    assert not is_device_resource(grace_period_ended(DeviceTables(), CORE), CORE)


def test_a_restarted_kubelet_has_no_opinion_until_the_plugin_is_back() -> None:
    before = kubelet_restarted(recorded(tables("A0-1@0"), "app", "A1"))
    one = pod(app(core="1"))

    assert container_hints(before, one, one.containers[0], (0, 1)) == {CORE: None}
    assert before.allocated[CORE] == {"A1"}


def test_a_resource_that_nobody_registered_is_not_mentioned() -> None:
    one = pod(app(core="1", cpu="1"))

    assert container_hints(DeviceTables(), one, one.containers[0], (0, 1)) == {}


def test_init_container_devices_become_reusable_and_those_of_sidecars_do_not() -> None:
    first_init, helper, main = init("i", core="2"), sidecar("s", core="1"), app(core="2")
    state = container_opened(tables("A0-5@0"), POD)

    state = container_closed(recorded(state, first_init, "A0", "A1"), POD, first_init)
    assert state.reusable[CORE] == {"A0", "A1"}
    state = container_closed(recorded(state, helper, "A0"), POD, helper)
    assert state.reusable[CORE] == {"A1"}
    state = container_closed(recorded(state, main, "A1", "A2"), POD, main)
    assert state.reusable[CORE] == frozenset()


def test_another_pods_allocation_forgets_what_was_reusable() -> None:
    state = tables("A0-5@0", allocated="A0", reusable="A0")

    assert container_opened(state, POD) is state
    assert container_opened(state, "other").reusable == {}


def test_container_hints_bind_to_the_nodes_of_reusable_devices_and_pod_hints_do_not() -> None:
    state = tables("A0-1@0 B0-1@1", allocated="A0", reusable="A0")
    two = pod(init(core="1"), app(core="1"))

    assert spelt(container_hints(state, two, two.containers[1], (0, 1))[CORE]) == "{0}P {0,1}n"
    assert spelt(pod_hints(state, two, (0, 1))[CORE]) == "{0}P {1}P {0,1}n"


def test_pod_hints_ask_for_the_larger_of_init_and_running_containers() -> None:
    state = tables("A0-3@0 B0-3@1")

    assert spelt(pod_hints(state, pod(init(core="5"), app(core="1")), (0, 1))[CORE]) == "{0,1}P"
    assert spelt(pod_hints(state, pod(init(core="4"), app(core="4")), (0, 1))[CORE]) == "{0}P {1}P {0,1}n"
    assert spelt(pod_hints(state, pod(sidecar(core="1"), app(core="4")), (0, 1))[CORE]) == "{0,1}P"


def test_pod_hints_come_again_from_the_devices_of_all_its_containers() -> None:
    two = pod(app("a", core="1"), app("b", core="1"))
    state = recorded(recorded(tables("A0-1@0 B0-1@1"), "a", "A0"), "b", "B0")

    assert spelt(pod_hints(state, two, (0, 1))[CORE]) == "{0,1}n"
