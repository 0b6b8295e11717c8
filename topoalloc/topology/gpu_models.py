"""How much memory a GPU model has, for recorded sources that name the model or the PCI id but not the memory."""

from __future__ import annotations

import re

from topoalloc.topology.agreement import model_words
from topoalloc.topology.pci_classes import AMD, NVIDIA

_MIB = 1 << 20

# MiB as the driver reports the total (nvidia-smi `memory.total`, rocm-smi "VRAM Total Memory"): what is left of the
# nominal size after ECC and the driver's own reserve, so that shares cut from it fit the real device. The total
# differs a little between driver generations (V100 16160 or 16384); the number of recent drivers with the factory
# ECC setting is taken. Models that exist in several sizes under one name are listed with their size only.
# Unified-memory parts (GB10, MI300A) are left out: their memory is the host's.
_MIB_OF_NVIDIA_MODEL = {
    "GB300": 284208,
    "B300": 275040,
    "B300 SXM6 AC": 275040,
    "GB200": 189471,
    "B200": 183359,
    "H200": 143771,
    "H200 NVL": 143771,
    "GH200 480GB": 97871,
    "H20": 97871,
    "H20 3e": 143771,
    "H100 NVL": 95830,
    "H100 80GB HBM3": 81559,
    "H100 PCIe": 81559,
    "H800": 81559,
    "A100 SXM4 40GB": 40960,
    "A100 PCIE 40GB": 40960,
    "A100 SXM4 80GB": 81920,
    "A100 SXM 80GB": 81920,
    "A100 80GB PCIe": 81920,
    "A100 SXM 64GB": 65536,
    "A800 SXM4 80GB": 81920,
    "A800 80GB PCIe": 81920,
    "A30": 24576,
    "A40": 46068,
    "A16": 15356,
    "A10": 23028,
    "A10G": 23028,
    "A2": 15356,
    "L40": 46068,
    "L40S": 46068,
    "L20": 46068,
    "L4": 23034,
    "T4": 15360,
    "V100 SXM2 16GB": 16384,
    "V100 PCIE 16GB": 16384,
    "V100 SXM2 32GB": 32768,
    "V100 SXM3 32GB": 32768,
    "V100 PCIE 32GB": 32768,
    "V100S PCIE 32GB": 32768,
    "P100 SXM2 16GB": 16384,
    "P100 PCIE 16GB": 16384,
    "P100 PCIE 12GB": 12288,
    "P40": 23040,
    "P4": 7680,
    "K80": 11441,
    "RTX PRO 6000 Blackwell Server Edition": 97887,
    "RTX PRO 6000 Blackwell Workstation Edition": 97887,
    "RTX 6000 Ada Generation": 49140,
    "RTX 5000 Ada Generation": 32760,
    "RTX 4500 Ada Generation": 24570,
    "RTX 4000 Ada Generation": 20475,
    "RTX A6000": 49140,
    "RTX A5500": 24564,
    "RTX A5000": 24564,
    "RTX A4500": 20470,
    "RTX A4000": 16376,
    "TITAN RTX": 24576,
    "GeForce RTX 5090": 32607,
    "GeForce RTX 4090": 24564,
    "GeForce RTX 3090": 24576,
    "GeForce RTX 3090 Ti": 24564,
    "GeForce RTX 2080 Ti": 11264,
}
# Per device as the operating system sees it: an MI250X is two of them.
_MIB_OF_AMD_MODEL = {
    "MI355X": 294896,
    "MI350X": 294896,
    "MI325X": 262128,
    "MI300X": 196592,
    "MI300X VF": 196288,
    "MI250X": 65520,
    "MI250": 65520,
    "MI210": 65520,
    "MI100": 32752,
}
# Device ids of pci.ids that one size alone carries.
_MIB_OF_DEVICE = {
    (NVIDIA, "3182"): 275040,  # B300
    (NVIDIA, "2941"): 189471,  # GB200
    (NVIDIA, "2901"): 183359,  # B200
    (NVIDIA, "2335"): 143771,  # H200 SXM
    (NVIDIA, "233b"): 143771,  # H200 NVL
    (NVIDIA, "2342"): 97871,  # GH200 480GB
    (NVIDIA, "2329"): 97871,  # H20
    (NVIDIA, "2321"): 95830,  # H100 NVL
    (NVIDIA, "2330"): 81559,  # H100 SXM5
    (NVIDIA, "2331"): 81559,  # H100 PCIe
    (NVIDIA, "20b0"): 40960,  # A100 SXM4 40GB
    (NVIDIA, "20f1"): 40960,  # A100 PCIe 40GB
    (NVIDIA, "20b2"): 81920,  # A100 SXM4 80GB
    (NVIDIA, "20b5"): 81920,  # A100 PCIe 80GB
    (NVIDIA, "20b7"): 24576,  # A30
    (NVIDIA, "2235"): 46068,  # A40
    (NVIDIA, "2236"): 23028,  # A10
    (NVIDIA, "2237"): 23028,  # A10G
    (NVIDIA, "26b5"): 46068,  # L40
    (NVIDIA, "26b9"): 46068,  # L40S
    (NVIDIA, "27b8"): 23034,  # L4
    (NVIDIA, "1eb8"): 15360,  # T4
    (NVIDIA, "1db1"): 16384,  # V100 SXM2 16GB
    (NVIDIA, "1db4"): 16384,  # V100 PCIe 16GB
    (NVIDIA, "1db5"): 32768,  # V100 SXM2 32GB
    (NVIDIA, "1db6"): 32768,  # V100 PCIe 32GB
    (NVIDIA, "15f7"): 12288,  # P100 PCIe 12GB
    (NVIDIA, "15f8"): 16384,  # P100 PCIe 16GB
    (NVIDIA, "15f9"): 16384,  # P100 SXM2 16GB
    (NVIDIA, "1b38"): 23040,  # P40
    (NVIDIA, "1bb3"): 7680,  # P4
    (NVIDIA, "102d"): 11441,  # K80
    (NVIDIA, "2bb5"): 97887,  # RTX PRO 6000 Blackwell Server Edition
    (NVIDIA, "2bb1"): 97887,  # RTX PRO 6000 Blackwell Workstation Edition
    (NVIDIA, "26b1"): 49140,  # RTX 6000 Ada
    (NVIDIA, "2230"): 49140,  # RTX A6000
    (NVIDIA, "2b85"): 32607,  # GeForce RTX 5090
    (NVIDIA, "2684"): 24564,  # GeForce RTX 4090
    (NVIDIA, "2204"): 24576,  # GeForce RTX 3090
    (AMD, "75a3"): 294896,  # MI355X
    (AMD, "75a0"): 294896,  # MI350X
    (AMD, "74a5"): 262128,  # MI325X
    (AMD, "74a1"): 196592,  # MI300X
    (AMD, "74b5"): 196288,  # MI300X virtual function
    (AMD, "7408"): 65520,  # MI250X
    (AMD, "740c"): 65520,  # MI250X and MI250
    (AMD, "740f"): 65520,  # MI210
    (AMD, "738c"): 32752,  # MI100
}

