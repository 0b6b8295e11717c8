"""What NVIDIA's driver says of its GPUs on this node (NVML), asked once; nvml_events.py stays to listen.

Old drivers lack calls and small GPUs support few, so every call may fail by itself: what it would have told is then
silence, and the rest still counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TypeVar

from topoalloc.topology.machine import LinkClass, MigDevice
from topoalloc.topology.pci import PciAddress
from topoalloc.topology.pci_classes import NVIDIA
from topoalloc.topology.reading import (
    FarEnd,
    GpuReading,
    LinkReading,
    NvlinkReading,
    Reading,
    SourceRefusal,
    Standing,
)

SOURCE = "NVML"
GPUS_MAX = 256
NVLINKS_MAX = 64  # of one GPU; NVML_NVLINK_MAX_LINKS has grown from 6 to 36 so far
MIG_DEVICES_MAX = 64  # of one GPU; seven today

# nvmlGpuTopologyLevel_t, nvmlGpuP2PStatus_t and nvmlIntNvLinkDeviceType_t in nvml.h.
_CLASS_OF_LEVEL = {
    10: LinkClass.PIX,
    20: LinkClass.PXB,
    30: LinkClass.PHB,
    40: LinkClass.NODE,
    50: LinkClass.SYS,
}
_P2P_READ, _P2P_OK = 0, 0
_REMOTE_GPU, _REMOTE_CPU, _REMOTE_SWITCH = 0, 1, 2

T = TypeVar("T")


def read_nvml() -> Reading | SourceRefusal:
    """The GPUs that the driver shows this process, by address; a refusal where there is no driver to ask."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return SourceRefusal(SOURCE, f"cannot be asked ({error}); is NVIDIA's driver installed and visible here?")
    try:
        return _Session(pynvml).reading()
    finally:
        _asked(pynvml, pynvml.nvmlShutdown)


def _asked(nvml: ModuleType, call: Callable[..., T], *arguments: object) -> T | None:
    """The call's answer, or None where this driver or GPU does not give one."""
    try:
        return call(*arguments)
    except nvml.NVMLError:
        return None


@dataclass(frozen=True, slots=True)
class _Device:
    """A GPU that could be opened."""

    index: int
    handle: object
    address: PciAddress | None


