"""A sysfs tree (and the part of /proc that NVIDIA's driver fills) as a reading of the whole machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from topoalloc.topology.machine import Unknown
from topoalloc.topology.pci_classes import AMD, PciKind
from topoalloc.topology.readers.files import Files, FilesBelow, text_of
from topoalloc.topology.readers.kfd import read_xgmi_links
from topoalloc.topology.readers.sysfs_nics import read_nics
from topoalloc.topology.readers.sysfs_numa import NumaTree, cpu_list, read_numa_tree
from topoalloc.topology.readers.sysfs_pci import PciFunction, driver_of, numa_node_of, read_pci_functions
from topoalloc.topology.reading import GpuReading, NicReading, Reading, SourceRefusal, Standing

_NVIDIA_PROC = "driver/nvidia/gpus"
# Folders looked at when searching a dump for its file-system root: dumps put it at the top or one or two below.
_ROOT_CANDIDATES_MAX = 256
_ROOT_DEPTH_MAX = 2


def read_machine_tree(files: Files, source: str) -> Reading | SourceRefusal:
    """A reading of the one machine below a folder or an archive: its root, a `sys` folder, or a folder above."""
    roots = _machine_roots(files)
    if not roots:
        return SourceRefusal(source, "holds no sys/devices; give /sys, a folder with sys/ in it, or an archive of one")
    if len(roots) > 1:
        return SourceRefusal(source, f"holds {len(roots)} machines ({', '.join(sorted(roots)[:4])}); give one of them")
    sys_path, proc_path = next(iter(roots.values()))
    proc = FilesBelow(files, proc_path) if proc_path is not None else None
    return read_sysfs(FilesBelow(files, sys_path), proc, source)


def read_sysfs(sys: Files, proc: Files | None, source: str) -> Reading | SourceRefusal:
    """What a sysfs root says; `proc` is the /proc beside it, or None."""
    numa = read_numa_tree(sys)
    if isinstance(numa, str):
        return SourceRefusal(source, numa)
    functions = read_pci_functions(sys)
    if isinstance(functions, str):
        return SourceRefusal(source, functions)
    if not numa.nodes and not functions and numa.online is None:
        return SourceRefusal(source, "its sys folder names no NUMA node, CPU or PCI device; record all of /sys")
    gpu_functions = [
        function for function in functions if function.kind is PciKind.GPU and not _is_share(sys, function)
    ]
    warnings = list(numa.warnings)
    gpus = _gpus(sys, proc, gpu_functions, numa, warnings)
    nics = tuple(_with_known_node(nic, numa, warnings) for nic in read_nics(sys, functions))
    nic_addresses = {nic.bdf for nic in nics}
    _compare_locality(sys, [*gpu_functions, *(f for f in functions if f.address in nic_addresses)], numa, warnings)
    return Reading(
        source=source,
        standing=Standing.WHOLE,
        numa_nodes=numa.nodes,
        gpus=gpus,
        nics=nics,
        nvswitches=tuple(function.address for function in functions if function.kind is PciKind.NVSWITCH),
        all_numa_nodes=numa.listed,
        warnings=tuple(f"{source}: {warning}" for warning in warnings),
    )


def _machine_roots(files: Files) -> dict[str, tuple[str, str | None]]:
    """Paths of sys and proc by the folder they were found in."""
    if _is_sysfs(files, ""):
        return {".": ("", None)}
    level = [""]
    for _ in range(_ROOT_DEPTH_MAX + 1):
        found: dict[str, tuple[str, str | None]] = {}
        for folder in level:
            prefix = f"{folder}/" if folder else ""
            if _is_sysfs(files, f"{prefix}sys"):
                proc = f"{prefix}proc"
                found[folder or "."] = (f"{prefix}sys", proc if files.is_folder(proc) else None)
        if found:
            return found
        below = [f"{folder}/{name}" if folder else name for folder in level for name in files.names(folder)]
        level = [folder for folder in below[:_ROOT_CANDIDATES_MAX] if files.is_folder(folder)]
    return {}


def _is_sysfs(files: Files, folder: str) -> bool:
    prefix = f"{folder}/" if folder else ""
    if not files.is_folder(f"{prefix}devices"):
        return False
    names = files.names(f"{prefix}devices")
    return "system" in names or any(name.startswith("pci") for name in names) or files.is_folder(f"{prefix}bus/pci")


def _is_share(sys: Files, function: PciFunction) -> bool:
    """A virtual function of a GPU beside its physical function is a share of it (vGPU), not another GPU."""
    return "physfn" in sys.names(function.folder)


def _gpus(
    sys: Files, proc: Files | None, functions: Sequence[PciFunction], numa: NumaTree, warnings: list[str]
) -> tuple[GpuReading, ...]:
    xgmi = read_xgmi_links(sys)
    gpus: list[GpuReading] = []
    for function in functions:
        if driver_of(sys, function) == "vfio-pci":
            warnings.append(f"GPU {function.address} is bound to vfio-pci: kept for a virtual machine")
        told = _nvidia_information(proc, function)
        node = numa_node_of(sys, function)
        gpus.append(
            GpuReading(
                bdf=function.address,
                uuid=told.get("GPU UUID"),
                model=told.get("Model") or text_of(sys, f"{function.folder}/product_name") or None,
                memory_bytes=_vram_bytes(sys, function),
                numa_node=_known_node(node, f"GPU {function.address}", numa, warnings),
                path=function.path,
                vendor=function.vendor,
                pci_device=function.device,
                minor=int(told["Device Minor"]) if "Device Minor" in told else None,
                nvlinks=xgmi.get(function.address) if function.vendor == AMD else None,
            )
        )
    return tuple(gpus)


def _nvidia_information(proc: Files | None, function: PciFunction) -> dict[str, str]:
    """Model, UUID and device minor as NVIDIA's driver writes them, `Key: <tabs> value`; question marks mean unknown."""
    text = text_of(proc, f"{_NVIDIA_PROC}/{function.address}/information") if proc is not None else None
    told: dict[str, str] = {}
    for line in (text or "").splitlines():
        key, _, value = line.partition(":")
        value = value.strip()
        if value and "?" not in value and (key.strip() != "Device Minor" or re.fullmatch(r"\d{1,4}", value)):
            told[key.strip()] = value
    return told


