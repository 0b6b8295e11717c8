"""One seeded life of a node: pods of every kind come and go, admissions fail half-way, kubelet and agent restart.

Everything that happens follows from the seed; what must hold is judged from the machine and from what the simulated
kubelet has on record, not from our ledger.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import combinations, product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from topoalloc.admission.pod import Container, Pod, checked_container
from topoalloc.admission.policy import Policy, Scope
from topoalloc.agent.config import Config
from topoalloc.agent.process import Agent, Tempo, running_agent
from topoalloc.agent.process import Sockets as AgentSockets
from topoalloc.cli.simulation.outcome import ContainerOutcome, outcome_of
from topoalloc.kubelet.simulated.kubelet import Admission, SimulatedKubelet
from topoalloc.kubelet.simulated.process import Sockets
from topoalloc.kubelet.simulated.settings import Behaviour, KubeletSettings
from topoalloc.sharing.inventory import Inventory
from topoalloc.sharing.settings import CORE_RESOURCE, MEMORY_RESOURCE, NIC_RESOURCE, NumaReporting
from topoalloc.topology.machine import LinkClass, Machine, Unknown
from topoalloc.topology.sources import load_machine

MACHINES = (
    "aws-p4d.24xlarge.nccl-topo.xml",
    "azure-ndv4.nccl-topo.xml",
    "azure-ndv5.nccl-topo.xml",
    "dgx-a100-epyc-nps4-10nic.topo-m.txt",
    "dgx1-v100-4nic-unsorted-columns.topo-m.txt",
    "hgx-h100-13nic-ib-and-eth-header-shift.topo-m.txt",
    "oci-bm.gpu.h100.8.nccl-topo.xml",
    "perlmutter-4xa100-epyc7763-slingshot.nccl-topo.xml",
    "rccl-8x-mi100-epyc-nps4-4nic.nccl-topo.xml",
    "rccl-8x-mi300x-vm.nccl-topo.xml",
)
GPU_MEMORY_BYTES = 16 * 1024**3  # small, so that 200 pods are judged quickly
READY_LIMIT_S = 60.0
RESTARTS = 0.02  # chance before a pod that the kubelet restarts, and the same for the agent
PAUSES_S = (0.05, 0.5, 3.0, 20.0)  # between pods, on the agent's clock: less and more than each of its windows
ENDINGS = 0.7  # chance after a pod that some running pod ends


@dataclass
class Tally:
    """What one life showed."""

    pods: int = 0
    admitted: int = 0
    refused: int = 0
    aborted: int = 0  # refused after devices had been given
    restarts: int = 0
    paired: int = 0  # containers that got a GPU and a NIC
    unnamed: int = 0  # pods one of whose containers the agent could not name: the pods API was late or starting
    far_unnamed: list[str] = field(default_factory=list)  # their NICs are near by luck alone (docs/adr/0002)
    faults: list[str] = field(default_factory=list)


class _Guesses(logging.Handler):
    """Hears the agent say that it does not know whose call it answers."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.heard = False

    def emit(self, record: logging.LogRecord) -> None:
        self.heard |= "unnamed" in record.getMessage()


@contextmanager
def _listening() -> Iterator[_Guesses]:
    logger, guesses = logging.getLogger("topoalloc.agent.desk"), _Guesses()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(guesses)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield guesses
    finally:
        logger.removeHandler(guesses)
        logger.setLevel(level)
        logger.propagate = propagate


def pods(random: Random, count: int) -> Iterator[Pod]:
    for number in range(count):
        containers: list[Container] = []
        if random.random() < 0.15:
            containers.append(checked_container("init", {}, _limits(random), init=True))
        if random.random() < 0.1:
            containers.append(checked_container("sidecar", {}, _limits(random), init=True, restartable=True))
        containers.extend(
            checked_container(f"app{position}", {}, _limits(random)) for position in range(random.choice((1, 1, 1, 2)))
        )
        yield Pod(name=f"pod{number}", namespace="ns", uid=f"uid{number}", containers=tuple(containers))


def _limits(random: Random) -> dict[str, str]:
    kind = random.random()
    amounts: dict[str, int] = {}
    if kind < 0.5:
        amounts[CORE_RESOURCE] = random.choice((5, 10, 25, 30, 50, 75))
        amounts[MEMORY_RESOURCE] = random.choice((1, 2, 4, 8, 16, 32))
    elif kind < 0.75:
        amounts[CORE_RESOURCE] = random.choice((100, 100, 200, 400))
    elif kind < 0.8:
        amounts[random.choice((CORE_RESOURCE, MEMORY_RESOURCE))] = random.choice((7, 150))
    if random.random() < 0.5:
        amounts[NIC_RESOURCE] = random.choice((1, 1, 2))
    if random.random() < 0.05:
        amounts["cpu"] = 10_000  # more than any node has: refused after every device has been given
    return {resource: str(amount) for resource, amount in amounts.items()}


