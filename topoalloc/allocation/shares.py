"""Which shares there are by the ledger, so that what lies on the node can be made from it alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from topoalloc.allocation.ledger import CheckpointEntry, Holding, Owner, State
from topoalloc.sharing.inventory import Inventory, ResourceKind
from topoalloc.sharing.share import Share, share_of


def share_of_holding(inventory: Inventory, owner: Owner, holding: Holding) -> Share | None:
    """The limits of one container; None where it has none (whole GPUs, no cores)."""
    return share_of(inventory, holding.ids, holding.uid, owner.container if owner.named else "")


def shares_held(inventory: Inventory, state: State) -> Mapping[str, Share]:
    """Every share by its name. No core is held twice, so no name stands for two."""
    shares = (share_of_holding(inventory, owner, holding) for owner, holding in state.holdings.items())
    return MappingProxyType({share.name: share for share in shares if share is not None})


def shares_on_record(
    inventory: Inventory, entries: Iterable[CheckpointEntry], held: Mapping[str, Share]
) -> Mapping[str, Share]:
    """Shares that the kubelet's checkpoint shows beyond those held. After a start of the kubelet its containers are
    started with the answer on record, some of them before any list shows them."""
    ids: dict[tuple[str, str], frozenset[str]] = {}
    for entry in entries:
        container = (entry.uid, entry.container)
        ids[container] = ids.get(container, frozenset()) | entry.ids
    shares = (share_of(inventory, ids[key], *key) for key in sorted(ids))
    found: dict[str, Share] = {}
    for share in shares:
        if share is not None and share.name not in held:
            found.setdefault(share.name, share)
    return MappingProxyType(found)


def is_granted_anew(inventory: Inventory, before: Holding | None, after: Holding) -> bool:
    """Whether the cores of a holding are another grant than those it had; the kubelet asks again for a pod that it
    judges again, and what runs in it is then the same."""
    if before is None or not before.uid or before.uid != after.uid:
        return True
    return _cores(inventory, before.ids) != _cores(inventory, after.ids)


def _cores(inventory: Inventory, ids: frozenset[str]) -> frozenset[str]:
    return frozenset(i for i in ids if i in inventory.devices and inventory.devices[i].kind is ResourceKind.CORE)
