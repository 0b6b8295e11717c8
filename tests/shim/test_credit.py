"""The rules of the library that need neither clock nor memory: what a bucket of GPU time allows, what samples tell.

The C functions themselves are called, compiled as they are.
"""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shim.built import SHIM_FLAGS, SHIM_SOURCES, ran
from topoalloc.sharing.told_files import TURN_PERIOD_US

PERIOD_NS = TURN_PERIOD_US * 1000
MS = 1_000_000
SAVED_NS, RESUME_NS, AHEAD_NS, EARLY_NS = 5 * MS, 1 * MS, 2 * MS, 1 * MS
SAMPLES = 16


class Terms(ctypes.Structure):
    _fields_ = (("cores", ctypes.c_uint32), ("from_ns", ctypes.c_uint64), ("turn_ns", ctypes.c_uint64))


class Estimate(ctypes.Structure):
    _fields_ = (
        ("key", ctypes.c_uint64),
        ("ns_believed", ctypes.c_uint32),
        ("pending", ctypes.c_uint32),
        ("unsteady", ctypes.c_uint32),
        ("audited_ns", ctypes.c_uint32),
        ("doubted", ctypes.c_uint32),
        ("shortest_ns", ctypes.c_uint32),
        ("longest_ns", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("shortest_before_ns", ctypes.c_uint32),
        ("sliced", ctypes.c_uint32),
        ("samples_ns", ctypes.c_uint32 * SAMPLES),
    )


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if not shutil.which("gcc"):
        pytest.skip("gcc compiles the rules")
    library = tmp_path_factory.mktemp("rules") / "rules.so"
    sources = [str(SHIM_SOURCES / name) for name in ("credit.c", "estimate.c")]
    flags = [flag for flag in SHIM_FLAGS if flag != "-fvisibility=hidden"]
    ran("gcc", *flags, "-shared", "-o", str(library), *sources)
    loaded = ctypes.CDLL(str(library))
    loaded.credit_paid_after.restype = loaded.credit_wait_until.restype = ctypes.c_uint64
    loaded.credit_paid_after.argtypes = [ctypes.c_uint64] * 3 + [ctypes.POINTER(Terms)]
    loaded.credit_wait_until.argtypes = [ctypes.c_uint64] * 2 + [ctypes.c_int] * 2 + [ctypes.POINTER(Terms)]
    loaded.estimate_mean_after.argtypes = [ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint32]
    loaded.estimate_add.argtypes = [ctypes.POINTER(Estimate), ctypes.c_uint64, ctypes.c_int, ctypes.c_int]
    return loaded


@dataclass
class Busy:
    """A program that launches whenever it may, on a GPU that is its own."""

    rules: ctypes.CDLL
    terms: Terms
    kernel_ns: int
    began_ns: int = 7 * PERIOD_NS + 12_345
    late_ns: int = 60_000  # waking takes that long

    def launches(self, for_ns: int) -> list[int]:
        """When each went."""
        now_ns, paid_ns, went = self.began_ns, 0, list[int]()
        while now_ns < self.began_ns + for_ns:
            waited = False
            while at_ns := self.rules.credit_wait_until(paid_ns, now_ns, waited, False, self.terms):
                assert at_ns > now_ns
                now_ns, waited = at_ns + self.late_ns, True
            went.append(now_ns)
            paid_ns = self.rules.credit_paid_after(paid_ns, now_ns, self.kernel_ns, self.terms)
            now_ns += 5_000  # what the launch itself takes
        return went


def terms_of(cores: int, begin: float, part: float) -> Terms:
    """`begin` and `part` of the period."""
    turn_ns = round(PERIOD_NS * part)
    return Terms(cores, round((PERIOD_NS - turn_ns) * begin), turn_ns)


@st.composite
def terms(draw: st.DrawFn) -> Terms:
    cores = draw(st.integers(100, 9900))
    if draw(st.booleans()):
        return Terms(cores, 0, 0)
    return terms_of(cores, draw(st.floats(0, 1)), draw(st.floats(cores / 10_000, 1)))


@given(terms=terms(), kernel_ns=st.integers(20_000, 5 * MS))
def test_a_busy_program_gets_its_cores_with_turns_and_without(rules: ctypes.CDLL, terms: Terms, kernel_ns: int) -> None:
    for_ns = 50 * PERIOD_NS
    taken_ns = len(Busy(rules, terms, kernel_ns).launches(for_ns)) * kernel_ns

    due_ns = for_ns * terms.cores // 10_000
    of_a_period_ns = PERIOD_NS * terms.cores // 10_000 if terms.turn_ns else 0
    slack_ns = SAVED_NS + AHEAD_NS + RESUME_NS + 2 * kernel_ns + of_a_period_ns
    assert due_ns * 0.97 - slack_ns <= taken_ns <= due_ns + slack_ns


@given(cores=st.integers(500, 9000), begin=st.floats(0, 1), kernel_ns=st.integers(20_000, MS))
def test_a_busy_program_launches_in_its_turn_alone(
    rules: ctypes.CDLL, cores: int, begin: float, kernel_ns: int
) -> None:
    terms = terms_of(cores, begin, cores / 10_000)
    busy = Busy(rules, terms, kernel_ns)
    settled_ns = busy.began_ns + 5 * PERIOD_NS  # what it had saved at first is used up

    for went_ns in busy.launches(15 * PERIOD_NS):
        into_ns = (went_ns + EARLY_NS - terms.from_ns) % PERIOD_NS
        assert went_ns < settled_ns or into_ns <= EARLY_NS + terms.turn_ns + busy.late_ns


@given(terms=terms(), kernel_ns=st.integers(20_000, 50 * MS))
def test_no_launch_is_held_longer_than_a_period_and_what_the_one_before_it_costs(
    rules: ctypes.CDLL, terms: Terms, kernel_ns: int
) -> None:
    went = Busy(rules, terms, kernel_ns).launches(10 * PERIOD_NS)

    cost_ns = (kernel_ns + RESUME_NS) * 10_000 // terms.cores
    longest_ns = max(later - earlier for earlier, later in pairwise(went)) if went[1:] else 0
    assert longest_ns <= cost_ns + (2 * PERIOD_NS if terms.turn_ns else 0) + MS


def test_a_program_that_did_nothing_for_long_has_no_more_than_what_is_saved(rules: ctypes.CDLL) -> None:
    for each in (Terms(3000, 0, 0), terms_of(3000, 0.5, 0.3)):
        busy = Busy(rules, each, 100_000, began_ns=1000 * PERIOD_NS)
        at_once = [went for went in busy.launches(2 * MS) if went < busy.began_ns + 2 * MS]
        assert len(at_once) * 100_000 <= SAVED_NS + AHEAD_NS + 2 * MS


def test_a_time_far_in_the_future_is_a_broken_file_and_holds_nobody(rules: ctypes.CDLL) -> None:
    terms = Terms(3000, 0, 0)

    assert rules.credit_wait_until(2**63, PERIOD_NS, False, False, terms) == 0
    assert rules.credit_paid_after(2**63, PERIOD_NS, MS, terms) <= PERIOD_NS + MS * 10_000 // 3000


@given(
    paid_ns=st.integers(0, 2**62),
    now_ns=st.integers(10**9, 2**61),
    gpu_ns=st.integers(0, 4_000_000_000),
    terms=terms(),
)
def test_charging_never_makes_a_container_richer(
    rules: ctypes.CDLL, paid_ns: int, now_ns: int, gpu_ns: int, terms: Terms
) -> None:
    before = rules.credit_paid_after(paid_ns, now_ns, 0, terms)

    assert rules.credit_paid_after(paid_ns, now_ns, gpu_ns, terms) >= before


def believed(rules: ctypes.CDLL, samples: Sequence[int], sliced: Sequence[int] = (), alone: bool = False) -> int:
    estimate = Estimate()
    for number, sample in enumerate(samples):
        rules.estimate_add(ctypes.byref(estimate), sample, int(number in sliced), int(alone))
    return int(estimate.ns_believed)


@pytest.mark.parametrize("far", [400_000, 3_000_000])
def test_what_a_neighbour_disturbed_is_left_out(rules: ctypes.CDLL, far: int) -> None:
    sliced = (3, 9) if far > MS else ()

    assert believed(rules, [100_000 if n not in (3, 9) else far for n in range(SAMPLES)], sliced) == 100_000


def test_a_kernel_that_often_takes_longer_by_itself_is_believed_to_take_its_mean(rules: ctypes.CDLL) -> None:
    """Two matrices of one grid, one four times as deep: beside neighbours both were charged as the short one."""
    assert believed(rules, [100_000, 400_000] * 8) == 250_000


def test_slices_are_left_out_however_many_there_are_of_those_longer_than_the_rest(rules: ctypes.CDLL) -> None:
    samples = [100_000, 100_000, 400_000, 2_500_000] * 4

    assert believed(rules, samples, sliced=range(3, SAMPLES, 4)) == 200_000


def test_a_first_sample_with_a_slice_in_it_is_forgotten_with_the_next(rules: ctypes.CDLL) -> None:
    assert believed(rules, [2_500_000, 100_000], sliced=[0]) == 100_000


def test_of_long_kernels_the_shortest_counts(rules: ctypes.CDLL) -> None:
    assert believed(rules, [50 * MS, 80 * MS, 51 * MS, 90 * MS]) == 50 * MS


@given(samples=st.lists(st.integers(1, 4_000_000_000), min_size=1, max_size=40), data=st.data())
def test_what_is_believed_lies_between_the_shortest_and_the_longest(
    rules: ctypes.CDLL, samples: list[int], data: st.DataObject
) -> None:
    sliced = data.draw(st.sets(st.integers(0, len(samples) - 1)))

    assert min(samples) <= believed(rules, samples, sorted(sliced)) <= max(samples)


@pytest.mark.parametrize(("then", "priced"), [(20_000, 20_000), (900_000, 900_000), (300_000, 300_000)])
def test_what_a_varying_kernel_took_on_average_is_given_up_where_its_launches_show_another_phase(
    rules: ctypes.CDLL, then: int, priced: int
) -> None:
    """It was found while nobody else had the GPU, and is not looked at again while somebody has."""
    estimate = Estimate(unsteady=64, audited_ns=400_000)
    for _ in range(SAMPLES):
        rules.estimate_add(ctypes.byref(estimate), then, 0, 0)

    assert rules.estimate_audited(ctypes.byref(estimate)) == priced


def test_a_sample_far_shorter_than_what_is_believed_asks_for_more_and_those_end_it(rules: ctypes.CDLL) -> None:
    estimate = Estimate()
    wanted = []
    for sample in [2_000_000] * SAMPLES + [100_000] * (2 * SAMPLES):
        rules.estimate_add(ctypes.byref(estimate), sample, 0, 0)
        wanted.append(estimate.doubted > 0)

    assert wanted[SAMPLES - 1 : SAMPLES + 1] == [False, True]
    assert not wanted[-1]
    assert estimate.ns_believed == 100_000


def test_what_a_varying_kernel_took_on_average_stays_while_its_launches_lie_around_it(rules: ctypes.CDLL) -> None:
    estimate = Estimate(unsteady=64, audited_ns=400_000)
    for number in range(SAMPLES):
        rules.estimate_add(ctypes.byref(estimate), 100_000 if number % 2 else 900_000, 0, 0)

    assert rules.estimate_audited(ctypes.byref(estimate)) == 400_000


@pytest.mark.parametrize(
    ("before", "took", "launches", "after"),
    [(100, 3000, 10, 200), (300, 2000, 10, 250), (1000, 1000, 10, 100), (100, 2**40, 1, (100 + 2**32) // 2)],
)
def test_a_mean_moves_by_halves_and_far_down_at_once(
    rules: ctypes.CDLL, before: int, took: int, launches: int, after: int
) -> None:
    assert rules.estimate_mean_after(before, took, launches) % 2**32 == after
