"""Which reader takes a given path: told by what the file holds, never by its name.

Whatever cannot be read is refused with one line. Nothing here blocks: FIFOs, sockets and devices are not opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass

from topoalloc.topology import snapshot
from topoalloc.topology.machine import Machine
from topoalloc.topology.readers import (
    lspci_tree,
    numactl_text,
    nvlink_text,
    pci_list,
    smi_list,
    smi_query_xml,
    synthetic,
    topo_matrix,
    topo_p2p,
)
from topoalloc.topology.readers.archive import is_archive, open_archive
from topoalloc.topology.readers.files import FolderFiles
from topoalloc.topology.readers.hwloc_xml import read_hwloc_xml
from topoalloc.topology.readers.nccl_xml import read_nccl_xml
from topoalloc.topology.readers.sysfs import read_machine_tree
from topoalloc.topology.readers.xml_document import read_xml
from topoalloc.topology.reading import Reading, SourceRefusal

# The largest real dumps are 0.4 MiB packed; an unpacked tar of a big server is 60 MiB, a snapshot of the largest
# machine 100 MiB. Readers of smaller formats have bounds of their own below this one.
FILE_BYTES_MAX = 128 * 2**20
_HEAD_CHARS = 16 * 1024  # what a text reader sees to recognise its format
_NAME_CHARS_MAX = 200  # of a path in a message
_FORMATS = (
    "a sysfs folder or its tar archive, NCCL or hwloc XML, a snapshot of `topoalloc record`, or the text of nvidia-smi "
    "(topo -m, topo -p2p, -L, nvlink -s, nvlink -R, -q -x), lspci -tv, numactl -H"
)


@dataclass(frozen=True, slots=True)
class _TextReader:
    """A reader of printed text: whether a head is its format, and the whole text as a reading."""

    recognise: Callable[[str], bool]
    parse: Callable[[str, str], Reading | SourceRefusal]


# In this order: the first that recognises a text takes it. The list of addresses has the loosest shape.
_TEXT_READERS = (
    _TextReader(topo_matrix.recognise, topo_matrix.parse),
    _TextReader(topo_p2p.recognise, topo_p2p.parse),
    _TextReader(nvlink_text.recognise, nvlink_text.parse),
    _TextReader(smi_list.recognise, smi_list.parse),
    _TextReader(numactl_text.recognise, numactl_text.parse),
    _TextReader(lspci_tree.recognise, lspci_tree.parse),
    _TextReader(pci_list.recognise, pci_list.parse),
)


def read_source(path: str) -> Reading | Machine | SourceRefusal:
    """What one path (or `synthetic:` spelling) says; a snapshot is a Machine already. Never raises for bad input."""
    if path.startswith(synthetic.PREFIX):
        return synthetic.read_synthetic(path)
    name = path if len(path) <= _NAME_CHARS_MAX else f"{path[: _NAME_CHARS_MAX // 2]}…{path[-_NAME_CHARS_MAX // 2 :]}"
    name = name if name.isprintable() else repr(name)
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - a path with a NUL byte is to be refused, not to raise in Path
    except (OSError, ValueError) as error:
        return SourceRefusal(name, f"cannot be read ({_reason(error)})")
    if stat.S_ISDIR(mode):
        return read_machine_tree(FolderFiles(path), f"sysfs ({name})")
    if not stat.S_ISREG(mode):
        return SourceRefusal(name, f"is {_file_type(mode)}, not a file or folder; save what it gives in a file")
    data = _content(path)
    if isinstance(data, str):
        return SourceRefusal(name, data)
    return read_content(data, name)


def read_content(data: bytes, name: str) -> Reading | Machine | SourceRefusal:
    """What the content of a file says."""
    if not data.strip():
        return SourceRefusal(name, "is empty; the command that wrote it may have failed, run it again")
    if is_archive(data[:512]):
        files = open_archive(data, name)
        return files if isinstance(files, SourceRefusal) else read_machine_tree(files, f"sysfs ({name})")
    if data.startswith((b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"\x7fELF")) or _is_binary(data):
        return SourceRefusal(name, f"is binary and no tar archive (plain, gz, bz2, xz); give {_FORMATS}")
    text = _decoded(data)
    start = text.lstrip()[:1]
    if start == "<":
        return _read_xml_source(data, text, name)
    if start == "{":
        return _read_json(text, name)
    if text.lstrip().startswith(synthetic.PREFIX):
        return synthetic.read_synthetic(text.strip())
    return _read_text(text, name)


def _read_xml_source(data: bytes, text: str, name: str) -> Reading | SourceRefusal:
    if smi_query_xml.recognise(text[:_HEAD_CHARS]):
        return smi_query_xml.parse(text, name)
    root = read_xml(data, name)
    if isinstance(root, SourceRefusal):
        return root
    match root.tag:
        case "system" | "graphs":
            return read_nccl_xml(root, f"NCCL XML ({name})")
        case "topology":
            return read_hwloc_xml(root, f"hwloc XML ({name})")
        case tag:
            return SourceRefusal(name, f"is XML with the root <{tag[:40]}>, which is unknown; give {_FORMATS}")


def _read_json(text: str, name: str) -> Machine | SourceRefusal:
    if '"topoalloc.machine/' in text[:_HEAD_CHARS]:
        return SourceRefusal(name, "is the output of `show --as json`, which leaves much out; give that of `record`")
    return snapshot.load(text, name)


def _read_text(text: str, name: str) -> Reading | SourceRefusal:
    head = text[:_HEAD_CHARS]
    for reader in _TEXT_READERS:
        if reader.recognise(head):
            return reader.parse(text, name)
    return SourceRefusal(name, f"is no format that is known here; give {_FORMATS}")


def _content(path: str) -> bytes | str:
    """The bytes of a regular file, or why they cannot be had."""
    try:
        # O_NONBLOCK: the path may have become a FIFO since it was looked at.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        return f"cannot be read ({_reason(error)})"
    if len(data) > FILE_BYTES_MAX:
        return f"is larger than {FILE_BYTES_MAX >> 20} MiB; give the file of one machine"
    return data


def _decoded(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8-sig", "replace")


def _is_binary(data: bytes) -> bool:
    return b"\0" in data and not data.startswith((b"\xff\xfe", b"\xfe\xff"))


def _file_type(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
