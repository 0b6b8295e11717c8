"""Which device nodes of this node belong to which GPU or NIC; looks below /dev and /sys, and only there."""

from __future__ import annotations

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
