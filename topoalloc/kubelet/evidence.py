"""What the kubelet can be asked about the pods of this node, from whichever of its sockets exist."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from topoalloc.allocation.demand import PodDemand
from topoalloc.allocation.ledger import CheckpointEntry, ListedContainer, Owner
from topoalloc.errors import KubeletError
from topoalloc.kubelet.checkpoint_file import read_entries
from topoalloc.kubelet.plugin_directory import KUBELET_SOCKET, mark_of
from topoalloc.kubelet.pod_resources import PodResources
from topoalloc.kubelet.pods_api import PodsApi

log = logging.getLogger(__name__)
T = TypeVar("T")

PODS_API = "pods API"
POD_RESOURCES = "PodResources"


class Evidence:
    """PodResources, the pods API and the device checkpoint; a source that fails answers None and is tried again."""

    def __init__(
        self, pod_resources: Path | None, pods_api: Path | None, plugin_directory: Path, resources: frozenset[str]
    ) -> None:
        self._plugin_directory = plugin_directory
        self._resources = resources
        self._pod_resources = PodResources(pod_resources, resources) if pod_resources else None
        self._pods_api = PodsApi(pods_api, resources) if pods_api else None
        self._complaints: dict[str, str] = {}

    def close(self) -> None:
        if self._pod_resources:
            self._pod_resources.close()
        if self._pods_api:
            self._pods_api.close()

    def roster(self) -> tuple[PodDemand, ...] | None:
        """The active pods and their requests, or None where the kubelet does not tell."""
        pods_api = self._pods_api
        if pods_api is None:
            return None
        # After one failure nobody waits for the next connection: a socket file can outlive its server.
        patient = PODS_API not in self._complaints
        return self._try(PODS_API, lambda: pods_api.roster(patient=patient))

    def listed_containers(self, *, patient: bool) -> tuple[ListedContainer, ...] | None:
        """Who holds what by PodResources List, or None. Never called from inside Allocate.

        `patient`: the kubelet is calling, so it is there; otherwise nobody waits for a kubelet that is away.
        """
        pod_resources = self._pod_resources
        if pod_resources is None:
            return None
        patient = patient and POD_RESOURCES not in self._complaints
        return self._try(POD_RESOURCES, lambda: pod_resources.list_containers(patient=patient))

    def kubelet_start(self) -> tuple[int, float]:
        """A number of the running kubelet's own, and for how long it has had its socket (s).

        Without a socket it has just begun, as far as anybody can tell.
        """
        mark = mark_of(self._plugin_directory / KUBELET_SOCKET)
        return (0, 0.0) if mark is None else (mark.changed_ns, time.time() - mark.changed_ns / 1e9)

    def checkpoint_entries(self) -> tuple[CheckpointEntry, ...]:
        """Who holds what by the kubelet's checkpoint file."""
        return read_entries(self._plugin_directory, self._resources)

    def holds(self, owner: Owner, ids: frozenset[str]) -> bool:
        """Whether a container still holds one of these ids; without an answer it is taken to."""
        pod_resources = self._pod_resources
        if pod_resources is None or not owner.named:
            return True
        answer = self._try("PodResources Get", lambda: pod_resources.holds(owner, ids))
        return True if answer is None else answer

    def has_pod(self, owner: Owner) -> bool:
        """Whether the pod of a container is still there; without an answer it is taken to be."""
        pod_resources = self._pod_resources
        if pod_resources is None or not owner.named:
            return True
        answer = self._try("PodResources Get", lambda: pod_resources.has_pod(owner))
        return True if answer is None else answer

    def _try(self, source: str, question: Callable[[], T]) -> T | None:
        """Ask; a failure is said once until the source answers again or fails in another way."""
        try:
            answer = question()
        except (KubeletError, ValueError) as error:  # ValueError: the channel was closed, the agent is ending
            # The call and its status code; the words behind them differ from one failure to the next.
            kind = ":".join(str(error).split(":")[:2])
            if self._complaints.get(source) != kind:
                self._complaints[source] = kind
                log.warning("%s: who is being admitted is inferred without it", error)
            return None
        if self._complaints.pop(source, None) is not None:
            log.info("%s answers again", source)
        return answer
