"""A token bucket: so many calls a second, so many at once."""

from __future__ import annotations

import threading
from collections.abc import Callable


class TokenBucket:
    """`take` says whether a call may go ahead now."""

    def __init__(self, rate_hz: float, burst: int, now_s: Callable[[], float]) -> None:
        self._rate_hz = rate_hz
        self._burst = burst
        self._now_s = now_s
        self._lock = threading.Lock()
        self._tokens = float(burst)
        self._seen_s = now_s()

    def take(self) -> bool:
        with self._lock:
            now_s = self._now_s()
            self._tokens = min(self._burst, self._tokens + (now_s - self._seen_s) * self._rate_hz)
            self._seen_s = now_s
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True
