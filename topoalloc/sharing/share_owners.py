"""Which container each share belongs to, and the text in which the agent tells it to `topoalloc top`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from topoalloc.sharing.inventory import Inventory, ResourceKind
from topoalloc.sharing.settings import CORES_PER_GPU
from topoalloc.sharing.share_limits import NAME_CHARACTERS_MAX, is_share_name

LINES_MAX = 4096
FIELDS = 5
_WORD = re.compile(r"[-A-Za-z0-9._]{1,253}")


@dataclass(frozen=True, slots=True)
class ShareOwner:
    """A container; `uid` of its pod, empty where nobody told it."""

    namespace: str
    pod: str
    container: str
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.container}"


def share_name_of(inventory: Inventory, ids: Iterable[str]) -> str | None:
    """The name of the share that these ids of one container are: its lowest core's; None for anything but cores of
    exactly one GPU that is not held whole."""
    devices = [inventory.devices[device_id] for device_id in ids if device_id in inventory.devices]
    cores = sorted((device for device in devices if device.kind is ResourceKind.CORE), key=lambda device: device.unit)
    if not cores or len({device.key for device in cores}) > 1 or len(cores) >= CORES_PER_GPU:
        return None
    name = re.sub(r"[^0-9a-z.:_-]", "_", cores[0].id.lower())[:NAME_CHARACTERS_MAX]
    return name if is_share_name(name) else None


def owners_text(owners: Mapping[str, ShareOwner]) -> str:
    """One line for each share: its name, namespace, pod, container and the pod's uid, or `-`."""
    return "".join(
        f"{name} {owner.namespace} {owner.pod} {owner.container} {owner.uid or '-'}\n"
        for name, owner in sorted(owners.items())
    )


def parse_owners(text: str) -> dict[str, ShareOwner]:
    """Read such a text; lines that are none are left out."""
    owners: dict[str, ShareOwner] = {}
    for line in text.split("\n")[:LINES_MAX]:
        fields = line.split(" ")
        if len(fields) == FIELDS and is_share_name(fields[0]) and all(map(_WORD.fullmatch, fields[1:])):
            owners[fields[0]] = ShareOwner(fields[1], fields[2], fields[3], "" if fields[4] == "-" else fields[4])
    return owners
