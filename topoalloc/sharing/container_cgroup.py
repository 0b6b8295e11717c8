"""Which pod and container a process belongs to, from the text of its `/proc/<pid>/cgroup`.

The container is the first group below its pod's, not the last one of the path: a container that may write in its own
groups can make one below that bears the name of another container.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TEXT_CHARACTERS_MAX = 16 * 1024
_UID = (
    r"[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32}"  # or a static pod's hash
)
_POD = re.compile(
    rf"(?:kubepods(?:-besteffort|-burstable)?-)?pod({_UID})(?:\.slice)?(?::[A-Za-z0-9_.-]+:([0-9a-f]{{64}}))?"
)
_CONTAINER = re.compile(r"(?:[a-z][a-z0-9-]{0,31}-)?([0-9a-f]{64})(?:\.scope)?")


@dataclass(frozen=True, slots=True)
class Placed:
    """The container of a process as the kernel tells it."""

    pod_uid: str
    container_id: str


def container_of(cgroup: str) -> Placed | None:
    """The container; None for a process of the node, or where its groups have another form."""
    for line in _by_preference(cgroup[:TEXT_CHARACTERS_MAX]):
        parts = line.split(":", 2)[-1].split("/")
        for number, part in enumerate(parts):
            pod = _POD.fullmatch(part)
            if pod is None:
                continue
            below = parts[number + 1] if number + 1 < len(parts) else ""
            container = pod.group(2) or (found.group(1) if (found := _CONTAINER.fullmatch(below)) else None)
            if container is None:
                break
            return Placed(pod.group(1).replace("_", "-"), container)
    return None


def _by_preference(cgroup: str) -> list[str]:
    """Lines with a pod in them: that of the memory controller, that of version 2, the others."""
    lines = [line for line in cgroup.splitlines() if line.count(":") >= 2]

    def rank(line: str) -> int:
        number, controllers, _ = line.split(":", 2)
        return 0 if "memory" in controllers.split(",") else 1 if (number, controllers) == ("0", "") else 2

    return sorted(lines, key=rank)
