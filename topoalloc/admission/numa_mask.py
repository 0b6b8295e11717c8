"""Sets of NUMA nodes as the kubelet holds them: one integer whose bit i stands for node id i, ids 0 to 63.

Every enumeration and comparison of the topology manager is defined on these masks
(pkg/kubelet/cm/topologymanager/bitmask).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

from topoalloc.errors import InputError

NODE_ID_MAX = 63  # the kubelet's masks are 64 bits wide; a larger id cannot be expressed
# All non-empty subsets of the nodes are enumerated: 2^n - 1 masks. The kubelet has no bound of its own beyond
# its start-up check (8 nodes, or `max-allowable-numa-nodes`); 12 nodes are 4,095 masks, about a second of work.
ENUMERATED_NODES_MAX = 12


def mask_of(nodes: Iterable[int]) -> int:
    """The mask of these node ids. Raises ValueError for an id outside 0-63."""
    mask = 0
    for node in nodes:
        if not 0 <= node <= NODE_ID_MAX:
            raise ValueError(f"NUMA node id {node} is outside 0-{NODE_ID_MAX}, the width of the kubelet's masks")
        mask |= 1 << node
    return mask


def partial_mask_of(nodes: Iterable[int]) -> int:
    """The mask of those ids that a mask can hold; the others never match anything (bitmask.AnySet)."""
    return mask_of(node for node in nodes if 0 <= node <= NODE_ID_MAX)


def nodes_of(mask: int) -> tuple[int, ...]:
    """The node ids in a mask, ascending."""
    return tuple(node for node in range(mask.bit_length()) if mask >> node & 1)


def is_narrower(mask: int, other: int) -> bool:
    """Fewer nodes, or as many and the numerically smaller mask (lower node ids)."""
    return width_then_value(mask) < width_then_value(other)


def width_then_value(mask: int) -> tuple[int, int]:
    """Sort key of the kubelet's default order: narrowest first, then numerically smallest."""
    return mask.bit_count(), mask


def masks_in_order(nodes: Iterable[int]) -> Iterator[int]:
    """Every non-empty subset, by size and then lexicographically in the order given, as the kubelet enumerates.

    Raises InputError above `ENUMERATED_NODES_MAX` nodes.
    """
    bits = [mask_of((node,)) for node in nodes]
    if len(bits) > ENUMERATED_NODES_MAX:
        raise InputError(
            f"{len(bits)} NUMA nodes have 2^{len(bits)} subsets; hints are predicted for at most {ENUMERATED_NODES_MAX}"
        )
    for size in range(1, len(bits) + 1):
        for chosen in combinations(bits, size):
            yield sum(chosen)


def text_of(mask: int | None) -> str:
    """`{0,1}`, or `any node` for no mask."""
    if mask is None:
        return "any node"
    return "{" + ",".join(str(node) for node in nodes_of(mask)) + "}"
