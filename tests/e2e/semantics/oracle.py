"""The oracle process: questions to Kubernetes' own admission code, answers back, and every way it can fail named."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.e2e.cluster.binaries import binary

Json = Any
# The oracle itself gives up on a question after 30 s; this is for an oracle that does not even do that.
ANSWER_MAX_S = 90.0
# More questions at a time could fill both pipes, each side waiting for the other to read.
BATCH_BYTES_MAX = 60_000
SHOWN_CHARACTERS_MAX = 6_000


class OracleFailed(Exception):  # noqa: N818 - named for what a reader sees in the report
    """The oracle crashed, fell silent or spoke nonsense; the text shows the question."""

    def __init__(self, what: str, question: Json, stderr: str) -> None:
        said = f"\nits last words: {stderr[-SHOWN_CHARACTERS_MAX:]}" if stderr else ""
        super().__init__(f"the oracle {what}; asked: {json.dumps(question)[:SHOWN_CHARACTERS_MAX]}{said}")


class Oracle:
    """Answers come in the order of the questions. After a question that upstream never answers
    (`{"hang": true}`) the oracle ends by itself and is started anew at the next one."""

    def __init__(self, program: Path | None = None, answer_max_s: float = ANSWER_MAX_S) -> None:
        self.answered = 0
        self._program = program or binary("oracle")
        self._answer_max_s = answer_max_s
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by __exit__
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._stop()
        self._stderr.close()

    def ask(self, question: Json) -> Json:
        return self.ask_all([question])[0]

    def ask_all(self, questions: Sequence[Json]) -> list[Json]:
        """The answers to several questions, which are sent together as far as the pipes hold them."""
        answers: list[Json] = []
        batch: list[Json] = []
        size = 0
        for question in questions:
            length = len(json.dumps(question))
            if batch and size + length > BATCH_BYTES_MAX:
                answers += self._exchange(batch)
                batch, size = [], 0
            batch.append(question)
            size += length
        return answers + self._exchange(batch) if batch else answers

    def _exchange(self, questions: Sequence[Json]) -> list[Json]:
        stdin = self._running().stdin
        assert stdin is not None
        try:
            stdin.write(b"".join(json.dumps(question).encode() + b"\n" for question in questions))
            stdin.flush()
        except BrokenPipeError:
            raise self._failure("ended before it was asked", questions[0]) from None
        answers = []
        for position, question in enumerate(questions):
            answers.append(self._answer(question))
            self.answered += 1
            if answers[-1] == {"hang": True}:
                self._stop()
                return answers + self._exchange_rest(questions[position + 1 :])
        return answers

    def _exchange_rest(self, questions: Sequence[Json]) -> list[Json]:
        return self._exchange(questions) if questions else []

    def _answer(self, question: Json) -> Json:
        process = self._running()
        assert process.stdout is not None
        deadline = time.monotonic() + self._answer_max_s
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(deadline - time.monotonic()):
                    raise self._failure(f"said nothing for {self._answer_max_s:g} s", question)
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise self._failure("crashed", question)
                self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            return json.loads(line)
        except json.JSONDecodeError:
            raise self._failure(f"answered {line[:200]!r}, which is no JSON", question) from None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            # The device manager writes its checkpoint at every allocation: into memory where there is a place.
            memory = {"TMPDIR": "/dev/shm"} if Path("/dev/shm").is_dir() else {}
            self._process = subprocess.Popen(
                [self._program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env={**os.environ, **memory},
            )
        return self._process

    def _failure(self, what: str, question: Json) -> OracleFailed:
        self._stop()
        self._stderr.seek(0)
        return OracleFailed(what, question, self._stderr.read())

    def _stop(self) -> None:
        process, self._process, self._unread = self._process, None, b""
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # what was not written is for nobody any more
