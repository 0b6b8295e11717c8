"""The watchdog's judgement: what is a finding, whose it is, and when it is one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from topoalloc.sharing.overuse import (
    SAMPLES_IN_A_ROW,
    Finding,
    GpuProcess,
    Overuse,
    OveruseState,
    WatchedShare,
    overuse,
)

MIB = 1024**2
TOLERANCE = 256 * MIB
A = WatchedShare("a-c00", "GPU-1", "uid-a", 1024 * MIB, 1)
B = WatchedShare("b-c50", "GPU-1", "uid-b", 2048 * MIB, 1)
IN_A = GpuProcess("GPU-1", 10, 100, 1024 * MIB, "uid-a", "ca")
IN_B = GpuProcess("GPU-1", 20, 200, 2048 * MIB, "uid-b", "cb")


def after(samples: list[tuple[list[WatchedShare], list[GpuProcess]]]) -> list[tuple[Finding, ...]]:
    state: OveruseState = {}
    found = []
    for shares, processes in samples:
        judgement = overuse(state, shares, processes, TOLERANCE)
        state = judgement.state
        found.append(judgement.findings)
    return found


def kinds(findings: tuple[Finding, ...]) -> list[tuple[Overuse, tuple[str, ...], bool]]:
    return [(finding.kind, finding.shares, finding.new) for finding in findings]


def test_containers_within_their_grants_are_no_finding():
    assert after([([A, B], [IN_A, IN_B])] * 5) == [()] * 5


def test_too_much_memory_is_a_finding_in_the_third_sample_and_new_once():
    over = replace(IN_A, memory_bytes=1024 * MIB + TOLERANCE + 1)

    found = after([([A, B], [over, IN_B])] * 4)

    assert [kinds(one) for one in found] == [
        [],
        [],
        [(Overuse.MEMORY, ("a-c00",), True)],
        [(Overuse.MEMORY, ("a-c00",), False)],
    ]
    assert found[2][0].processes == (over,)


def test_what_is_within_the_tolerance_is_a_context_being_made():
    assert after([([A], [replace(IN_A, memory_bytes=1024 * MIB + TOLERANCE)])] * 4)[-1] == ()


def test_one_good_sample_begins_the_count_anew():
    over = replace(IN_A, memory_bytes=4096 * MIB)

    found = after([([A], [over])] * 2 + [([A], [IN_A])] + [([A], [over])] * 2)

    assert found == [()] * 5


OVER = replace(IN_A, memory_bytes=1024 * MIB + TOLERANCE + 1)
UNTOLD = replace(IN_A, pid=11, memory_bytes=None)
TWO = replace(A, live_processes=2)


def test_what_is_known_proves_too_much_whatever_the_driver_keeps_back():
    found = after([([TWO], [OVER, UNTOLD])] * 3)[-1]

    assert kinds(found) == [(Overuse.MEMORY, ("a-c00",), True)]
    assert f"holds at least {OVER.memory_bytes} bytes" in str(found[0])


def test_a_figure_that_the_driver_keeps_back_accuses_nobody():
    assert after([([TWO], [IN_A, UNTOLD])] * 5) == [()] * 5


def test_a_figure_that_the_driver_keeps_back_acquits_nobody():
    """What was counted before is gone on with, and a finding is no new one afterwards."""
    untold = ([A], [replace(OVER, memory_bytes=None)])
    over = ([A], [OVER])

    found = after([over, over, untold, untold, over, untold, over])

    memory = (Overuse.MEMORY, ("a-c00",))
    assert [kinds(one) for one in found] == [[], [], [], [], [(*memory, True)], [], [(*memory, False)]]


def test_a_gpu_of_which_the_driver_tells_nothing_for_a_moment_leaves_everything_as_it_was():
    state: OveruseState = {}
    for _ in range(2):
        state = overuse(state, [A, B], [OVER, IN_B], TOLERANCE).state
    silent = overuse(state, [A, B], [], TOLERANCE, {"GPU-1"})

    assert silent.findings == ()
    assert silent.state == state
    assert [kinds(overuse(silent.state, [A, B], [OVER, IN_B], TOLERANCE).findings)] == [
        [(Overuse.MEMORY, ("a-c00",), True)]
    ]


def test_an_account_that_cannot_be_read_for_a_moment_does_not_begin_the_count_anew():
    second = replace(IN_A, pid=11, memory_bytes=0)
    seen, unread = ([A], [IN_A, second]), ([replace(A, live_processes=None)], [IN_A, second])

    found = after([seen, unread, seen, unread, seen])

    assert [kinds(one) for one in found] == [[], [], [], [], [(Overuse.UNLIMITED, ("a-c00",), True)]]


def test_it_is_told_of_whose_memory_the_sample_says_enough():
    def judged(processes: list[GpuProcess], silent: frozenset[str] = frozenset()) -> frozenset[str]:
        return overuse({}, [A, B], processes, TOLERANCE, silent).judged

    assert judged([]) == judged([IN_A, IN_B]) == judged([OVER, UNTOLD]) == {"a-c00", "b-c50"}
    assert judged([IN_A, UNTOLD, IN_B]) == {"b-c50"}
    assert judged([], frozenset({"GPU-1"})) == frozenset()


def test_a_process_without_a_live_slot_is_a_finding():
    second = replace(IN_A, pid=11, memory_bytes=0)

    found = after([([A], [IN_A, second])] * 3)[-1]

    assert kinds(found) == [(Overuse.UNLIMITED, ("a-c00",), True)]
    assert "2 processes use GPU-1, 1 under limits" in str(found[0])


def test_a_container_whose_account_cannot_be_read_is_judged_by_memory_alone():
    unread = replace(A, live_processes=None)

    assert after([([unread], [IN_A, replace(IN_A, pid=11, memory_bytes=0)])] * 3)[-1] == ()


def test_where_memory_is_not_limited_there_is_no_too_much():
    assert after([([replace(A, memory_bytes=None)], [replace(IN_A, memory_bytes=10**15)])] * 3)[-1] == ()


def test_a_share_without_memory_may_hold_no_more_than_the_tolerance():
    found = after([([replace(A, memory_bytes=0)], [replace(IN_A, memory_bytes=TOLERANCE + 1)])] * 3)[-1]

    assert kinds(found) == [(Overuse.MEMORY, ("a-c00",), True)]


def test_two_containers_of_one_pod_are_told_apart_once_they_have_shown_themselves():
    first, second = replace(A, container="ca"), replace(A, name="a-c10", container="cx")
    over, other = replace(IN_A, memory_bytes=2000 * MIB), replace(IN_A, pid=11, container="cx", memory_bytes=0)

    assert [kinds(one) for one in after([([first, second], [over, other])] * 3)][-1] == [
        (Overuse.MEMORY, ("a-c00",), True)
    ]


def test_two_containers_that_cannot_be_told_apart_are_judged_together():
    second = replace(A, name="a-c10")
    within, over = replace(IN_A, memory_bytes=2048 * MIB), replace(IN_A, memory_bytes=2048 * MIB + TOLERANCE + 1)

    assert after([([A, second], [within])] * 3)[-1] == ()
    assert [kinds(one) for one in after([([A, second], [over])] * 3)][-1] == [
        (Overuse.MEMORY, ("a-c00", "a-c10"), True)
    ]


def test_a_container_of_the_pod_without_a_share_is_nobodys_here():
    known = replace(A, container="ca")

    assert after([([known], [replace(IN_A, container="whole", memory_bytes=10**12)])] * 3)[-1] == ()


shares_of = st.lists(
    st.builds(
        WatchedShare,
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["GPU-1", "GPU-2"]),
        st.sampled_from(["u1", "u2"]),
        st.none() | st.integers(0, 4096).map(lambda mib: mib * MIB),
        st.none() | st.integers(0, 3),
        st.none() | st.sampled_from(["ca", "cb"]),
    ),
    max_size=4,
    unique_by=lambda share: share.name,
)
processes_of = st.lists(
    st.builds(
        GpuProcess,
        st.sampled_from(["GPU-1", "GPU-2"]),
        st.integers(1, 9),
        st.just(1),
        st.none() | st.integers(0, 4096).map(lambda mib: mib * MIB),
        st.sampled_from(["u1", "u2", "u3"]),
        st.sampled_from(["ca", "cb", "cc"]),
    ),
    max_size=6,
    unique_by=lambda process: (process.gpu, process.pid),
)


@given(shares_of, processes_of, st.data())
def test_no_figure_that_was_kept_back_could_change_the_verdict_on_a_share_that_is_judged(
    shares: list[WatchedShare], processes: list[GpuProcess], data: st.DataObject
):
    figures = st.integers(0, 1024**4)
    told = [one if one.memory_bytes is not None else replace(one, memory_bytes=data.draw(figures)) for one in processes]
    before = {(kind, (share.name,)): SAMPLES_IN_A_ROW - 1 for kind in Overuse for share in shares}
    one, other = (overuse(before, shares, sample, TOLERANCE) for sample in (processes, told))

    def accused(findings: tuple[Finding, ...]) -> set[str]:
        return {name for finding in findings if finding.kind is Overuse.MEMORY for name in finding.shares}

    assert other.judged == {share.name for share in shares}
    assert accused(one.findings) == accused(other.findings) & one.judged


@given(st.lists(st.tuples(shares_of, processes_of), min_size=1, max_size=6))
def test_findings_name_only_processes_of_the_pods_that_they_accuse(
    samples: list[tuple[list[WatchedShare], list[GpuProcess]]],
):
    """And they need so many samples in a row, and memory above all that the accused were granted together."""
    for number, (found, (shares, processes)) in enumerate(zip(after(samples), samples, strict=True)):
        for finding in found:
            assert number + 1 >= SAMPLES_IN_A_ROW
            accused = [share for share in shares if share.name in finding.shares]
            assert {(process.pod_uid, process.gpu) for process in finding.processes} == {
                (share.pod_uid, share.gpu) for share in accused
            }
            assert set(finding.processes) <= set(processes)
            if finding.kind is Overuse.MEMORY:
                assert finding.used_bytes > sum(share.memory_bytes or 0 for share in accused) + TOLERANCE
