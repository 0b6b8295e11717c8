"""Which device nodes of this node belong to which GPU or NIC, and where the driver's libraries are.

It looks below /dev and /sys, at the loader's cache and in the driver's directory, and only there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from topoalloc.sharing.edits import DeviceFiles
from topoalloc.sharing.inventory import Inventory
from topoalloc.topology.machine import Gpu, Nic
from topoalloc.topology.pci_classes import AMD, NVIDIA

# What every process that uses the driver opens; older drivers lack some of them.
NVIDIA_SHARED = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
AMD_SHARED = ("/dev/kfd",)
RDMA_SHARED = ("/dev/infiniband/rdma_cm",)
# What programs load of NVIDIA's driver for computing and video; what only displays need is left out. Some names carry
# the driver's version.
DRIVER_LIBRARY = re.compile(
    r"lib(?:cuda|cudadebugger|nvcuvid|nvidia-(?:ml|ptxjitcompiler|nvvm|nvvm70|opencl|gpucomp|encode|opticalflow|cfg|"
    r"compiler|fatbinaryloader|pkcs11|pkcs11-openssl3))\.so\.[0-9][0-9.]{0,30}"
)
LIBRARIES_MAX = 64
DIRECTORY_ENTRIES_MAX = 20_000  # of the driver's directory, which can be the one of all libraries


def with_driver_libraries(files: DeviceFiles, driver_dir: str, root: Path = Path("/")) -> DeviceFiles:
    """The same with the driver's libraries: those in `driver_dir` (a path of the node), or where that is empty those in
    the node's loader cache below `root`."""
    found = _listed(root, driver_dir) if driver_dir else _cached(root)
    libraries = tuple(sorted((name, path) for name, path in found.items() if DRIVER_LIBRARY.fullmatch(name)))
    return replace(files, libraries=libraries[:LIBRARIES_MAX])


def _cached(root: Path) -> Mapping[str, str]:
    from topoalloc.sharing.loader_cache import CACHE_BYTES_MAX, libraries_in

    try:
        with (root / "etc/ld.so.cache").open("rb") as stream:
            return libraries_in(stream.read(CACHE_BYTES_MAX), os.uname().machine)
    except OSError:
        return {}


def _listed(root: Path, driver_dir: str) -> Mapping[str, str]:
    try:
        with os.scandir(root / driver_dir.lstrip("/")) as entries:
            names = [entry.name for _, entry in zip(range(DIRECTORY_ENTRIES_MAX), entries, strict=False)]
    except OSError:
        return {}
    return {name: f"{driver_dir.rstrip('/')}/{name}" for name in names}


def device_files(inventory: Inventory, root: Path = Path("/")) -> DeviceFiles:
    """The device nodes that exist now below `root`; paths are given as a container sees them."""
    by_key: dict[str, tuple[str, ...]] = {}
    vendors: set[str] = set()
    for gpu, key in zip(inventory.machine.gpus, inventory.gpu_keys, strict=True):
        by_key[key] = _existing(root, _gpu_paths(gpu, root))
        vendors |= {gpu.vendor} if isinstance(gpu.vendor, str) else set()
    for nic, key in zip(inventory.machine.nics, inventory.nic_keys, strict=True):
        by_key[key] = _existing(root, _nic_paths(nic, root))
    shared = (NVIDIA_SHARED if NVIDIA in vendors else ()) + (AMD_SHARED if AMD in vendors else ())
    return DeviceFiles(MappingProxyType(by_key), _existing(root, shared))


def _gpu_paths(gpu: Gpu, root: Path) -> tuple[str, ...]:
    if gpu.vendor == AMD:
        # udev names render nodes by address; their numbers follow the order of driver probing.
        link = root / f"dev/dri/by-path/pci-{gpu.bdf}-render"
        return (f"/dev/dri/{link.resolve().name}",) if link.exists() else ()
    return (f"/dev/nvidia{gpu.minor}",) if isinstance(gpu.minor, int) else ()


def _nic_paths(nic: Nic, root: Path) -> tuple[str, ...]:
    """uverbs nodes of an RDMA device: user-space verbs open these, the netdev needs none."""
    if not isinstance(nic.rdma, str):
        return ()
    verbs = root / f"sys/class/infiniband/{nic.rdma}/device/infiniband_verbs"
    names = sorted(path.name for path in verbs.glob("uverbs*"))
    return tuple(f"/dev/infiniband/{name}" for name in names) + (RDMA_SHARED if names else ())


def _existing(root: Path, paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path for path in paths if (root / path.lstrip("/")).exists())
