"""PCI addresses and the path from a host bridge down to a function."""

from __future__ import annotations

import re
from dataclasses import dataclass

# NVML prints eight domain digits, sysfs four or more (Hyper-V and VMD domains exceed 0xffff), lspci often none.
_ADDRESS = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-9a-fA-F])")


@dataclass(frozen=True, slots=True, order=True)
class PciAddress:
    """Domain, bus, device and function; ordered as sysfs lists them."""

    domain: int
    bus: int
    device: int
    function: int

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.{self.function:x}"

    @classmethod
    def parse(cls, text: str) -> PciAddress:
        """Read `dddd:bb:dd.f` in any of the spellings tools print; raises ValueError on anything else."""
        match = _ADDRESS.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"not a PCI address: {text!r}")
        domain, bus, device, function = match.groups()
        if int(device, 16) > 0x1F or int(function, 16) > 0x7:
            raise ValueError(f"not a PCI address: {text!r} (device above 1f or function above 7)")
        return cls(int(domain or "0", 16), int(bus, 16), int(device, 16), int(function, 16))


@dataclass(frozen=True, slots=True, order=True)
class PciPath:
    """Where a function hangs: its host bridge, then every bridge above it, outermost first.

    `host_bridge` is the sysfs name without the `pci` prefix (`0000:17`), or for sources that fold all host
    bridges of a NUMA node into one (NCCL XML) the name `numa<id>`.
    """

    host_bridge: str
    bridges: tuple[PciAddress, ...]

    @property
    def is_folded(self) -> bool:
        """The host bridges of a NUMA node are one here, and a bridge element is a whole switch (NCCL XML)."""
        return self.host_bridge.startswith("numa")
