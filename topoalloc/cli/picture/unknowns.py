"""What no source told about a machine, said once for all devices that share the gap and its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from topoalloc.topology.machine import Machine, Unknown
from topoalloc.topology.spelling import id_list, number_list, reason_words, shortened

_NODE = "node "
_PAIR = "~"
_PAIRS_NAMED_MAX = 4
_OWNERS_CHARACTERS_MAX = 60  # the reason after it has to stay readable


@dataclass(frozen=True, slots=True)
class Gap:
    """These `facts` of these `ids` are unknown; `of` counts the nodes, devices or pairs of that kind."""

    facts: tuple[str, ...]
    ids: tuple[str, ...]
    reason: str
    of: int


def gaps(machine: Machine) -> tuple[Gap, ...]:
    """Every unknown that matters to a placement, in a fixed order: nodes, GPUs, NICs, pairs of GPUs."""
    found: dict[tuple[tuple[str, ...], str, int], list[str]] = {}
    for fact, facts in _facts(machine):
        by_reason: dict[str, list[str]] = {}
        for owner, value in facts:
            if isinstance(value, Unknown):
                by_reason.setdefault(reason_words(value), []).append(owner)
        for reason, owners in by_reason.items():
            found.setdefault((tuple(owners), reason, len(facts)), []).append(fact)
    return tuple(Gap(tuple(facts), ids, reason, of) for (ids, reason, of), facts in found.items())


def gap_words(gap: Gap) -> str:
    """`model, memory and bus id of GPU0-7 (not in topo -m)`."""
    *most, last = gap.facts
    facts = f"{', '.join(most)} and {last}" if most else last
    return f"{facts} of {_owners(gap)} ({gap.reason})"


def _owners(gap: Gap) -> str:
    first = gap.ids[0]
    if first.startswith(_NODE):
        numbers = number_list([int(owner.removeprefix(_NODE)) for owner in gap.ids])
        return shortened(f"NUMA node{'s' if len(gap.ids) > 1 else ''} {numbers}", _OWNERS_CHARACTERS_MAX)
    if _PAIR in first and len(gap.ids) > _PAIRS_NAMED_MAX:
        return f"{'all ' if len(gap.ids) == gap.of else f'{len(gap.ids)} of '}{gap.of} pairs of GPUs"
    if _PAIR in first:
        return ", ".join(gap.ids)
    return shortened(id_list(gap.ids), _OWNERS_CHARACTERS_MAX)


def _facts(machine: Machine) -> Iterator[tuple[str, list[tuple[str, object]]]]:
    yield "CPUs", [(f"{_NODE}{node.id}", node.cpus) for node in machine.numa_nodes]
    yield "memory", [(f"{_NODE}{node.id}", node.memory_bytes) for node in machine.numa_nodes]
    yield "NUMA node", [(gpu.id, gpu.numa_node) for gpu in machine.gpus]
    yield "model", [(gpu.id, gpu.model) for gpu in machine.gpus]
    yield "memory", [(gpu.id, gpu.memory_bytes) for gpu in machine.gpus]
    yield "bus id", [(gpu.id, gpu.bdf) for gpu in machine.gpus]
    yield "NUMA node", [(nic.id, nic.numa_node) for nic in machine.nics]
    yield "bus id", [(nic.id, nic.bdf) for nic in machine.nics]
    between = [link for link in machine.links if link.a.startswith("GPU") and link.b.startswith("GPU")]
    yield "PCIe class", [(f"{link.a}{_PAIR}{link.b}", link.pcie) for link in between]
    yield "number of NVLinks", [(f"{link.a}{_PAIR}{link.b}", link.nvlinks) for link in between]
