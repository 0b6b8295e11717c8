"""The file that tells the library in a container what its limits are: one `key value` a line, read-only there."""

from __future__ import annotations

import re

from topoalloc.sharing.share import Share, ShareRules

FIRST_LINE = "topoalloc-share 1"
LAST_LINE = "end"
BYTES_MAX = 4096
UNLIMITED_CORES = 10_000  # hundredths of a percent
GENERATION_MAX = 2**63 - 1
_GENERATION = re.compile(rb"^generation ([0-9]{1,19})$", re.MULTILINE)
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,62}")  # of GPUs and MIG instances; from a driver or a recorded file


def share_text(share: Share, rules: ShareRules, generation: int = 1) -> bytes:
    """The file's content."""
    uuid = share.gpu_uuid if share.gpu_uuid is not None and _UUID.fullmatch(share.gpu_uuid) else "-"
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
    return _with_generation(wanted, generation + 1 if generation < GENERATION_MAX else 1)


def _with_generation(content: bytes, generation: int) -> bytes:
    return _GENERATION.sub(f"generation {generation}".encode(), content, count=1)
