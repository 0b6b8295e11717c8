"""Which enforcement this node has: as configured or as its installation brought it, checked before anyone is served."""

from __future__ import annotations

import logging
import re
from functools import partial
from pathlib import Path

from topoalloc.agent.config import Config
from topoalloc.agent.enforcer import Enforcer
from topoalloc.agent.private_files import told_of_key
from topoalloc.agent.share_directories import ShareDirectories, ShareObserver
from topoalloc.agent.shim_library import check_foreign_shim, install_library, packaged_library
from topoalloc.agent.shim_versions import remove_unused_versions
from topoalloc.errors import InputError
from topoalloc.sharing.builtin_shim import BuiltinShim
from topoalloc.sharing.enforcement import Enforcement
from topoalloc.sharing.inventory import Inventory
from topoalloc.topology.pci_classes import AMD

log = logging.getLogger(__name__)

VCUDA_DIRECTORY = "/etc/gpu-manager/vdriver/nvidia"  # where gpu-manager keeps its mirror of the driver
HAMI_CORE_DIRECTORY = "/usr/local/vgpu"
DRIVER_VERSION_FILE = Path("/proc/driver/nvidia/version")
DRIVER_VERSION_BYTES_MAX = 4096
_DRIVER_VERSION = re.compile(r"Kernel Module[^\n]{0,80}?\s([0-9]{2,5})\.([0-9]{1,5})")
NOT_ENFORCED = "shares are placed and accounted, but NOTHING KEEPS A CONTAINER WITHIN ITS SHARE"
_FOREIGN = "no figures of shares, whose account is another library's (topoalloc_share_usage_readable is 0)"
_NO_FIGURES = {
    "none": "no figures of shares, since nothing is enforced here and nobody keeps an account",
    "vcuda": _FOREIGN,
    "hami-core": _FOREIGN,
}


def chosen_enforcer(
    config: Config, inventory: Inventory, *observers: ShareObserver, live: bool, cgroup_root: str = ""
) -> Enforcer | None:
    """What enforces shares here, ready to serve; None: nothing does, which is said once. `observers` of the shares
    that our own library holds. `cgroup_root`: the kubelet's. Raises InputError or MachineError where what was asked for
    cannot be had: better no agent than shares without limits."""
    shim = _chosen(config, inventory, live=live) if inventory.gpu_keys else "none"
    if config.metrics_address is not None and shim in _NO_FIGURES:
        log.info("metrics: %s; the agent's own counters are served", _NO_FIGURES[shim])
    if shim == "none":
        return None
    if any(gpu.vendor == AMD for gpu in inventory.machine.gpus):
        log.warning("shim: %s: it limits no share of the AMD GPUs that are here beside others", shim)
    if shim == "builtin":
        return _builtin(config, inventory, observers)
    if shim == "vcuda":
        return _vcuda(config, inventory, cgroup_root)
    return _hami_core(config, inventory)


def _chosen(config: Config, inventory: Inventory, *, live: bool) -> str:
    only_amd = all(gpu.vendor == AMD for gpu in inventory.machine.gpus)
    if config.shim not in {"auto", "none"}:
        if only_amd:
            raise InputError(
                f"shim: {config.shim}: all GPUs here are AMD's, and no shim limits a share of them; set shim: none for"
                " shares without limits, or shim: auto where one configuration is for nodes with NVIDIA's GPUs too"
            )
        return config.shim
    if config.shim == "none":
        log.warning("shim: none: %s", NOT_ENFORCED)
        return "none"
    if not live:
        log.info("a recorded machine: shares are not enforced (shim: auto)")
        return "none"
    if only_amd:
        log.warning("the GPUs here are AMD's, for which there is no shim: %s", NOT_ENFORCED)
        return "none"
    if packaged_library() is None:
        log.warning(
            "this installation has no library to put into containers (there was no C compiler when it was built; build "
            "it with one): %s",
            NOT_ENFORCED,
        )
        return "none"
    return "builtin"


def _builtin(config: Config, inventory: Inventory, observers: tuple[ShareObserver, ...]) -> Enforcer:
    content = packaged_library()
    if content is None:
        raise InputError("shim: builtin: this installation was built without the library; build it with a C compiler")
    with told_of_key("lib_dir"):
        library = install_library(content, Path(config.lib_dir), config.without_share)
    remove_unused_versions(Path(config.lib_dir), library.directory, config.run_dir, Path(config.plugin_dir))
    shim = BuiltinShim(config.share_rules(), str(library.directory))
    return Enforcer(inventory, _directories(config, shim, *observers), library.check)


def _vcuda(config: Config, inventory: Inventory, cgroup_root: str) -> Enforcer:
    from topoalloc.agent.peers import read_cgroup
    from topoalloc.agent.vcuda_registry import VcudaRegistry
    from topoalloc.sharing.vcuda_shim import VcudaShim

    directory = Path(config.shim_dir or VCUDA_DIRECTORY)

    def check() -> None:
        check_foreign_shim(directory, "lib64/libcuda.so.1")

    with told_of_key("shim_dir"):
        check()
    shim = VcudaShim(config.share_rules(), str(directory), _driver_version())
    registry = VcudaRegistry(Path(config.run_dir) / "shares", partial(read_cgroup, root=cgroup_root))
    return Enforcer(inventory, _directories(config, shim, registry), check)


def _hami_core(config: Config, inventory: Inventory) -> Enforcer:
    from topoalloc.sharing.hami_core_shim import LIBRARY_NAME, HamiCoreShim

    directory = Path(config.shim_dir or HAMI_CORE_DIRECTORY)
    if config.elastic is not False:
        log.warning("elastic: HAMi-core knows no such limit, shares stay as they are")

    def check() -> None:
        check_foreign_shim(directory, LIBRARY_NAME)

    with told_of_key("shim_dir"):
        check()
    return Enforcer(inventory, _directories(config, HamiCoreShim(str(directory))), check)


def _directories(config: Config, shim: Enforcement, *observers: ShareObserver) -> ShareDirectories:
    with told_of_key("run_dir"):
        directories = ShareDirectories(Path(config.run_dir), shim, observers)
    log.info("shares are enforced: shim %s, their directories below %s", shim.name, config.run_dir)
    return directories


def _driver_version(path: Path = DRIVER_VERSION_FILE) -> tuple[int, int]:
    """The first two parts of the driver's version; zeros where it is not told."""
    try:
        with path.open("rb") as stream:
            text = stream.read(DRIVER_VERSION_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return 0, 0
    found = _DRIVER_VERSION.search(text)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)
