"""The file that tells the library in a container what its limits are: one `key value` a line, read-only there.

Written for the library, and read back for whoever shows or watches what a share may use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from topoalloc.sharing.share import Share, ShareRules
from topoalloc.topology.pci import PciAddress

SHARE_BYTES_MAX = 4096
FIRST_LINE, LAST_LINE = "topoalloc-share 1", "end"
CORES_FULL = 10_000  # hundredths of a percent of a GPU's time
NUMBER_MAX = 2**63 - 1
_GPU = re.compile(r"[0-9A-Za-z][0-9A-Za-z_./-]{0,62}")  # UUID of a GPU or a MIG instance; a recorded file may have any
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_GENERATION = re.compile(rb"^generation ([0-9]{1,19})$", re.MULTILINE)
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


def share_text(share: Share, rules: ShareRules, generation: int = 1) -> bytes:
    """The file's content."""
    uuid = share.gpu_uuid if share.gpu_uuid is not None and _GPU.fullmatch(share.gpu_uuid) else "-"
    cores = share.cores * 100
    ceiling = max(cores, (rules.elastic_cores or 0) * 100)
    memory = "none" if share.memory_bytes is None else str(share.memory_bytes)
    lines = (
        FIRST_LINE,
        f"generation {generation}",
        f"gpu {uuid}",
        f"cores {cores}",
        f"cores-max {ceiling}",
        f"memory {memory}",
        f"context {rules.context_bytes}",
        f"without-usage {'allow' if rules.without_usage else 'refuse'}",
        LAST_LINE,
    )
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def following(before: bytes | None, wanted: bytes) -> bytes:
    """What has to stand in the file: `before` where it says the same as `wanted`, else `wanted` with the number of
    the rewrite counted on."""
    found = _GENERATION.search(before) if before is not None else None
    if before is None or found is None:
        return wanted
    generation = int(found.group(1))
    if _with_generation(before, 0) == _with_generation(wanted, 0):
        return before
    return _with_generation(wanted, generation + 1 if generation < NUMBER_MAX else 1)


def _with_generation(content: bytes, generation: int) -> bytes:
    return _GENERATION.sub(f"generation {generation}".encode(), content, count=1)


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
        if key == "memory" and text == "none":
            continue
        if not _NUMBER.fullmatch(text) or int(text) > NUMBER_MAX:
            return ShareRefusal(f"{key} {text[:32]!r} is no number")
        numbers[key] = int(text)
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
        memory_bytes=numbers.get("memory"),
        context_bytes=numbers["context"],
        refuses_without_usage=values["without-usage"] == "refuse",
    )


def gpu_of(name: str, uuid: str | None) -> str | None:
    """How a driver can be asked for a share's GPU: by its UUID or the PCI address in the share's name; None: not."""
    if uuid is not None:
        return uuid
    try:
        return str(PciAddress.parse(name.rpartition("-c")[0]))
    except ValueError:
        return None


def shown_gpu(name: str, limits: ShareLimits | None) -> str:
    """The GPU of a share for people: its key, as device ids have it; the UUID where the name tells no key."""
    key = name.rpartition("-c")[0]
    return key or (limits.gpu if limits is not None and limits.gpu else "?")