def live(seed: int, pod_count: int) -> Tally:
    """One life; the tally says what was seen and every promise that was broken."""
    random = Random(seed)
    machine = load_machine([f"tests/machines/{MACHINES[seed % len(MACHINES)]}"], GPU_MEMORY_BYTES)
    policy = random.choice(list(Policy))
    settings = KubeletSettings(policy=policy, scope=random.choice(list(Scope)))
    behaviour = Behaviour(loses_reservations=random.random() < 0.5, limits_requests=False)
    tally = Tally()
    with _listening() as guesses, _node(machine, settings, behaviour, seed) as node:
        for pod in pods(random, pod_count):
            if random.random() < RESTARTS:
                node.restart_agent()
                tally.restarts += 1
            guesses.heard = False
            if random.random() < RESTARTS:
                tally.restarts += 1
                while (running := node.running()) and random.random() < ENDINGS:
                    node.end(random.choice(running))  # the kubelet reads of it when its sources are ready
                before = node.held_nics(kept_for_the_dead=True)
                *_, admission = node.kubelet.restart(lambda _: node.wait_ready(), arrivals=[pod])
            else:
                before = node.held_nics()
                admission = node.kubelet.admit(pod)
            tally.unnamed += guesses.heard
            _judge(node, admission, before, tally, named=not guesses.heard)
            node.pause(random.choice(PAUSES_S))
            tally.faults.extend(_withheld_in_use(node))
            if (running := node.running()) and random.random() < ENDINGS:
                node.end(random.choice(running))
    return tally


@dataclass
class _Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


class _Node:
    def __init__(self, stack: ExitStack, machine: Machine, kubelet: SimulatedKubelet, sockets: AgentSockets) -> None:
        self._stack = stack
        self._agent_stack = ExitStack()
        self._sockets = sockets
        self._clock = _Clock()
        self.machine = machine
        self.kubelet = kubelet
        self.agent = self._start()

    @property
    def inventory(self) -> Inventory:
        return self.agent.inventory

    def restart_agent(self) -> None:
        """Nothing is written by the agent, so a new one knows what one does after kill -9."""
        self._agent_stack.close()
        self.kubelet.devices.wait_until(lambda listed: not any(v.healthy for v in listed.values()), READY_LIMIT_S)
        self.agent = self._start()

    def wait_ready(self) -> None:
        names = {resource.name for resource in self.inventory.resources}
        assert self.kubelet.devices.wait_until(
            lambda listed: all(name in listed and listed[name].healthy for name in names), READY_LIMIT_S
        )

    def pause(self, seconds: float) -> None:
        """Time passes for the agent, and what it reports then reaches the kubelet."""
        self._clock.now_s += seconds
        self.agent.desk.reconcile()
        healthy = self.agent.lists.healthy()
        assert self.kubelet.devices.wait_until(
            lambda listed: all(listed[name].healthy == ids for name, ids in healthy.items()), READY_LIMIT_S
        )

    def running(self) -> list[str]:
        return [active.uid for active in self.kubelet.pods.active()]

    def end(self, uid: str) -> None:
        self.kubelet.finish(uid)
        self.kubelet.delete(uid)

    def held_nics(self, *, kept_for_the_dead: bool = False) -> dict[str, str]:
        """NIC keys on record and the pod that has them, or had them."""
        held = {}
        active = set(self.running())
        for owner, ids in self.kubelet.devices.tables.recorded.items():
            if owner.resource == NIC_RESOURCE and (kept_for_the_dead or owner.pod_uid in active):
                held.update(dict.fromkeys(ids, owner.pod_uid))
        return held

    def _start(self) -> Agent:
        tempo = Tempo(self._clock, lists_apart_s=0.0, reconciles=False)
        agent = self._agent_stack.enter_context(running_agent(Config(), self.machine, self._sockets, tempo=tempo))
        self.agent = agent
        self._stack.callback(self._agent_stack.close)
        self.wait_ready()
        return agent


@contextmanager
def _node(machine: Machine, settings: KubeletSettings, behaviour: Behaviour, seed: int) -> Iterator[_Node]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="ta-", dir="/tmp")))
        sockets = Sockets.below(directory)
        kubelet = stack.enter_context(SimulatedKubelet(sockets, machine, settings, behaviour, seed))
        config = directory / "config.yaml"
        config.write_text(f"topologyManagerPolicy: {settings.policy}\ntopologyManagerScope: {settings.scope}\n")
        for_agent = AgentSockets(sockets.plugin_directory, sockets.pod_resources, sockets.pods_api, config)
        yield _Node(stack, machine, kubelet, for_agent)


def _judge(node: _Node, admission: Admission, nics_before: dict[str, str], tally: Tally, *, named: bool) -> None:
    outcome = outcome_of(admission, node.inventory)
    tally.pods += 1
    tally.admitted += outcome.admitted
    tally.refused += not outcome.admitted
    tally.aborted += not outcome.admitted and bool(admission.devices)
    tally.faults.extend(outcome.warnings)  # injected and recorded differ
    if outcome.admitted:
        taken = set(nics_before)
        # Devices of an ordinary init container are handed on by the kubelet without asking, whatever they are near to.
        finished = {c.name for c in admission.pod.containers if c.init and not c.restartable}
        handed_on = any(container.nics for container in outcome.containers if container.name in finished)
        for container in outcome.containers:
            _judge_container(node, container, tally, outcome.name)
            if container.gpus and container.nics and not handed_on:
                tally.paired += 1
                far = _farness(node, container, taken, outcome.name)
                (tally.faults if named else tally.far_unnamed).extend(far)
            if container.name not in finished:
                taken |= {node.inventory.nic_keys[_position(node, nic)] for nic in container.nics}
    tally.faults.extend(_given_twice(node))


