"""`nvidia-smi nvlink -s` and `nvlink -R`: how many NVLinks each GPU has up, and where they go; adds to another source.

`-s` tells the number of links, not their far ends. `-R` tells the PCI address at the far end, not what it is: that
follows from how the GPUs' lists fit together, else it stays unknown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from topoalloc.topology.pci import PciAddress
from topoalloc.topology.pci_classes import NVIDIA
from topoalloc.topology.readers.printed_text import plain_head, printed_lines
from topoalloc.topology.readers.smi_list import GPUS_MAX, GpuHeading, gpu_heading, is_prompt
from topoalloc.topology.reading import FarEnd, GpuReading, NvlinkReading, Reading, SourceRefusal, Standing

# 18 links on Hopper and Blackwell, twice that announced; NVML_NVLINK_MAX_LINKS bounds it below this.
LINKS_MAX = 128

_LINK_LINE = re.compile(r"\s*Link\s+(\d{1,3})\s*:\s*(\S(?:.*\S)?)\s*")
_SPEED = re.compile(r"(\d+(?:\.\d+)?)\s*GB/s")
_REMOTE = re.compile(r"Remote Device\s+([0-9A-Fa-f]+:[0-9A-Fa-f]+:[0-9A-Fa-f]+\.[0-9A-Fa-f]+)\s*:\s*Link\s+(\d{1,3})")
_INACTIVE = re.compile(r"<?\s*in-?active\s*>?|disabled|down", re.IGNORECASE)
# A far end that the driver does not show: all digits of the address are f.
_HIDDEN = re.compile(r"[fF]{4,8}:[fF]{2}:[fF]{2}\.[0fF]")
_NO_LINKS = re.compile(r".*(?:all links are inactive|not supported|no nvlink|nvlink is disabled).*", re.IGNORECASE)
_NO_ANSWER = re.compile(r"\s*(?:NVML:|Unable to|Failed to|Error).*", re.IGNORECASE)
_HEAD = re.compile(r"^[^\S\n]*Link[^\S\n]+\d+[^\S\n]*:|all links are inactive", re.MULTILINE | re.IGNORECASE)


@dataclass(slots=True)
class _Gpu:
    """What has been read of one GPU so far."""

    heading: GpuHeading
    active: dict[int, tuple[str, int] | None] = field(default_factory=dict)  # by link: far address and link, if told
    inactive: set[int] = field(default_factory=set)
    has_no_links: bool = False

    @property
    def is_told(self) -> bool:
        return bool(self.active or self.inactive or self.has_no_links)


def recognise(head: str) -> bool:
    """Whether the beginning of a file looks like one of the two outputs."""
    text = plain_head(head)
    return _HEAD.search(text) is not None and any(gpu_heading(line) for line in text.split("\n"))


def parse(text: str, name: str) -> Reading | SourceRefusal:
    """`nvlinks` of each GPU: links up by far end; () where all are down, None where the driver gave no answer."""
    source = f"nvidia-smi nvlink ({name})"
    lines = printed_lines(text, source)
    if isinstance(lines, SourceRefusal):
        return lines
    gpus: list[_Gpu] = []
    for number, line in enumerate(lines.lines, 1):
        problem = _take(gpus, line)
        if problem is not None:
            return SourceRefusal(source, f"line {number}: {problem}")
    if lines.is_open and _NO_ANSWER.fullmatch(lines.lines[-1]) and not _NO_LINKS.fullmatch(lines.lines[-1]):
        return SourceRefusal(source, "the last line is cut short; record it again")
    if not gpus:
        return SourceRefusal(source, "no line `GPU 0: MODEL (UUID: GPU-...)` in it")
    return Reading(
        source=source,
        standing=Standing.ADDITION,
        gpus=tuple(_reading(gpu, gpus) for gpu in gpus),
        warnings=tuple(_doubts(gpus)),
    )


def _take(gpus: list[_Gpu], line: str) -> str | None:
    """Add what a line says; or why it cannot be used."""
    heading = gpu_heading(line)
    if heading is not None:
        if any(gpu.heading.index == heading.index for gpu in gpus):
            return f"GPU {heading.index} is listed twice; give -s and -R as two files"
        gpus.append(_Gpu(heading))
        return f"more than {GPUS_MAX} GPUs" if len(gpus) > GPUS_MAX else None
    link = _LINK_LINE.fullmatch(line)
    if link is not None:
        return _take_link(gpus, int(link[1]), link[2]) if gpus else "a link above the first GPU"
    if gpus and _NO_LINKS.fullmatch(line):
        gpus[-1].has_no_links = True
        return None
    if is_prompt(line) or _NO_ANSWER.fullmatch(line):
        return None
    return f"not a line of `nvidia-smi nvlink -s` or `-R`: {line.strip()[:60]!r}"


def _take_link(gpus: Sequence[_Gpu], number: int, state: str) -> str | None:
    gpu = gpus[-1]
    where = f"link {number} of GPU {gpu.heading.index}"
    if number in gpu.active or number in gpu.inactive:
        return f"{where} is there twice"
    if len(gpu.active) + len(gpu.inactive) >= LINKS_MAX:
        return f"more than {LINKS_MAX} links on GPU {gpu.heading.index}"
    speed = _SPEED.fullmatch(state)
    if (speed is not None and float(speed[1]) == 0) or _INACTIVE.fullmatch(state):
        gpu.inactive.add(number)
        return None
    if speed is not None:
        gpu.active[number] = None
        return None
    remote = _REMOTE.fullmatch(state)
    if remote is None:
        return f"{where}: {state[:40]!r} is no speed, no remote device and not <inactive>"
    if not _HIDDEN.fullmatch(remote[1]):
        try:
            PciAddress.parse(remote[1])
        except ValueError as error:
            return f"{where}: {error}"
    gpu.active[number] = (remote[1], int(remote[2]))
    return None


def _reading(gpu: _Gpu, gpus: Sequence[_Gpu]) -> GpuReading:
    counts = Counter(None if far is None else far[0].lower() for far in gpu.active.values())
    links = tuple(_far_end(gpu, address, count, gpus) for address, count in counts.items())
    return GpuReading(
        index=gpu.heading.index,
        uuid=gpu.heading.uuid,
        model=gpu.heading.model,
        vendor=NVIDIA,
        nvlinks=links if gpu.is_told else None,
    )


def _far_end(gpu: _Gpu, address: str | None, count: int, gpus: Sequence[_Gpu]) -> NvlinkReading:
    if address is None:
        return NvlinkReading(FarEnd.UNKNOWN, None, count)
    if _HIDDEN.fullmatch(address):
        return NvlinkReading(FarEnd.UNSEEN_SWITCH, None, count)
    target = PciAddress.parse(address)
    if _is_shared_by_all(gpus):
        return NvlinkReading(FarEnd.SWITCH, target, count)
    if any(_faces(gpu, other, address) for other in gpus if other is not gpu):
        return NvlinkReading(FarEnd.GPU, target, count)
    return NvlinkReading(FarEnd.UNKNOWN, target, count)


def _is_shared_by_all(gpus: Sequence[_Gpu]) -> bool:
    """All GPUs name the same far ends: no GPU has a link to itself, so these are switches."""
    sets = [{far[0].lower() for far in gpu.active.values() if far is not None} for gpu in gpus if gpu.active]
    return len(sets) > 1 and all(targets == sets[0] for targets in sets)


def _faces(gpu: _Gpu, other: _Gpu, address: str) -> bool:
    """Whether every link of `gpu` to `address` arrives at a link of `other` that leads back to it."""
    for number, far in gpu.active.items():
        if far is None or far[0].lower() != address:
            continue
        back = other.active.get(far[1])
        if back is None or back[1] != number:
            return False
    return True


def _doubts(gpus: Sequence[_Gpu]) -> list[str]:
    doubts = [
        f"GPU {gpu.heading.index}: no word on its links, so their number stays unknown"
        for gpu in gpus
        if not gpu.is_told
    ]
    last = gpus[-1]
    most = max((len(gpu.active) for gpu in gpus if gpu.heading.model == last.heading.model), default=0)
    if 0 < len(last.active) + len(last.inactive) < most:
        doubts.append(
            f"GPU {last.heading.index}, the last one, lists {len(last.active)} links where others of its model have "
            f"{most}; the file may be cut short"
        )
    return doubts
