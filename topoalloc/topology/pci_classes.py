"""Which PCI functions are GPUs, NICs and NVSwitches, told by class code and vendor together.

The class alone misleads: a server's management display, a virtio screen and a GeForce are all 0x0300.
"""

from __future__ import annotations

from enum import StrEnum

# PCI vendor ids, as four hex digits.
NVIDIA = "10de"
AMD = "1002"
MELLANOX = "15b3"

# Class and subclass, as in the PCI Code and ID Assignment Specification.
_VGA = 0x0300
_CONTROLLER_3D = 0x0302
_DISPLAY_OTHER = 0x0380
_BRIDGE_OTHER = 0x0680
_PCI_BRIDGE = 0x0604
_INFINIBAND_NIC = 0x0207
_SERIAL_INFINIBAND = 0x0C06
_PROCESSING_ACCELERATOR = 0x1200
_NETWORK_BASE = 0x02
_DISPLAY_BASE = 0x03

# Every data-centre GPU of NVIDIA is a 3D controller, its cards with display outputs are VGA controllers. AMD's
# Instinct cards are "other display" up to MI200 and processing accelerators since; its VGA class is desktop displays.
_GPU_CLASSES = {
    NVIDIA: frozenset({_VGA, _CONTROLLER_3D}),
    AMD: frozenset({_CONTROLLER_3D, _DISPLAY_OTHER, _PROCESSING_ACCELERATOR}),
}

# Device ids that only virtual functions carry (pci.ids); a guest sees a VF without any link to its physical function.
_VIRTUAL_FUNCTION_IDS = {
    MELLANOX: frozenset({"1002", "1004", "1014", "1016", "1018", "101a", "101c", "101e"}),
    "8086": frozenset({"10ca", "10ed", "1515", "1520", "152d", "154c", "1571", "15a8", "15c5", "1889", "37cd"}),
    "1414": frozenset({"00ba"}),
}


class PciKind(StrEnum):
    """What a PCI function is to an allocator."""

    GPU = "gpu"
    NIC = "nic"
    NVSWITCH = "nvswitch"
    DISPLAY = "display"
    BRIDGE = "bridge"
    OTHER = "other"


def kind_of(class_code: int, vendor: str | None) -> PciKind:
    """The kind of a function from its 24-bit class code and its vendor (four hex digits; None: not told).

    Without a vendor only the 3D controller class is taken for a GPU: hand-written NCCL files name no vendor, and
    no display-only adapter has that class.
    """
    subclass = class_code >> 8
    base = class_code >> 16
    if subclass in _GPU_CLASSES.get(vendor or NVIDIA, frozenset()) and (vendor or subclass == _CONTROLLER_3D):
        return PciKind.GPU
    if subclass == _BRIDGE_OTHER and vendor == NVIDIA:
        return PciKind.NVSWITCH
    if base == _NETWORK_BASE or subclass == _SERIAL_INFINIBAND:
        return PciKind.NIC
    if base == _DISPLAY_BASE:
        return PciKind.DISPLAY
    return PciKind.BRIDGE if subclass == _PCI_BRIDGE else PciKind.OTHER


def is_infiniband_class(class_code: int) -> bool:
    """Whether the card says of itself that its first port runs InfiniBand."""
    return class_code >> 8 == _INFINIBAND_NIC


def is_virtual_function_id(vendor: str | None, device: str | None) -> bool:
    """Whether the id (two times four hex digits) belongs to an SR-IOV virtual function whoever shows it."""
    return device is not None and device in _VIRTUAL_FUNCTION_IDS.get(vendor or "", frozenset())


def hex_id(text: str | None) -> str | None:
    """`0x10DE` or `10de` as `10de`; None for anything that is no 16-bit hexadecimal id."""
    digits = (text or "").strip().lower().removeprefix("0x")
    if not 1 <= len(digits) <= 4 or not set(digits) <= set("0123456789abcdef"):
        return None
    return digits.rjust(4, "0")


def class_code_of(text: str | None) -> int | None:
    """`0x030200` as a number; None for anything that is no 24-bit class code."""
    digits = (text or "").strip().lower().removeprefix("0x")
    if len(digits) != 6 or not set(digits) <= set("0123456789abcdef"):
        return None
    return int(digits, 16)
