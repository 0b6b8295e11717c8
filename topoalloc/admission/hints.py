"""Topology hints: which sets of NUMA nodes could serve a request, and which of them are as narrow as can be.

`device_hints` is the device manager's answer (pkg/kubelet/cm/devicemanager/topology_hints.go).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from topoalloc.admission.numa_mask import masks_in_order, partial_mask_of


@dataclass(frozen=True, slots=True)
class Hint:
    """One set of NUMA nodes that would do; `mask` None means any. `preferred`: no narrower set ever could."""

    mask: int | None
    preferred: bool


# None: no opinion ("any, preferred"). Empty: cannot be satisfied ("any, not preferred").
Hints = tuple[Hint, ...] | None
# What one hint provider (device, CPU or memory manager) says, by resource. None and empty: no opinion at all.
ProviderAnswer = Mapping[str, Hints] | None

ANY_PREFERRED = Hint(None, True)
UNSATISFIABLE: tuple[Hint, ...] = ()


class HintNodes(StrEnum):
    """Which NUMA nodes the device manager enumerates (k/k PR 138244)."""

    DEVICE = "device_nodes"  # 1.36 and later: nodes that host a device of the resource
    ALL = "all_nodes"  # 1.34, 1.35: every node of the machine


@dataclass(frozen=True, slots=True)
class DeviceView:
    """What the kubelet knows about the devices of one resource.

    `nodes` holds every device, healthy or not: its NUMA ids, `()` for a topology message without nodes, None
    for no topology message. `healthy` and `allocated` are ids of it.
    """

    nodes: Mapping[str, tuple[int, ...] | None]
    healthy: frozenset[str]
    allocated: frozenset[str]

    @property
    def free(self) -> frozenset[str]:
        """Healthy and not given out."""
        return self.healthy - self.allocated

    @property
    def has_topology(self) -> bool:
        """Whether the resource takes part in alignment: one device with a node suffices."""
        return any(self.nodes.values())


def device_hints(
    view: DeviceView,
    request: int,
    machine_nodes: Sequence[int],
    *,
    recorded: frozenset[str] = frozenset(),
    reusable: frozenset[str] = frozenset(),
    hint_nodes: HintNodes = HintNodes.DEVICE,
) -> Hints:
    """Hints for `request` devices of one resource; None when the resource has no topology.

    Container scope: `recorded` are the devices the container already has (a kubelet restart), `reusable` those
    left by init containers of the pod. Pod scope: `request` is the pod's effective request, `recorded` the
    devices of all its containers together, and nothing is reusable.
    `machine_nodes` are the NUMA ids the kubelet knows.
    """
    if not view.has_topology:
        return None
    if recorded:
        if len(recorded) != request:
            return UNSATISFIABLE
        return _generate(view, request, machine_nodes, recorded, frozenset(), hint_nodes)
    free = view.free
    if len(free | reusable) < request:
        return UNSATISFIABLE
    return _generate(view, request, machine_nodes, free, reusable, hint_nodes)


def _generate(
    view: DeviceView,
    request: int,
    machine_nodes: Sequence[int],
    available: frozenset[str],
    reusable: frozenset[str],
    hint_nodes: HintNodes,
) -> tuple[Hint, ...]:
    total = devices_by_mask(view, view.nodes)
    free = devices_by_mask(view, available)
    bound_nodes = _node_masks_of_reusable(view, reusable)
    nodes = _enumerated_nodes(total, machine_nodes, hint_nodes)
    width_min = len(nodes)
    masks: list[int] = []
    for mask in masks_in_order(nodes):
        # Unhealthy and busy devices count here: "preferred" is about the hardware, not about what is free.
        if mask.bit_count() < width_min and _within(total, mask) >= request:
            width_min = mask.bit_count()
        # A device that an init container used must be inside, every one of them.
        if not all(mask & device for device in bound_nodes):
            continue
        if len(bound_nodes) + _within(free, mask) >= request:
            masks.append(mask)
    return tuple(Hint(mask, mask.bit_count() == width_min) for mask in masks)


def devices_by_mask(view: DeviceView, devices: Iterable[str]) -> Counter[int]:
    """How many devices have which set of nodes: enumeration then costs per set, not per device."""
    by_mask: Counter[int] = Counter()
    for nodes, count in Counter(view.nodes.get(device) or () for device in devices).items():
        by_mask[partial_mask_of(nodes)] += count
    return by_mask


def _node_masks_of_reusable(view: DeviceView, reusable: frozenset[str]) -> list[int]:
    """One mask per reusable device. Without a topology message it does not count; with an empty one it never fits."""
    known = ((device, view.nodes.get(device)) for device in sorted(reusable))
    return [partial_mask_of(nodes) for _, nodes in known if nodes is not None]


def _within(devices: Counter[int], mask: int) -> int:
    return sum(count for nodes, count in devices.items() if nodes & mask)


def _enumerated_nodes(total: Counter[int], machine_nodes: Sequence[int], hint_nodes: HintNodes) -> list[int]:
    if hint_nodes is HintNodes.ALL:
        return list(machine_nodes)
    hosting = 0
    for nodes in total:
        hosting |= nodes
    # Ids that the kubelet does not know are dropped; with none left it falls back to the whole machine.
    return [node for node in sorted(machine_nodes) if hosting >> node & 1] or list(machine_nodes)
