"""Why a merge was not admitted, in words and as data, and what would have had to be free.

Only restricted and single-numa-node refuse. They admit exactly when one set of nodes is a preferred hint of
every resource that has an opinion; so a refusal is a resource without such a set, or resources whose sets
have none in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from operator import or_

from topoalloc.admission.cpus import CpuManager, CpuState
from topoalloc.admission.hints import ANY_PREFERRED, DeviceView, Hint, Hints, ProviderAnswer, devices_by_mask
from topoalloc.admission.memory import MemoryState
from topoalloc.admission.numa_mask import masks_in_order, nodes_of, text_of, width_then_value
from topoalloc.admission.policy import NumaInfo, Options, Policy, merge

MASKS_SHOWN_MAX = 4  # a message that lists more sets of nodes is not read
# Two resources nearly always suffice to show a conflict; larger groups are not searched for but named whole.
CONFLICT_GROUP_MAX = 3


@dataclass(frozen=True, slots=True)
class Supply:
    """How much of a resource was asked for, and how much sits on which set of nodes (a mask), in all and free."""

    request: int
    total: Mapping[int, int]
    free: Mapping[int, int]

    @property
    def mask(self) -> int:
        """Every node that has some."""
        return reduce(or_, self.total, 0)

    def total_on(self, mask: int) -> int:
        return sum(amount for nodes, amount in self.total.items() if nodes & mask)

    def lacking_on(self, mask: int) -> int:
        """How much more would have to be free on these nodes."""
        return max(0, self.request - sum(amount for nodes, amount in self.free.items() if nodes & mask))


@dataclass(frozen=True, slots=True)
class Demand:
    """One resource's say in the merge. `usable`: the masks that the policy could have admitted, narrowest first."""

    provider: str
    resource: str
    hints: tuple[Hint, ...]
    usable: tuple[int, ...]

    @property
    def possible(self) -> tuple[int, ...]:
        """Every mask that would do, narrowest first."""
        return tuple(sorted((hint.mask for hint in self.hints if hint.mask is not None), key=width_then_value))


@dataclass(frozen=True, slots=True)
class Explanation:
    """`sentence` says why in one line; `remedy` what would have had to be free or asked for.

    `conflict` are the demands that cannot meet: one that is impossible by itself, a pair, or where no pair
    suffices a larger group. `demands` are all that have an opinion.
    """

    sentence: str
    remedy: str
    demands: tuple[Demand, ...]
    conflict: tuple[Demand, ...]


def device_supply(view: DeviceView, request: int) -> Supply:
    """Devices by the nodes they are on; those without a node count nowhere."""
    return Supply(request, devices_by_mask(view, view.nodes), devices_by_mask(view, view.free))


def cpu_supply(manager: CpuManager, state: CpuState, request: int) -> Supply:
    """CPUs by node; reserved ones are never free."""
    nodes = manager.topology.by_numa_node
    free = state.shared - manager.reserved
    return Supply(
        request,
        {1 << node: len(cpus) for node, cpus in nodes.items()},
        {1 << node: len(cpus & free) for node, cpus in nodes.items()},
    )


def memory_supply(state: MemoryState, kind: str, request: int) -> Supply:
    """Bytes of one kind by node."""
    tables = {1 << node: memory.tables[kind] for node, memory in state.nodes.items() if kind in memory.tables}
    return Supply(
        request,
        {mask: table.allocatable_bytes for mask, table in tables.items()},
        {mask: table.free_bytes for mask, table in tables.items()},
    )


def explain(
    policy: Policy,
    options: Options,
    answers: Iterable[tuple[str, ProviderAnswer]],
    numa: NumaInfo,
    supplies: Mapping[str, Supply] | None = None,
) -> Explanation | None:
    """Why the policy refuses these answers (pairs of provider name and answer); None when it admits them.

    `supplies` by resource make the remedy concrete; without them it is in general terms.
    """
    named = list(answers)
    if merge(policy, options, (answer for _, answer in named), numa).admit:
        return None
    demands = tuple(
        Demand(provider, resource, hints, _usable(policy, hints))
        for provider, answer in named
        for resource, hints in sorted((answer or {}).items(), key=_by_resource)
        if hints is not None and ANY_PREFERRED not in hints
    )
    conflict = _conflict(demands)
    told = supplies or {}
    if len(conflict) == 1:
        sentence, remedy = _of_one(policy, conflict[0], told.get(conflict[0].resource))
    else:
        sentence, remedy = _of_several(policy, conflict, told)
    return Explanation(f"{policy}: {sentence}", remedy, demands, conflict)


def _by_resource(item: tuple[str, Hints]) -> str:
    return item[0]


