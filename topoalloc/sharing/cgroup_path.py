"""Which container a process belongs to, by the path of its cgroup. Pure.

Only what the kubelet and the runtime made is read: from the root of the hierarchy on, and no further than the
container's own group, below which a tenant may make groups of any name (kubelet pkg/kubelet/cm/cgroup_manager_linux.go
for the pods' names; containerd, CRI-O and cri-dockerd for the containers').
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

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
_USUAL_ROOT = "kubelet"  # of clusters whose nodes are containers; taken where no root is told
ROOTS_REMEMBERED_MAX = 4  # a node has one kubelet


@lru_cache(ROOTS_REMEMBERED_MAX)
def _forms(root: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Paths below the kubelet's `cgroupRoot`, as its cgroupfs and its systemd driver make them."""
    told = [part for part in root.split("/") if part]
    parts, optional = told or [_USUAL_ROOT], "" if told else "?"
    plain = "".join(f"/{re.escape(part)}" for part in parts)
    # systemd's slices are named by all above them (kubelet's CgroupName.ToSystemd).
    names = [re.escape("-".join(part.replace("-", "_") for part in parts[: end + 1])) for end in range(len(parts))]
    slices = "".join(rf"/{name}\.slice" for name in names)
    top = f"(?:{names[-1]}-){optional}kubepods"
    return (
        re.compile(
            rf"(?:(?:{_UP})?(?:{plain}){optional}/kubepods(?:/{_QOS})?|{_UP}(?:/{_QOS})?)/pod{_UID}/{_CONTAINER}(?:/.*)?"
        ),
        re.compile(
            rf"(?:(?:{_UP})?(?:{slices}){optional}/{top}\.slice|{_UP})(?:/{top}-{_QOS}\.slice)?"
            rf"/{top}(?:-{_QOS})?-pod{_UID}\.slice/(?:cri-containerd|crio|docker)-{_CONTAINER}\.scope(?:/.*)?"
        ),
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


def pod_cgroup(content: bytes, root: str = "") -> PodCgroup | None:
    """The container of /proc/<pid>/cgroup; None for a process in none, and where two hierarchies contradict.

    `root`: the kubelet's `cgroupRoot`, empty where it has none.
    """
    if len(content) > CGROUP_BYTES_MAX:
        return None
    found: set[PodCgroup] = set()
    for line in content.decode("utf-8", "replace").split("\n")[:LINES_MAX]:
        parts = line.split(":", 2)
        group = _of_path(parts[2], root) if len(parts) == 3 else None
        if group is not None:
            found.add(group)
    return found.pop() if len(found) == 1 else None


def _of_path(path: str, root: str) -> PodCgroup | None:
    plain, slices = _forms(root)
    match = slices.fullmatch(path) or plain.fullmatch(path) or _SLICE_AS_NAME.fullmatch(path)
    return None if match is None else PodCgroup(match["uid"].replace("_", "-"), match["container"])
