"""The wish to end, from a signal or from any thread."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from types import FrameType

END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Ending:
    """A pipe: a signal handler may come while a lock is held by the very thread that it interrupts (an Event's among
    them), so it may take none."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def on_signals(self) -> None:
        """From now on SIGTERM, SIGINT and SIGHUP are such wishes."""
        for signum in END_SIGNALS:
            signal.signal(signum, self._signalled)

    def wish(self) -> None:
        """Say it; safe anywhere and any number of times."""
        with contextlib.suppress(BlockingIOError):  # it was said often enough
            os.write(self._write, b"e")

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until it is said, which it then stays; False where the time was over first."""
        return bool(select.select([self._read], [], [], timeout_s)[0])

    def _signalled(self, signum: int, frame: FrameType | None) -> None:
        self.wish()
