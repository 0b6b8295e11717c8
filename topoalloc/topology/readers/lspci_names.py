"""What a PCI function is, told by the vendor and device name that pci.ids gives it, for want of a class code."""

from __future__ import annotations

import re
from dataclasses import dataclass

from topoalloc.topology.machine import NicFunction
from topoalloc.topology.pci_classes import AMD, MELLANOX, NVIDIA, PciKind, is_virtual_function_id

# Beginnings of pci.ids vendor names, with the vendor's id; those whose devices can be GPUs or NICs.
_VENDORS = (
    ("NVIDIA Corporation", NVIDIA),
    ("nVidia Corporation", NVIDIA),
    ("Advanced Micro Devices, Inc. [AMD/ATI]", AMD),
    ("Mellanox", MELLANOX),
    ("Intel Corporation", "8086"),
    ("Cray Inc", "17db"),
    ("Hewlett Packard Enterprise", "1590"),
    ("Broadcom", "14e4"),
    ("Amazon.com, Inc.", "1d0f"),
    ("Chelsio", "1425"),
    ("QLogic", "1077"),
    ("Cavium", "177d"),
    ("Solarflare", "1924"),
    ("Realtek", "10ec"),
    ("Aquantia", "1d6a"),
    ("Pensando", "1dd8"),
    ("AMD Pensando", "1dd8"),
    ("Huawei", "19e5"),
    ("Cornelis", "434e"),
    ("Microsoft", "1414"),
    ("Google", "1ae0"),
    ("Red Hat", "1af4"),
    ("VMware", "15ad"),
    ("Marvell", "11ab"),
)
_IDS = re.compile(r"\s*\[([0-9a-f]{4}):([0-9a-f]{4})\]\s*(?:\(rev [0-9a-f]{2}\))?$")
_REVISION = re.compile(r"\s*\(rev [0-9a-f]{2}\)$")
_UNNAMED = re.compile(r"Device ([0-9a-f]{4})$")

# Other functions of graphics cards, chipsets and SuperNICs under the same vendors.
_NEITHER = re.compile(
    r"\b(?:Audio|HDMI|USB|UCSI|Bridge|Switch Port|Upstream|Downstream|Root Port|Root Complex|Root Hub|SMBus|LPC|IDE|"
    r"SATA|AHCI|Memory Controller|Host bridge|DMA Controller|SoC Management|Management Interface|Crypto|"
    r"Fibre Channel|Ethernet Switch|Serial|NVMe|Thermal|Sensor|Bluetooth)\b",
    re.IGNORECASE,
)
# AMD's compute cards; its other names under this vendor are desktop displays (VGA class), chipsets and switches.
_AMD_ACCELERATOR = re.compile(r"\bInstinct\b|\bMI\d{2,3}[AX]?\b|Aqua Vanjaram|Aldebaran|Arcturus", re.IGNORECASE)
_NETWORK = re.compile(
    r"Ethernet|Network|Gigabit|\bGbE\b|\d+GBASE|InfiniBand|\bInfiniHost|Connect-?IB|\bConnectX|BlueField|Omni-Path|"
    r"Slingshot|Cassini|Elastic Fabric Adapter|\bEFA\b|\bENA\b|NetXtreme|FastLinQ|VMXNET|gVNIC|Wi-?Fi|Wireless-|"
    r"\bMANA\b|NBase-T|Unified Wire|\bMT\d{5}\b",
    re.IGNORECASE,
)
_VIRTUAL_FUNCTION = re.compile(r"\bVirtual Function\b|\bVF\b", re.IGNORECASE)
# NVSwitches that older copies of pci.ids show by number only: of V100, A100 and H100 machines.
_NVSWITCH_IDS = frozenset({"1ac0", "1ac1", "1ac2", "1af1", "22a3"})
# Instinct GPUs by number: MI50, MI100, MI200, MI300 and MI350 series.
_AMD_ACCELERATOR_IDS = re.compile(r"66a[01]|738[ce]|740[8cf]|7410|74[ab][0-9]|75[ab][0-9]")


@dataclass(frozen=True, slots=True)
class NamedFunction:
    """`vendor` and `device` are four hex digits each, None where the name does not tell them.

    `is_unnamed`: pci.ids did not know the device, so that `kind` rests on the vendor alone.
    """

    kind: PciKind
    name: str
    vendor: str | None
    device: str | None
    nic_function: NicFunction | None
    is_unnamed: bool


def named_function(text: str, function: int) -> NamedFunction:
    """Tell what `lspci` prints behind a function: vendor and name, with ids where `-nn` was given.

    `function` is the function number: a graphics card is its function 0, the others are its sound and USB.
    """
    name, vendor, device = _ids(text)
    rest = name
    for beginning, number in _VENDORS:
        if name.startswith(beginning):
            vendor = vendor or number
            rest = name.removeprefix(beginning).lstrip(" .,")
            break
    unnamed = _UNNAMED.search(name)
    device = device or (unnamed[1] if unnamed else None)
    kind = _kind(rest, vendor, device, unnamed is not None, function)
    virtual = bool(_VIRTUAL_FUNCTION.search(rest)) or is_virtual_function_id(vendor, device)
    nic_function = NicFunction.VIRTUAL if kind is PciKind.NIC and virtual else None
    return NamedFunction(kind, name, vendor, device, nic_function, unnamed is not None)


def _ids(text: str) -> tuple[str, str | None, str | None]:
    """The name without ids and revision, then vendor and device id."""
    match = _IDS.search(text)
    if match is not None:
        return text[: match.start()].strip(), match[1], match[2]
    return _REVISION.sub("", text).strip(), None, None


def _kind(rest: str, vendor: str | None, device: str | None, is_unnamed: bool, function: int) -> PciKind:
    if vendor == NVIDIA and ("NVSwitch" in rest or device in _NVSWITCH_IDS):
        return PciKind.NVSWITCH
    if _NEITHER.search(rest):
        return PciKind.OTHER
    if vendor == NVIDIA:
        return PciKind.GPU if function == 0 and not re.search(r"nForce|MCP\d|Tegra|Ethernet", rest) else PciKind.OTHER
    if vendor == AMD:
        by_id = is_unnamed and device is not None and _AMD_ACCELERATOR_IDS.fullmatch(device)
        return PciKind.GPU if by_id or _AMD_ACCELERATOR.search(rest) else PciKind.OTHER
    return PciKind.NIC if vendor == MELLANOX or _NETWORK.search(rest) else PciKind.OTHER
