"""So many events a minute and not more; what is over is counted, so that it can be said in one line."""

from __future__ import annotations

from dataclasses import dataclass

EVENTS_PER_MINUTE_MAX = 10  # of one node: an operator reads a few; a broken workload makes hundreds
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Allowance:
    """One minute of a monotonic clock: how many were let through, how many were not."""

    began_s: float
    passed: int = 0
    dropped: int = 0

    def asked(self, most: int = EVENTS_PER_MINUTE_MAX) -> tuple[Allowance, bool]:
        """One more wants through, in the minute that `turned` has brought up to date."""
        if self.passed < most:
            return Allowance(self.began_s, self.passed + 1, self.dropped), True
        return Allowance(self.began_s, self.passed, self.dropped + 1), False

    def turned(self, now_s: float) -> tuple[Allowance, int]:
        """A new minute where the old one is over, and how many were dropped in the old one."""
        if now_s - self.began_s < MINUTE_S:
            return self, 0
        return Allowance(now_s), self.dropped
