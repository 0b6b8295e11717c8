"""AMD GPUs' XGMI links from the kernel's KFD topology tree (class/kfd/kfd/topology)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from topoalloc.topology.pci import PciAddress
from topoalloc.topology.readers.files import Files, text_of
from topoalloc.topology.reading import FarEnd, NvlinkReading

_NODES = "class/kfd/kfd/topology/nodes"
NODES_MAX = 1024  # CPUs and GPUs of one machine; partitioned GPUs (CPX) make eight nodes each
LINKS_MAX = 1024  # of one node
_XGMI = 11  # CRAT_IOLINK_TYPE_XGMI in drivers/gpu/drm/amd/amdkfd/kfd_crat.h
_ONE_HOP_WEIGHT_MAX = 15  # kfd_crat.c gives an XGMI link a weight of 15 per hop


def read_xgmi_links(sys: Files) -> Mapping[PciAddress, tuple[NvlinkReading, ...]]:
    """XGMI links by GPU, direct ones only; empty where the machine has no KFD tree.

    A link's count is its largest bandwidth in units of the smallest, as far as the kernel tells both; else 1.
    """
    nodes = [name for name in sys.names(_NODES)[:NODES_MAX] if re.fullmatch(r"\d{1,4}", name)]
    addresses = {int(name): address for name in nodes if (address := _gpu_address(sys, name)) is not None}
    links: dict[PciAddress, tuple[NvlinkReading, ...]] = {}
    for number, address in sorted(addresses.items()):
        # Partitions of one GPU have one address; the first one's links stand for the GPU.
        if address not in links:
            links[address] = _links_of(sys, number, addresses)
    return links


def _links_of(sys: Files, number: int, addresses: Mapping[int, PciAddress]) -> tuple[NvlinkReading, ...]:
    counts: dict[PciAddress, int] = {}
    for folder in ("io_links", "p2p_links"):
        for name in sys.names(f"{_NODES}/{number}/{folder}")[:LINKS_MAX]:
            facts = _properties(sys, f"{_NODES}/{number}/{folder}/{name}/properties")
            far = addresses.get(facts.get("node_to", -1))
            is_direct = facts.get("type") == _XGMI and facts.get("weight", 0) <= _ONE_HOP_WEIGHT_MAX
            if is_direct and far is not None and far != addresses[number]:
                least, most = facts.get("min_bandwidth", 0), facts.get("max_bandwidth", 0)
                counts.setdefault(far, max(1, most // least) if least else 1)
    return tuple(NvlinkReading(FarEnd.GPU, far, count) for far, count in sorted(counts.items()))


def _gpu_address(sys: Files, name: str) -> PciAddress | None:
    facts = _properties(sys, f"{_NODES}/{name}/properties")
    if not facts.get("simd_count"):
        return None  # a CPU
    location = facts.get("location_id", 0)  # bus, device and function in 8, 5 and 3 bits (kfd_topology.c)
    return PciAddress(facts.get("domain", 0), location >> 8 & 0xFF, location >> 3 & 0x1F, location & 0x7)


def _properties(sys: Files, path: str) -> dict[str, int]:
    """Lines `NAME NUMBER`."""
    pairs = (line.split() for line in (text_of(sys, path) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and re.fullmatch(r"\d{1,20}", pair[1])}
