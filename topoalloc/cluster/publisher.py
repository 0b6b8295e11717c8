"""The publisher: looks at the node, keeps the Node object up to date, and writes an event for a rejected pod."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from topoalloc.cluster.allowance import EVENTS_PER_MINUTE_MAX, Allowance
from topoalloc.cluster.api_objects import ApiContentError, SeenPod, node_words
from topoalloc.cluster.api_server import UNAUTHORIZED, UNREACHED, ApiError, ApiServer
from topoalloc.cluster.node_patch import NodeWords, merge_patch
from topoalloc.cluster.node_view import NodeView
from topoalloc.cluster.overuse_event import overuse_event, overuse_event_name
from topoalloc.cluster.pacing import Pace, Pacing, pause_s
from topoalloc.cluster.pod_watch import PodWatch
from topoalloc.cluster.rejection import Rejection, event_object, note_of
from topoalloc.sharing.overuse_record import OveruseRecord

log = logging.getLogger(__name__)

# How often the Node object is compared with what it should say: what others change is repaired no faster than this.
VERIFY_PERIOD_S = 120.0
REJECTED_AGO_MAX_S = 3600.0  # events live an hour by default; of older rejections nobody asks any more
REJECTIONS_WAITING_MAX = 100  # while the API server is away; the oldest give way
REMEMBERED_MAX = 2_000  # pods whose event is written: twenty times the pods of a node
EXPLAIN_WAIT_MAX_S = 10.0  # for a look at the node that is younger than the rejection; then the last one has to do
EVENT_PACE = Pace(quiet_s=0.0, delay_max_s=0.0, period_min_s=0.0)
EVENT_TRIES_MAX = 20  # with the back-off between them more than half an hour
# Not the fault of the moment: the event would be refused again (its namespace is gone, or it is no event).
EVENT_LOST = frozenset({400, 404, 413, 422})
TOO_MANY, SERVER_FAULT_MIN = 429, 500  # like 401 and no answer: another event would fare no better
CONFLICT = 409
NOT_FOUND = 404
OVERUSE_PERIOD_S = 5.0  # how often the agent's findings are read
WAIT_MAX_S = 60.0  # of the loop, whatever it waits for
THREAD_JOIN_MAX_S = 3.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which of the three things are published."""

    labels: bool = True
    annotation: bool = True
    events: bool = True


@dataclass(frozen=True, slots=True)
class Paces:
    """How fast everything goes; tests go faster."""

    node: Pace = field(default_factory=Pace)
    events: Pace = EVENT_PACE
    watch: Pace = field(default_factory=Pace)
    verify_s: float = VERIFY_PERIOD_S
    explain_wait_s: float = EXPLAIN_WAIT_MAX_S


@dataclass
class _Waiting:
    """A rejection of which an event is to be written; `event` once it is worded."""

    rejection: Rejection
    seen_s: float
    event: dict[str, object] | None = None
    tries: int = 0
    not_before_s: float = 0.0  # since this event was refused; others need not wait for it


