"""Which processes use a GPU of NVIDIA's and how much of its memory, asked when somebody wants to know.

It keeps no session of its own: calls go through the one that nvml_events.py holds open, since NVML counts its users
and a session that has to end in order to find a lost GPU again would live on in the other. Without one all is unknown.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from types import ModuleType

FRESH_S = 0.05
GPUS_REMEMBERED_MAX = 256
PROCESSES_MAX = 4096  # of one GPU
LOCK_WAIT_MAX_S = 1.0  # a driver that hangs keeps the thread that asked it; the others go without


def import_nvml() -> ModuleType:
    """The bindings; imported only where there is a GPU to ask, they are large."""
    import pynvml

    module: ModuleType = pynvml
    return module


class GpuProcesses:
    """Used by several threads; one asks the driver at a time."""

    def __init__(
        self, load: Callable[[], ModuleType] = import_nvml, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._load = load
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._answers: dict[str, tuple[float, Mapping[int, int | None] | None]] = {}

    def memory_bytes(self, gpu: str) -> Mapping[int, int | None] | None:
        """Device memory by process (as this process's PID namespace numbers them) on the GPU of this UUID or PCI
        address, at most FRESH_S old. None: the driver does not tell; a None within: of that process it does not."""
        if not self._lock.acquire(timeout=LOCK_WAIT_MAX_S):
            return None
        try:
            now_s = self._clock_s()
            kept = self._answers.get(gpu)
            if kept is not None and now_s - kept[0] <= FRESH_S:
                return kept[1]
            answer = _asked(self._load(), gpu)
            if len(self._answers) >= GPUS_REMEMBERED_MAX:
                self._answers.clear()
            self._answers[gpu] = (now_s, answer)  # of before the question, so that it is never older than it claims
            return answer
        finally:
            self._lock.release()


def _asked(nvml: ModuleType, gpu: str) -> Mapping[int, int | None] | None:
    """A process that computes and draws is in both lists with the same figure. Not every GPU can tell who draws.

    The calls of the second version: drivers before 510 have no third, and 535.43 to 535.86 answer it with longer
    entries (nvml.h of CUDA 12.2.0) than the bindings read."""
    by = nvml.nvmlDeviceGetHandleByPciBusId if ":" in gpu else nvml.nvmlDeviceGetHandleByUUID
    try:
        handle = by(gpu.encode())
        processes = nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle)[:PROCESSES_MAX]
    except nvml.NVMLError:
        return None
    with contextlib.suppress(nvml.NVMLError):
        processes = [*processes, *nvml.nvmlDeviceGetGraphicsRunningProcesses_v2(handle)[:PROCESSES_MAX]]
    found: dict[int, int | None] = {}
    for process in processes:
        known = [figure for figure in (found.get(process.pid), process.usedGpuMemory) if isinstance(figure, int)]
        found[process.pid] = max(known) if known else None
    return found
