"""A wish to end, however many come and wherever they meet the program."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

from topoalloc.cli.ending import END_SIGNALS, Ending

LIMIT_S = 30.0
SIGNALS = 400
WAITING = """
from topoalloc.cli.ending import Ending
ending = Ending()
ending.on_signals()
print("ready", flush=True)
assert ending.wait(30)
"""


def test_a_wish_from_another_thread_is_heard_and_stays() -> None:
    ending = Ending()
    threading.Thread(target=ending.wish).start()

    assert ending.wait(LIMIT_S)
    assert ending.wait(0)


def test_without_a_wish_the_time_passes() -> None:
    assert not Ending().wait(0.01)


def test_a_wish_may_be_said_more_often_than_anybody_listens() -> None:
    ending = Ending()
    for _ in range(100_000):
        ending.wish()

    assert ending.wait(0)


def test_signals_that_come_one_upon_another_end_the_program_all_the_same() -> None:
    """A handler that took a lock would wait for itself: two signals 50 us apart were enough."""
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
            for number in range(SIGNALS):
                program.send_signal(END_SIGNALS[number % len(END_SIGNALS)])
            assert program.wait(LIMIT_S) in (0, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT)
