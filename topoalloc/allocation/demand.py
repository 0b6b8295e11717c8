"""What a container asks of this node, and which requests make sense."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from topoalloc.sharing.inventory import Inventory, ResourceKind
from topoalloc.sharing.settings import CORES_PER_GPU


@dataclass(frozen=True, slots=True)
class ContainerDemand:
    """The resources of ours that one container asks for, by resource name; zero amounts are left out."""

    name: str
    amounts: tuple[tuple[str, int], ...]
    init: bool = False  # an ordinary init container: it ends before the next container starts
    sidecar: bool = False  # a restartable init container: it starts in the order of the others and stays
    past_admission: bool = False  # the kubelet has been seen running it

    def amount(self, resource: str) -> int:
        return dict(self.amounts).get(resource, 0)


@dataclass(frozen=True, slots=True)
class PodDemand:
    """One active pod of the node; `containers` in the kubelet's admission order (init containers first)."""

    namespace: str
    name: str
    uid: str
    containers: tuple[ContainerDemand, ...]


@dataclass(frozen=True, slots=True)
class Demand:
    """A container's request in the terms of placement: `nics` counts per NIC pool resource name."""

    cores: int
    memory_units: int
    nics: Mapping[str, int]

    @property
    def whole_gpus(self) -> int:
        return self.cores // CORES_PER_GPU if self.cores % CORES_PER_GPU == 0 else 0


def demand_of(container: ContainerDemand, inventory: Inventory) -> Demand:
    """Amounts by meaning; resources that are not ours are not in `amounts`."""
    nics = {r.name: n for r in inventory.resources if r.kind is ResourceKind.NIC and (n := container.amount(r.name))}
    return Demand(
        cores=container.amount(inventory.settings.core_resource),
        memory_units=container.amount(inventory.settings.memory_resource),
        nics=nics,
    )


def core_fault(inventory: Inventory, cores: int) -> str | None:
    """Why a number of cores is no share and no whole GPUs, or None."""
    if cores < CORES_PER_GPU or cores % CORES_PER_GPU == 0:
        return None
    low = cores // CORES_PER_GPU * CORES_PER_GPU
    return (
        f"{inventory.settings.core_resource}: {cores} is neither a share of one GPU (1 to 99) nor whole GPUs "
        f"(a multiple of 100); ask for 99 or less, {low} or {low + CORES_PER_GPU}"
    )


def demand_fault(inventory: Inventory, demand: Demand) -> str | None:
    """Why a whole request makes no sense on this node, or None; the text is what the user sees."""
    settings = inventory.settings
    fault = core_fault(inventory, demand.cores)
    if fault is not None:
        return fault
    if demand.cores == 0 and demand.memory_units > 0:
        return (
            f"{settings.memory_resource} without {settings.core_resource}: memory alone opens no GPU; "
            f"ask for 1 to 99 of {settings.core_resource} too"
        )
    share = 0 < demand.cores < CORES_PER_GPU
    if share and demand.memory_units == 0 and inventory.memory_served:
        unit_mib = settings.memory_unit_bytes // 1024**2
        return (
            f"a share of {demand.cores} {settings.core_resource} without {settings.memory_resource}: its memory limit "
            f"would be 0; ask for units of {unit_mib} MiB too"
        )
    return _memory_fault(inventory, demand)


def _memory_fault(inventory: Inventory, demand: Demand) -> str | None:
    """Memory beyond what the GPUs asked for can have on any choice of them."""
    units = sorted((count for count in inventory.memory_units if count is not None), reverse=True)
    gpus = max(1, demand.whole_gpus)
    most = sum(units[:gpus])
    if not units or demand.memory_units <= most:
        return None
    what = f"{gpus} whole GPU{'s' if gpus > 1 else ''}" if demand.whole_gpus else "one GPU"
    return (
        f"{inventory.settings.memory_resource}: {demand.memory_units} units are more than {what} of this node "
        f"{'have' if gpus > 1 else 'has'} ({most})"
    )
