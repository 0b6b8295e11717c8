"""A machine as an indented tree: NUMA nodes, what hangs below them, NVLink, and what is unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topoalloc.cli.picture.unknowns import gap_words, gaps
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.links import nearest_nics
from topoalloc.topology.machine import Gpu, Machine, NearestNics, Nic, Unknown, device_order
from topoalloc.topology.nvlink_shape import NvlinkShape, nvlink_shape
from topoalloc.topology.outline import Box, Room, devices_by_id, outline
from topoalloc.topology.spelling import (
    cpu_count_words,
    fabric_name,
    headline,
    id_list,
    memory_words,
    model_words,
    nic_names,
    nic_words,
    node_memory_words,
    printable,
    shortened,
    subtitle,
)
from topoalloc.wording import plural

LINE_CHARACTERS_MAX = 100
_COLUMN_CHARACTERS_MAX = 30  # a longer model or name is shortened; the JSON has it whole
_COLUMN_GAP = 2
_DISTANCES_CHARACTERS_MAX = 36  # those of twelve nodes; the CPUs after them have to stay readable


@dataclass(frozen=True, slots=True)
class _Line:
    """One line: what the tree draws, and for a device its columns."""

    stem: str
    columns: tuple[str, ...] = ()


def tree_text(machine: Machine) -> str:
    """The tree; no line is longer than 100 characters. Ends in a newline."""
    devices = devices_by_id(machine)
    nearest = nearest_nics(machine)
    lines: list[_Line] = [_Line(headline(machine)), _Line(subtitle(machine))]
    filled = True  # a blank line parts rooms with something in them; empty ones stand together
    for room in outline(machine):
        if room.children or filled:
            lines.append(_Line(""))
        filled = bool(room.children)
        lines.append(_Line(_room_words(room)))
        lines.extend(_branches(room.children, "", devices, nearest))
    links = _nvlink_lines(nvlink_shape(machine), fabric_name(machine.gpus), machine)
    unknown = [f"Unknown: {gap_words(gap)}" for gap in gaps(machine)]
    for paragraph in (links, unknown):
        if paragraph:
            lines.extend(_Line(text) for text in ("", *paragraph))
    return "".join(f"{text}\n" for text in _aligned(lines))


def _room_words(room: Room) -> str:
    if room.node is None:
        near = f" · near CPUs {room.cpus}" if isinstance(room.cpus, CpuSet) else ""
        return f"NUMA node unknown{near} ({room.reason})"
    parts = [f"NUMA node {room.node.id}", node_memory_words(room.node)]
    if not isinstance(room.node.distances, Unknown):
        row = " ".join(str(distance) for distance in room.node.distances)
        parts.append(f"distances {shortened(row, _DISTANCES_CHARACTERS_MAX)}")
    parts.append(cpu_count_words(room.cpus))
    listed = f" {room.cpus}" if isinstance(room.cpus, CpuSet) and room.cpus else ""
    return " · ".join(parts) + listed


def _branches(
    children: Sequence[Box | str], indent: str, devices: Mapping[str, Gpu | Nic], nearest: Mapping[str, NearestNics]
) -> list[_Line]:
    lines: list[_Line] = []
    for position, child in enumerate(children):
        last = position == len(children) - 1
        stem, deeper = indent + ("└─ " if last else "├─ "), indent + ("   " if last else "│  ")
        if isinstance(child, Box):
            mark = f" ({child.pcie.name})" if child.pcie is not None else ""
            lines.append(_Line(" ".join(filter(None, (stem + child.kind.value, child.address))) + mark))
            lines.extend(_branches(child.children, deeper, devices, nearest))
        else:
            lines.append(_Line(stem + child, _columns(devices[child], nearest.get(child))))
    return lines


def _columns(device: Gpu | Nic, nearest: NearestNics | None) -> tuple[str, ...]:
    """Model or name, memory or kind, bus id, and for a GPU its nearest NICs and MIG devices."""
    bdf = "" if isinstance(device.bdf, Unknown) else str(device.bdf)
    if isinstance(device, Nic):
        return " ".join(nic_names(device)), nic_words(device), bdf, ""
    near = f"nearest {id_list(nearest.nics)} ({nearest.pcie.name})" if nearest else ""
    mig = " ".join(f"{count}×{profile}" for profile, count in Counter(mig.profile for mig in device.mig).items())
    model = "" if isinstance(device.model, Unknown) else model_words(device.model)
    memory = "" if isinstance(device.memory_bytes, Unknown) else memory_words(device.memory_bytes)
    return model, memory, bdf, ", ".join(filter(None, (near, f"MIG {mig}" if mig else "")))


def _nvlink_lines(shape: NvlinkShape, name: str, machine: Machine) -> list[str]:
    lines = []
    for fabric in shape.fabrics:
        through = ", through NVSwitch" if fabric.switched else ""
        lines.append(f"{name}: {plural(fabric.count, 'link')} between any two of {id_list(fabric.gpus)}{through}")
    by_gpu: dict[str, dict[int, list[str]]] = {}
    for link in shape.pairs:
        assert isinstance(link.nvlinks, int)
        for gpu, other in ((link.a, link.b), (link.b, link.a)):
            by_gpu.setdefault(gpu, {}).setdefault(link.nvlinks, []).append(other)
    for gpu in (gpu.id for gpu in machine.gpus if gpu.id in by_gpu):
        counts = sorted(by_gpu[gpu].items(), reverse=True)
        if (partner := _only_partner(gpu, by_gpu)) is not None:
            if device_order(gpu) < device_order(partner):
                lines.append(f"{name}: {plural(counts[0][0], 'link')} between {gpu} and {partner}")
            continue
        parts = [f"{plural(count, 'link')} to {id_list(others)}" for count, others in counts]
        lines.append(f"{name}: {gpu} has {'; '.join(parts)}")
    if len(machine.gpus) > 1 and not lines and not shape.unknown_pairs:
        lines.append(f"{name}: none")
    return lines


def _only_partner(gpu: str, by_gpu: Mapping[str, Mapping[int, Sequence[str]]]) -> str | None:
    """The one GPU that `gpu` is linked to, where that one has no other either."""
    partners = [other for others in by_gpu[gpu].values() for other in others]
    back = [other for others in by_gpu[partners[0]].values() for other in others]
    return partners[0] if len(partners) == 1 and len(back) == 1 else None


def _aligned(lines: Sequence[_Line]) -> list[str]:
    """The lines with their columns under each other; columns that are empty everywhere take no room."""
    rows = [line for line in lines if line.columns]
    stem_width = max((len(row.stem) for row in rows), default=0)
    count = max((len(row.columns) for row in rows), default=0)
    widths = [min(max(len(row.columns[i]) for row in rows), _COLUMN_CHARACTERS_MAX) for i in range(count)]
    texts = []
    for line in lines:
        text = line.stem
        if line.columns:
            cells = [
                shortened(cell, width).ljust(width) for cell, width in zip(line.columns[:-1], widths, strict=False)
            ]
            cells = [cell for cell, width in zip(cells, widths, strict=False) if width]
            text = (" " * _COLUMN_GAP).join([line.stem.ljust(stem_width), *cells, line.columns[-1]])
        texts.append(shortened(printable(text.rstrip()), LINE_CHARACTERS_MAX))
    return texts
