"""A CDI specification of this node's GPUs, for nodes where nobody else writes one: data only, no hooks.

Rules of the format: cncf.io container-device-interface SPEC.md. Readers refuse a file of a version they do not know, so
the lowest version that the content needs is written.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from topoalloc.sharing.edits import DeviceFiles, driver_edits, gpu_name
from topoalloc.sharing.inventory import Inventory

# 0.5.0 allows device names that begin with a digit.
VERSION_LOWEST = "0.3.0"
VERSION_DIGITS = "0.5.0"
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]{0,253}[A-Za-z0-9])?")
_MOUNT_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")


@dataclass(frozen=True, slots=True)
class CdiSpec:
    """The file: its name, its content, and the GPUs left out, since CDI allows no such name or they have no node."""

    file_name: str
    content: bytes
    left_out: tuple[str, ...]


def cdi_spec(inventory: Inventory, files: DeviceFiles, kind: str) -> CdiSpec | None:
    """The specification of every GPU that has a device node here; None where none has one (a file without devices is
    refused by its readers)."""
    names: list[str] = []
    devices: list[dict[str, object]] = []
    left_out: list[str] = []
    for gpu, key in zip(inventory.machine.gpus, inventory.gpu_keys, strict=True):
        name, paths = gpu_name(gpu), files.by_key.get(key, ())
        if not paths or name in names or not _DEVICE.fullmatch(name):
            left_out.append(gpu.id)
            continue
        names.append(name)
        devices.append({"name": name, "containerEdits": {"deviceNodes": [_node(path) for path in paths]}})
    if not devices:
        return None
    document: dict[str, object] = {
        "cdiVersion": VERSION_DIGITS if any(name[0].isdigit() for name in names) else VERSION_LOWEST,
        "kind": kind,
        "devices": devices,
    }
    shared = _shared_edits(files)
    if shared:
        document["containerEdits"] = shared
    content = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=True) + "\n"
    return CdiSpec(f"{kind.replace('/', '-')}.json", content.encode("ascii"), tuple(left_out))


def _shared_edits(files: DeviceFiles) -> dict[str, object]:
    edits: dict[str, object] = {}
    driver = driver_edits(files)
    if files.every_gpu:
        edits["deviceNodes"] = [_node(path) for path in files.every_gpu]
    if driver.envs:
        edits["env"] = [f"{name}={value}" for name, value in driver.envs]
    if driver.mounts:
        edits["mounts"] = [
            {"hostPath": m.host_path, "containerPath": m.container_path, "options": list(_MOUNT_OPTIONS)}
            for m in driver.mounts
        ]
    return edits


def _node(path: str) -> dict[str, str]:
    """Without `m`: nobody in a container has to make device nodes."""
    return {"path": path, "permissions": "rw"}
