"""A share of one GPU as limits: how much GPU time and memory one container may use, and the name of its directory.

Only 1-99 cores of exactly one GPU are a share; a container that holds whole GPUs is not limited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from topoalloc.sharing.inventory import DEVICE_ID_CHARACTERS_MAX, Inventory, ResourceKind
from topoalloc.sharing.settings import CORES_PER_GPU
from topoalloc.topology.machine import Unknown

CONTEXT_BYTES = 600 * 1024**2  # what a CUDA context takes on large GPUs, generously
# A name is a part of paths on the node, so nothing else may stand in one. It never begins with a dot.
_NAME = re.compile(rf"[0-9a-z:_-][0-9a-z.:_-]{{0,{DEVICE_ID_CHARACTERS_MAX - 1}}}")
_FOREIGN = re.compile(r"[^0-9a-z.:_-]")


@dataclass(frozen=True, slots=True)
class ShareRules:
    """What the operator sets for all shares of a node.

    `elastic_cores`: up to this percentage idle GPU time may be used beyond a share; None: never more than the share.
    `context_bytes`: charged for a context whose size cannot be measured.
    `without_usage`: whether memory is given when the account of a container cannot be had.
    """

    elastic_cores: int | None = None
    context_bytes: int = CONTEXT_BYTES
    without_usage: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """The limits of one container. `memory_bytes` None: memory is not served on this node, so it is not limited.

    `pod_uid` and `container` are empty while nobody has told whose it is; nothing is decided by them.
    """

    name: str
    position: int  # in Machine.gpus
    gpu_uuid: str | None
    cores: int  # percent of the GPU's time, 1-99
    memory_bytes: int | None
    pod_uid: str = ""
    container: str = ""


def share_of(inventory: Inventory, ids: Iterable[str], pod_uid: str = "", container: str = "") -> Share | None:
    """The share that these ids of one container are; None for whole GPUs, for no cores, and for what is no grant of
    ours (cores of several GPUs)."""
    devices = [inventory.devices[device_id] for device_id in ids if device_id in inventory.devices]
    cores = [device for device in devices if device.kind is ResourceKind.CORE]
    positions = {device.position for device in cores}
    if len(positions) != 1 or len(cores) >= CORES_PER_GPU:
        return None
    (position,) = positions
    units = sum(1 for device in devices if device.kind is ResourceKind.MEMORY and device.position == position)
    uuid = inventory.machine.gpus[position].uuid
    lowest = min(cores, key=lambda device: device.unit)
    return Share(
        name=share_name(lowest.id),
        position=position,
        gpu_uuid=None if isinstance(uuid, Unknown) else uuid,
        cores=len(cores),
        memory_bytes=units * inventory.settings.memory_unit_bytes if inventory.memory_served else None,
        pod_uid=pod_uid,
        container=container,
    )


def share_name(core_id: str) -> str:
    """The name under which a share's directory lies: its lowest core id, in characters that a path can have.

    A core is held by one container at a time, so the name is unique; it needs no identity of a pod, and is the same
    after a restart of the agent.
    """
    return _FOREIGN.sub("_", core_id.lower())


def is_share_name(text: str) -> bool:
    """Whether this may be a part of a path below the directory of shares."""
    return _NAME.fullmatch(text) is not None


def is_elastic(share: Share, rules: ShareRules) -> bool:
    """Whether the share may use more than its cores while its GPU is idle."""
    return rules.elastic_cores is not None and rules.elastic_cores > share.cores
