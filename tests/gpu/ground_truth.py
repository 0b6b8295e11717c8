"""What NVML says about the GPU, asked from a process without any preloaded library."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

PROCESSES_MAX = 512
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

    def bytes_by_pid(self) -> dict[int, int]:
        """Of processes that compute. A process whose figure NVML does not know is left out."""
        count = ctypes.c_uint(PROCESSES_MAX)
        found = (_Process * PROCESSES_MAX)()
        name = "nvmlDeviceGetComputeRunningProcesses_v3"
        self._call(name, self._device, ctypes.byref(count), found)
        return {entry.pid: entry.bytes for entry in found[: count.value] if entry.bytes != UNKNOWN_BYTES}
