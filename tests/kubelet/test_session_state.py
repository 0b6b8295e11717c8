"""When a resource binds a new socket and when it registers, and that no path is ever registered twice."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from topoalloc.kubelet import session_state
from topoalloc.kubelet.session_state import (
    BACKOFF_MAX_S,
    STREAM_WAIT_MAX_S,
    Phase,
    Seen,
    Session,
    SocketMark,
    Step,
    backoff_s,
    next_step,
)

FIRST = SocketMark(7, 1000)
SAME_INODE_LATER = SocketMark(7, 2000)
SOUND = Session(Phase.REGISTERED, FIRST, 0, 10.0, streamed=True)
LOOK = Seen(kubelet=FIRST, own_socket=True, streams=1, now_s=11.0)


def test_nothing_is_bound_before_the_kubelet_has_its_socket():
    assert next_step(Session(), Seen(None, False, 0, 0.0)) is Step.WAIT


def test_a_fresh_session_binds_as_soon_as_the_kubelet_is_there():
    assert next_step(Session(), Seen(FIRST, False, 0, 0.0)) is Step.BIND


def test_a_bound_path_is_registered():
    assert next_step(Session(Phase.BOUND, None), Seen(FIRST, True, 0, 0.0)) is Step.REGISTER


def test_a_bound_path_whose_socket_was_deleted_is_bound_anew():
    assert next_step(Session(Phase.BOUND, None), Seen(FIRST, False, 0, 0.0)) is Step.BIND


def test_a_sound_session_waits():
    assert next_step(SOUND, LOOK) is Step.WAIT


def test_a_deleted_socket_means_a_new_one():
    assert next_step(SOUND, replace(LOOK, own_socket=False)) is Step.BIND


def test_a_kubelet_socket_made_anew_means_a_new_path_even_with_the_same_inode():
    assert next_step(SOUND, replace(LOOK, kubelet=SAME_INODE_LATER)) is Step.BIND


def test_an_ended_stream_means_a_new_path():
    assert next_step(SOUND, replace(LOOK, streams=0)) is Step.BIND


def test_a_stream_that_never_opened_puts_the_registration_in_doubt():
    waiting = replace(SOUND, streamed=False)

    assert next_step(waiting, replace(LOOK, streams=0, now_s=10.0 + STREAM_WAIT_MAX_S / 2)) is Step.WAIT
    assert next_step(waiting, replace(LOOK, streams=0, now_s=10.0 + STREAM_WAIT_MAX_S)) is Step.BIND


def test_a_failed_registration_waits_before_the_next_path():
    failed = session_state.failed(Session(Phase.BOUND, FIRST), LOOK)

    assert next_step(failed, replace(LOOK, now_s=LOOK.now_s + 0.04)) is Step.WAIT
    assert next_step(failed, replace(LOOK, now_s=LOOK.now_s + 0.06)) is Step.BIND


def test_a_new_kubelet_is_tried_at_once_whatever_failed_before():
    failed = Session(Phase.UNBOUND, FIRST, failures=9, since_s=LOOK.now_s)

    assert next_step(failed, replace(LOOK, kubelet=SAME_INODE_LATER)) is Step.BIND


def test_failures_with_an_earlier_kubelet_do_not_lengthen_the_pause():
    worn = Session(Phase.BOUND, FIRST, failures=6)

    assert session_state.failed(worn, replace(LOOK, kubelet=SAME_INODE_LATER)).failures == 1
    assert session_state.failed(worn, LOOK).failures == 7


def test_the_pause_doubles_up_to_ten_seconds_and_goes_on_for_ever():
    assert [backoff_s(n) for n in (0, 1, 2, 3)] == [0.0, 0.05, 0.1, 0.2]
    assert backoff_s(10**6) == BACKOFF_MAX_S


def test_an_open_stream_makes_failures_forgotten():
    session = session_state.observed(Session(Phase.REGISTERED, FIRST, failures=5), LOOK)

    assert session.failures == 0
    assert session.streamed


SEEN = st.builds(
    Seen,
    kubelet=st.none() | st.builds(SocketMark, st.integers(1, 2), st.integers(1, 3)),
    own_socket=st.booleans(),
    streams=st.integers(0, 2),
    now_s=st.just(0.0),
)


@given(st.lists(st.tuples(SEEN, st.booleans(), st.floats(0.0, 12.0)), max_size=60))
def test_no_path_is_ever_registered_twice_whatever_happens(history: list[tuple[Seen, bool, float]]):
    session, now_s, path = Session(), 0.0, 0
    registered: set[int] = set()

    for look, works, pause_s in history:
        now_s += pause_s
        seen = replace(look, now_s=now_s)
        session = session_state.observed(session, seen)
        step = next_step(session, seen)
        if step is Step.BIND:
            path += 1
            session = session_state.bound(session, seen) if works else session_state.failed(session, seen)
        elif step is Step.REGISTER:
            assert path not in registered
            registered.add(path)
            session = session_state.registered(session, seen) if works else session_state.failed(session, seen)
