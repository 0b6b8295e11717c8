"""Who got what: the result of a simulated run as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from topoalloc.admission.devices import Owner
from topoalloc.admission.memory import MemoryBlock
from topoalloc.admission.numa_mask import nodes_of
from topoalloc.admission.pod import Container, is_extended
from topoalloc.admission.refusal import Refusal
from topoalloc.admission.remedy import remedy_of
from topoalloc.allocation.shortfall import hopeless, shortfall
from topoalloc.cli.simulation.granted import GpuShare, Granted, granted
from topoalloc.kubelet.simulated.device_manager import PluginCall
from topoalloc.kubelet.simulated.environment import environment_of
from topoalloc.kubelet.simulated.kubelet import Admission
from topoalloc.sharing.inventory import Inventory
from topoalloc.topology.machine import Link, Machine, Unknown


@dataclass(frozen=True, slots=True)
class PairLink:
    """What joins two devices of a container: `NV<n>`, else the PCIe class, None where unknown."""

    a: str
    b: str
    link_class: str | None


@dataclass(frozen=True, slots=True)
class ContainerOutcome:
    """What one container was given. `affinity`: NUMA nodes the topology manager stored, None where it stored none."""

    name: str
    init: bool
    devices: Mapping[str, tuple[str, ...]]
    gpus: tuple[GpuShare, ...]
    nics: tuple[str, ...]
    numa_nodes: tuple[int, ...] | None
    cpus: str | None
    memory_nodes: tuple[int, ...] | None
    links: tuple[PairLink, ...]
    affinity: tuple[int, ...] | None
    calls: tuple[PluginCall, ...]


@dataclass(frozen=True, slots=True)
class PodOutcome:
    """One pod: the verdict in the kubelet's words, and for a refusal why and what would have had to be free."""

    name: str
    namespace: str
    refusal: Refusal | None
    why: str | None
    remedy: str | None
    containers: tuple[ContainerOutcome, ...]
    warnings: tuple[str, ...]

    @property
    def admitted(self) -> bool:
        return self.refusal is None


def outcome_of(admission: Admission, inventory: Inventory) -> PodOutcome:
    """The outcome of one admission. A refused pod shows the containers that had been given devices before."""
    pod, refusal = admission.pod, admission.refusal
    holders = {owner.container for owner in admission.devices}
    warnings: list[str] = []
    containers = []
    for container in pod.containers:
        if refusal is None or container.name in holders:
            outcome, faults = _container_outcome(admission, container, inventory)
            containers.append(outcome)
            warnings.extend(f"pod {pod.namespace}/{pod.name}, container {container.name}: {fault}" for fault in faults)
    explanation = admission.explanation
    return PodOutcome(
        name=pod.name,
        namespace=pod.namespace,
        refusal=refusal,
        why=None if explanation is None else explanation.sentence,
        remedy=_remedy(admission, inventory),
        containers=tuple(containers),
        warnings=tuple(warnings),
    )


def unserved(admissions: Iterable[Admission], inventory: Inventory) -> tuple[str, ...]:
    """Extended resources that pods ask for and nobody on the node serves; the kubelet passes over them in silence."""
    served = {resource.name for resource in inventory.resources}
    asked = {name for admission in admissions for container in admission.pod.containers for name in container.limits}
    return tuple(sorted(name for name in asked if is_extended(name) and name not in served))


def pair_links(machine: Machine, gpus: Iterable[str], nics: Iterable[str]) -> tuple[PairLink, ...]:
    """Every GPU-GPU and GPU-NIC pair, in the order of the machine."""
    between = machine.links_by_pair()
    gpu_ids, nic_ids = list(gpus), list(nics)
    pairs = [*combinations(gpu_ids, 2), *((gpu, nic) for gpu in gpu_ids for nic in nic_ids)]
    return tuple(PairLink(a, b, _class_of(between.get((a, b)))) for a, b in pairs)


def _container_outcome(
    admission: Admission, container: Container, inventory: Inventory
) -> tuple[ContainerOutcome, tuple[str, ...]]:
    recorded = _recorded(admission.devices, container.name)
    got = granted(environment_of(admission.answers, container.name), inventory, recorded)
    hint = admission.affinities.get(container.name)
    outcome = ContainerOutcome(
        name=container.name,
        init=container.init,
        devices={resource: _in_listing_order(ids, inventory) for resource, ids in sorted(recorded.items())},
        gpus=got.gpus,
        nics=got.nics,
        numa_nodes=_numa_nodes(inventory.machine, got),
        cpus=str(admission.cpus[container.name]) or None,
        memory_nodes=_memory_nodes(admission.memory[container.name]),
        links=pair_links(inventory.machine, (share.id for share in got.gpus), got.nics),
        affinity=None if hint is None or hint.mask is None else nodes_of(hint.mask),
        calls=tuple(call for call in admission.calls if call.container == container.name),
    )
    return outcome, got.faults


def _recorded(devices: Mapping[Owner, frozenset[str]], container: str) -> dict[str, frozenset[str]]:
    return {owner.resource: ids for owner, ids in devices.items() if owner.container == container}


def _in_listing_order(ids: frozenset[str], inventory: Inventory) -> tuple[str, ...]:
    def order(device_id: str) -> tuple[int, int, str]:
        device = inventory.devices.get(device_id)
        return (len(inventory.devices), 0, device_id) if device is None else (device.position, device.unit, device_id)

    return tuple(sorted(ids, key=order))


def _numa_nodes(machine: Machine, got: Granted) -> tuple[int, ...] | None:
    """The nodes of a container's devices; None where it has none or the node of one is unknown."""
    gpu_ids = {share.id for share in got.gpus}
    nodes = [gpu.numa_node for gpu in machine.gpus if gpu.id in gpu_ids]
    nodes.extend(nic.numa_node for nic in machine.nics if nic.id in got.nics)
    told = [node for node in nodes if not isinstance(node, Unknown)]
    return tuple(sorted(set(told))) if told and len(told) == len(nodes) else None


def _memory_nodes(blocks: Iterable[MemoryBlock]) -> tuple[int, ...] | None:
    """The nodes that the memory manager set memory aside on; None where it set none aside."""
    nodes = {node for block in blocks for node in nodes_of(block.mask)}
    return tuple(sorted(nodes)) or None


def _class_of(link: Link | None) -> str | None:
    if link is None:
        return None
    if not isinstance(link.nvlinks, Unknown) and link.nvlinks > 0:
        return f"NV{link.nvlinks}"
    return None if isinstance(link.pcie, Unknown) else link.pcie.name


def _remedy(admission: Admission, inventory: Inventory) -> str | None:
    """From the merge that was refused, from the kubelet's own counts, else from what is free on the GPUs."""
    if admission.refusal is None:
        return None
    beyond = hopeless(admission.pod, inventory)
    if beyond is not None:
        return beyond
    if admission.explanation is not None:
        return admission.explanation.remedy
    counted = remedy_of(admission.refusal)
    refused = next((call for call in reversed(admission.calls) if call.error is not None), None)
    if counted is not None or refused is None:
        return counted
    container = next(one for one in admission.pod.containers if one.name == refused.container)
    hint = admission.affinities.get(container.name)
    nodes = None if hint is None or hint.mask is None else nodes_of(hint.mask)
    held, handed_on = _held(admission, container), _handed_on(admission, container)
    return shortfall(container, inventory, held, nodes, from_init=handed_on)


def _handed_on(admission: Admission, container: Container) -> bool:
    """Whether ordinary init containers of the pod leave devices to this one (deviceplugin manager's devicesToReuse)."""
    ended = {one.name for one in admission.pod.containers if one.init and not one.restartable}
    return any(owner.container in ended - {container.name} for owner, ids in admission.devices.items() if ids)


def _held(admission: Admission, container: Container) -> frozenset[str]:
    """Device ids that a container cannot have: those of other pods, and of its own pod's that keep running."""
    ended = {one.name for one in admission.pod.containers if one.init and not one.restartable}
    siblings = [ids for owner, ids in admission.devices.items() if owner.container not in ended | {container.name}]
    return frozenset().union(*admission.others.values(), *siblings)
