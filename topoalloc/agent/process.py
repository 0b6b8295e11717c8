"""The agent's process: puts the parts together, owns the threads, ends them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from topoalloc.agent.chosen_shim import chosen_enforcer
from topoalloc.agent.config import Config
from topoalloc.agent.desk import Desk, Injecting
from topoalloc.agent.device_files import device_files, with_driver_libraries
from topoalloc.agent.health_watch import Watch
from topoalloc.agent.private_files import told_of_key
from topoalloc.agent.share_watch import ShareWatch, ShareWatchSettings
from topoalloc.allocation.shares import share_of_holding
from topoalloc.errors import InputError
from topoalloc.kubelet.evidence import Evidence
from topoalloc.kubelet.kubelet_config import KubeletConfig
from topoalloc.kubelet.plugin_directory import remove_stale_sockets
from topoalloc.kubelet.plugin_server import LISTS_APART_S, DeviceLists
from topoalloc.kubelet.sessions import Sessions
from topoalloc.placement.board import board_of
from topoalloc.sharing.edits import DeviceFiles, Injection
from topoalloc.sharing.inventory import Inventory, InventoryRefusal, inventory_of
from topoalloc.sharing.share_owners import ShareOwner
from topoalloc.topology.machine import Machine
from topoalloc.topology.sizes import parse_size

log = logging.getLogger(__name__)

RECONCILE_PERIOD_S = 0.25
HEALTH_PERIOD_S = 1.0  # a list can have 4 MiB, so whatever changes within a second goes out in one
THREAD_JOIN_MAX_S = 5.0
AT_INTERPRETER_END = "after interpreter shutdown"  # concurrent.futures.thread, when the process is ending


@dataclass(frozen=True, slots=True)
class Sockets:
    """Where the kubelet is found; None: that one is not used."""

    plugin_dir: Path
    pod_resources: Path | None
    pods_api: Path | None
    kubelet_config: Path | None = None


@dataclass(frozen=True, slots=True)
class Tempo:
    """How time passes for an agent. `reconciles` off: nothing happens by itself, the caller calls `Desk.reconcile`."""

    clock_s: Callable[[], float] = time.monotonic
    lists_apart_s: float = LISTS_APART_S
    reconciles: bool = True


REAL_TIME = Tempo()


@dataclass(frozen=True, slots=True)
class Agent:
    """A running agent."""

    inventory: Inventory
    desk: Desk
    lists: DeviceLists
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
    live: bool = False,
    enforces: bool = True,
    tempo: Tempo = REAL_TIME,
    watch: Callable[[Inventory], Watch] | None = None,
    on_failure: Callable[[], None] = lambda: None,
) -> Iterator[Agent]:
    """Serve until the block ends. `watch` looks after the devices; None: they stay as they are. `live`: the machine is
    this node and not a recorded one. `enforces` off: nothing is put on this node, whatever the configuration says.

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
    injecting = _injecting(config, inventory, live=live)
    cgroup_root = kubelet_config.cgroup_root()
    share_watch = (
        _share_watch(config, lambda: _watched_owners(desk, inventory, injecting, live=live), cgroup_root, live=live)
        if enforces
        else None
    )
    if share_watch is not None:
        enforcer = chosen_enforcer(config, inventory, share_watch, live=live, cgroup_root=cgroup_root)
        injecting = replace(injecting, enforcer=enforcer)
    lists = DeviceLists(inventory.resources, tempo.lists_apart_s)
    tell_withheld = lists.set_withheld if config.leftovers == "withhold" else None
    desk = Desk(inventory, board_of(machine), evidence, kubelet_config, injecting, tell_withheld, tempo.clock_s)
    if not desk.rebuild():
        log.warning("PodResources cannot be asked: devices of containers that run already are unknown until it can")
    removed = remove_stale_sockets(sockets.plugin_dir)
    if removed:
        log.info("removed sockets of an earlier process: %s", ", ".join(removed))
    sessions = Sessions(sockets.plugin_dir, lists, desk)
    stop = threading.Event()
    work: dict[str, Callable[[], None]] = {"sessions": sessions.run}
    if tempo.reconciles:  # what a simulation grants is nowhere on this node
        work["reconcile"] = lambda: _reconcile(desk, stop)
    if tempo.reconciles and share_watch is not None:
        watching = share_watch  # as it is for good
        work["share watch"] = lambda: watching.run(stop)
    if watch is not None:
        rounds = _HealthRounds(desk, lists, watch(inventory))
        work["health"] = lambda: rounds.run(stop)
    threads = [threading.Thread(target=_watched(run, on_failure), name=name, daemon=True) for name, run in work.items()]
    for thread in threads:
        thread.start()
    try:
        yield Agent(inventory, desk, lists, sessions)
    finally:
        stop.set()
        sessions.stop()
        if share_watch is not None:
            share_watch.wake()
        for thread in threads:
            thread.join(THREAD_JOIN_MAX_S)
        if not any(thread.is_alive() for thread in threads):
            evidence.close()
            if injecting.enforcer is not None:
                injecting.enforcer.close()


