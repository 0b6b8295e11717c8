"""The pace of elastic shares: what each may take stays within its bounds and the GPU, and nobody waits for its own."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from topoalloc.sharing.pace import (
    MARGIN_CORES,
    PERIODS_KEPT,
    WANTING_NS,
    PaceShare,
    PaceState,
    forgetting,
    is_wanting,
    pace,
    pace_share,
)
from topoalloc.sharing.share_file import CORES_FULL, ShareLimits
from topoalloc.sharing.share_sample import ShareSample
from topoalloc.sharing.usage import Usage, UsageRefusal

PERIODS_A_SECOND = 5
PERIOD_NS = 1_000_000_000 // PERIODS_A_SECOND


@st.composite
def gpus(draw: st.DrawFn) -> list[PaceShare]:
    """Shares whose cores fit one GPU, as the ledger sees to."""
    left, shares = CORES_FULL, list[PaceShare]()
    for number in range(draw(st.integers(1, 6))):
        if left < 100:
            break
        cores = 100 * draw(st.integers(1, min(99, left // 100)))
        left -= cores
        cores_max = draw(st.one_of(st.just(cores), st.integers(cores, CORES_FULL)))
        used = draw(st.none() | st.integers(0, CORES_FULL))
        shares.append(PaceShare(f"s{number}", cores, cores_max, used, draw(st.booleans())))
    return shares


def settled(shares: list[PaceShare]) -> dict[str, int]:
    state, allowed = PaceState(), dict[str, int]()
    for _ in range(PERIODS_KEPT):
        state, latest = pace(state, shares)
        allowed = dict(latest)
    return allowed


@given(gpus())
def test_nobody_is_set_below_its_cores_or_above_its_most(shares: list[PaceShare]):
    _, allowed = pace(PaceState(), shares)

    assert allowed.keys() == {share.name for share in shares if share.cores_max > share.cores}
    assert all(share.cores <= allowed[share.name] <= share.cores_max for share in shares if share.name in allowed)


@given(gpus())
def test_what_is_lent_and_what_the_shares_need_fit_the_gpu(shares: list[PaceShare]):
    _, allowed = pace(PaceState(), shares)

    lent = sum(allowed[share.name] - share.cores for share in shares if share.name in allowed)
    needed = sum(share.cores if share.used is None else min(share.cores, share.used) for share in shares)
    wanted = sum(share.cores for share in shares if share.wanting)
    assert lent + needed <= CORES_FULL
    assert lent + wanted <= CORES_FULL


@given(gpus())
def test_when_everybody_wants_theirs_the_limits_add_up_to_one_gpu(shares: list[PaceShare]):
    everybody = [replace(share, wanting=True) for share in shares]
    _, allowed = pace(PaceState(), everybody)

    assert sum(allowed.get(share.name, share.cores) for share in everybody) <= CORES_FULL


@given(gpus(), st.data())
def test_another_share_that_uses_more_never_gives_anybody_more(shares: list[PaceShare], data: st.DataObject):
    other = data.draw(st.sampled_from(shares))
    busier = replace(other, used=data.draw(st.integers(other.used or 0, CORES_FULL)), wanting=True)
    _, before = pace(PaceState(), shares)
    _, after = pace(PaceState(), [busier if share is other else share for share in shares])

    assert all(after[name] <= before[name] for name in before if name != other.name)


@given(gpus(), st.data())
def test_a_share_that_begins_to_want_more_gets_no_less(shares: list[PaceShare], data: st.DataObject):
    one = data.draw(st.sampled_from(shares))
    _, before = pace(PaceState(), shares)
    _, after = pace(PaceState(), [replace(one, wanting=True) if share is one else share for share in shares])

    assert after.get(one.name, one.cores) >= before.get(one.name, one.cores)


@given(gpus())
def test_idle_time_is_lent_to_the_last_hundredths(shares: list[PaceShare]):
    """Nobody who asks starves while there is something to lend: what stays over is less than one step each."""
    everybody = [replace(share, wanting=True) for share in shares]
    _, allowed = pace(PaceState(), everybody)

    idle = CORES_FULL - sum(share.cores for share in everybody)
    hungry = [share for share in everybody if share.name in allowed and allowed[share.name] < share.cores_max]
    lent = sum(allowed[share.name] - share.cores for share in everybody if share.name in allowed)
    assert not hungry or idle - lent <= 2 * len(everybody)
    if idle >= CORES_FULL // 10:
        assert all(allowed[share.name] > share.cores for share in hungry if share.cores >= 1000)


@given(gpus(), st.integers(1, PERIODS_KEPT))
def test_a_share_of_whose_use_nothing_is_known_lends_nothing_and_is_lent_nothing(shares: list[PaceShare], periods: int):
    """Not in that period and, to others, not while it is one of those that count."""
    unknown, *others = shares
    unknown = replace(unknown, used=None, wanting=False)
    state, allowed = pace(PaceState(), [unknown, *others])
    assert allowed.get(unknown.name, unknown.cores) == unknown.cores

    for _ in range(periods - 1):
        state, allowed = pace(state, [replace(unknown, used=0), *others])
    lent = sum(allowed[share.name] - share.cores for share in others if share.name in allowed)
    assert lent + unknown.cores <= CORES_FULL


def test_a_share_of_whose_use_nothing_is_known_is_lent_time_where_it_was_held_back():
    _, allowed = pace(PaceState(), [PaceShare("a", 3000, CORES_FULL, used=None, wanting=True)])

    assert allowed == {"a": CORES_FULL}


def test_what_is_not_known_counts_for_a_second_and_no_longer():
    elastic = PaceShare("a", 3000, CORES_FULL, used=3000, wanting=True)
    idle = PaceShare("b", 7000, 7000, used=0, wanting=False)
    state, allowed = pace(PaceState(), [elastic, replace(idle, used=None)])
    given = [allowed]
    for _ in range(PERIODS_A_SECOND):
        state, allowed = pace(state, [elastic, idle])
        given.append(allowed)

    assert given == [{"a": 3000}] * PERIODS_A_SECOND + [{"a": 9800}]


def test_a_new_share_of_the_same_name_does_not_go_on_with_the_figures_of_the_old_one():
    busy, new = PaceShare("a", 3000, 6000, used=5500, wanting=False), PaceShare("a", 3000, 6000, 0, wanting=False)
    state, _ = pace(PaceState(), [busy])

    assert pace(state, [new])[1] == {"a": 6000}
    assert pace(forgetting(state, {"a"}), [new])[1] == {"a": 3000}


def test_a_lone_share_gets_the_whole_gpu_at_once():
    _, allowed = pace(PaceState(), [PaceShare("a", 3000, CORES_FULL, used=3000, wanting=True)])

    assert allowed == {"a": CORES_FULL}


def test_what_was_lent_is_back_in_the_period_after_its_owner_wants_it():
    elastic = PaceShare("a", 3000, CORES_FULL, used=9000, wanting=True)
    idle = PaceShare("b", 7000, 7000, used=0, wanting=False)
    state, allowed = pace(PaceState(), [elastic, idle])
    assert allowed == {"a": CORES_FULL - min(7000, MARGIN_CORES)}

    _, allowed = pace(state, [elastic, replace(idle, wanting=True)])

    assert allowed == {"a": 3000}


def test_a_pause_of_less_than_a_second_lends_nothing_out():
    elastic = PaceShare("a", 3000, CORES_FULL, used=3000, wanting=True)
    state, _ = pace(PaceState(), [elastic, PaceShare("b", 7000, 7000, used=7000, wanting=True)])
    for _ in range(PERIODS_A_SECOND - 1):
        state, allowed = pace(state, [elastic, PaceShare("b", 7000, 7000, used=0, wanting=False)])
        assert allowed == {"a": 3000}

    _, allowed = pace(state, [elastic, PaceShare("b", 7000, 7000, used=0, wanting=False)])

    assert allowed == {"a": 9800}


def test_a_share_that_fills_what_it_was_lent_without_being_held_back_keeps_it():
    shares = [PaceShare("a", 3000, 6000, used=5500, wanting=False), PaceShare("b", 1000, 1000, 0, wanting=False)]

    assert settled(shares) == {"a": 6000}


def test_idle_time_is_divided_in_proportion_to_cores():
    shares = [PaceShare("a", 1000, CORES_FULL, 0, wanting=True), PaceShare("b", 3000, CORES_FULL, 0, wanting=True)]

    assert settled(shares) == {"a": 2500, "b": 7500}


def test_being_held_back_counts_for_a_second_and_never_from_the_future():
    now_ns = 10 * WANTING_NS

    assert is_wanting(now_ns - WANTING_NS, now_ns)
    assert not is_wanting(now_ns - WANTING_NS - 1, now_ns)
    assert not is_wanting(now_ns + 1, now_ns)
    assert not is_wanting(0, WANTING_NS)


def sample(at_ns: int, gpu_time_ns: int | None, *, inode: int = 1, launches: int = 9) -> ShareSample:
    """`gpu_time_ns` None: its account cannot be read."""
    usage = UsageRefusal("") if gpu_time_ns is None else Usage((), gpu_time_ns, 0, launches, 0, 0)
    return ShareSample("a", inode, ShareLimits(1, "GPU-8e", 3000, 6000, None, 0, True), usage, at_ns)


def used(before: ShareSample | None, now: ShareSample) -> int | None:
    share = pace_share(before, now)
    assert share is not None
    return share.used


def test_what_a_share_used_is_told_of_two_looks_a_period_apart():
    assert used(sample(0, 1000), sample(PERIOD_NS, 1000 + PERIOD_NS // 4)) == 2500
    assert used(sample(0, 1000), sample(PERIOD_NS, 1000)) == 0


def test_what_a_share_used_is_not_known_at_the_first_look():
    assert used(None, sample(PERIOD_NS, 1000)) is None
    assert used(sample(0, 1000, inode=2), sample(PERIOD_NS, 1000)) is None


def test_what_a_share_used_is_not_known_where_one_look_could_not_read_its_account():
    assert used(sample(0, None), sample(PERIOD_NS, 1000)) is None
    assert used(sample(0, 1000), sample(PERIOD_NS, None)) is None


def test_an_average_over_more_than_a_second_is_not_taken_for_the_last_period():
    second_ns = PERIODS_A_SECOND * PERIOD_NS

    assert used(sample(0, 0), sample(second_ns, second_ns)) == CORES_FULL
    assert used(sample(0, 0), sample(second_ns + 1, second_ns)) is None


def test_a_share_that_has_launched_nothing_used_nothing_also_at_the_first_look():
    assert used(None, sample(PERIOD_NS, 0, launches=0)) == 0
    assert used(None, sample(PERIOD_NS, 0, launches=1)) is None  # its first kernel is on its way
