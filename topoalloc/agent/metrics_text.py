"""Metrics of shares in Prometheus' text format. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from topoalloc.agent.share_board import ShareBoard
from topoalloc.sharing.overuse import Overuse
from topoalloc.sharing.share_file import CORES_FULL, ShareLimits, shown_gpu
from topoalloc.sharing.share_owners import ShareOwner
from topoalloc.sharing.share_sample import ShareSample
from topoalloc.sharing.usage import Usage

# What became of a question or connection (share_sockets).
OUTCOMES = ("answered", "unknown", "refused", "evicted", "late", "paused", "foreign")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# name, type, help; `shares` gives the values in this order.
_SHARE_METRICS = (
    ("memory_limit_bytes", "gauge", "GPU memory granted; absent where memory is not limited."),
    ("cores_limit_ratio", "gauge", "Part of the GPU's time granted, 0 to 1."),
    ("cores_now_ratio", "gauge", "Part of the GPU's time that an elastic share may take now, 0 to 1."),
    ("turn_seconds", "gauge", "Its part of every 0.1 s while shares take turns; absent: it launches at any time."),
    ("memory_explicit_bytes", "gauge", "GPU memory that its processes asked for."),
    ("memory_implicit_bytes", "gauge", "GPU memory that the driver took beside, as for contexts and modules."),
    ("cores_used_ratio", "gauge", "Part of the GPU's time used over the last second, 0 to 1."),
    ("processes", "gauge", "Live processes under limits."),
    ("gpu_time_seconds_total", "counter", "GPU time charged."),
    ("waiting_seconds_total", "counter", "Time for which launches were held back, over all processes."),
    ("refused_allocations_total", "counter", "Allocations refused by the memory limit."),
    ("usage_readable", "gauge", "1: the container's account can be read."),
    ("overuse", "gauge", "1: the watchdog sees the container take more than was granted; absent: it cannot tell."),
)


def metrics_text(board: ShareBoard) -> str:
    """Everything that is known now."""
    lines: list[str] = []
    over = {name for finding in board.findings for name in finding.shares}
    values = [(_labels(sample, board.owners), _values(sample, board, over)) for sample in board.samples]
    for position, (name, kind, help_text) in enumerate(_SHARE_METRICS):
        rows = [(labels, figure) for labels, figures in values if (figure := figures[position]) is not None]
        lines.extend(_metric(f"topoalloc_share_{name}", kind, help_text, rows))
    found = [(_label_text({"kind": str(kind)}), board.found[str(kind)]) for kind in Overuse]
    lines.extend(_metric("topoalloc_overuse_found_total", "counter", "Findings of the node-side watchdog.", found))
    ended = [("", board.killed)]
    lines.extend(_metric("topoalloc_overuse_killed_total", "counter", "Processes that the watchdog ended.", ended))
    asked = [(_label_text({"outcome": kind}), board.socket_counts[kind]) for kind in OUTCOMES]
    lines.extend(_metric("topoalloc_agent_socket_total", "counter", "What became of questions of containers.", asked))
    return "".join(f"{line}\n" for line in lines)


def _values(sample: ShareSample, board: ShareBoard, over: set[str]) -> tuple[float | None, ...]:
    limits = sample.limits if isinstance(sample.limits, ShareLimits) else None
    usage = sample.usage if isinstance(sample.usage, Usage) else None
    paced, rate = board.paced.get(sample.name), board.rates.get(sample.name)
    turn = board.turns.get(sample.name)
    return (
        None if limits is None else limits.memory_bytes,
        None if limits is None else limits.cores / CORES_FULL,
        None if paced is None else paced / CORES_FULL,
        None if turn is None else turn.length_us / 1e6,
        None if usage is None else usage.explicit_bytes,
        None if usage is None else usage.implicit_bytes,
        None if usage is None or rate is None else rate.cores / CORES_FULL,
        None if usage is None else len(usage.processes),
        None if usage is None else usage.gpu_time_ns / 1e9,
        None if usage is None else usage.waited_ns / 1e9,
        None if usage is None else usage.refused,
        int(usage is not None),
        int(sample.name in over) if sample.name in over | board.judged else None,
    )


def _labels(sample: ShareSample, owners: Mapping[str, ShareOwner]) -> str:
    limits = sample.limits if isinstance(sample.limits, ShareLimits) else None
    owner = owners.get(sample.name)
    named = {} if owner is None else {"namespace": owner.namespace, "pod": owner.pod, "container": owner.container}
    return _label_text({"share": sample.name, "gpu": shown_gpu(sample.name, limits), **named})


def _label_text(labels: Mapping[str, str]) -> str:
    escaped = (
        (name, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")) for name, value in labels.items()
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"


def _metric(name: str, kind: str, help_text: str, rows: Iterable[tuple[str, float]]) -> list[str]:
    return [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", *(f"{name}{labels} {row}" for labels, row in rows)]
