"""The device manager's checkpoint file: what survives a kubelet restart, in the layout of Kubernetes 1.34 to 1.37.

The real checksum covers a print of Go structures and cannot be made outside Go; here it is a CRC of the data.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from topoalloc.admission.devices import DeviceTables, Owner

FILE_NAME = "kubelet_internal_checkpoint"
NO_NODE = "-1"  # a device without NUMA nodes is filed under this key


class _Entry(msgspec.Struct):
    PodUID: str
    ContainerName: str
    ResourceName: str
    DeviceIDs: dict[str, list[str]]
    AllocResp: str


class _Data(msgspec.Struct):
    PodDeviceEntries: list[_Entry]
    RegisteredDevices: dict[str, list[str]]


class _File(msgspec.Struct):
    Data: msgspec.Raw
    Checksum: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Devices and Allocate answers by owner, and the names of the resources that were registered."""

    recorded: Mapping[Owner, frozenset[str]]
    answers: Mapping[Owner, bytes]
    resources: tuple[str, ...]


def encode(tables: DeviceTables, answers: Mapping[Owner, bytes]) -> bytes:
    """The file's content."""
    entries = []
    for owner, devices in tables.recorded.items():
        nodes = tables.listed[owner.resource].nodes if owner.resource in tables.listed else {}
        by_node: dict[str, list[str]] = {}
        for device in sorted(devices):
            for node in nodes.get(device) or (NO_NODE,):
                by_node.setdefault(str(node), []).append(device)
        answer = base64.b64encode(answers.get(owner, b"")).decode()
        entries.append(_Entry(owner.pod_uid, owner.container, owner.resource, by_node, answer))
    registered = {
        name: [device for device in listed.nodes if device in listed.healthy]
        for name, listed in tables.listed.items()
        if listed.registered
    }
    data = msgspec.json.encode(_Data(entries, registered))
    return msgspec.json.encode(_File(msgspec.Raw(data), zlib.crc32(data)))


def decode(content: bytes) -> Checkpoint | None:
    """What the file says; None where it is damaged (a kubelet then starts with empty tables)."""
    try:
        file = msgspec.json.decode(content, type=_File)
        if zlib.crc32(file.Data) != file.Checksum:
            return None
        data = msgspec.json.decode(file.Data, type=_Data)
        recorded, answers = {}, {}
        for entry in data.PodDeviceEntries:
            owner = Owner(entry.PodUID, entry.ContainerName, entry.ResourceName)
            recorded[owner] = frozenset(device for ids in entry.DeviceIDs.values() for device in ids)
            answers[owner] = base64.b64decode(entry.AllocResp, validate=True)
    except (msgspec.DecodeError, ValueError):
        return None
    return Checkpoint(recorded, answers, tuple(data.RegisteredDevices))


def write(directory: Path, content: bytes) -> None:
    """Replace the file in one step."""
    temporary = directory / f".{FILE_NAME}.new"
    temporary.write_bytes(content)
    temporary.replace(directory / FILE_NAME)


def read(directory: Path) -> bytes | None:
    """The file's content; None where there is none."""
    try:
        return (directory / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return None