class Publisher:
    """One node's publisher. `run` blocks until `stop`."""

    def __init__(
        self,
        server: ApiServer,
        node: str,
        view: NodeView,
        wanted: Wanted | None = None,
        paces: Paces | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
        overuses: Callable[[], tuple[OveruseRecord, ...]] | None = None,
    ) -> None:
        """`overuses`: what the agent's watchdog found; None: nobody tells."""
        self._server = server
        self._node = node
        self._view = view
        self._what = wanted or Wanted()
        self._paces = paces or Paces()
        self._clock_s = clock_s
        self._wall_s = wall_s
        self._spread = int(hashlib.sha256(node.encode()).hexdigest()[:8], 16) / 2**32
        self._started_wall_s = wall_s()
        self._stop, self._wake = threading.Event(), threading.Event()
        self._news: deque[tuple[SeenPod, bool]] = deque(maxlen=REMEMBERED_MAX)
        self._said: NodeWords | None = None  # what should be on the node, as of the last look
        self._present: NodeWords | None = None  # what is on it; None: to be asked
        self._node_pacing = Pacing()
        self._verify_at_s = clock_s() + self._verify_period_s()
        self._waiting: deque[_Waiting] = deque()
        self._remembered: OrderedDict[str, None] = OrderedDict()
        self._event_pacing = Pacing()
        self._allowance = Allowance(clock_s())
        self._overuses = overuses
        self._overuses_at_s = clock_s()
        self._complaints: dict[str, int] = {}
        self._fault: Exception | None = None

    def stop(self) -> None:
        """End `run` soon; a request that is under way is not waited for."""
        self._stop.set()
        self._wake.set()
        self._server.close()

    def run(self) -> None:
        """Publish until `stop`; raises whatever ended the thread that follows the pods."""
        thread = threading.Thread(target=self._follow, name="pods", daemon=True)
        if self._what.events:
            thread.start()
        try:
            while not self._stop.is_set():
                self._wake.clear()
                self._turn()
                self._wake.wait(self._pause_s())
        finally:
            self.stop()
            if self._what.events:
                thread.join(THREAD_JOIN_MAX_S)
        if self._fault is not None:
            raise self._fault

    def _follow(self) -> None:
        watch = PodWatch(self._server, self._node, self._heard, self._paces.watch, self._spread, self._clock_s)
        try:
            watch.run(self._stop)
        except Exception as fault:  # whatever it is, the thread is gone, and a publisher without it had better end
            log.exception("following the pods of this node ended by a fault")
            self._fault = fault
            self.stop()

    def _turn(self) -> None:
        """Everything that is due now."""
        self._allowance, dropped = self._allowance.turned(self._clock_s())
        if dropped:
            log.warning("%d more events were due in the last minute; none of ours tells of them", dropped)
        self._take_news()
        self._take_overuses()
        self._view.look(self._clock_s())
        self._compare()
        if _is_due(self._node_pacing.due_at_s(self._paces.node), self._clock_s()):
            self._write_node()
        self._explain()
        while _is_due(self._next_event_s(), self._clock_s()):
            if self._stop.is_set():
                return
            self._write_event()

    def _pause_s(self) -> float:
        times = [
            self._view.next_look_s(),
            self._node_pacing.due_at_s(self._paces.node),
            self._next_event_s(),
            self._verify_at_s,
        ]
        if self._overuses is not None and self._what.events:
            times.append(self._overuses_at_s)
        times.extend(one.seen_s + self._paces.explain_wait_s for one in self._waiting if one.event is None)
        soonest_s = min(at_s for at_s in times if at_s is not None)
        return min(max(0.0, soonest_s - self._clock_s()), WAIT_MAX_S)

    # The Node object.

    def _verify_period_s(self) -> float:
        return self._paces.verify_s * (0.75 + 0.5 * self._spread)

    def _compare(self) -> None:
        """Whether what the node should say has changed, or others may have changed what it says."""
        now_s = self._clock_s()
        words = self._view.words()
        said = NodeWords(words.labels if self._what.labels else {}, words.annotations if self._what.annotation else {})
        if said != self._said:
            self._said = said
            self._node_pacing = self._node_pacing.changed(now_s)
            if self._present is not None and merge_patch(said, self._present) is None:
                self._node_pacing = self._node_pacing.settled()
        if now_s >= self._verify_at_s:
            self._verify_at_s = now_s + self._verify_period_s()
            self._present = None
            self._node_pacing = self._node_pacing.changed(now_s)

    def _write_node(self) -> None:
        assert self._said is not None, "the node has been compared before it is written"
        try:
            if self._present is None:
                self._present = node_words(self._server.node(self._node))
            patch = merge_patch(self._said, self._present)
            if patch is not None:
                self._present = node_words(self._server.patch_node(self._node, patch))
                log.info("node %s updated: %s", self._node, ", ".join(sorted(_keys(patch))))
        except (ApiError, ApiContentError) as error:
            self._present = None
            self._node_pacing = self._node_pacing.failed(
                self._clock_s(), self._paces.node, self._spread, _retry_after_s(error)
            )
            self._complain("node", f"node {self._node}", error)
            return
        self._node_pacing = self._node_pacing.succeeded(self._clock_s(), self._paces.node)
        self._well("node", f"node {self._node}")

    # Rejected pods.

    def _heard(self, pod: SeenPod, listed: bool) -> None:
        """In the watch's thread."""
        self._news.append((pod, listed))
        self._wake.set()

    def _take_news(self) -> None:
        while self._news:
            pod, listed = self._news.popleft()
            self._view.pods_changed(self._clock_s())
            if pod.rejection is None or pod.uid in self._remembered:
                continue
            self._remember(pod.uid)  # the old ones too: a watch tells of them again when somebody touches them
            if listed and pod.began_s is not None and self._started_wall_s - pod.began_s > REJECTED_AGO_MAX_S:
                continue
            self._allowance, passed = self._allowance.asked(EVENTS_PER_MINUTE_MAX)
            if passed:
                self._queue(_Waiting(pod.rejection, self._clock_s()))

    def _take_overuses(self) -> None:
        """Findings of the agent's that are new here; their events are worded already."""
        now_s = self._clock_s()
        if self._overuses is None or not self._what.events or now_s < self._overuses_at_s:
            return
        self._overuses_at_s = now_s + OVERUSE_PERIOD_S
        for record in self._overuses():
            name = overuse_event_name(record)
            if name in self._remembered or self._wall_s() - record.found_s > REJECTED_AGO_MAX_S:
                continue
            self._remember(name)
            self._allowance, passed = self._allowance.asked(EVENTS_PER_MINUTE_MAX)
            if passed:
                about = Rejection(record.namespace, record.pod, record.uid, "", "", None)
                event = overuse_event(record, self._node, _rfc3339(self._wall_s()))
                self._queue(_Waiting(about, now_s, event))
                self._event_pacing = self._event_pacing.changed(now_s)

    def _remember(self, uid: str) -> None:
        self._remembered[uid] = None
        if len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)

    def _queue(self, waiting: _Waiting) -> None:
        self._waiting.append(waiting)
        if len(self._waiting) > REJECTIONS_WAITING_MAX:
            lost = self._waiting.popleft()
            log.warning("no event for pod %s/%s: too many wait", lost.rejection.namespace, lost.rejection.name)

    def _explain(self) -> None:
        """Word the events of which the node has been looked at since the pod was rejected."""
        now_s = self._clock_s()
        kept: deque[_Waiting] = deque()
        for one in self._waiting:
            fresh = self._view.looked_at_s() > one.seen_s or now_s - one.seen_s >= self._paces.explain_wait_s
            if one.event is None and fresh:
                view = self._view
                note = note_of(one.rejection, view.state(), view.rules(), view.inventory, view.state_before())
                if note is None:
                    continue
                one.event = event_object(one.rejection, note, self._node, _rfc3339(self._wall_s()))
                self._event_pacing = self._event_pacing.changed(now_s)
            kept.append(one)
        self._waiting = kept

    def _next_event_s(self) -> float | None:
        """When the next event is to be written, as things are."""
        due_s = self._event_pacing.due_at_s(self._paces.events)
        ready_s = min((one.not_before_s for one in self._waiting if one.event is not None), default=None)
        return None if due_s is None or ready_s is None else max(due_s, ready_s)

    def _write_event(self) -> None:
        """The oldest event that is worded and need not wait."""
        now_s = self._clock_s()
        one = next(one for one in self._waiting if one.event is not None and one.not_before_s <= now_s)
        assert one.event is not None
        pod = f"pod {one.rejection.namespace}/{one.rejection.name}"
        is_done = True
        try:
            self._server.create_event(one.rejection.namespace, one.event)
        except ApiError as error:
            if error.code != CONFLICT:  # there already: an earlier process wrote it
                is_done = self._give_up_or_wait(one, pod, error)
            if not is_done and _is_common(error):
                self._event_pacing = self._event_pacing.failed(
                    self._clock_s(), self._paces.events, self._spread, error.retry_after_s
                )
                return
        else:
            self._well("events", "events")
            log.info("%s: event %s: %s", pod, one.event["reason"], one.event["message"])
        if is_done:
            self._waiting.remove(one)
        self._event_pacing = self._event_pacing.succeeded(self._clock_s(), self._paces.events)
        if any(other.event is not None for other in self._waiting):
            self._event_pacing = self._event_pacing.changed(self._clock_s())

    def _give_up_or_wait(self, one: _Waiting, pod: str, error: ApiError) -> bool:
        """Whether a refused event is given up. Otherwise it lets others go first, and waits if it alone was refused."""
        one.tries += 1
        is_given_up = error.code in EVENT_LOST or one.tries >= EVENT_TRIES_MAX
        if is_given_up or _is_common(error):
            self._complain("events", pod, error)
        elif one.tries == 1:
            log.warning("%s: API server: %s; its event is tried again", pod, error)
        if is_given_up:
            return True
        if not _is_common(error):  # a namespace that is being deleted answers 403 for as long as that takes
            one.not_before_s = self._clock_s() + pause_s(
                one.tries, self._paces.events, self._spread, error.retry_after_s
            )
        self._waiting.remove(one)
        self._waiting.append(one)
        return False

    # What is said of failures: once for each kind, until it is well again.

    def _complain(self, kind: str, what: str, error: ApiError | ApiContentError) -> None:
        code = error.code if isinstance(error, ApiError) else -1
        if self._complaints.get(kind) == code or self._stop.is_set():
            return
        self._complaints[kind] = code
        hint = "; no such node: is --node its name in the cluster?" if (kind, code) == ("node", NOT_FOUND) else ""
        log.warning("%s: API server: %s%s", what, error, hint)

    def _well(self, kind: str, what: str) -> None:
        if self._complaints.pop(kind, None) is not None:
            log.info("%s: the API server takes it again", what)


def _is_due(at_s: float | None, now_s: float) -> bool:
    return at_s is not None and at_s <= now_s


def _is_common(error: ApiError) -> bool:
    """Whether another event would have failed just so."""
    return error.code in {UNREACHED, UNAUTHORIZED, TOO_MANY} or error.code >= SERVER_FAULT_MIN


def _retry_after_s(error: ApiError | ApiContentError) -> float:
    return error.retry_after_s if isinstance(error, ApiError) else 0.0


def _keys(patch: dict[str, dict[str, dict[str, str | None]]]) -> list[str]:
    return [key for part in patch["metadata"].values() for key in part]


def _rfc3339(wall_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall_s))
