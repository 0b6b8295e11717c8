"""Runs the real agent and a simulated kubelet against each other over unix sockets, pod by pod."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from topoalloc.admission.pod import Pod
from topoalloc.agent.config import Config
from topoalloc.agent.process import REAL_TIME, Agent, Tempo, running_agent
from topoalloc.agent.process import Sockets as AgentSockets
from topoalloc.cli.simulation.outcome import PodOutcome, outcome_of, unserved
from topoalloc.errors import KubeletError, MachineError
from topoalloc.kubelet.simulated.kubelet import SimulatedKubelet
from topoalloc.kubelet.simulated.process import Sockets
from topoalloc.kubelet.simulated.settings import Behaviour, KubeletSettings
from topoalloc.topology.machine import Machine

REGISTER_LIMIT_S = 30.0  # an agent is there in well under a second; this is for a machine in great distress
LISTS_LIMIT_S = 30.0  # the same for a device list that changed
PAUSE_S = 60.0  # between two pods, on the agent's clock: long enough for everything it does after an admission
WARNINGS_MAX = 50  # of the agent; more of them say the same
REMOVALS_MAX = 40  # attempts, two seconds in all: a thread that outlives its join ends with its next look
REMOVAL_PAUSE_S = 0.05
DIRECTORY_PREFIX = "topoalloc-"
TEMPORARY_PATH_BYTES_MAX = 40  # leaves room for socket names within the 107 bytes of a unix socket's path
SHORT_TEMPORARY = Path("/tmp")  # noqa: S108 -- mkdtemp makes a private directory in it
LOG_FORMAT = (
    "%(levelname)-7s %(name)s: %(message)s"  # the agent's own without the time of day, which means nothing here
)


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The outcome of every pod in the order of admission, and what the agent or the kubelet remarked."""

    pods: tuple[PodOutcome, ...]
    warnings: tuple[str, ...]


def rehearse(
    machine: Machine,
    config: Config,
    settings: KubeletSettings,
    pods: Sequence[Pod],
    *,
    seed: int = 0,
    behaviour: Behaviour | None = None,
) -> Rehearsal:
    """Admit the pods in their order. Raises InputError for a configuration that cannot be served on the machine.

    Nothing of it stays behind: sockets and checkpoint lie in a private directory that is removed at the end. With
    `log_level: debug` the agent's log goes to stderr: what the kubelet offered and what was answered.
    """
    # Pods come faster here than any scheduler sends them, so the limit on PodResources would mislead.
    behaviour = behaviour or Behaviour(limits_requests=False)
    debug = config.log_level == "debug"
    clock = _Clock()
    tempo = Tempo(clock, lists_apart_s=0.0, reconciles=False)
    with (
        _warnings_of_agent(debug) as warnings,
        running_node(machine, config, settings, behaviour, seed, tempo) as node,
    ):
        admissions = []
        for pod in pods:
            admissions.append(node.kubelet.admit(pod))
            clock.now_s += PAUSE_S
            node.agent.desk.reconcile()
            node.wait_for_lists()
        inventory = node.agent.inventory
    outcomes = tuple(outcome_of(admission, inventory) for admission in admissions)
    said = [
        *(
            f"nobody serves {name} on this node: pods that ask for it are admitted without it"
            for name in unserved(admissions, inventory)
        ),
        *warnings,
        *(warning for outcome in outcomes for warning in outcome.warnings),
    ]
    return Rehearsal(outcomes, tuple(dict.fromkeys(said)))


