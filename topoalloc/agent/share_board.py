"""What the agent's threads that look after running shares know, for each other and for whoever asks for metrics.

Every field is an immutable value that its one writer replaces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from topoalloc.sharing.overuse import Finding
from topoalloc.sharing.share_owners import ShareOwner
from topoalloc.sharing.share_sample import ShareSample, UsageRate
from topoalloc.sharing.told_files import Turn


@dataclass(slots=True)
class ShareBoard:
    """`paced`: hundredths of a percent that elastic shares may take now; `found` counts findings by kind; `judged`:
    shares of whose memory it is known whether it is too much."""

    samples: tuple[ShareSample, ...] = ()
    rates: Mapping[str, UsageRate] = field(default_factory=dict)
    owners: Mapping[str, ShareOwner] = field(default_factory=dict)
    paced: Mapping[str, int] = field(default_factory=dict)
    turns: Mapping[str, Turn] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    judged: frozenset[str] = frozenset()
    found: Counter[str] = field(default_factory=Counter)
    killed: int = 0
    socket_counts: Counter[str] = field(default_factory=Counter)
