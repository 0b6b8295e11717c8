"""The seam between an accounted share and what holds a container to it: one interface, three implementations.
Where nothing is enforced there is none.

An implementation says which files a share needs in its directory on the node and what its container gets; it touches
neither. Files are made, and made anew, from this alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from topoalloc.sharing.edits import ContainerEdits
from topoalloc.sharing.share import Share


class Upkeep(StrEnum):
    """What happens to a file of a share that exists already."""

    REPLACED = "replaced"  # by a new file whenever its content differs
    COUNTED = "counted"  # the same, and the number of the rewrite is in it (share_file.following)
    LEFT = "left"  # as it is: others write into it


@dataclass(frozen=True, slots=True)
class ShareFile:
    """One file of a share's directory. `content` None: it is a directory, with files of the container's own.

    `size_bytes`: how long it is made, with zeros that take no room until they are written over.
    """

    name: str
    mode: int
    content: bytes | None
    upkeep: Upkeep = Upkeep.REPLACED
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Enforced:
    """What one share needs: files in its directory, sockets that others open there, and edits of its container."""

    files: tuple[ShareFile, ...] = ()
    sockets: tuple[str, ...] = ()
    edits: ContainerEdits = field(default_factory=ContainerEdits)


class Enforcement(Protocol):
    """What holds containers to their shares on this node."""

    @property
    def name(self) -> str:
        """As in the configuration."""

    def enforced(self, share: Share, directory: str) -> Enforced:
        """What the share needs; `directory` is its own on the node, an absolute path."""
