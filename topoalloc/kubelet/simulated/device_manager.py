"""The device manager's shell: its tables under a lock, its plugins, its checkpoint, and the order of its calls.

What to choose is decided in `topoalloc.admission.devices`; here is when, and with whom. Kubernetes 1.37.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from topoalloc.admission import devices as rules
from topoalloc.admission.devices import DeviceTables, ListedDevices, Owner
from topoalloc.admission.hints import DeviceView, Hints
from topoalloc.admission.pod import Container, Pod, device_requests
from topoalloc.errors import KubeletError
from topoalloc.kubelet.simulated import checkpoint
from topoalloc.kubelet.simulated.endpoints import Endpoints
from topoalloc.kubelet.simulated.plugin_client import DeviceList, PluginCallError, PluginClient
from topoalloc.kubelet.simulated.pod_store import PodStore
from topoalloc.kubelet.simulated.settings import Behaviour


@dataclass(frozen=True, slots=True)
class PluginCall:
    """One call to a plugin during an admission, for whoever wants to follow the conversation."""

    method: str
    resource: str
    container: str
    ids: tuple[str, ...]  # candidates of GetPreferredAllocation, devices of Allocate; in the order sent
    must_include: tuple[str, ...] = ()
    size: int = 0
    answer: tuple[str, ...] | None = None
    error: str | None = None


class DeviceManager:
    """One kubelet process's device manager. A restarted kubelet has a new one that reads the same checkpoint."""

    def __init__(
        self,
        directory: Path,
        pods: PodStore,
        behaviour: Behaviour,
        chance: random.Random,
        now_s: Callable[[], float],
        on_call: Callable[[PluginCall], None],
    ) -> None:
        self.sources_ready = True
        self._directory = directory
        self._pods = pods
        self._behaviour = behaviour
        self._chance = chance
        self._now_s = now_s
        self._on_call = on_call
        self._changed = threading.Condition()
        self._endpoints = Endpoints()
        self._tables = DeviceTables()
        self._answers: dict[Owner, bytes] = {}
        self._in_flight: dict[Owner, frozenset[str]] = {}
        self._restore()

    # What plugins do.

    def plugin_connected(self, client: PluginClient) -> None:
        """A plugin answered for its options; raises PluginCallError where its path is already connected."""
        with self._changed:
            fault = self._endpoints.add(client)
            if fault is not None:
                raise PluginCallError(fault)

    def devices_listed(self, client: PluginClient, devices: DeviceList) -> None:
        """A list replaces the resource's table, whichever of its plugins sent it."""
        with self._changed:
            self._tables = rules.list_received(self._tables, client.resource, devices.nodes, devices.healthy)
            self._write_checkpoint()
            self._changed.notify_all()

    def plugin_ended(self, client: PluginClient, reason: str) -> None:
        """A stream ended; with the last one all devices of the resource turn unhealthy."""
        with self._changed:
            if self._endpoints.remove(client, self._now_s()):
                self._tables = rules.stream_ended(self._tables, client.resource)
            self._changed.notify_all()

    def wait_until(self, condition: Callable[[Mapping[str, ListedDevices]], bool], limit_s: float) -> bool:
        """Wait until the device lists satisfy `condition`; False when `limit_s` passed."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self._tables.listed), limit_s)

    # What others ask.

    @property
    def tables(self) -> DeviceTables:
        with self._changed:
            return self._tables

    def answers(self) -> dict[Owner, bytes]:
        """The serialised Allocate answers that containers are started with."""
        with self._changed:
            return dict(self._answers)

    def capacity(self) -> dict[str, tuple[int, int]]:
        """(capacity, allocatable) of every resource that the node status shows; 0, 0 after the grace period."""
        with self._changed:
            for resource in self._endpoints.expired(self._now_s()):
                self._endpoints.drop(resource)
                self._tables = rules.grace_period_ended(self._tables, resource)
                self._write_checkpoint()
            return {
                name: (len(listed.nodes), len(listed.healthy)) if listed.registered else (0, 0)
                for name, listed in self._tables.listed.items()
            }

    def view(self, resource: str) -> DeviceView:
        return rules.view(self.tables, resource)

    def knows(self, resource: str) -> bool:
        """Whether the resource is one of a device plugin; others are skipped in silence."""
        return rules.is_device_resource(self.tables, resource)

    def collect(self) -> None:
        """Free the devices of pods that are no longer active (UpdateAllocatedDevices).

        `allocated` is rebuilt from the records then, and an Allocate call in flight has none yet: its devices look
        free until the next rebuild. `loses_reservations` off keeps them.
        """
        if not self.sources_ready:
            return
        active = frozenset(pod.uid for pod in self._pods.active())
        with self._changed:
            before = self._tables
            self._tables = rules.collect(before, active)
            if self._tables is before:
                return
            self._answers = {owner: answer for owner, answer in self._answers.items() if owner.pod_uid in active}
            if not self._behaviour.loses_reservations:
                self._keep_in_flight()

    def container_hints(self, pod: Pod, container: Container, machine_nodes: Sequence[int]) -> dict[str, Hints]:
        self.collect()
        self._crash_on_vanished(pod, container)
        return rules.container_hints(self.tables, pod, container, machine_nodes, self._behaviour.hint_nodes)

    def pod_hints(self, pod: Pod, machine_nodes: Sequence[int]) -> dict[str, Hints]:
        self.collect()
        self._crash_on_vanished(pod, None)
        return rules.pod_hints(self.tables, pod, machine_nodes, self._behaviour.hint_nodes)

    def _crash_on_vanished(self, pod: Pod, container: Container | None) -> None:
        """Raises KubeletError: a device that the pod has is no longer on the list."""
        reason = rules.crash_reason(self.tables, pod, container)
        if reason is not None:
            raise KubeletError(reason)

    # Allocation.

    def allocate(self, pod: Pod, container: Container, affinity: int | None, was_running: bool) -> str | None:
        """Devices for every resource of a container, in random order; returns the kubelet's error text or None."""
        with self._changed:
            self._tables = rules.container_opened(self._tables, pod.uid)
        requests = device_requests(container)
        collected = changed = False
        for resource in self._chance.sample(sorted(requests), len(requests)):
            if not self.knows(resource):
                continue
            if not collected:
                self.collect()
                collected = True
            owner = Owner(pod.uid, container.name, resource)
            want = rules.Want(
                owner, requests[resource], affinity, self._prefers(resource), self.sources_ready, was_running
            )
            chosen = self._choose(want)
            if isinstance(chosen, str):
                return chosen
            if not chosen:
                continue
            fault = self._call_allocate(owner, chosen)
            if fault is not None:
                return fault
            changed = True
        with self._changed:
            if changed:
                self._write_checkpoint()
            self._tables = rules.container_closed(self._tables, pod.uid, container)
        return None

    def _choose(self, want: rules.Want) -> frozenset[str] | str:
        with self._changed:
            step = rules.begin(self._tables, want, self._pick)
            self._tables = step.tables
        if isinstance(step, rules.Ask):
            step = self._ask(step)
        return step.text if isinstance(step, rules.Refused) else step.devices

    def _ask(self, ask: rules.Ask) -> rules.Done | rules.Refused:
        """GetPreferredAllocation, without the lock: lists and collections may happen meanwhile."""
        owner = ask.want.owner
        available, must = self._shuffled(ask.available), self._shuffled(ask.must_include)
        client = self._endpoints.in_charge(owner.resource)
        answer, error = None, None
        if client is not None:
            try:
                answer = client.preferred(available, must, ask.size)
            except PluginCallError as failure:
                error = str(failure)
        self._on_call(
            PluginCall(
                "GetPreferredAllocation", owner.resource, owner.container, available, must, ask.size, answer, error
            )
        )
        with self._changed:
            step: rules.Done | rules.Refused
            if error is not None:
                step = rules.ask_failed(ask, error, self._tables)
            else:
                preferred = None if answer is None else frozenset(answer)
                step = rules.finish(ask, preferred, self._pick, self._tables)
            self._tables = step.tables
            return step

    def _call_allocate(self, owner: Owner, chosen: frozenset[str]) -> str | None:
        client = self._endpoints.in_charge(owner.resource)
        if client is None:
            self._undo_reservations()
            return f"unknown Device Plugin {owner.resource}"
        ids = self._shuffled(chosen)
        with self._changed:
            self._in_flight[owner] = chosen
        answer, error = None, None
        try:
            answer = client.allocate(ids)
        except PluginCallError as failure:
            error = str(failure)
        self._on_call(PluginCall("Allocate", owner.resource, owner.container, ids, error=error))
        with self._changed:
            del self._in_flight[owner]
            if error is not None:
                self._tables = rules.rebuild(self._tables)
                return error
            if answer is None:
                # Unlike after an RPC error nothing is rebuilt here: the devices stay reserved by nobody.
                return "no containers return in allocation response"
            step = rules.allocate_succeeded(self._tables, owner, chosen)
            if isinstance(step, rules.Refused):
                raise KubeletError(step.text)
            self._tables = step
            self._answers[owner] = answer
        return None

    def _undo_reservations(self) -> None:
        with self._changed:
            self._tables = rules.rebuild(self._tables)

    def _keep_in_flight(self) -> None:
        allocated = dict(self._tables.allocated)
        for owner, devices in self._in_flight.items():
            allocated[owner.resource] = allocated.get(owner.resource, frozenset()) | devices
        self._tables = replace(self._tables, allocated=allocated)

    def _prefers(self, resource: str) -> bool:
        client = self._endpoints.in_charge(resource)
        return client is not None and client.prefers

    def _pick(self, candidates: Sequence[str], count: int) -> Sequence[str]:
        return self._chance.sample(candidates, count)

    def _shuffled(self, ids: frozenset[str]) -> tuple[str, ...]:
        """Ids in the order of a Go map, which is none; sorted first, so that the seed alone decides."""
        order = sorted(ids)
        self._chance.shuffle(order)
        return tuple(order)

    # Restart.

    def _restore(self) -> None:
        content = checkpoint.read(self._directory)
        saved = None if content is None else checkpoint.decode(content)
        if saved is None:
            return
        listed = {resource: ListedDevices() for resource in saved.resources}
        self._tables = rules.kubelet_restarted(DeviceTables(listed=listed, recorded=saved.recorded))
        self._answers = dict(saved.answers)
        for resource in saved.resources:
            self._endpoints.restored(resource, self._now_s())

    def _write_checkpoint(self) -> None:
        checkpoint.write(self._directory, checkpoint.encode(self._tables, self._answers))
