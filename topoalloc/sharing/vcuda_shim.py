"""The vcuda library of GaiaGPU's line (tkestack/vcuda-controller) in front of the driver: its two files, byte for byte.

The library looks for its configuration right in `/etc/vcuda` first and only then below the container's id, which it
takes from cgroup v1 alone; so the configuration lies where it looks first, one directory for each container. It then
registers at `vcuda.sock`, and the host's pids of its container are written beside the configuration.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from topoalloc.sharing.edits import SEARCH_PATH_VARIABLE, ContainerEdits, Mount
from topoalloc.sharing.enforcement import Enforced, ShareFile, Upkeep
from topoalloc.sharing.share import Share, ShareRules, is_elastic

CONFIG_FILE = "vcuda.config"
PIDS_FILE = "pids.config"
SOCKET = "vcuda.sock"
CONTAINER_DIRECTORY = "/etc/vcuda"
DRIVER_MIRROR = "/usr/local/nvidia"  # in a container: the library under the driver's names, the driver beside it
PIDS_MAX = 1024  # the library reads no more

# resource_data_t (include/hijack.h): packed, aligned to 8, little endian. Its bus id has NVML's length before v2 (16).
_CONFIG = struct.Struct("<48si4044s4096s16sQiiiii4x")
CONFIG_BYTES = 8240
assert _CONFIG.size == CONFIG_BYTES

UNLIMITED_BYTES = 2**63 - 1  # the library has no switch for memory alone; no GPU has as much


@dataclass(frozen=True, slots=True)
class VcudaShim:
    """`shim_directory`: the mirror of the driver on the node, with the library under the driver's names."""

    rules: ShareRules
    shim_directory: str
    driver_version: tuple[int, int] = (0, 0)
    name: str = "vcuda"

    def enforced(self, share: Share, directory: str) -> Enforced:
        files = (
            ShareFile(CONFIG_FILE, 0o444, config_bytes(share, self.rules, self.driver_version)),
            ShareFile(PIDS_FILE, 0o444, b"", Upkeep.LEFT),
        )
        mounts = (Mount(directory, CONTAINER_DIRECTORY), Mount(self.shim_directory, DRIVER_MIRROR))
        envs = ((SEARCH_PATH_VARIABLE, f"{DRIVER_MIRROR}/lib64"),)
        return Enforced(files, (SOCKET,), ContainerEdits(envs=envs, mounts=mounts))


def registered_name(share: Share) -> str:
    """The container's name as written for the library, which sends it back when it registers."""
    return share.container or share.name


def config_bytes(share: Share, rules: ShareRules, driver_version: tuple[int, int]) -> bytes:
    """`vcuda.config`: the limits of one container."""
    elastic = is_elastic(share, rules)
    major, minor = driver_version
    return _CONFIG.pack(
        _text(share.pod_uid, 48),
        rules.elastic_cores if elastic and rules.elastic_cores is not None else 0,
        b"",
        _text(registered_name(share), 4096),
        b"",
        UNLIMITED_BYTES if share.memory_bytes is None else share.memory_bytes,
        share.cores,
        0 if elastic else 1,
        major,
        minor,
        1,
    )


def pids_bytes(pids: Iterable[int]) -> bytes:
    """`pids.config`: the host's pids, sorted, since the library searches them by halving; the lowest PIDS_MAX."""
    some = sorted({pid for pid in pids if 0 < pid < 2**31})[:PIDS_MAX]
    return struct.pack(f"<{len(some)}i", *some)


def _text(text: str, size: int) -> bytes:
    """As much of it as leaves room for the zero at the end."""
    return text.encode("utf-8", "replace")[: size - 1]