def _vram_bytes(sys: Files, function: PciFunction) -> int | None:
    """Memory of an AMD GPU as amdgpu tells it; NVIDIA's driver tells it by NVML alone."""
    text = text_of(sys, f"{function.folder}/mem_info_vram_total")
    return int(text) if text is not None and re.fullmatch(r"[1-9]\d{0,14}", text) else None


def _with_known_node(nic: NicReading, numa: NumaTree, warnings: list[str]) -> NicReading:
    node = nic.numa_node
    if not isinstance(node, int) or not numa.nodes or numa.has(node):
        return nic
    known = _known_node(node, f"NIC {nic.bdf}", numa, warnings)
    return replace(nic, numa_node=known)


def _known_node(node: int | Unknown, device: str, numa: NumaTree, warnings: list[str]) -> int | Unknown:
    if isinstance(node, Unknown) or not numa.nodes or numa.has(node):
        return node
    warnings.append(f"{device} says NUMA node {node}, which this machine does not have")
    return Unknown(f"numa_node is {node}, and there is no such node")


def _compare_locality(sys: Files, functions: Sequence[PciFunction], numa: NumaTree, warnings: list[str]) -> None:
    """A numa_node that the function's own CPU list contradicts is a firmware fault worth knowing."""
    for function in functions:
        node = numa_node_of(sys, function)
        local = cpu_list(text_of(sys, f"{function.folder}/local_cpulist"))
        if isinstance(node, Unknown) or local is None:
            continue
        usable = local if numa.online is None else local & numa.online
        expected = numa.cpus_of(node)
        if expected and usable != expected:
            warnings.append(
                f"{function.address} says NUMA node {node} (CPUs {expected}), but its local CPUs are {usable or 'none'}"
            )
