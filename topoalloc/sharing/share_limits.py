"""The limits of one share as its `share` file states them, and how shares are named. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from topoalloc.topology.pci import PciAddress

SHARE_BYTES_MAX = 4096
FIRST_LINE, LAST_LINE = "topoalloc-share 1", "end"
CORES_FULL = 10_000  # hundredths of a percent of a GPU's time
NAME_CHARACTERS_MAX = 63
NUMBER_MAX = 2**63 - 1
_NAME = re.compile(rf"[0-9a-z:_-][0-9a-z.:_-]{{0,{NAME_CHARACTERS_MAX - 1}}}")
_GPU = re.compile(r"[0-9A-Za-z][0-9A-Za-z_./-]{0,79}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_KEYS = ("generation", "gpu", "cores", "cores-max", "memory", "context", "without-usage")


@dataclass(frozen=True, slots=True)
class ShareLimits:
    """`gpu`: a UUID, None where no source tells it. `cores`: hundredths of a percent. `memory_bytes` None: not limited,
    0: none granted."""

    generation: int
    gpu: str | None
    cores: int
    cores_max: int
    memory_bytes: int | None
    context_bytes: int
    refuses_without_usage: bool

    @property
    def elastic(self) -> bool:
        return self.cores_max > self.cores


@dataclass(frozen=True, slots=True)
class ShareRefusal:
    """Why a share file is not one."""

    reason: str


def is_share_name(name: str) -> bool:
    """Whether a directory of this name can be a share."""
    return _NAME.fullmatch(name) is not None


def parse_share(content: bytes) -> ShareLimits | ShareRefusal:
    """Read a share file's bytes; whatever is not exactly as the agent writes it is refused."""
    if len(content) > SHARE_BYTES_MAX:
        return ShareRefusal(f"more than {SHARE_BYTES_MAX} bytes")
    try:
        lines = content.decode("ascii").split("\n")
    except UnicodeDecodeError:
        return ShareRefusal("not ASCII")
    if lines[0] != FIRST_LINE or lines[-2:] != [LAST_LINE, ""]:
        return ShareRefusal(f"it does not go from {FIRST_LINE!r} to {LAST_LINE!r}")
    values: dict[str, str] = {}
    for line in lines[1:-2]:
        key, _, value = line.partition(" ")
        if key not in _KEYS or key in values:
            return ShareRefusal(f"{key[:32]!r} is unknown or given twice")
        values[key] = value
    missing = [key for key in _KEYS if key not in values]
    return ShareRefusal(f"without {', '.join(missing)}") if missing else _limits(values)


def _limits(values: dict[str, str]) -> ShareLimits | ShareRefusal:
    numbers: dict[str, int] = {}
    for key in ("generation", "cores", "cores-max", "memory", "context"):
        text = values[key]
        is_none = key == "memory" and text == "none"
        if not is_none and (not _NUMBER.fullmatch(text) or int(text) > NUMBER_MAX):
            return ShareRefusal(f"{key} {text[:32]!r} is no number")
        numbers[key] = -1 if is_none else int(text)
    if not 1 <= numbers["cores"] <= numbers["cores-max"] <= CORES_FULL:
        return ShareRefusal("cores and cores-max are not in order")
    if values["without-usage"] not in {"refuse", "allow"}:
        return ShareRefusal("without-usage is neither refuse nor allow")
    if values["gpu"] != "-" and not _GPU.fullmatch(values["gpu"]):
        return ShareRefusal("gpu names none")
    return ShareLimits(
        generation=numbers["generation"],
        gpu=None if values["gpu"] == "-" else values["gpu"],
        cores=numbers["cores"],
        cores_max=numbers["cores-max"],
        memory_bytes=None if values["memory"] == "none" else numbers["memory"],
        context_bytes=numbers["context"],
        refuses_without_usage=values["without-usage"] == "refuse",
    )


def gpu_of(name: str, limits: ShareLimits) -> str | None:
    """How a driver can be asked for the share's GPU: by its UUID or the PCI address in the share's name; None: not."""
    if limits.gpu is not None:
        return limits.gpu
    key = name.rpartition("-c")[0]
    try:
        return str(PciAddress.parse(key))
    except ValueError:
        return None


def shown_gpu(name: str, limits: ShareLimits | None) -> str:
    """The GPU of a share for people: its key, as device ids have it; the UUID where the name tells no key."""
    key = name.rpartition("-c")[0]
    return key or (limits.gpu if limits is not None and limits.gpu else "?")
