"""Writes the CDI specification of this node's GPUs where container runtimes look for such files."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from topoalloc.agent.private_files import open_directory, read_file, told_as_fault, write_file
from topoalloc.sharing.cdi_spec import cdi_spec
from topoalloc.sharing.edits import DeviceFiles
from topoalloc.sharing.inventory import Inventory

log = logging.getLogger(__name__)

DIRECTORY_MODE = 0o755
FILE_MODE = 0o644


def write_cdi_spec(inventory: Inventory, files: DeviceFiles, kind: str, directory: Path) -> None:
    """Put the specification in its place unless it is there; raises FileFault. Runtimes read it anew when it changes,
    so it is not touched otherwise."""
    spec = cdi_spec(inventory, files, kind)
    if spec is None:
        log.warning("no device node of a GPU on this node: no CDI specification is written to %s", directory)
        return
    if spec.left_out:
        log.warning("not in the CDI specification, for want of a device node or a name: %s", ", ".join(spec.left_out))
    fd = open_directory(directory, DIRECTORY_MODE)
    try:
        with told_as_fault(str(directory / spec.file_name)):
            if read_file(fd, spec.file_name, len(spec.content) + 1) != spec.content:
                write_file(fd, spec.file_name, spec.content, FILE_MODE)
    finally:
        os.close(fd)