def _watched(run: Callable[[], None], on_failure: Callable[[], None]) -> Callable[[], None]:
    """A thread's work that does not die in silence."""

    def watched() -> None:
        try:
            run()
        except Exception as error:  # whatever it is, the thread is gone
            if AT_INTERPRETER_END in str(error):
                return  # a second signal interrupted the clean-up that would have ended this thread before
            log.exception("a thread of the agent ended by a fault")
            on_failure()

    return watched


def _reconcile(desk: Desk, stop: threading.Event) -> None:
    while not stop.wait(RECONCILE_PERIOD_S):
        desk.reconcile()


@dataclass(frozen=True, slots=True)
class _HealthRounds:
    """Tells the ledger and the kubelet which devices are out of order. A thread of its own: a driver can hang."""

    desk: Desk
    lists: DeviceLists
    watch: Watch

    def run(self, stop: threading.Event) -> None:
        told: Mapping[str, str] = {}
        try:
            while True:
                reasons = self.watch.reasons(time.monotonic())
                if reasons != told:
                    self._tell(told, reasons)
                    told = reasons
                if stop.wait(HEALTH_PERIOD_S):
                    return
        finally:
            self.watch.close()

    def _tell(self, before: Mapping[str, str], now: Mapping[str, str]) -> None:
        for key, reason in now.items():
            if before.get(key) != reason:
                log.warning("%s is out of order: %s", key, reason)
        for key in before.keys() - now.keys():
            log.info("%s is in order again", key)
        self.desk.set_unhealthy(frozenset(now))
        self.lists.set_unhealthy(frozenset(now))


def _share_watch(
    config: Config, owners: Callable[[], Mapping[str, ShareOwner]], cgroup_root: str, *, live: bool
) -> ShareWatch:
    """What one process may hold beyond its grant for a moment, as while its context is made, is a memory unit."""
    settings = ShareWatchSettings(
        run_dir=config.run_dir,
        metrics=config.metrics_address,
        kills=config.overuse == "stop",
        gives_turns=config.turns == "auto",
        tolerance_bytes=parse_size(config.memory_unit),
        live=live,
        cgroup_root=cgroup_root,
    )
    return ShareWatch(settings, owners)


def share_owners(desk: Desk, inventory: Inventory) -> dict[str, ShareOwner]:
    """Which container holds which share now, by the share's name, as far as the containers are known."""
    return {
        share.name: ShareOwner(owner.namespace, owner.pod, owner.container, holding.uid)
        for owner, holding in desk.state.holdings.items()
        if owner.named and (share := share_of_holding(inventory, owner, holding)) is not None
    }


def _watched_owners(desk: Desk, inventory: Inventory, injecting: Injecting, *, live: bool) -> Mapping[str, ShareOwner]:
    """Where nothing is enforced on a live node, what lies in run_dir is an earlier agent's: its limits are not those of
    today's shares of the same names, and the watchdog would judge these by them."""
    return {} if live and injecting.enforcer is None else share_owners(desk, inventory)


def _injecting(config: Config, inventory: Inventory, *, live: bool) -> Injecting:
    """A recorded machine has no device nodes here, whatever the configuration says."""
    if config.injection == "auto":
        injection = Injection.DEVICE_NODES if live else Injection.NONE
    else:
        injection = Injection(config.injection)
    root = Path(config.host_root)
    files = device_files(inventory, root) if live else DeviceFiles()
    if live and (injection is Injection.MOUNTS or config.cdi_spec_dir):
        files = with_driver_libraries(files, config.driver_dir, root)
        if not files.libraries:
            where = config.driver_dir or "the loader's cache of the node"
            log.warning("no library of NVIDIA's driver in %s: containers will have none; see driver_dir", where)
    if live and config.cdi_spec_dir:
        from topoalloc.agent.cdi_file import write_cdi_spec

        with told_of_key("cdi_spec_dir"):
            write_cdi_spec(inventory, files, config.cdi_kind, Path(config.cdi_spec_dir))
    return Injecting(injection, files, config.cdi_kind)
