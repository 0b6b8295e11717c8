"""What this node looks like now: asks the kubelet's PodResources and configuration, at the right moments."""

from __future__ import annotations

import logging
from pathlib import Path

from topoalloc.admission.cpus import CpuOptions
from topoalloc.admission.occupancy import Allocatable, ContainerUse, Occupancy
from topoalloc.admission.prediction import NodeState, Rules
from topoalloc.cluster.node_labels import node_labels
from topoalloc.cluster.node_patch import TOPOLOGY_ANNOTATION, NodeWords
from topoalloc.cluster.node_picture import node_picture
from topoalloc.cluster.node_state import node_state
from topoalloc.cluster.pacing import Pace, Pacing
from topoalloc.errors import InputError, KubeletError
from topoalloc.kubelet.kubelet_config import KubeletConfig
from topoalloc.kubelet.node_occupancy import NodeOccupancy
from topoalloc.kubelet.simulated.configuration import read_configuration
from topoalloc.sharing.inventory import Inventory

log = logging.getLogger(__name__)

# A List can make the kubelet forget the devices of an Allocate that is running (kubelet/node_occupancy.py), so it
# follows a change of pods when admissions have probably ended, and otherwise is rare.
LIST_PACE = Pace(quiet_s=1.0, delay_max_s=5.0, period_min_s=1.0, backoff_min_s=1.0, backoff_max_s=15.0)
LIST_PERIOD_S = 60.0
HEALTH_PERIOD_S = 10.0  # GetAllocatableResources has no side effect
# A kubelet that restarts is away for seconds; for so long what it last said still stands.
STALE_MAX_S = 60.0


class NodeView:
    """One node's view; used by one thread."""

    def __init__(
        self,
        inventory: Inventory,
        pod_resources: Path | None,
        kubelet_config: Path | None,
        pace: Pace = LIST_PACE,
        health_period_s: float = HEALTH_PERIOD_S,
    ) -> None:
        self.inventory = inventory
        self._client = None if pod_resources is None else NodeOccupancy(pod_resources)
        self._config_path = kubelet_config
        self._config = KubeletConfig(kubelet_config)
        self._pace = pace
        self._health_period_s = health_period_s
        self._listing = Pacing(first_s=0.0)
        self._containers: tuple[ContainerUse, ...] | None = None
        self._allocatable: Allocatable | None = None
        self._before: Occupancy | None = None
        self._listed_at_s = self._answered_at_s = float("-inf")
        self._next_health_s = float("-inf")
        self._failing = False
        self._words: NodeWords | None = None
        self._drawn_from: tuple[object, ...] = (None, None, None)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def pods_changed(self, now_s: float) -> None:
        """Pods of this node came, went or changed: what they hold may have changed too."""
        self._listing = self._listing.changed(now_s)

    def look(self, now_s: float) -> None:
        """Ask whatever is due to be asked; never fails."""
        if self._client is None:
            return
        if now_s - self._listed_at_s >= LIST_PERIOD_S:
            self._listing = self._listing.changed(now_s) if self._listing.first_s is None else self._listing
        due_s = self._listing.due_at_s(self._pace)
        listing = due_s is not None and due_s <= now_s
        if not listing and now_s < self._next_health_s:
            return
        self._next_health_s = now_s + self._health_period_s
        try:
            allocatable = self._client.allocatable()
            containers = self._client.containers() if listing else self._containers
        except KubeletError as error:
            self._listing = self._listing.failed(now_s, self._pace, spread=1.0)
            if not self._failing:
                self._failing = True
                log.warning("%s: what is free is not known until it answers", error)
            if now_s - self._answered_at_s > STALE_MAX_S:
                self._containers = self._allocatable = None
            return
        if listing:
            self._before, self._listed_at_s = self.occupancy(), now_s
            self._listing = self._listing.succeeded(now_s, self._pace)
        self._allocatable, self._containers = allocatable, containers
        self._answered_at_s = now_s
        if self._failing:
            self._failing = False
            log.info("PodResources answers again")

    def next_look_s(self) -> float | None:
        """When `look` has something to do, as things are."""
        if self._client is None:
            return None
        due_s = self._listing.due_at_s(self._pace)
        times = (self._next_health_s, self._listed_at_s + LIST_PERIOD_S if due_s is None else due_s)
        return max(0.0, min(times))

    def looked_at_s(self) -> float:
        """When what containers hold was last asked."""
        return self._listed_at_s

    def words(self) -> NodeWords:
        """Labels and annotations that the node should have; drawn anew only where something was asked anew."""
        alignment = self._config.alignment()
        drawn_from = (self._containers, self._allocatable, alignment)
        if self._words is None or any(a is not b for a, b in zip(drawn_from, self._drawn_from, strict=True)):
            picture = node_picture(self.inventory, self.occupancy(), alignment)
            self._words = NodeWords(node_labels(self.inventory.machine, alignment), {TOPOLOGY_ANNOTATION: picture})
            self._drawn_from = drawn_from
        return self._words

    def occupancy(self) -> Occupancy | None:
        """What is held and what there is, or None where the kubelet does not tell."""
        if self._containers is None or self._allocatable is None:
            return None
        return Occupancy(self._containers, self._allocatable)

    def state(self) -> NodeState | None:
        """The kubelet's managers as they are now, or None."""
        return self._state_of(self.occupancy())

    def state_before(self) -> NodeState | None:
        """The same one List earlier, or None."""
        return self._state_of(self._before)

    def _state_of(self, occupancy: Occupancy | None) -> NodeState | None:
        return None if occupancy is None else node_state(self.inventory, occupancy, self._cpu_options())

    def rules(self) -> Rules | None:
        """What the kubelet does about NUMA nodes, or None where its configuration cannot be read."""
        alignment = self._config.alignment()
        return None if alignment.policy is None else Rules(alignment.policy, alignment.scope, alignment.options)

    def _cpu_options(self) -> CpuOptions:
        """As configured; the defaults where the file cannot be read or has options that are not understood."""
        try:
            settings = None if self._config_path is None else read_configuration(self._config_path).settings
        except InputError:
            return CpuOptions()
        return CpuOptions() if settings is None or settings.cpu is None else settings.cpu.options