# A vGPU profile (`A10-4Q`), a laptop part: other memory under the name, and for a vGPU under the id, of a card.
_OTHER_PRODUCT = re.compile(r"\d+[abcq]|laptop|mobile|max")

_BY_WORDS = tuple(
    (model_words(model), mebibytes) for model, mebibytes in (_MIB_OF_NVIDIA_MODEL | _MIB_OF_AMD_MODEL).items()
)


def memory_of(model: str | None, vendor: str | None, pci_device: str | None) -> int | None:
    """Bytes of memory by model name, else by PCI vendor and device (four hex digits each); None: not in the table.

    A name matches an entry when it has all of its words, in any spelling; of several the one with most words wins,
    and two that tie with different sizes match nothing.
    """
    words = model_words(model or "")
    if any(_OTHER_PRODUCT.fullmatch(word) for word in words):
        return None
    mebibytes = _by_name(words)
    if mebibytes is None and vendor is not None and pci_device is not None:
        mebibytes = _MIB_OF_DEVICE.get((vendor, pci_device))
    return None if mebibytes is None else mebibytes * _MIB


def _by_name(words: frozenset[str]) -> int | None:
    matches = [(len(entry), mebibytes) for entry, mebibytes in _BY_WORDS if entry <= words]
    longest = max((length for length, _ in matches), default=0)
    sizes = {mebibytes for length, mebibytes in matches if length == longest}
    return sizes.pop() if len(sizes) == 1 else None
