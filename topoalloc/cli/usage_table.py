"""Used and granted of every share, as a table for people or as JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from topoalloc.sharing.share_file import CORES_FULL, ShareLimits, shown_gpu
from topoalloc.sharing.share_owners import ShareOwner
from topoalloc.sharing.share_sample import ShareSample, UsageRate
from topoalloc.sharing.told_files import TURN_PERIOD_US, Turn
from topoalloc.sharing.usage import Usage

_HEADINGS = ("GPU", "CONTAINER", "MEMORY", "LIMIT", "GPU%", "LIMIT%", "WAIT%", "TURN", "PROCS", "REFUSED")
_LEFT = 2  # so many columns are words, the rest are figures
OWNER_CHARACTERS_MAX = 60


@dataclass(frozen=True, slots=True)
class SharesSeen:
    """Shares, what they did over the interval as far as it is known, whose they are, and their turns, by name."""

    samples: tuple[ShareSample, ...]
    rates: Mapping[str, UsageRate]
    owners: Mapping[str, ShareOwner]
    turns: Mapping[str, Turn] = field(default_factory=dict)


def usage_table(seen: SharesSeen) -> str:
    """One line for each share, those that cannot be read with the reason."""
    if not seen.samples:
        return "no container has a share of a GPU\n"
    rows = [_HEADINGS, *(_row(sample, seen) for sample in seen.samples)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column < _LEFT else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    reasons = [f"{sample.name}: {reason}" for sample in seen.samples if (reason := _reason(sample))]
    return "".join(f"{line}\n" for line in (*lines, *reasons))


def usage_json(seen: SharesSeen) -> str:
    """A document of one line: `{"shares": [...]}`, figures in bytes, nanoseconds and percent."""
    return json.dumps({"shares": [_entry(sample, seen) for sample in seen.samples]}) + "\n"


def _row(sample: ShareSample, seen: SharesSeen) -> tuple[str, ...]:
    limits = sample.limits if isinstance(sample.limits, ShareLimits) else None
    usage = sample.usage if isinstance(sample.usage, Usage) else None
    rate, owner = seen.rates.get(sample.name), seen.owners.get(sample.name)
    return (
        shown_gpu(sample.name, limits),
        (str(owner) if owner is not None else sample.name)[:OWNER_CHARACTERS_MAX],
        "?" if usage is None else _mib(usage.used_bytes),
        "?" if limits is None else "-" if limits.memory_bytes is None else _mib(limits.memory_bytes),
        "?" if usage is None or rate is None else _percent(rate.cores),
        "?" if limits is None else _cores(limits),
        "?" if usage is None or rate is None else f"{100 * rate.waiting:.0f}",
        _turn(seen.turns.get(sample.name)),
        "?" if usage is None else str(len(usage.processes)),
        "?" if usage is None else str(usage.refused),
    )


def _entry(sample: ShareSample, seen: SharesSeen) -> dict[str, object]:
    entry: dict[str, object] = {"share": sample.name}
    owner = seen.owners.get(sample.name)
    if owner is not None:
        entry["owner"] = {"namespace": owner.namespace, "pod": owner.pod, "container": owner.container}
    limits, usage, rate = sample.limits, sample.usage, seen.rates.get(sample.name)
    entry["gpu"] = shown_gpu(sample.name, limits if isinstance(limits, ShareLimits) else None)
    if isinstance(limits, ShareLimits):
        entry["limits"] = {
            "cores_percent": 100 * limits.cores / CORES_FULL,
            "cores_max_percent": 100 * limits.cores_max / CORES_FULL,
            "memory_bytes": limits.memory_bytes,
        }
    turn = seen.turns.get(sample.name)
    if turn is not None:
        entry["turn"] = {"from_us": turn.from_us, "length_us": turn.length_us, "period_us": TURN_PERIOD_US}
    if isinstance(usage, Usage):
        entry["usage"] = {
            "explicit_bytes": usage.explicit_bytes,
            "implicit_bytes": usage.implicit_bytes,
            "cores_percent": None if rate is None else 100 * rate.cores / CORES_FULL,
            "waiting_percent": None if rate is None else round(100 * rate.waiting, 1),
            "gpu_time_ns": usage.gpu_time_ns,
            "waited_ns": usage.waited_ns,
            "refused": usage.refused,
            "processes": len(usage.processes),
        }
    reason = _reason(sample)
    return entry | ({"unreadable": reason} if reason else {})


def _reason(sample: ShareSample) -> str:
    parts = (part for part in (sample.limits, sample.usage) if not isinstance(part, ShareLimits | Usage))
    return "; ".join(part.reason for part in parts)


def _mib(amount_bytes: int) -> str:
    return f"{-(-amount_bytes // 1024**2)}MiB"


def _percent(cores: int) -> str:
    return f"{100 * cores / CORES_FULL:.1f}"


def _turn(turn: Turn | None) -> str:
    """From when to when of every period, in milliseconds."""
    return "-" if turn is None else f"{turn.from_us / 1e3:.0f}-{(turn.from_us + turn.length_us) / 1e3:.0f}ms"


def _cores(limits: ShareLimits) -> str:
    own = f"{100 * limits.cores / CORES_FULL:.0f}"
    return f"{own}-{100 * limits.cores_max / CORES_FULL:.0f}" if limits.elastic else own
