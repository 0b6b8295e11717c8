"""Which container a process belongs to, by the path of its cgroup. Pure.

Only what the kubelet and the runtime made is read: from the root of the hierarchy on, and no further than the
container's own group, below which a tenant may make groups of any name (kubelet pkg/kubelet/cm/cgroup_manager_linux.go
for the pods' names; containerd, CRI-O and cri-dockerd for the containers').
"""

from __future__ import annotations

import re
from dataclasses import dataclass

CGROUP_BYTES_MAX = 16384  # of /proc/<pid>/cgroup: a dozen lines on cgroup v1
LINES_MAX = 64
_GROUPS = [f"[0-9a-f]{{{count}}}" for count in (8, 4, 4, 4, 12)]
_HASH = "[0-9a-f]{32}"  # of a static pod
# systemd has `-` between the names of slices within one another, so `_` stands for it.
_UID = rf"(?P<uid>{'-'.join(_GROUPS)}|{'_'.join(_GROUPS)}|{_HASH})"
_CONTAINER = r"(?P<container>[0-9a-f]{64})"
_QOS = r"(?:burstable|besteffort)"
# A reader in a cgroup namespace of its own sees what is outside as `/..`, once for each level, and then the rest of
# the path: the groups above a pod's may be common to both and so not be shown. No group can be called `..`.
_UP = r"(?:/\.\.)+"
# `kubelet` comes first in clusters whose nodes are containers.
_PLAIN = re.compile(
    rf"(?:(?:{_UP})?(?:/kubelet)?/kubepods(?:/{_QOS})?|{_UP}(?:/{_QOS})?)/pod{_UID}/{_CONTAINER}(?:/.*)?"
)
_SLICES = re.compile(
    rf"(?:(?:{_UP})?(?:/kubelet\.slice)?/(?:kubelet-)?kubepods\.slice|{_UP})"
    rf"(?:/(?:kubelet-)?kubepods-{_QOS}\.slice)?"
    rf"/(?:kubelet-)?kubepods(?:-{_QOS})?-pod{_UID}\.slice/(?:cri-containerd|crio|docker)-{_CONTAINER}\.scope(?:/.*)?"
)

# A kubelet that names slices with a runtime that takes the name for one of a plain group: it lies beside the runtime's
# own (cgroup v2) or below it (v1). Only what runtimes and distributions call their services is taken for one.
_SERVICE = r"(?:containerd|docker|k3s|k3s-agent|rke2-server|rke2-agent)\.service"
_SLICE_AS_NAME = re.compile(
    rf"(?:{_UP}|(?:/system\.slice)?(?:/{_SERVICE})?)"
    rf"/kubepods(?:-{_QOS})?-pod{_UID}\.slice:(?:cri-containerd|docker):{_CONTAINER}(?:/.*)?"
)


@dataclass(frozen=True, slots=True)
class PodCgroup:
    """A container: the uid of its pod, as the API server writes it, and the runtime's id of the container."""

    pod_uid: str
    container: str


def pod_cgroup(content: bytes) -> PodCgroup | None:
    """The container of /proc/<pid>/cgroup; None for a process in none, and where two hierarchies contradict."""
    if len(content) > CGROUP_BYTES_MAX:
        return None
    found: set[PodCgroup] = set()
    for line in content.decode("utf-8", "replace").split("\n")[:LINES_MAX]:
        parts = line.split(":", 2)
        group = _of_path(parts[2]) if len(parts) == 3 else None
        if group is not None:
            found.add(group)
    return found.pop() if len(found) == 1 else None


def _of_path(path: str) -> PodCgroup | None:
    match = _SLICES.fullmatch(path) or _PLAIN.fullmatch(path) or _SLICE_AS_NAME.fullmatch(path)
    return None if match is None else PodCgroup(match["uid"].replace("_", "-"), match["container"])
