"""The kubelet's checkpoint: the devices of every container, init containers too, and the answers it got for them."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

from tests.e2e.cluster.node import Node
from topoalloc.pb import deviceplugin_v1beta1_pb2 as pb


@dataclass(frozen=True)
class Entry:
    """One resource of one container; `answer` is what the device plugin said in Allocate."""

    pod_uid: str
    container: str
    resource: str
    ids: tuple[str, ...]
    answer: pb.ContainerAllocateResponse


def entries(node: Node) -> list[Entry]:
    data = json.loads((node.plugin_folder / "kubelet_internal_checkpoint").read_text())["Data"]
    return [
        Entry(
            item["PodUID"],
            item["ContainerName"],
            item["ResourceName"],
            tuple(device for devices in item["DeviceIDs"].values() for device in devices),
            pb.ContainerAllocateResponse.FromString(base64.b64decode(item["AllocResp"] or "")),
        )
        for item in data["PodDeviceEntries"] or []
    ]


def devices_by_container(node: Node) -> dict[tuple[str, str], dict[str, tuple[str, ...]]]:
    """(pod uid, container) -> device ids by resource."""
    found: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
    for entry in entries(node):
        found.setdefault((entry.pod_uid, entry.container), {})[entry.resource] = entry.ids
    return found
