"""PCI functions from a sysfs tree, each with the bridges above it.

A function's place is the real path behind /sys/bus/pci/devices/ADDRESS; the oldest dumps hold plain folders there
instead of links and lack some files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from topoalloc.topology.machine import Unknown
from topoalloc.topology.pci import PciAddress, PciPath
from topoalloc.topology.pci_classes import PciKind, class_code_of, hex_id, kind_of
from topoalloc.topology.readers.files import Files, text_of

# A server with eight NICs of 1,024 virtual functions each has 8,300.
FUNCTIONS_MAX = 20_000
_BUS = "bus/pci/devices"
_ROOTS = "devices"
_HOST_BRIDGE = re.compile(r"pci([0-9a-f]{4,8}:[0-9a-f]{2})")
_CONFIG_HEAD_BYTES = 16  # vendor, device and class code of every header type (PCI Local Bus Specification, 6.1)
_DEPTH_MAX = 32  # bridges above one function; PCI has 256 bus numbers, real trees nest below 10


@dataclass(frozen=True, slots=True)
class PciFunction:
    """One function; `folder` is its place below the sysfs root, `path` None where that shows no host bridge."""

    address: PciAddress
    folder: str
    path: PciPath | None
    class_code: int | None
    vendor: str | None
    device: str | None

    @property
    def kind(self) -> PciKind:
        return PciKind.OTHER if self.class_code is None else kind_of(self.class_code, self.vendor)


def read_pci_functions(sys: Files) -> tuple[PciFunction, ...] | str:
    """All functions in address order, or the reason why they cannot be read; none at all is no fault."""
    names = sys.names(_BUS)
    if len(names) > FUNCTIONS_MAX:
        return f"more than {FUNCTIONS_MAX} PCI functions"
    folders = {address: sys.real_path(f"{_BUS}/{name}") for name in names if (address := _address(name))}
    if not folders or any(folder is None or folder.startswith(_BUS) for folder in folders.values()):
        # Entries that are no links hide their place: look for it in the device tree itself.
        folders = {**folders, **_walk(sys)}
    if len(folders) > FUNCTIONS_MAX:
        return f"more than {FUNCTIONS_MAX} PCI functions"
    return tuple(_function(sys, address, folder) for address, folder in sorted(folders.items()) if folder is not None)


def address_in(real_path: str) -> tuple[PciAddress, str] | None:
    """The innermost PCI function on a device path, and the rest of the path below it."""
    parts = real_path.split("/")
    for position in range(len(parts) - 1, -1, -1):
        address = _address(parts[position])
        if address is not None:
            return address, "/".join(parts[position + 1 :])
    return None


def numa_node_of(sys: Files, function: PciFunction) -> int | Unknown:
    """The kernel's numa_node of a function; -1 there means that nobody told the kernel."""
    text = text_of(sys, f"{function.folder}/numa_node")
    if text is None:
        return Unknown("numa_node is missing or cannot be read")
    if not re.fullmatch(r"\d{1,5}", text):
        return Unknown(f"numa_node is {text[:20]!r}" if text != "-1" else "numa_node is -1")
    return int(text)


def driver_of(sys: Files, function: PciFunction) -> str | None:
    """The name of the bound kernel driver; None where there is none or the source does not show it."""
    real = sys.real_path(f"{function.folder}/driver")
    if real is None or real == f"{function.folder}/driver":
        return None
    return real.rsplit("/", 1)[-1]


def _function(sys: Files, address: PciAddress, folder: str) -> PciFunction:
    def told(name: str) -> str | None:
        return text_of(sys, f"{folder}/{name}")

    class_code, vendor, device = class_code_of(told("class")), hex_id(told("vendor")), hex_id(told("device"))
    if class_code is None or vendor is None:
        # Only then: on a live machine reading the configuration space wakes a device that sleeps.
        config = sys.read(f"{folder}/config") or b""
        if len(config) >= _CONFIG_HEAD_BYTES:
            class_code = class_code if class_code is not None else int.from_bytes(config[9:12], "little")
            vendor = vendor or f"{int.from_bytes(config[0:2], 'little'):04x}"
            device = device or f"{int.from_bytes(config[2:4], 'little'):04x}"
    return PciFunction(address, folder, path_of(folder), class_code, vendor, device)


def path_of(folder: str) -> PciPath | None:
    """`devices/pci0000:17/0000:17:00.0/0000:18:00.0` as host bridge 0000:17 and bridge 0000:17:00.0.

    Domains that a function opens itself (VMD) begin with a host bridge of their own below it; the innermost counts.
    """
    parts = folder.split("/")
    for position in range(len(parts) - 1, -1, -1):
        match = _HOST_BRIDGE.fullmatch(parts[position])
        if match is not None:
            bridges = [_address(part) for part in parts[position + 1 : -1]]
            return PciPath(match.group(1), tuple(bridge for bridge in bridges if bridge is not None))
    return None


def _walk(sys: Files) -> dict[PciAddress, str | None]:
    found: dict[PciAddress, str | None] = {}
    todo = [(f"{_ROOTS}/{name}", 0) for name in sys.names(_ROOTS) if _HOST_BRIDGE.fullmatch(name)]
    while todo and len(found) <= FUNCTIONS_MAX:
        folder, depth = todo.pop()
        for name in sys.names(folder):
            address = _address(name)
            if address is not None and depth < _DEPTH_MAX:
                found[address] = f"{folder}/{name}"
                todo.append((f"{folder}/{name}", depth + 1))
    return found


def _address(name: str) -> PciAddress | None:
    # Only the spelling of sysfs, which always has the domain: bus numbers alone occur in other names.
    if not re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", name):
        return None
    try:
        return PciAddress.parse(name)
    except ValueError:
        return None
