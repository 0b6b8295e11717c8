"""Follows the pods of this node by list and watch, in a thread of its own; whatever breaks is begun again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from topoalloc.cluster.api_objects import (
    GONE,
    ApiContentError,
    Bookmark,
    Changed,
    SeenPod,
    WatchFault,
    pod_page,
    watch_line,
)
from topoalloc.cluster.api_server import ApiError, ApiServer
from topoalloc.cluster.pacing import DOUBLINGS_MAX, Pace, backoff_s

log = logging.getLogger(__name__)

PAGES_MAX = 40  # 10,000 pods: twenty times what a kubelet runs; more is no list of one node
WATCH_LASTS_S = 10.0  # a watch that ends sooner, however politely, counts as a failure: it would be begun without pause


class PodWatch:
    """Tells of every pod once per list and then of every change. `on_pod(pod, listed)` must not block."""

    def __init__(
        self,
        server: ApiServer,
        node: str,
        on_pod: Callable[[SeenPod, bool], None],
        pace: Pace,
        spread: float,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._node = node
        self._on_pod = on_pod
        self._pace = pace
        self._spread = spread
        self._clock_s = clock_s
        self._from = ""  # the resource version to go on from; empty: list first
        self._failures = 0
        self._complaint: int | None = None

    def run(self, stop: threading.Event) -> None:
        """Follow until `stop` is set and the server is closed."""
        while not stop.is_set():
            began_s = self._clock_s()
            try:
                if not self._from:
                    self._from = self._list()
                self._follow()
                failed = self._clock_s() - began_s < WATCH_LASTS_S
                self._said_well()
            except (ApiError, ApiContentError) as error:
                if stop.is_set():
                    return
                failed = True
                self._complain(error)
            self._failures = min(self._failures + 1, DOUBLINGS_MAX) if failed else 0
            if failed:
                stop.wait(backoff_s(self._failures, self._pace, self._spread))

    def _list(self) -> str:
        more = ""
        for _ in range(PAGES_MAX):
            page = pod_page(self._server.pods(self._node, more))
            for pod in page.pods:
                self._on_pod(pod, True)
            more = page.more
            if not more:
                self._said_well()
                return page.resource_version
        raise ApiContentError(f"the API server lists more than {PAGES_MAX} pages of pods for node {self._node}")

    def _follow(self) -> None:
        try:
            with self._server.watch_pods(self._node, self._from) as lines:
                for line in lines:
                    self._take(watch_line(line))
        except ApiError as error:
            if error.code != GONE:
                raise
            self._from = ""

    def _take(self, told: Changed | Bookmark | WatchFault) -> None:
        if isinstance(told, WatchFault):
            self._from = ""
            if told.code != GONE:
                raise ApiError(told.code, told.message)
            return
        self._from = told.resource_version or self._from
        if isinstance(told, Changed):
            self._failures = 0
            self._on_pod(told.pod, False)

    def _complain(self, error: ApiError | ApiContentError) -> None:
        """Once per kind of failure, until it is well again."""
        if isinstance(error, ApiContentError):
            self._from = ""
        code = error.code if isinstance(error, ApiError) else -1
        if code != self._complaint:
            self._complaint = code
            log.warning("following the pods of this node: %s; rejected pods are seen later", error)

    def _said_well(self) -> None:
        if self._complaint is not None:
            self._complaint = None
            log.info("the pods of this node are followed again")