def _usable(policy: Policy, hints: tuple[Hint, ...]) -> tuple[int, ...]:
    width_max = 1 if policy is Policy.SINGLE_NUMA_NODE else None
    masks = {
        hint.mask
        for hint in hints
        if hint.preferred and hint.mask is not None and (width_max is None or hint.mask.bit_count() <= width_max)
    }
    return tuple(sorted(masks, key=width_then_value))


def _conflict(demands: Sequence[Demand]) -> tuple[Demand, ...]:
    """The fewest demands that already cannot meet, the earliest of them in the order given; else all."""
    for size in range(1, CONFLICT_GROUP_MAX + 1):
        for group in combinations(demands, size):
            if not frozenset.intersection(*(frozenset(demand.usable) for demand in group)):
                return group
    return tuple(demands)


def _of_one(policy: Policy, demand: Demand, supply: Supply | None) -> tuple[str, str]:
    name = demand.resource
    if policy is Policy.SINGLE_NUMA_NODE and supply is not None:
        single = max((supply.total_on(1 << node) for node in nodes_of(supply.mask)), default=0)
        # Nothing that becomes free would help, so this comes before what is missing now.
        if single < supply.request:
            return f"no NUMA node has {supply.request} {name}", f"ask for what one NUMA node has (at most {single})"
    if not demand.possible:
        sentence = f"no set of NUMA nodes has enough {name} free"
        if supply is None:
            return sentence, f"more {name} would have to be free"
        lacking = supply.lacking_on(supply.mask)
        return sentence, f"{lacking} more {name} would have to be free on the node"
    widths = _masks_text(demand.possible)
    if policy is Policy.SINGLE_NUMA_NODE and supply is None and all(mask.bit_count() > 1 for mask in demand.possible):
        return f"{name} needs {widths}, more than one NUMA node", "ask for what one NUMA node has"
    if supply is None:
        return f"{name} would use {widths}, more nodes than an empty machine needs", f"{name} free closer together"
    mask, lacking = _nearest_fit(supply)
    sentence = f"{name} would use {widths}, but the machine could serve it on {text_of(mask)}"
    return sentence, f"{lacking} more {name} would have to be free on {text_of(mask)}"


def _nearest_fit(supply: Supply) -> tuple[int, int]:
    """Of the narrowest sets of nodes that could serve the request when empty: the one that lacks least."""
    fitting = _narrowest(supply)
    mask = min(fitting, key=lambda mask: (supply.lacking_on(mask), mask))
    return mask, supply.lacking_on(mask)


def _narrowest(supply: Supply) -> list[int]:
    """The narrowest sets of nodes whose hardware would do; all nodes where none does."""
    fitting: list[int] = []
    for mask in masks_in_order(nodes_of(supply.mask)):
        if fitting and mask.bit_count() > fitting[0].bit_count():
            break
        if supply.total_on(mask) >= supply.request:
            fitting.append(mask)
    return fitting or [supply.mask]


def _of_several(policy: Policy, conflict: Sequence[Demand], supplies: Mapping[str, Supply]) -> tuple[str, str]:
    # The one that needs most nodes is the one that binds.
    first, *rest = sorted(conflict, key=lambda demand: -demand.usable[0].bit_count())
    others = ", ".join(f"{demand.resource} would use {_masks_text(demand.usable)}" for demand in rest)
    sentence = f"{first.resource} needs {_masks_text(first.usable)}, {others}"
    remedy = _common_ground(conflict, supplies)
    if remedy is not None:
        return sentence, remedy
    names = " and ".join(demand.resource for demand in conflict)
    if policy is Policy.RESTRICTED:
        return sentence, f"{names} would have to need exactly the same NUMA nodes, or be requested in separate pods"
    return sentence, f"{names} would have to be free on one NUMA node"


def _common_ground(conflict: Sequence[Demand], supplies: Mapping[str, Supply]) -> str | None:
    """The set of nodes on which all could meet if more were free, and how much; None where none is."""
    if any(demand.resource not in supplies for demand in conflict):
        return None
    told = {demand.resource: supplies[demand.resource] for demand in conflict}
    shared = frozenset.intersection(*(frozenset(_narrowest(supply)) for supply in told.values()))
    if not shared:
        return None
    best = min(shared, key=lambda mask: (sum(s.lacking_on(mask) > 0 for s in told.values()), width_then_value(mask)))
    lacking = [f"{s.lacking_on(best)} more {name}" for name, s in told.items() if s.lacking_on(best)]
    if not lacking:
        return None
    return f"{' and '.join(lacking)} would have to be free on {text_of(best)}"


def _masks_text(masks: Sequence[int]) -> str:
    shown = " or ".join(text_of(mask) for mask in masks[:MASKS_SHOWN_MAX])
    return shown if len(masks) <= MASKS_SHOWN_MAX else f"{shown} or {len(masks) - MASKS_SHOWN_MAX} more sets"
