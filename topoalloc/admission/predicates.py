"""The kubelet's own fit check, which runs after the topology manager has allocated (pkg/kubelet/lifecycle)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from topoalloc.admission.pod import Pod
from topoalloc.admission.refusal import Refusal


def fit(
    pod: Pod,
    others: Sequence[Pod],
    allocatable: Mapping[str, int],
    *,
    pods_max: int = 110,
    devices_allocated: Mapping[str, int] | None = None,
) -> Refusal | None:
    """Whether the pod fits beside the `others` on the node; the first resource that does not is named.

    `allocatable`: whole numbers by resource, cpu in thousandths. `devices_allocated`: devices given out by
    resource, the pod's own included, when the pod holds any (allocatable is raised to it).
    """
    raise NotImplementedError
