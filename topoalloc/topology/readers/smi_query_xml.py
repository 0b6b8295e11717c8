"""`nvidia-smi -q -x`: PCI address, UUID, model, memory and minor number of each GPU; adds to another source."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from topoalloc.topology.pci import PciAddress
from topoalloc.topology.pci_classes import NVIDIA, hex_id
from topoalloc.topology.readers.smi_list import GPUS_MAX
from topoalloc.topology.readers.xml_document import XmlElement, read_xml
from topoalloc.topology.reading import GpuReading, Reading, SourceRefusal, Standing

ROOT = "nvidia_smi_log"
MINOR_DIGITS_MAX = 6  # Linux minor numbers end at 1,048,575

_MEMORY = re.compile(r"(\d{1,9})\s*MiB")
_DEVICE_ID = re.compile(r"([0-9A-Fa-f]{4})([0-9A-Fa-f]{4})")  # device, then vendor
_UUID = re.compile(r"GPU-[0-9A-Za-z-]+")


def recognise(head: str) -> bool:
    """Whether the beginning of a file looks like this document."""
    return f"<{ROOT}" in head


def parse(text: str, name: str) -> Reading | SourceRefusal:
    """One GpuReading per `gpu` element, numbered as nvidia-smi lists them. `N/A` leaves a field silent."""
    source = f"nvidia-smi -q -x ({name})"
    root = read_xml(text, source)
    if isinstance(root, SourceRefusal):
        return root
    if root.tag != ROOT:
        return SourceRefusal(source, f"its root is <{root.tag[:40]}>, not <{ROOT}>")
    elements = root.named("gpu")
    if not elements:
        return SourceRefusal(source, "no <gpu> element in it")
    if len(elements) > GPUS_MAX:
        return SourceRefusal(source, f"more than {GPUS_MAX} GPUs; give the log of one machine")
    attached = root.text_at("attached_gpus")
    # With `-i` nvidia-smi lists some GPUs only, and the place in the list is not the index.
    has_all = attached in (None, str(len(elements)))
    gpus: list[GpuReading] = []
    for at, element in enumerate(elements):
        gpu = _gpu(element)
        if isinstance(gpu, str):
            return SourceRefusal(source, gpu)
        gpus.append(replace(gpu, index=at if has_all else None))
    warnings = [] if has_all else [f"{len(gpus)} of {attached} GPUs are in it, so their numbers are not told"]
    warnings += _mig_doubts(elements)
    return Reading(source=source, standing=Standing.ADDITION, gpus=tuple(gpus), warnings=tuple(warnings))


def _gpu(element: XmlElement) -> GpuReading | str:
    """What one `gpu` element tells, without its number; or why it cannot be used."""
    address = element.text_at("pci", "pci_bus_id") or element.attributes.get("id", "")
    try:
        bdf = PciAddress.parse(address)
    except ValueError as error:
        return f"<gpu>: {error}"
    memory = _MEMORY.fullmatch(element.text_at("fb_memory_usage", "total") or "")
    ids = _DEVICE_ID.fullmatch((element.text_at("pci", "pci_device_id") or "").removeprefix("0x"))
    uuid = element.text_at("uuid") or ""
    minor = element.text_at("minor_number") or ""
    return GpuReading(
        bdf=bdf,
        uuid=uuid if _UUID.fullmatch(uuid) else None,
        model=_told(element.text_at("product_name")),
        memory_bytes=int(memory[1]) << 20 if memory else None,
        vendor=hex_id(ids[2]) if ids else NVIDIA,
        pci_device=hex_id(ids[1]) if ids else None,
        minor=int(minor) if minor.isdecimal() and len(minor) <= MINOR_DIGITS_MAX else None,
    )


def _told(text: str | None) -> str | None:
    """The text, or None for the ways in which nvidia-smi says that it does not know."""
    return None if text in (None, "", "N/A", "Unknown Error", "[N/A]", "[Unknown Error]") else text


def _mig_doubts(elements: Iterable[XmlElement]) -> list[str]:
    """The document numbers MIG devices but names neither profile nor UUID, without which they cannot be used."""
    doubts: list[str] = []
    for at, element in enumerate(elements):
        devices = element.child("mig_devices")
        count = len(devices.named("mig_device")) if devices else 0
        if count:
            doubts.append(f"GPU element {at} has {count} MIG devices without profile and UUID; add `nvidia-smi -L`")
    return doubts
