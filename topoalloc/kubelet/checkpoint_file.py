"""The kubelet's device checkpoint, read once after a start: the only place that still shows what finished init
containers hold.

PodResources never lists ordinary init containers, yet what their pod's app containers do not take over stays with the
pod until it ends (k/k #71312). The file is evidence beside PodResources and never its replacement: its layout is the
kubelet's own affair, and it keeps entries of pods that are long gone.
"""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec

from topoalloc.allocation.ledger import CheckpointEntry

FILE_NAME = "kubelet_internal_checkpoint"
FILE_BYTES_MAX = 64 * 1024**2  # 100,000 devices in use are 1.8 MB


class _Entry(msgspec.Struct):
    PodUID: str
    ContainerName: str
    ResourceName: str
    DeviceIDs: dict[str, list[str]]


class _Data(msgspec.Struct):
    PodDeviceEntries: list[_Entry] | None = None


class _File(msgspec.Struct):
    Data: _Data


class _Answered(msgspec.Struct):
    AllocResp: str | None  # base64; a kubelet that calls it otherwise is one that is not understood


class _AnsweredData(msgspec.Struct):
    PodDeviceEntries: list[_Answered] | None


class _AnsweredFile(msgspec.Struct):
    Data: _AnsweredData


def read_entries(plugin_directory: Path, resources: frozenset[str]) -> tuple[CheckpointEntry, ...]:
    """Who holds which of our devices by the checkpoint; nothing where it cannot be read."""
    try:
        with (plugin_directory / FILE_NAME).open("rb") as file:
            return parse_entries(file.read(FILE_BYTES_MAX), resources)
    except OSError:
        return ()


def read_answers(plugin_directory: Path) -> tuple[bytes, ...] | None:
    """The answers to Allocate that containers are started with, of every plugin, as protobuf; None where they cannot be
    read."""
    try:
        with (plugin_directory / FILE_NAME).open("rb") as file:
            entries = msgspec.json.decode(file.read(FILE_BYTES_MAX), type=_AnsweredFile).Data.PodDeviceEntries or []
        return tuple(base64.b64decode(entry.AllocResp or "", validate=True) for entry in entries)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None


def parse_entries(content: bytes, resources: frozenset[str]) -> tuple[CheckpointEntry, ...]:
    """The entries of these resources; nothing where the file has another layout."""
    try:
        entries = msgspec.json.decode(content, type=_File).Data.PodDeviceEntries or []
    except (msgspec.MsgspecError, ValueError):
        return ()
    return tuple(
        CheckpointEntry(
            uid=entry.PodUID,
            container=entry.ContainerName,
            ids=frozenset(device_id for ids in entry.DeviceIDs.values() for device_id in ids),
        )
        for entry in entries
        if entry.ResourceName in resources
    )
