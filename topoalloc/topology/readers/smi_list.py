"""`nvidia-smi -L`: index, model and UUID of GPUs and their MIG devices; adds to another source."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from topoalloc.topology.machine import MigDevice
from topoalloc.topology.pci_classes import NVIDIA
from topoalloc.topology.readers.printed_text import plain_head, printed_lines
from topoalloc.topology.reading import GpuReading, Reading, SourceRefusal, Standing

# nvidia-smi numbers no more GPUs than the kernel module drives (NV_MAX_DEVICES, 32 to 64 by driver generation).
GPUS_MAX = 256
# The largest count of MIG devices on one GPU is seven; a margin for GPUs to come.
MIG_DEVICES_MAX = 64

_GPU_LINE = re.compile(r"\s*GPU\s+(\d{1,4}):\s*(\S(?:.*\S)?)\s*\(UUID:\s*(GPU-[0-9A-Za-z-]+)\)\s*")
# Drivers before 470 name a MIG device by its GPU, GPU instance and compute instance: MIG-GPU-<uuid>/7/0.
_MIG_LINE = re.compile(r"\s*MIG\s+(\S+)\s+Device\s+(\d{1,4}):\s*\(UUID:\s*(MIG-[0-9A-Za-z/-]+)\)\s*")
_LOST_GPU = re.compile(r"\s*Unable to determine the device handle for", re.IGNORECASE)
_HEAD = re.compile(r"^[^\S\n]*GPU[^\S\n]+\d+:[^\n]*\(UUID:", re.MULTILINE)
_LINKS = re.compile(r"^[^\S\n]*Link[^\S\n]+\d+:", re.MULTILINE)
_PROMPT = re.compile(r"\s*(?:\S*[$#>]\s*)?nvidia-smi\b.*|\s*```\w*\s*|\s*")


@dataclass(frozen=True, slots=True)
class GpuHeading:
    """`GPU 0: NVIDIA B200 (UUID: GPU-...)`, the line that begins what nvidia-smi says of one GPU."""

    index: int
    model: str
    uuid: str


def gpu_heading(line: str) -> GpuHeading | None:
    """The heading of a GPU, or None for any other line."""
    match = _GPU_LINE.fullmatch(line)
    return GpuHeading(int(match[1]), match[2], match[3]) if match else None


def is_prompt(line: str) -> bool:
    """Whether a line is blank, a code fence or the command itself, as people copy it along."""
    return _PROMPT.fullmatch(line) is not None


def recognise(head: str) -> bool:
    """Whether the beginning of a file looks like this list (the headings of `nvlink -s` look the same)."""
    text = plain_head(head)
    return _HEAD.search(text) is not None and _LINKS.search(text) is None and "NVLink information" not in text


def parse(text: str, name: str) -> Reading | SourceRefusal:
    """One GpuReading per GPU line; every other line must be a MIG device or blank."""
    source = f"nvidia-smi -L ({name})"
    lines = printed_lines(text, source)
    if isinstance(lines, SourceRefusal):
        return lines
    gpus: list[GpuReading] = []
    warnings: list[str] = []
    for number, line in enumerate(lines.lines, 1):
        heading = gpu_heading(line)
        if heading is not None:
            gpus.append(GpuReading(heading.index, uuid=heading.uuid, model=heading.model, vendor=NVIDIA))
        elif _LOST_GPU.match(line):
            warnings.append(f"line {number}: a GPU that the driver has lost is left out: {line.strip()[:80]}")
        elif not is_prompt(line):
            problem = _add_mig_device(gpus, line)
            if problem is not None:
                return SourceRefusal(source, f"line {number}: {problem}")
        if len(gpus) > GPUS_MAX:
            return SourceRefusal(source, f"more than {GPUS_MAX} GPUs; give the list of one machine")
    if not gpus:
        return SourceRefusal(source, "no line `GPU 0: MODEL (UUID: GPU-...)` in it")
    doubled = _doubled(gpus)
    if doubled is not None:
        return SourceRefusal(source, doubled)
    return Reading(source=source, standing=Standing.ADDITION, gpus=tuple(gpus), warnings=tuple(warnings))


def _add_mig_device(gpus: list[GpuReading], line: str) -> str | None:
    """Add the MIG device of a line to the GPU above it; or why the line cannot be used."""
    match = _MIG_LINE.fullmatch(line)
    if match is None:
        return f"not a line of `nvidia-smi -L`: {line.strip()[:60]!r}"
    if not gpus:
        return "a MIG device above the first GPU"
    gpu = gpus[-1]
    device = MigDevice(int(match[2]), match[1], match[3])
    if len(gpu.mig) >= MIG_DEVICES_MAX:
        return f"more than {MIG_DEVICES_MAX} MIG devices on GPU {gpu.index}"
    if any(device.index == other.index or device.uuid == other.uuid for other in gpu.mig):
        return f"MIG device {device.index} of GPU {gpu.index} is there twice"
    if device.uuid.startswith("MIG-GPU-") and not device.uuid.startswith(f"MIG-{gpu.uuid}/"):
        return f"MIG device {device.index} belongs to another GPU than GPU {gpu.index} above it"
    gpus[-1] = replace(gpu, mig=(*gpu.mig, device))
    return None


def _doubled(gpus: list[GpuReading]) -> str | None:
    for at, gpu in enumerate(gpus):
        for other in gpus[:at]:
            if gpu.index == other.index or gpu.uuid == other.uuid:
                return f"GPU {gpu.index} is listed twice, or two GPUs share a UUID; give the list of one machine"
    return None
