"""Machines made up in one line, for tests and for trying things out: `numa:2 switch:2 gpu:2 nic:1 nv:all=12`.

The line is words with spaces (or commas) between, in any order, each at most once:

    numa:N     NUMA nodes, each with one host bridge (default 1)
    switch:N   PCIe switches below each host bridge (default none: devices hang on root ports of their own)
    gpu:N      GPUs below each switch, or each host bridge where there are no switches (default none)
    nic:N      NICs likewise
    nv:SHAPE=N NVLinks: `all` N of each GPU to NVSwitches, `mesh` N between every two GPUs, `pairs` N within pairs
    mem:SIZE   memory of each GPU, such as 80GiB
    model:NAME model of the GPUs, without spaces
    cpus:N     CPUs of each NUMA node, numbered through
    ram:SIZE   memory of each NUMA node
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from topoalloc.errors import InputError
from topoalloc.topology.cpus import CPU_NUMBER_MAX, CpuSet
from topoalloc.topology.machine import NicFunction, NicLink, Unknown
from topoalloc.topology.pci import PciAddress, PciPath
from topoalloc.topology.pci_classes import MELLANOX, NVIDIA
from topoalloc.topology.reading import (
    FarEnd,
    GpuReading,
    NicReading,
    NumaReading,
    NvlinkReading,
    Reading,
    SourceRefusal,
    Standing,
)
from topoalloc.topology.sizes import parse_size

PREFIX = "synthetic:"
NODES_MAX = 64
# Every pair of devices becomes a link, so 512 devices are 130,000 links.
DEVICES_MAX = 512
NVLINKS_MAX = 64
TEXT_CHARS_MAX = 1000
_SWITCH_PORTS_MAX = 32  # device numbers on a switch's inner bus
_BUSES_MAX = 255  # of one PCI domain, beside the root bus
_ROOT_PORTS_MAX = 31 * 8  # device 0 of the root bus is the host bridge itself
_LOCAL_DISTANCE, _REMOTE_DISTANCE = 10, 20  # what ACPI means by local, and Linux's default for remote
_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


class NvlinkShape(StrEnum):
    """Who is joined to whom."""

    ALL = "all"
    MESH = "mesh"
    PAIRS = "pairs"


@dataclass(frozen=True, slots=True)
class SyntheticMachine:
    """A parsed line; `str()` spells it so that it parses to the same value."""

    numa: int = 1
    switch: int = 0
    gpu: int = 0
    nic: int = 0
    nvlink_shape: NvlinkShape | None = None
    nvlinks: int = 0
    gpu_memory_bytes: int | None = None
    model: str | None = None
    cpus: int | None = None
    ram_bytes: int | None = None

    def __str__(self) -> str:
        words = [f"numa:{self.numa}"]
        words += [f"{name}:{count}" for name in ("switch", "gpu", "nic") if (count := getattr(self, name))]
        if self.nvlink_shape is not None:
            words.append(f"nv:{self.nvlink_shape}={self.nvlinks}")
        if self.gpu_memory_bytes is not None:
            words.append(f"mem:{_exact_size(self.gpu_memory_bytes)}")
        if self.model is not None:
            words.append(f"model:{self.model}")
        if self.cpus is not None:
            words.append(f"cpus:{self.cpus}")
        if self.ram_bytes is not None:
            words.append(f"ram:{_exact_size(self.ram_bytes)}")
        return " ".join(words)


class _SpellingError(Exception):
    """What is wrong with one word."""


def parse_synthetic(text: str) -> SyntheticMachine | SourceRefusal:
    """Read a line, with or without `synthetic:` before it; a refusal names the position of the word at fault.

    Positions count from 1 behind the prefix.
    """
    line = text.removeprefix(PREFIX)
    name = f"synthetic ({line.strip()[:60]})"
    if len(line) > TEXT_CHARS_MAX:
        return SourceRefusal(name, f"longer than {TEXT_CHARS_MAX} characters")
    machine = SyntheticMachine()
    given: set[str] = set()
    for word in re.finditer(r"[^\s,]+", line):
        key, _, value = word.group().partition(":")
        try:
            machine = _with_word(machine, key, value)
        except _SpellingError as error:
            return SourceRefusal(name, f"at character {word.start() + 1}: {error}")
        if key in given:
            return SourceRefusal(name, f"at character {word.start() + 1}: {key} is given twice")
        given.add(key)
    if not given:
        return SourceRefusal(name, "names nothing; write such as `numa:2 gpu:4 nic:2`")
    reason = _too_large(machine)
    return machine if reason is None else SourceRefusal(name, reason)


def read_synthetic(text: str) -> Reading | SourceRefusal:
    """The machine that a line describes."""
    machine = parse_synthetic(text)
    return machine if isinstance(machine, SourceRefusal) else synthetic_reading(machine)


def synthetic_reading(machine: SyntheticMachine) -> Reading:
    """The whole machine: one PCI domain and host bridge per NUMA node, buses numbered in order."""
    gpu_places: list[tuple[int, PciAddress, PciPath]] = []
    nic_places: list[tuple[int, PciAddress, PciPath]] = []
    for node in range(machine.numa):
        places = _places(machine, node)
        for _ in range(max(machine.switch, 1)):
            gpu_places += [(node, *next(places)) for _ in range(machine.gpu)]
            nic_places += [(node, *next(places)) for _ in range(machine.nic)]
    addresses = [address for _, address, _ in gpu_places]
    return Reading(
        source=f"synthetic ({machine})",
        standing=Standing.WHOLE,
        numa_nodes=tuple(_node(machine, node) for node in range(machine.numa)),
        gpus=tuple(_gpu(machine, at, place, addresses) for at, place in enumerate(gpu_places)),
        nics=tuple(_nic(at, place) for at, place in enumerate(nic_places)),
        all_numa_nodes=True,
    )


def _with_word(machine: SyntheticMachine, key: str, value: str) -> SyntheticMachine:
    match key:
        case "numa":
            return replace(machine, numa=_count(value, 1, NODES_MAX))
        case "switch":
            return replace(machine, switch=_count(value, 0, DEVICES_MAX))
        case "gpu":
            return replace(machine, gpu=_count(value, 0, DEVICES_MAX))
        case "nic":
            return replace(machine, nic=_count(value, 0, DEVICES_MAX))
        case "nv":
            return _with_nvlinks(machine, value)
        case "mem":
            return replace(machine, gpu_memory_bytes=_size(value))
        case "model":
            if not re.fullmatch(r"[A-Za-z0-9._+-]{1,60}", value):
                raise _SpellingError(f"{value[:40]!r} is no model; use letters, digits and . _ + -")
            return replace(machine, model=value)
        case "cpus":
            return replace(machine, cpus=_count(value, 0, CPU_NUMBER_MAX))
        case "ram":
            return replace(machine, ram_bytes=_size(value))
        case _:
            raise _SpellingError(f"{key[:40]!r} is none of numa, switch, gpu, nic, nv, mem, model, cpus, ram")


def _with_nvlinks(machine: SyntheticMachine, value: str) -> SyntheticMachine:
    shape, equals, count = value.partition("=")
    if not equals or shape not in set(NvlinkShape):
        raise _SpellingError(f"nv:{value[:40]} is not nv:all=N, nv:mesh=N or nv:pairs=N")
    return replace(machine, nvlink_shape=NvlinkShape(shape), nvlinks=_count(count, 1, NVLINKS_MAX))


def _count(text: str, least: int, most: int) -> int:
    if not re.fullmatch(r"\d{1,6}", text) or not least <= int(text) <= most:
        raise _SpellingError(f"{text[:40]!r} is no number from {least} to {most}")
    return int(text)


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except InputError as error:
        raise _SpellingError(str(error)) from None


def _exact_size(size_bytes: int) -> str:
    """`80GiB`: the largest unit that divides it."""
    for unit, factor in _UNITS:
        if size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return f"{size_bytes}B"


def _too_large(machine: SyntheticMachine) -> str | None:
    here = machine.gpu + machine.nic
    devices = machine.numa * max(machine.switch, 1) * here
    buses = machine.switch * (here + 2) or here
    if machine.switch and here > _SWITCH_PORTS_MAX:
        return f"{here} devices below one switch; a switch has {_SWITCH_PORTS_MAX} ports"
    if devices > DEVICES_MAX:
        return f"{devices} devices; at most {DEVICES_MAX}"
    if buses > _BUSES_MAX or max(machine.switch, 0 if machine.switch else here) > _ROOT_PORTS_MAX:
        return f"{buses} PCI buses below one host bridge; at most {_BUSES_MAX}"
    if machine.cpus is not None and machine.numa * machine.cpus > CPU_NUMBER_MAX:
        return f"{machine.numa * machine.cpus} CPUs; at most {CPU_NUMBER_MAX}"
    return None


def _places(machine: SyntheticMachine, node: int) -> Iterator[tuple[PciAddress, PciPath]]:
    """Address and path of each device below a host bridge, in order."""
    here = machine.gpu + machine.nic
    bus = 0
    for slot in range(machine.switch or here):
        root_port = PciAddress(node, 0, 1 + slot // 8, slot % 8)
        bus += 1
        if not machine.switch:
            yield PciAddress(node, bus, 0, 0), PciPath(f"{node:04x}:00", (root_port,))
            continue
        upstream = PciAddress(node, bus, 0, 0)
        inner_bus = bus = bus + 1
        for port in range(here):
            bus += 1
            downstream = PciAddress(node, inner_bus, port, 0)
            yield PciAddress(node, bus, 0, 0), PciPath(f"{node:04x}:00", (root_port, upstream, downstream))


def _node(machine: SyntheticMachine, node: int) -> NumaReading:
    first = node * (machine.cpus or 0)
    return NumaReading(
        node,
        cpus=CpuSet.of(range(first, first + machine.cpus)) if machine.cpus is not None else Unknown("no cpus:N given"),
        memory_bytes=machine.ram_bytes if machine.ram_bytes is not None else Unknown("no ram:SIZE given"),
        distances=tuple(_LOCAL_DISTANCE if other == node else _REMOTE_DISTANCE for other in range(machine.numa)),
    )


def _gpu(
    machine: SyntheticMachine, at: int, place: tuple[int, PciAddress, PciPath], addresses: list[PciAddress]
) -> GpuReading:
    node, address, path = place
    return GpuReading(
        bdf=address,
        model=machine.model,
        memory_bytes=machine.gpu_memory_bytes,
        numa_node=node,
        path=path,
        vendor=NVIDIA,
        nvlinks=_links(machine, at, addresses),
    )


def _links(machine: SyntheticMachine, at: int, addresses: list[PciAddress]) -> tuple[NvlinkReading, ...]:
    if machine.nvlink_shape is None:
        return ()
    if machine.nvlink_shape is NvlinkShape.ALL:
        return (NvlinkReading(FarEnd.UNSEEN_SWITCH, None, machine.nvlinks),)
    others = range(len(addresses)) if machine.nvlink_shape is NvlinkShape.MESH else range(at - at % 2, at - at % 2 + 2)
    return tuple(
        NvlinkReading(FarEnd.GPU, addresses[other], machine.nvlinks)
        for other in others
        if other != at and other < len(addresses)
    )


def _nic(at: int, place: tuple[int, PciAddress, PciPath]) -> NicReading:
    node, address, path = place
    return NicReading(
        name=f"mlx5_{at}",
        bdf=address,
        numa_node=node,
        rdma=f"mlx5_{at}",
        path=path,
        function=NicFunction.PHYSICAL,
        link=NicLink.ETHERNET,
        driver="mlx5_core",
        vendor=MELLANOX,
    )