class _Session:
    """Questions to one initialised NVML."""

    def __init__(self, nvml: ModuleType) -> None:
        self._nvml = nvml
        self._warnings: list[str] = []

    def reading(self) -> Reading:
        devices = self._devices()
        addresses = {device.address for device in devices if device.address is not None}
        return Reading(
            source=SOURCE,
            standing=Standing.ADDITION,
            gpus=tuple(self._gpu(device, addresses) for device in devices),
            links=tuple(self._links(devices)),
            warnings=tuple(self._warnings),
        )

    def _ask(self, name: str, *arguments: object) -> object:
        call = getattr(self._nvml, name, None)  # a name that these bindings do not have yet or any more
        return None if call is None else _asked(self._nvml, call, *arguments)

    def _number(self, name: str, *arguments: object) -> int | None:
        answer = self._ask(name, *arguments)
        return answer if isinstance(answer, int) else None

    def _text(self, name: str, *arguments: object) -> str | None:
        answer = self._ask(name, *arguments)
        text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer
        return text if isinstance(text, str) and text else None

    def _devices(self) -> list[_Device]:
        count = self._number("nvmlDeviceGetCount") or 0
        if count > GPUS_MAX:
            self._warnings.append(f"{SOURCE}: lists {count} GPUs; those after the first {GPUS_MAX} are left out")
        found: list[_Device] = []
        for index in range(min(count, GPUS_MAX)):
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                self._warnings.append(f"{SOURCE}: GPU {index} does not answer (lost, or not visible to this process)")
                continue
            found.append(_Device(index, handle, _address(self._ask("nvmlDeviceGetPciInfo", handle))))
        return found

    def _gpu(self, device: _Device, addresses: set[PciAddress]) -> GpuReading:
        pci = self._ask("nvmlDeviceGetPciInfo", device.handle)
        memory = getattr(self._ask("nvmlDeviceGetMemoryInfo", device.handle), "total", None)
        return GpuReading(
            index=device.index,
            bdf=device.address,
            uuid=self._text("nvmlDeviceGetUUID", device.handle),
            model=self._text("nvmlDeviceGetName", device.handle),
            memory_bytes=memory if isinstance(memory, int) and memory > 0 else None,
            vendor=NVIDIA,
            pci_device=_device_id(pci),
            minor=self._number("nvmlDeviceGetMinorNumber", device.handle),
            mig=tuple(self._mig(device)),
            nvlinks=self._nvlinks(device, addresses),
        )

    def _mig(self, device: _Device) -> list[MigDevice]:
        count = self._number("nvmlDeviceGetMaxMigDeviceCount", device.handle) or 0
        found: list[MigDevice] = []
        for index in range(min(count, MIG_DEVICES_MAX)):
            handle = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", device.handle, index)
            uuid = None if handle is None else self._text("nvmlDeviceGetUUID", handle)
            if uuid is None:
                continue  # indexes without a device are answered with "not found"
            # The name of a MIG device is `NVIDIA A100-SXM4-80GB MIG 1g.10gb`.
            name = self._text("nvmlDeviceGetName", handle) or ""
            found.append(MigDevice(index, name.rpartition("MIG ")[2] if "MIG " in name else "", uuid))
        return found

    def _nvlinks(self, device: _Device, addresses: set[PciAddress]) -> tuple[NvlinkReading, ...] | None:
        """Active links by far end; None where this driver cannot tell, () where the GPU has none."""
        nvml, counts = self._nvml, Counter[tuple[FarEnd, PciAddress | None]]()
        for link in range(NVLINKS_MAX):
            try:
                is_active = bool(nvml.nvmlDeviceGetNvLinkState(device.handle, link))
            except nvml.NVMLError_FunctionNotFound:
                return None
            except nvml.NVMLError_NotSupported:
                continue  # this one link, or NVLink altogether
            except nvml.NVMLError:
                break  # "invalid argument": one link number too far
            end = self._far_end(device, link, addresses) if is_active else None
            if end is not None:
                counts[end] += 1
        ends = sorted(counts.items(), key=lambda item: (item[0][0], str(item[0][1])))
        return tuple(NvlinkReading(far_end, target, count) for (far_end, target), count in ends)

    def _far_end(
        self, device: _Device, link: int, addresses: set[PciAddress]
    ) -> tuple[FarEnd, PciAddress | None] | None:
        """What a link leads to; None for the CPU of a POWER machine, which joins no GPUs."""
        kind = self._number("nvmlDeviceGetNvLinkRemoteDeviceType", device.handle, link)
        info = self._ask("nvmlDeviceGetNvLinkRemotePciInfo", device.handle, link)
        target = _address(info)
        if kind == _REMOTE_CPU:
            return None
        # A guest sees the address of a switch that it does not own as all F, which is no address.
        if kind == _REMOTE_SWITCH or (kind is None and info is not None and target is None):
            return (FarEnd.SWITCH, target) if target is not None else (FarEnd.UNSEEN_SWITCH, None)
        if target is not None and (kind == _REMOTE_GPU or target in addresses):
            return FarEnd.GPU, target
        return FarEnd.UNKNOWN, target

    def _links(self, devices: Sequence[_Device]) -> list[LinkReading]:
        links: list[LinkReading] = []
        for b, far in enumerate(devices):
            for a, near in enumerate(devices[:b]):
                level = self._number("nvmlDeviceGetTopologyCommonAncestor", near.handle, far.handle)
                status = self._number("nvmlDeviceGetP2PStatus", near.handle, far.handle, _P2P_READ)
                pcie, peer_access = _CLASS_OF_LEVEL.get(level or 0), None if status is None else status == _P2P_OK
                if pcie is not None or peer_access is not None:
                    links.append(LinkReading(("gpu", a), ("gpu", b), pcie=pcie, peer_access=peer_access))
        return links


def _address(info: object) -> PciAddress | None:
    """The address in an nvmlPciInfo_t, `00000000:0F:00.0`: upper case, eight domain digits."""
    text = getattr(info, "busId", None)
    if isinstance(text, bytes):  # not all versions of the bindings decode it
        text = text.decode("ascii", "replace")
    try:
        return PciAddress.parse(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _device_id(info: object) -> str | None:
    """The PCI device id, which NVML puts above the vendor id in one 32-bit number."""
    both = getattr(info, "pciDeviceId", None)
    if not isinstance(both, int) or f"{both & 0xFFFF:04x}" != NVIDIA:
        return None
    return f"{both >> 16:04x}"