@dataclass
class _Clock:
    """The agent's time. It stands still while a pod is judged, so that no answer depends on how long anything took."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True, slots=True)
class Node:
    """An agent and a kubelet that know each other."""

    kubelet: SimulatedKubelet
    agent: Agent
    directory: Path

    def wait_for_lists(self) -> None:
        """Return when the kubelet has read what the agent reports now; raises KubeletError."""
        healthy = self.agent.lists.healthy()
        if not self.kubelet.devices.wait_until(
            lambda listed: all(name in listed and listed[name].healthy == ids for name, ids in healthy.items()),
            LISTS_LIMIT_S,
        ):
            raise KubeletError(f"the agent's device lists did not arrive within {LISTS_LIMIT_S:.0f} s")


@contextmanager
def running_node(
    machine: Machine,
    config: Config,
    settings: KubeletSettings,
    behaviour: Behaviour,
    seed: int,
    tempo: Tempo = REAL_TIME,
) -> Iterator[Node]:
    """A kubelet and an agent that has registered everything it serves; both end with the block."""
    with _private_directory() as directory:
        sockets = Sockets.below(directory)
        for_agent = AgentSockets(
            sockets.plugin_directory,
            sockets.pod_resources if behaviour.pod_resources else None,
            sockets.pods_api if behaviour.pods_api else None,
            _kubelet_config(directory, settings),
        )
        with (
            SimulatedKubelet(sockets, machine, settings, behaviour, seed) as kubelet,
            running_agent(config, machine, for_agent, enforces=False, tempo=tempo) as agent,
        ):
            resources = frozenset(resource.name for resource in agent.inventory.resources)
            if not kubelet.wait_for(resources, REGISTER_LIMIT_S):
                raise KubeletError(_not_registered(kubelet, resources))
            yield Node(kubelet, agent, directory)


def _kubelet_config(directory: Path, settings: KubeletSettings) -> Path:
    """The kubelet's configuration file as its agent finds it on the node."""
    path = directory / "config.yaml"
    closest = str(settings.options.prefer_closest_numa_nodes).lower()
    path.write_text(
        f"topologyManagerPolicy: {settings.policy}\n"
        f"topologyManagerScope: {settings.scope}\n"
        f'topologyManagerPolicyOptions: {{prefer-closest-numa-nodes: "{closest}"}}\n'
    )
    return path


def _not_registered(kubelet: SimulatedKubelet, resources: frozenset[str]) -> str:
    lacking = ", ".join(sorted(resources - kubelet.devices.tables.listed.keys())) or "a device list"
    last = f" ({kubelet.notes[-1]})" if kubelet.notes else ""
    return f"the agent did not register {lacking} within {REGISTER_LIMIT_S:.0f} s{last}"


@contextmanager
def _private_directory() -> Iterator[Path]:
    """Where TMPDIR says, unless its name leaves no room for the sockets."""
    base = Path(tempfile.gettempdir())
    if len(os.fsencode(base)) > TEMPORARY_PATH_BYTES_MAX:
        base = SHORT_TEMPORARY
    try:
        directory = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX, dir=base))
    except OSError as error:
        raise MachineError(f"{base}: no directory for the sockets can be made there: {error.strerror}") from error
    try:
        yield directory
    finally:
        _remove(directory)


def _remove(directory: Path) -> None:
    """Remove it even while a thread that was cut off still puts a last socket into it."""
    for _ in range(REMOVALS_MAX):
        try:
            shutil.rmtree(directory)
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(REMOVAL_PAUSE_S)
        else:
            return
    raise MachineError(f"{directory}: cannot be removed")


class _Collecting(logging.Handler):
    """Keeps the first warnings, each once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if len(self.messages) < WARNINGS_MAX and message not in self.messages:
            self.messages.append(message)


@contextmanager
def _warnings_of_agent(debug: bool) -> Iterator[list[str]]:
    """What the agent logs as a warning or worse, instead of on stderr; with `debug` everything goes there as well."""
    logger, collecting = logging.getLogger("topoalloc"), _Collecting()
    handlers: list[logging.Handler] = [collecting]
    if debug:
        printing = logging.StreamHandler(sys.stderr)
        printing.setFormatter(logging.Formatter(LOG_FORMAT))
        handlers.append(printing)
    propagated, logger.propagate = logger.propagate, False
    level = logger.level
    if debug:
        logger.setLevel(logging.DEBUG)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield collecting.messages
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagated
