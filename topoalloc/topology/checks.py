"""What has to hold in every Machine, whatever it was read from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from topoalloc.topology.links import switch_groups
from topoalloc.topology.machine import Gpu, Machine, Nic, NicFunction, Unknown, device_order

T = TypeVar("T")


def check_machine(machine: Machine) -> tuple[str, ...]:
    """Every broken invariant as one line; empty for a sound machine."""
    return (*_nodes(machine), *_gpus(machine), *_nics(machine), *_links(machine), *_groups(machine))


def _devices(machine: Machine) -> tuple[Gpu | Nic, ...]:
    return (*machine.gpus, *machine.nics)


def _nodes(machine: Machine) -> Iterator[str]:
    ids = [node.id for node in machine.numa_nodes]
    if ids != sorted(set(ids)):
        yield f"NUMA node ids {ids} are not ascending and distinct"
    for node in machine.numa_nodes:
        if node.id < 0:
            yield f"NUMA node {node.id} has a negative id"
        if isinstance(node.memory_bytes, int) and node.memory_bytes < 0:
            yield f"NUMA node {node.id} has {node.memory_bytes} bytes of memory"
        if not isinstance(node.distances, Unknown) and len(node.distances) != len(ids):
            yield f"NUMA node {node.id} has {len(node.distances)} distances to {len(ids)} nodes"
    for device in _devices(machine):
        if not isinstance(device.numa_node, Unknown) and device.numa_node not in ids:
            yield f"{device.id} is on NUMA node {device.numa_node}, which the machine does not have"


def _numbering(kind: str, devices: Sequence[Gpu | Nic]) -> Iterator[str]:
    for at, device in enumerate(devices):
        if device.id != f"{kind}{at}":
            yield f"{kind} {at} is called {device.id}"


def _gpus(machine: Machine) -> Iterator[str]:
    yield from _numbering("GPU", machine.gpus)
    for at, gpu in enumerate(machine.gpus):
        if gpu.index != at:
            yield f"{gpu.id} has the index {gpu.index}"
        if isinstance(gpu.memory_bytes, int) and gpu.memory_bytes <= 0:
            yield f"{gpu.id} has {gpu.memory_bytes} bytes of memory"
    for fact, values in (
        ("PCI address", [gpu.bdf for gpu in machine.gpus]),
        ("UUID", [gpu.uuid for gpu in machine.gpus]),
        ("MIG UUID", [mig.uuid for gpu in machine.gpus for mig in gpu.mig]),
    ):
        for value in _repeated(values):
            yield f"two GPUs have the {fact} {value}"


def _repeated(values: Iterable[T]) -> Iterator[T]:
    seen: set[T] = set()
    for value in values:
        if isinstance(value, Unknown) or value == "":
            continue
        if value in seen:
            yield value
        seen.add(value)


def _nics(machine: Machine) -> Iterator[str]:
    yield from _numbering("NIC", machine.nics)
    for nic in machine.nics:
        if not nic.name:
            yield f"{nic.id} has no name"
        if nic.function is NicFunction.PHYSICAL and nic.physical_function is not None:
            yield f"{nic.id} is a physical function and has one"


def _links(machine: Machine) -> Iterator[str]:
    ids = [device.id for device in _devices(machine)]
    expected = {(a, b) for at, a in enumerate(ids) for b in ids[at + 1 :]}
    pairs = [(link.a, link.b) for link in machine.links]
    if len(pairs) != len(set(pairs)):
        yield "a pair of devices has two links"
    for a, b in sorted(expected - set(pairs)):
        yield f"{a}-{b} has no link"
    for a, b in sorted(set(pairs) - expected):
        yield f"{a}-{b} is no ordered pair of two devices"
    gpus = {gpu.id for gpu in machine.gpus}
    for link in machine.links:
        if isinstance(link.nvlinks, int) and (link.nvlinks < 0 or (link.nvlinks and link.b not in gpus)):
            yield f"{link.a}-{link.b} has {link.nvlinks} NVLinks"


def _groups(machine: Machine) -> Iterator[str]:
    if machine.switch_groups != switch_groups(machine.links):
        yield "the switch groups are not those of the link classes"
    for group in machine.switch_groups:
        if list(group) != sorted(set(group), key=device_order):
            yield f"the switch group {', '.join(group)} is not in device order"
