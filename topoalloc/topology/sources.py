"""Machines for the rest of the program: from the paths a person gives, or from the node this process runs on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from topoalloc.errors import InputError, MachineError
from topoalloc.topology.assemble import assemble
from topoalloc.topology.machine import Machine, Unknown
from topoalloc.topology.pci_classes import NVIDIA
from topoalloc.topology.readers import nvml
from topoalloc.topology.readers.files import FolderFiles
from topoalloc.topology.readers.sysfs import read_machine_tree, read_sysfs
from topoalloc.topology.reading import Reading, SourceRefusal, Standing
from topoalloc.topology.restated import restated

SOURCES_MAX = 32  # of one machine; there are about 15 formats
_SYS, _PROC = "/sys", "/proc"
_MOUNTS_BYTES_MAX = 4 * 2**20  # a node with 10,000 container mounts has 2 MiB


def load_machine(paths: Sequence[str], gpu_memory_bytes: int | None = None) -> Machine:
    """The machine that the given sources describe together, the most trusted first; raises InputError (one line).

    `gpu_memory_bytes` is the memory of every GPU whose memory no source and no table tells.
    """
    # Here, since a live agent needs none of the formats of recorded machines (nor bz2, lzma and expat).
    from topoalloc.topology.detect import read_source

    if len(paths) > SOURCES_MAX:
        raise InputError(f"{len(paths)} sources of one machine; at most {SOURCES_MAX}")
    readings: list[Reading] = []
    for path in paths:
        source = read_source(path)
        if isinstance(source, SourceRefusal):
            raise InputError(str(source))
        if isinstance(source, Reading):
            readings.append(source)
        elif len(paths) == 1:
            return _with_gpu_memory(source, gpu_memory_bytes)
        else:
            readings.append(restated(source, f"snapshot ({path})"))
    return _assembled(readings, gpu_memory_bytes)


def discover(sysfs_root: str = _SYS, gpu_memory_bytes: int | None = None) -> Machine:
    """The node this process runs on, or the one whose sysfs is unpacked or mounted at `sysfs_root`.

    A live sysfs (also that of the host, mounted elsewhere) is completed by NVML. Raises MachineError or InputError.
    """
    if not _is_live(sysfs_root):
        reading = read_machine_tree(FolderFiles(sysfs_root), f"sysfs ({sysfs_root})")
        if isinstance(reading, SourceRefusal):
            raise InputError(str(reading))
        return _assembled([reading], gpu_memory_bytes)
    reading = read_sysfs(FolderFiles(sysfs_root), FolderFiles(_PROC), f"sysfs ({sysfs_root})")
    if isinstance(reading, SourceRefusal):
        raise MachineError(str(reading))
    return _assembled([reading, *_driver_readings(reading)], gpu_memory_bytes)


def _driver_readings(sysfs: Reading) -> list[Reading]:
    if not any(gpu.vendor == NVIDIA for gpu in sysfs.gpus):
        return []  # NVML would only be started to say that there is nothing
    reading = nvml.read_nvml()
    if isinstance(reading, Reading):
        return [reading]
    warning = f"{reading}; model, memory and NVLinks of the GPUs stay unknown"
    return [Reading(nvml.SOURCE, Standing.ADDITION, warnings=(warning,))]


def _is_live(root: str) -> bool:
    real = os.path.realpath(root)
    try:
        with open("/proc/self/mountinfo", "rb") as file:  # noqa: PTH123
            return is_sysfs_mounted(real, file.read(_MOUNTS_BYTES_MAX).decode("utf-8", "replace"))
    except OSError:
        return real == _SYS


def is_sysfs_mounted(root: str, mountinfo: str) -> bool:
    """Whether a sysfs is mounted at this very folder, or its `devices` in it (proc_pid_mountinfo(5)).

    The DaemonSet mounts no more of the host's /sys than is read, so not the folder itself.
    """
    for line in mountinfo.splitlines():
        mount, _, filesystem = line.partition(" - ")
        fields = mount.split()
        if len(fields) > 4 and fields[4] in (root, f"{root}/devices") and filesystem.startswith("sysfs "):
            return True
    return False


def _assembled(readings: Sequence[Reading], gpu_memory_bytes: int | None) -> Machine:
    machine = assemble(readings, gpu_memory_bytes)
    if isinstance(machine, SourceRefusal):
        raise InputError(str(machine))
    return machine


def _with_gpu_memory(machine: Machine, gpu_memory_bytes: int | None) -> Machine:
    if gpu_memory_bytes is None:
        return machine
    gpus = (
        replace(gpu, memory_bytes=gpu_memory_bytes) if isinstance(gpu.memory_bytes, Unknown) else gpu
        for gpu in machine.gpus
    )
    return replace(machine, gpus=tuple(gpus))
