"""What every section of the proof has at hand: the library, the programs, the GPU's own word, share directories."""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.gpu.ground_truth import GroundTruth
from tests.gpu.program import SOURCES, Program, environment
from tests.gpu.record import Record
from tests.gpu.share_folder import NO_CORE_LIMIT, make_folder, measuring, temporary_root

MIB = 1 << 20
GIB = 1 << 30
SETTLE_S = 3.0


@dataclass
class Bench:
    library: Path
    probe: Path
    static_runtime: Path | None
    truth: GroundTruth
    record: Record
    deadline_at_s: float
    root: Path = field(init=False)

    def __post_init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="topoalloc-shim-gpu-", dir=temporary_root()))
        self._numbers = itertools.count()

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def left_s(self) -> float:
        return self.deadline_at_s - time.monotonic()

    def _held_by(self, pid: int) -> int | None:
        try:
            return self.truth.bytes_by_pid().get(pid)
        except OSError:
            return None

    @contextmanager
    def share(
        self,
        *,
        answered: bool = True,
        cores: int = NO_CORE_LIMIT,
        cores_max: int | None = None,
        memory: int | None = None,
    ) -> Iterator[Path]:
        """A share directory, with somebody behind its agent.sock or not."""
        place = self.root / f"share-{next(self._numbers)}"
        folder = make_folder(place, gpu=self.truth.uuid(), cores=cores, cores_max=cores_max, memory=memory)
        if not answered:
            yield folder
            return
        with measuring(folder, self._held_by):
            yield folder

    def start(self, folder: Path | None, command: Sequence[object], more: Mapping[str, str] | None = None) -> Program:
        """`folder` None: without the library."""
        library = None if folder is None else self.library
        return Program([str(word) for word in command], environment(library, folder, more))

    def start_probe(self, folder: Path | None, *words: object) -> Program:
        return self.start(folder, [self.probe, *words])

    def start_python(self, folder: Path | None, script: str, *words: object, **more: str) -> Program:
        return self.start(folder, [sys.executable, SOURCES / script, *words], more)

    def held(self, programs: Sequence[Program]) -> int:
        """Bytes that NVML names for these processes together."""
        by_pid = self.truth.bytes_by_pid()
        return sum(by_pid.get(program.pid, 0) for program in programs)

    def settle(self) -> int:
        """Device memory in use once it has stopped changing; what ended programs held takes a moment to come back."""
        before, until = -1, time.monotonic() + SETTLE_S
        while (used := self.truth.used_bytes()) != before and time.monotonic() < until:
            before = used
            time.sleep(0.25)
        return used


@contextmanager
def ending(*programs: Program) -> Iterator[None]:
    """Whatever happens, they are gone at the end."""
    try:
        yield
    finally:
        for program in programs:
            with suppress(OSError):
                program.finish(5.0)
