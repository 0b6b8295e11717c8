"""What the log says of faults: one line for each GPU and Xid with how often it came, and a pause before the next. Pure.

A GPU in trouble can send the same fault hundreds of times a second, and a log that is full hides everything else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from topoalloc.topology.gpu_condition import GpuFault

REPEAT_PAUSE_S = 60.0  # between two lines of the same GPU and Xid; what comes meanwhile is counted
KINDS_MAX = 256  # remembered; a node has some 16 GPUs and each a few Xids. The one said longest ago gives way


@dataclass(slots=True)
class _Kind:
    said_at_s: float = float("-inf")
    count: int = 0  # since then


@dataclass(slots=True)
class FaultLines:
    """Every GPU and Xid that was said, in the order of when it was."""

    _kinds: dict[GpuFault, _Kind] = field(default_factory=dict)

    def due(self, faults: Iterable[GpuFault], now_s: float) -> tuple[tuple[GpuFault, int], ...]:
        """These came in: what is to be said now, and how often it came since it was last said. No fault is lost."""
        for fault in faults:
            self._kinds.setdefault(fault, _Kind()).count += 1
        said = [f for f, kind in self._kinds.items() if kind.count and now_s - kind.said_at_s >= REPEAT_PAUSE_S]
        lines = []
        for fault in said:
            lines.append((fault, self._kinds.pop(fault).count))
            self._kinds[fault] = _Kind(now_s)
        while len(self._kinds) > KINDS_MAX:
            fault = next(iter(self._kinds))
            kind = self._kinds.pop(fault)
            if kind.count:
                lines.append((fault, kind.count))
        return tuple(lines)