def _position(node: _Node, nic: str) -> int:
    return next(i for i, known in enumerate(node.machine.nics) if known.id == nic)


def _judge_container(node: _Node, container: ContainerOutcome, tally: Tally, pod: str) -> None:
    """Injected equals recorded; a share on one GPU; halves together."""
    where = f"{pod}/{container.name}"
    devices = node.inventory.devices
    cores = Counter(devices[i].position for i in container.devices.get(CORE_RESOURCE, ()))
    memory = Counter(devices[i].position for i in container.devices.get(MEMORY_RESOURCE, ()))
    if 0 < cores.total() < 100 and len(cores) > 1:
        tally.faults.append(f"{where}: a share of {len(cores)} GPUs")
    if cores.total() >= 100 and set(cores.values()) != {100}:
        tally.faults.append(f"{where}: whole GPUs that are not whole")
    if cores and not set(memory) <= set(cores):
        tally.faults.append(f"{where}: memory on {set(memory)}, cores on {set(cores)}")
    injected = {share.id: share.cores for share in container.gpus if share.cores}
    if injected != {node.machine.gpus[position].id: count for position, count in cores.items()}:
        tally.faults.append(f"{where}: injected {injected}, recorded {dict(cores)}")
    if {devices[i].position for i in container.devices.get(NIC_RESOURCE, ())} != {
        _position(node, nic) for nic in container.nics
    }:
        tally.faults.append(f"{where}: injected NICs {container.nics} are not those recorded")


def _farness(node: _Node, container: ContainerOutcome, taken: set[str], pod: str) -> list[str]:
    """Empty unless free NICs inside the container's affinity would have served its GPUs better."""
    gpus = [share.id for share in container.gpus]
    resource = node.inventory.resource(NIC_RESOURCE)
    assert resource is not None
    aligned = resource.numa is NumaReporting.NODE and container.affinity is not None
    free = [
        nic
        for nic, key in zip(node.machine.nics, node.inventory.nic_keys, strict=True)
        if key not in taken or nic.id in container.nics
    ]
    inside = [nic for nic in free if nic.numa_node in (container.affinity or ())]
    if aligned and len(inside) >= len(container.nics):
        free = inside
    sets = combinations([nic.id for nic in free], len(container.nics))
    best = max(_service(node.machine, gpus, nics) for nics in sets)
    got = _service(node.machine, gpus, container.nics)
    if got == best:
        return []
    return [f"{pod}/{container.name}: NICs {container.nics} serve {gpus} with {got}, not {best}"]


def _service(machine: Machine, gpus: list[str], nics: tuple[str, ...]) -> tuple[int, ...]:
    """How many NICs are within a switch, a host bridge, a NUMA node of the GPU each serves, at best.

    The NICs are spread over the GPUs: no GPU is served by one more than its share.
    """
    links = machine.links_by_pair()
    share = -(-len(nics) // len(gpus))

    def distance(gpu: str, nic: str) -> int:
        pcie = links[gpu, nic].pcie
        return LinkClass.SYS + 1 if isinstance(pcie, Unknown) else int(pcie)

    scores = []
    for chosen in product(gpus, repeat=len(nics)):
        if max(Counter(chosen).values()) <= share:
            distances = [distance(gpu, nic) for gpu, nic in zip(chosen, nics, strict=True)]
            scores.append(tuple(sum(d <= limit for d in distances) for limit in _LIMITS))
    return max(scores)


_LIMITS = (LinkClass.PXB, LinkClass.PHB, LinkClass.NODE)


def _withheld_in_use(node: _Node) -> list[str]:
    """Devices on record for an active pod, init containers' included, that the agent reports Unhealthy."""
    active = {pod.uid for pod in node.kubelet.pods.active()}
    tables = node.kubelet.devices.tables
    return [
        f"{owner.pod_uid}/{owner.container}: {device_id} is in use and unhealthy"
        for owner, ids in tables.recorded.items()
        if owner.pod_uid in active
        for device_id in sorted(ids - tables.listed[owner.resource].healthy)[:1]
    ]


def _given_twice(node: _Node) -> list[str]:
    """Devices on record for two containers of different active pods, or for two app containers."""
    active = {pod.uid: pod for pod in node.kubelet.pods.active()}
    inits = {(uid, c.name) for uid, pod in active.items() for c in pod.containers if c.init and not c.restartable}
    holders: Counter[str] = Counter()
    for owner, ids in node.kubelet.devices.tables.recorded.items():
        if owner.pod_uid in active and (owner.pod_uid, owner.container) not in inits:
            holders.update(ids)
    return [f"{device_id} is held by {count} containers" for device_id, count in holders.items() if count > 1]
