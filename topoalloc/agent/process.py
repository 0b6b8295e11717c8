"""The agent's process: puts the parts together, owns the threads, ends them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from topoalloc.agent.config import Config
from topoalloc.agent.desk import Desk, Injecting
from topoalloc.agent.device_files import device_files
from topoalloc.errors import InputError
from topoalloc.kubelet.evidence import Evidence
from topoalloc.kubelet.kubelet_config import KubeletConfig
from topoalloc.kubelet.plugin_directory import remove_stale_sockets
from topoalloc.kubelet.sessions import Sessions
from topoalloc.placement.board import board_of
from topoalloc.sharing.edits import DeviceFiles, Injection
from topoalloc.sharing.inventory import Inventory, InventoryRefusal, inventory_of
from topoalloc.topology.machine import Machine, Unknown
from topoalloc.topology.readers.udev import HotplugMonitor, watch_hotplug
from topoalloc.topology.reading import SourceRefusal

log = logging.getLogger(__name__)

BACKGROUND_PERIOD_S = 0.25
RESCAN_PAUSE_S = 5.0  # every pod that starts makes network events; they are no reason to look without end
RESCAN_PERIOD_S = 60.0  # hot-plug events do not reach every pod (user namespaces get none), so look regardless
THREAD_JOIN_MAX_S = 5.0


@dataclass(frozen=True, slots=True)
class Sockets:
    """Where the kubelet is found; None: that one is not used."""

    plugin_dir: Path
    pod_resources: Path | None
    pods_api: Path | None
    kubelet_config: Path | None = None


@dataclass(frozen=True, slots=True)
class Agent:
    """A running agent."""

    inventory: Inventory
    desk: Desk
    sessions: Sessions


def inventory_for(config: Config, machine: Machine) -> Inventory:
    """Cut the machine as configured; raises InputError when the kubelet could not take the list."""
    inventory = inventory_of(machine, config.sharing())
    if isinstance(inventory, InventoryRefusal):
        raise InputError(inventory.reason)
    return inventory


@contextmanager
def running_agent(
    config: Config,
    machine: Machine,
    sockets: Sockets,
    *,
    rescan: Callable[[], Machine] | None = None,
    on_failure: Callable[[], None] = lambda: None,
) -> Iterator[Agent]:
    """Serve until the block ends. `rescan` discovers a live node anew; None: the machine is a recorded one.

    `on_failure` is called when a thread ends by a fault: an agent that cannot register had better be restarted.
    """
    inventory = inventory_for(config, machine)
    for note in inventory.notes:
        log.warning("%s", note)
    if not inventory.resources:
        log.warning("no GPU and no NIC to serve on this machine; waiting")
    resources = frozenset(resource.name for resource in inventory.resources)
    evidence = Evidence(sockets.pod_resources, sockets.pods_api, sockets.plugin_dir, resources)
    kubelet_config = KubeletConfig(sockets.kubelet_config)
    injecting = _injecting(config, inventory, live=rescan is not None)
    desk = Desk(inventory, board_of(machine), evidence, kubelet_config, injecting)
    if not desk.rebuild():
        log.warning("PodResources cannot be asked: devices of containers that run already are unknown until it can")
    removed = remove_stale_sockets(sockets.plugin_dir)
    if removed:
        log.info("removed sockets of an earlier process: %s", ", ".join(removed))
    sessions = Sessions(sockets.plugin_dir, inventory.resources, desk)
    stop = threading.Event()
    background = _Background(desk, sessions, inventory, rescan)
    threads = [
        threading.Thread(target=_watched(sessions.run, on_failure), name="sessions", daemon=True),
        threading.Thread(target=_watched(lambda: background.run(stop), on_failure), name="background", daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        yield Agent(inventory, desk, sessions)
    finally:
        stop.set()
        sessions.stop()
        for thread in threads:
            thread.join(THREAD_JOIN_MAX_S)
        if not any(thread.is_alive() for thread in threads):
            evidence.close()


def _watched(run: Callable[[], None], on_failure: Callable[[], None]) -> Callable[[], None]:
    """A thread's work that does not die in silence."""

    def watched() -> None:
        try:
            run()
        except Exception:  # whatever it is, the thread is gone
            log.exception("a thread of the agent ended by a fault")
            on_failure()

    return watched


@dataclass(frozen=True, slots=True)
class _Background:
    """What happens without the kubelet asking: the ledger is compared, the machine looked at again."""

    desk: Desk
    sessions: Sessions
    inventory: Inventory
    rescan: Callable[[], Machine] | None

    def run(self, stop: threading.Event) -> None:
        events = watch_hotplug() if self.rescan is not None else None
        if isinstance(events, SourceRefusal):
            log.info("%s", events)
        scanned_at_s = time.monotonic()
        changed = False
        while not stop.wait(BACKGROUND_PERIOD_S):
            self.desk.reconcile()
            if self.rescan is None:
                continue
            changed |= isinstance(events, HotplugMonitor) and events.drain()
            age_s = time.monotonic() - scanned_at_s
            if age_s >= (RESCAN_PAUSE_S if changed else RESCAN_PERIOD_S):
                scanned_at_s, changed = time.monotonic(), False
                self._look_again(self.rescan)

    def _look_again(self, rescan: Callable[[], Machine]) -> None:
        try:
            machine = rescan()
        except Exception:  # discovery reads whatever the node shows at this moment; the last good picture stays
            log.exception("looking at the machine again failed")
            return
        missing = missing_keys(self.inventory, machine)
        self.desk.set_unhealthy(missing)
        self.sessions.set_unhealthy(missing)


def missing_keys(inventory: Inventory, machine: Machine) -> frozenset[str]:
    """Keys of devices that were there at start and are not now. New ones are served after the next start.

    Devices are told apart by address (NICs of one function also by name), by number where the start knew no address.
    """
    gpus_now = {(gpu.bdf, gpu.index if isinstance(gpu.bdf, Unknown) else 0) for gpu in machine.gpus}
    nics_now = {(nic.bdf, nic.name) for nic in machine.nics}
    gpus = (
        key
        for gpu, key in zip(inventory.machine.gpus, inventory.gpu_keys, strict=True)
        if (gpu.bdf, gpu.index if isinstance(gpu.bdf, Unknown) else 0) not in gpus_now
    )
    nics = (
        key
        for nic, key in zip(inventory.machine.nics, inventory.nic_keys, strict=True)
        if (nic.bdf, nic.name) not in nics_now
    )
    return frozenset((*gpus, *nics))


def _injecting(config: Config, inventory: Inventory, *, live: bool) -> Injecting:
    """A recorded machine has no device nodes here, whatever the configuration says."""
    if config.injection == "auto":
        injection = Injection.DEVICE_NODES if live else Injection.NONE
    else:
        injection = Injection(config.injection)
    files = device_files(inventory, Path(config.host_root)) if live else DeviceFiles()
    return Injecting(injection, files, config.cdi_kind)
