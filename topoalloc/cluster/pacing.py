"""When to write: changes that come close together become one write, writes keep their distance, failures back off.

All times are seconds of one monotonic clock; `spread` (0 to 1) makes the nodes of a cluster differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

QUIET_S = 2.0  # a pod that starts changes several things within a second or two; they become one write
DELAY_MAX_S = 10.0  # a node on which something always changes is told about all the same
WRITE_PERIOD_MIN_S = 5.0  # every write reaches everybody who watches nodes
BACKOFF_MIN_S = 1.0
# Thousands of nodes that come back at once are spread over this; also how late a node learns that the server is back.
BACKOFF_MAX_S = 120.0
DOUBLINGS_MAX = 16  # 2^16 s is far above the longest back-off; keeps the number small through years of failures
RETRY_AFTER_MAX_S = 300.0  # a server may ask for more; then it is asked again anyway


@dataclass(frozen=True, slots=True)
class Pace:
    """The distances of one kind of request."""

    quiet_s: float = QUIET_S
    delay_max_s: float = DELAY_MAX_S
    period_min_s: float = WRITE_PERIOD_MIN_S
    backoff_min_s: float = BACKOFF_MIN_S
    backoff_max_s: float = BACKOFF_MAX_S


@dataclass(frozen=True, slots=True)
class Pacing:
    """What has been asked for and not been done, and how it went so far. `first_s` None: nothing is to be done."""

    first_s: float | None = None
    last_s: float = 0.0
    not_before_s: float = 0.0
    failures: int = 0

    def changed(self, now_s: float) -> Pacing:
        """Something is to be written."""
        return replace(self, first_s=now_s if self.first_s is None else self.first_s, last_s=now_s)

    def settled(self) -> Pacing:
        """Nothing is to be written any more: what changed has changed back."""
        return replace(self, first_s=None)

    def due_at_s(self, pace: Pace) -> float | None:
        """The moment to write, or None."""
        if self.first_s is None:
            return None
        return max(min(self.last_s + pace.quiet_s, self.first_s + pace.delay_max_s), self.not_before_s)

    def succeeded(self, now_s: float, pace: Pace) -> Pacing:
        """What had changed by `now_s` is written."""
        return Pacing(not_before_s=now_s + pace.period_min_s)

    def failed(self, now_s: float, pace: Pace, spread: float, retry_after_s: float = 0.0) -> Pacing:
        """It is still to be written, after a pause that doubles up to a bound."""
        failures = min(self.failures + 1, DOUBLINGS_MAX)
        return replace(
            self,
            first_s=now_s if self.first_s is None else self.first_s,
            not_before_s=now_s + pause_s(failures, pace, spread, retry_after_s),
            failures=failures,
        )


def pause_s(failures: int, pace: Pace, spread: float, retry_after_s: float = 0.0) -> float:
    """The back-off after so many failures in a row, or what the server asked for if that is longer."""
    return max(backoff_s(failures, pace, spread), min(retry_after_s, RETRY_AFTER_MAX_S))


def backoff_s(failures: int, pace: Pace, spread: float) -> float:
    """The pause after so many failures in a row: between half and the whole of a time that doubles."""
    whole_s = min(pace.backoff_min_s * 2.0 ** (min(failures, DOUBLINGS_MAX) - 1), pace.backoff_max_s)
    return whole_s * (0.5 + 0.5 * spread)
