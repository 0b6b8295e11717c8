"""HAMi-core in front of the driver: limits in variables, an account in a file that the container writes.

Names and meanings are those of HAMi's device plugin (`Allocate` of its NVIDIA plugin) and HAMi-core's README. Nothing
of it is made here: `libvgpu.so` has to be on the node.
"""

from __future__ import annotations

from dataclasses import dataclass

from topoalloc.sharing.edits import ContainerEdits, Mount
from topoalloc.sharing.enforcement import Enforced, ShareFile, Upkeep
from topoalloc.sharing.share import Share

LIBRARY_NAME = "libvgpu.so"
CONTAINER_DIRECTORY = "/usr/local/vgpu"
LOCK_DIRECTORY = "/tmp/vgpulock"  # noqa: S108 - written into HAMi-core
PRELOAD_FILE = "/etc/ld.so.preload"
MIB = 1024**2


@dataclass(frozen=True, slots=True)
class HamiCoreShim:
    """`shim_directory`: where `libvgpu.so` lies on the node."""

    shim_directory: str
    name: str = "hami-core"

    def enforced(self, share: Share, directory: str) -> Enforced:
        envs = [
            ("CUDA_DEVICE_SM_LIMIT", str(share.cores)),
            ("CUDA_DEVICE_MEMORY_SHARED_CACHE", f"{CONTAINER_DIRECTORY}/share.cache"),
        ]
        if share.memory_bytes is not None:
            # 0 means no limit there, so a share without memory gets the least that is one.
            envs.append(("CUDA_DEVICE_MEMORY_LIMIT_0", f"{max(1, share.memory_bytes // MIB)}m"))
        library = f"{CONTAINER_DIRECTORY}/{LIBRARY_NAME}"
        mounts = (
            Mount(f"{self.shim_directory}/{LIBRARY_NAME}", library),
            Mount(f"{directory}/share.cache", f"{CONTAINER_DIRECTORY}/share.cache", read_only=False),
            Mount(f"{directory}/ld.so.preload", PRELOAD_FILE),
            # One of its own for each container, where HAMi's plugin gives one of the node to all.
            Mount(f"{directory}/lock", LOCK_DIRECTORY, read_only=False),
        )
        files = (
            ShareFile("share.cache", 0o666, b"", Upkeep.LEFT),
            ShareFile("ld.so.preload", 0o444, f"{library}\n".encode()),
            ShareFile("lock", 0o1777, None, Upkeep.LEFT),
        )
        return Enforced(files, (), ContainerEdits(envs=tuple(envs), mounts=mounts))
