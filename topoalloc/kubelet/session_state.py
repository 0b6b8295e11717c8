"""The life of one resource's socket: when to bind anew, when to register, when to wait. A pure table.

Rules of the kubelet this follows (1.34 to 1.37, `pkg/kubelet/cm/devicemanager/plugin/v1beta1`):
- A kubelet that starts deletes every socket in the directory, then makes a fresh `kubelet.sock`.
- It never reconnects: after the end of a stream only a new Register brings the resource back.
- Registering a path whose stream still lives makes a 1.37 kubelet lose track of it until the kubelet restarts. So every
  path is registered at most once, and any doubt is answered with a new path.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

# A kubelet's socket exists a moment before it listens, and pods whose containers do not run yet are judged as soon as
# it does: the first pauses have to be short.
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 10.0
# The kubelet opens the stream right after Register returns; without it by then the registration is in doubt.
STREAM_WAIT_MAX_S = 10.0


class Phase(Enum):
    """Where a session stands."""

    UNBOUND = "unbound"
    BOUND = "bound"  # serving on a path that no kubelet was told of
    REGISTERED = "registered"


class Step(Enum):
    """What to do now."""

    WAIT = "wait"
    BIND = "bind"  # close the old socket, if any, and serve on a new path
    REGISTER = "register"  # tell the kubelet of the path, once


@dataclass(frozen=True, slots=True)
class SocketMark:
    """Which incarnation of a socket file this is; a re-made socket can have the same inode."""

    inode: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class Session:
    """One resource's session. `kubelet` is the socket it last tried to register with, `failures` in a row."""

    phase: Phase = Phase.UNBOUND
    kubelet: SocketMark | None = None
    failures: int = 0
    since_s: float = 0.0
    streamed: bool = False  # a stream has been open in this phase


@dataclass(frozen=True, slots=True)
class Seen:
    """What the directory and the server show now."""

    kubelet: SocketMark | None
    own_socket: bool
    streams: int
    now_s: float


def next_step(session: Session, seen: Seen) -> Step:
    """Decide; the caller carries it out and reports with `bound`, `registered`, `failed` or `observed`."""
    if seen.kubelet is None:
        return Step.WAIT  # a socket bound now would be deleted by the kubelet that is about to start
    match session.phase:
        case Phase.UNBOUND:
            return Step.BIND if _may_try(session, seen) else Step.WAIT
        case Phase.BOUND:
            return Step.REGISTER if seen.own_socket else Step.BIND
        case Phase.REGISTERED:
            lost_stream = seen.streams == 0 and (session.streamed or seen.now_s - session.since_s >= STREAM_WAIT_MAX_S)
            gone = not seen.own_socket or seen.kubelet != session.kubelet or lost_stream
            return Step.BIND if gone else Step.WAIT


def observed(session: Session, seen: Seen) -> Session:
    """Remember that the kubelet has opened a stream: the session is sound and failures are forgotten."""
    if session.phase is Phase.REGISTERED and seen.streams > 0 and not session.streamed:
        return replace(session, streamed=True, failures=0)
    return session


def bound(session: Session, seen: Seen) -> Session:
    """A new path is being served."""
    return replace(session, phase=Phase.BOUND, since_s=seen.now_s, streamed=False)


def registered(session: Session, seen: Seen) -> Session:
    """Register returned success."""
    return replace(session, phase=Phase.REGISTERED, kubelet=seen.kubelet, since_s=seen.now_s, streamed=False)


def failed(session: Session, seen: Seen) -> Session:
    """Binding or Register failed: its path is never used again. Failures with an earlier kubelet do not count."""
    failures = session.failures + 1 if seen.kubelet == session.kubelet else 1
    return Session(Phase.UNBOUND, seen.kubelet, failures, seen.now_s)


def backoff_s(failures: int) -> float:
    """Pause before the next try: 0.05 s, doubled by each failure in a row, at most 10 s; it goes on for ever."""
    return min(BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 10), BACKOFF_MAX_S) if failures else 0.0


def _may_try(session: Session, seen: Seen) -> bool:
    """A kubelet that has just made its socket is tried at once, whatever the one before it did."""
    return seen.kubelet != session.kubelet or seen.now_s - session.since_s >= backoff_s(session.failures)
