"""What NVML, nvidia-smi or torch say about the GPU's memory inside a share: `reported.py v1|v2|smi|torch`."""

import ctypes
import subprocess
import sys


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class MemoryV2(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


def nvml(call: str, memory: ctypes.Structure) -> None:
    library = ctypes.CDLL("libnvidia-ml.so.1")
    device = ctypes.c_void_p()
    assert library.nvmlInit_v2() == 0
    assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
    status = getattr(library, call)(device, ctypes.byref(memory))
    assert status == 0, f"{call} answered {status}"


def main(what: str) -> None:
    if what == "v1":
        one = Memory()
        nvml("nvmlDeviceGetMemoryInfo", one)
        print("v1", one.total, one.used, one.free)
    elif what == "v2":
        two = MemoryV2(version=ctypes.sizeof(MemoryV2) | 2 << 24)
        nvml("nvmlDeviceGetMemoryInfo_v2", two)
        print("v2", two.total, two.used, two.free)
    elif what == "smi":
        query = "--query-gpu=memory.total,memory.used,memory.free"
        command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        print("smi", *(int(cell) << 20 for cell in out.splitlines()[0].split(",")))
    else:
        import torch

        print("torch", *torch.cuda.mem_get_info(), torch.cuda.get_device_properties(0).total_memory)


main(sys.argv[1])
