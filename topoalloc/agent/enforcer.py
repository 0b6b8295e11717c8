"""Carries the ledger's shares onto the node: what a grant needs there before Allocate answers, and everything else soon
after. It judges nothing; where a share cannot be enforced it says so, and the grant is taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from topoalloc.agent.share_directories import ShareDirectories
from topoalloc.allocation.ledger import CheckpointEntry, Owner, State
from topoalloc.allocation.shares import is_granted_anew, share_of_holding, shares_held, shares_on_record
from topoalloc.sharing.edits import ContainerEdits
from topoalloc.sharing.inventory import Inventory, Resource, ResourceKind


class Enforcer:
    """Not safe for threads: the ledger's lock has to be held. `check` raises FileFault when the library on the node is
    not what containers should get."""

    def __init__(self, inventory: Inventory, directories: ShareDirectories, check: Callable[[], None]) -> None:
        self._inventory = inventory
        self._directories = directories
        self._check = check

    def granted(self, before: State, state: State, owner: Owner, resource: Resource) -> ContainerEdits:
        """Make what the container's share needs after this grant; the edits go with its cores. Raises FileFault."""
        nothing = ContainerEdits()
        if resource.kind is ResourceKind.NIC:
            return nothing
        share = share_of_holding(self._inventory, owner, state.holdings[owner])
        if share is None:
            return nothing
        of_cores = resource.kind is ResourceKind.CORE
        if of_cores:
            self._check()
        fresh = of_cores and is_granted_anew(self._inventory, before.holdings.get(owner), state.holdings[owner])
        enforced = self._directories.put(share, fresh=fresh)
        return enforced.edits if of_cores else nothing

    def settle(self, state: State, recorded: Iterable[CheckpointEntry], *, remove_others: bool) -> None:
        """Make the node's directories those of the ledger, and of what the kubelet has on record beside it."""
        held = shares_held(self._inventory, state)
        beside = shares_on_record(self._inventory, recorded, held)
        self._directories.settle({**held, **beside}, remove_others=remove_others)

    def close(self) -> None:
        self._directories.close()
