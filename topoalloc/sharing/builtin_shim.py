"""Our own library in front of the driver: what it reads in a container, and how it gets there.

The layouts are those of topoalloc/sharing/shim/usage_layout.h.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from topoalloc.sharing.edits import ContainerEdits, Mount
from topoalloc.sharing.enforcement import Enforced, ShareFile, Upkeep
from topoalloc.sharing.settings import CORES_PER_GPU
from topoalloc.sharing.share import Share, ShareRules, is_elastic
from topoalloc.sharing.share_file import share_text
from topoalloc.sharing.told_files import NEIGHBOURS, NEIGHBOURS_MAGIC, PACE, PACE_MAGIC, TURN, TURN_MAGIC
from topoalloc.sharing.usage import USAGE_FILE_BYTES, USAGE_MAGIC, USAGE_SLOTS_MAX, USAGE_VERSION

LIBRARY_NAME = "libtopoalloc-vcuda.so"
VERIFY_NAME = "topoalloc-verify"  # beside it: says in a container whether its limits are active
SHARE_DIRECTORY = "/etc/topoalloc"  # in a container
LIBRARY_DIRECTORY = "/usr/local/lib/topoalloc"  # in a container
PRELOAD_FILE = "/etc/ld.so.preload"  # read by glibc's loader in every process; a variable can be unset, this cannot
AGENT_SOCKET = "agent.sock"
# The agent has no capabilities, so modes hold for it as for anybody. In the container these lie on a read-only mount.
WRITTEN_IN_PLACE = 0o644
LIBRARY_RECORD = "library"  # which version the container was given, so that it stays as long

# One page is there from the start, so that a full file system shows in Allocate. The rest is had by the container's
# first process (shim/usage.c), since the agent would be charged for what it takes itself.
_NEW_USAGE = struct.pack("<QII", USAGE_MAGIC, USAGE_VERSION, USAGE_SLOTS_MAX).ljust(4096, b"\0")


@dataclass(frozen=True, slots=True)
class BuiltinShim:
    """`library_directory`: where this version's library lies on the node, beside VERIFY_NAME and `without-share`."""

    rules: ShareRules
    library_directory: str
    name: str = "builtin"

    def enforced(self, share: Share, directory: str) -> Enforced:
        files = [
            ShareFile("share", 0o444, share_text(share, self.rules), Upkeep.COUNTED),
            # Everything that runs in the container has to write into it, whatever its user.
            ShareFile("usage", 0o666, _NEW_USAGE, Upkeep.LEFT, USAGE_FILE_BYTES),
            ShareFile("ld.so.preload", 0o444, f"{LIBRARY_DIRECTORY}/{LIBRARY_NAME}\n".encode()),
            ShareFile(LIBRARY_RECORD, 0o444, f"{self.library_directory}\n".encode(), Upkeep.LEFT),
        ]
        if is_elastic(share, self.rules):
            # Written long ago: the share's own cores count until the agent sets a pace.
            pace = PACE.pack(PACE_MAGIC, share.cores * 100, 0)
            files.append(ShareFile("pace", WRITTEN_IN_PLACE, pace, Upkeep.LEFT))
        if share.cores < CORES_PER_GPU:
            files.append(
                ShareFile("neighbours", WRITTEN_IN_PLACE, NEIGHBOURS.pack(NEIGHBOURS_MAGIC, 0, 0), Upkeep.LEFT)
            )
            files.append(ShareFile("turn", WRITTEN_IN_PLACE, TURN.pack(TURN_MAGIC, 0, 0), Upkeep.LEFT))
        mounts = (
            Mount(directory, SHARE_DIRECTORY),
            Mount(f"{directory}/usage", f"{SHARE_DIRECTORY}/usage", read_only=False),
            Mount(f"{directory}/ld.so.preload", PRELOAD_FILE),
            Mount(self.library_directory, LIBRARY_DIRECTORY),
        )
        return Enforced(tuple(files), (AGENT_SOCKET,), ContainerEdits(mounts=mounts))
