"""What NVML says about the GPU, asked from a process without any preloaded library."""

from __future__ import annotations

import collections
import ctypes
import statistics
import threading
import time
from dataclasses import dataclass

PROCESSES_MAX = 512
SM_CLOCK = 1  # NVML_CLOCK_SM
CLOCK_PAUSE_S = 0.1
CLOCKS_KEPT = 30  # the last three seconds
UNKNOWN_BYTES = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Process(ctypes.Structure):
    """nvmlProcessInfo_v2_t, which the v3 call fills."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


@dataclass
class GroundTruth:
    """GPU `index`. Every method raises OSError when NVML refuses."""

    index: int = 0

    def __post_init__(self) -> None:
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self._call("nvmlInit_v2")
        self._device = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(self.index), ctypes.byref(self._device))

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._nvml, name)(*arguments)
        if status != 0:
            raise OSError(f"{name} answered {status}")

    def _text(self, name: str, *before: object) -> str:
        text = ctypes.create_string_buffer(96)
        self._call(name, *before, text, ctypes.c_uint(len(text)))
        return text.value.decode()

    def uuid(self) -> str:
        return self._text("nvmlDeviceGetUUID", self._device)

    def name(self) -> str:
        return self._text("nvmlDeviceGetName", self._device)

    def driver(self) -> str:
        return self._text("nvmlSystemGetDriverVersion")

    def used_bytes(self) -> int:
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._device, ctypes.byref(memory))
        return int(memory.used)

    def free_bytes(self) -> int:
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._device, ctypes.byref(memory))
        return int(memory.free)

    def clock_mhz(self) -> int:
        """Of the multiprocessors, at this moment; 0 where NVML does not tell it."""
        clock = ctypes.c_uint()
        try:
            self._call("nvmlDeviceGetClockInfo", self._device, ctypes.c_uint(SM_CLOCK), ctypes.byref(clock))
        except (OSError, AttributeError):
            return 0
        return clock.value

    def bytes_by_pid(self) -> dict[int, int]:
        """Of processes that compute. A process whose figure NVML does not know is left out."""
        count = ctypes.c_uint(PROCESSES_MAX)
        found = (_Process * PROCESSES_MAX)()
        name = "nvmlDeviceGetComputeRunningProcesses_v2"
        self._call(name, self._device, ctypes.byref(count), found)
        return {entry.pid: entry.bytes for entry in found[: count.value] if entry.bytes != UNKNOWN_BYTES}


class ClockWatch:
    """The clock of the last seconds. A GPU that is kept busy without a pause may slow down to stay within its power, so
    that the same share of its time does more work when others, or nobody, has the rest."""

    def __init__(self, truth: GroundTruth) -> None:
        self._truth = truth
        self._seen: collections.deque[int] = collections.deque(maxlen=CLOCKS_KEPT)
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self._seen.append(self._truth.clock_mhz())
            time.sleep(CLOCK_PAUSE_S)

    def mean_mhz(self) -> float:
        return statistics.fmean(self._seen or [0])
