"""File trees for the readers' tests: recorded machines with their facts, and small made-up ones."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topoalloc.topology.readers.archive import ArchiveFiles, open_archive
from topoalloc.topology.readers.sysfs import read_machine_tree
from topoalloc.topology.reading import Reading

MACHINES = Path(__file__).parents[1] / "machines"
FACTS: dict[str, Any] = {
    name: entry["facts"] for name, entry in json.loads((MACHINES / "facts.json").read_text()).items()
}


def recorded(kind: str) -> list[str]:
    """Names of the recorded files of one kind (`.sysfs.`, `.nccl-topo.xml`, `.hwloc.xml`)."""
    names = sorted(name for name in FACTS if kind in name)
    assert names, kind
    return names


@dataclass(frozen=True)
class Link:
    """A symbolic link in a made-up tree."""

    target: str


@dataclass(frozen=True)
class Folder:
    """An empty folder in a made-up tree."""


Tree = Mapping[str, str | bytes | Link | Folder]


def tar_of(tree: Tree, tar_format: int = tarfile.GNU_FORMAT) -> bytes:
    """A plain tar archive of a tree; paths as they are, escaping ones too."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as archive:
        for path, content in tree.items():
            member = tarfile.TarInfo(path)
            match content:
                case Link(target):
                    member.type, member.linkname = tarfile.SYMTYPE, target
                    archive.addfile(member)
                case Folder():
                    member.type = tarfile.DIRTYPE
                    archive.addfile(member)
                case str() | bytes():
                    data = content.encode() if isinstance(content, str) else content
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def files_of(tree: Tree) -> ArchiveFiles:
    files = open_archive(tar_of(tree), "made-up.tar")
    assert isinstance(files, ArchiveFiles), files
    return files


def reading_of(tree: Tree) -> Reading:
    """What the sysfs reader makes of a made-up tree."""
    reading = read_machine_tree(files_of(tree), "made-up")
    assert isinstance(reading, Reading), reading
    return reading


def numa_tree(*nodes: str) -> dict[str, str | bytes | Link | Folder]:
    """NUMA nodes by their CPU lists, each with 1 GiB and plain distances."""
    tree: dict[str, str | bytes | Link | Folder] = {}
    for number, cpus in enumerate(nodes):
        folder = f"sys/devices/system/node/node{number}"
        tree[f"{folder}/cpulist"] = f"{cpus}\n"
        tree[f"{folder}/meminfo"] = f"Node {number} MemTotal:    1048576 kB\nNode {number} MemFree:   1 kB\n"
        tree[f"{folder}/distance"] = " ".join("10" if other == number else "20" for other in range(len(nodes))) + "\n"
    return tree


def pci_tree(path: str, pci_class: str, vendor: str, device: str = "0x0001", numa_node: str = "0", **more: str) -> Tree:
    """One PCI function at a path such as `pci0000:00/0000:00:01.0/0000:01:00.0`, with its link in /sys/bus."""
    folder, name = f"sys/devices/{path}", path.rsplit("/", 1)[-1]
    attributes = {"class": pci_class, "vendor": vendor, "device": device, "numa_node": numa_node, **more}
    tree: dict[str, str | bytes | Link | Folder] = {
        f"{folder}/{key}": f"{value}\n" for key, value in attributes.items()
    }
    tree[f"sys/bus/pci/devices/{name}"] = Link(f"../../../devices/{path}")
    return tree


def netdev_tree(path: str, **attributes: str) -> Tree:
    """A network interface at a device path, with its link in /sys/class/net."""
    name = path.rsplit("/", 1)[-1]
    tree: dict[str, str | bytes | Link | Folder] = {
        f"sys/devices/{path}/{key}": f"{value}\n" for key, value in {"type": "1", **attributes}.items()
    }
    tree[f"sys/class/net/{name}"] = Link(f"../../devices/{path}")
    return tree
