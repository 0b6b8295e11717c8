"""The kubelet's pod manager: the pods it knows, one entering at a time, and which of them are still active."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import StrEnum

from topoalloc.admission.pod import Pod
from topoalloc.admission.refusal import Refusal

PODS_MAX = 100_000  # one long simulation with churn; a node's own limit is a few hundred at a time


class Phase(StrEnum):
    """`status.phase` of a pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


ACTIVE_PHASES = frozenset({Phase.PENDING, Phase.RUNNING})


@dataclass(frozen=True, slots=True)
class StoredPod:
    """A pod and its status; `refusal` says why a Failed one was turned away."""

    pod: Pod
    phase: Phase
    refusal: Refusal | None = None


class PodStore:
    """Pods in the order they came. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pods: dict[str, StoredPod] = {}

    def add(self, pod: Pod) -> None:
        """A pod enters, right before its own admission."""
        with self._lock:
            if len(self._pods) >= PODS_MAX:
                raise ValueError(f"more than {PODS_MAX} pods in one simulated kubelet")
            self._pods[pod.uid] = StoredPod(pod, Phase.PENDING)

    def set_phase(self, uid: str, phase: Phase, refusal: Refusal | None = None) -> None:
        with self._lock:
            self._pods[uid] = StoredPod(self._pods[uid].pod, phase, refusal)

    def remove(self, uid: str) -> None:
        """The pod object was deleted."""
        with self._lock:
            self._pods.pop(uid, None)

    def find(self, uid: str) -> StoredPod | None:
        with self._lock:
            return self._pods.get(uid)

    def all(self) -> tuple[StoredPod, ...]:
        """Every pod whose object still exists, failed ones too."""
        with self._lock:
            return tuple(self._pods.values())

    def active(self) -> tuple[Pod, ...]:
        """Pods that hold resources: not Failed, not fully terminated."""
        return tuple(stored.pod for stored in self.all() if stored.phase in ACTIVE_PHASES)
