"""A node's topology and what of it is free, as a text that `kubectl describe node` shows well.

kubectl prints each line of an annotation indented and cuts it behind 138 bytes (kubectl pkg/describe, maxAnnotationLen
less the indent); every copy of a node carries the text, so it stays below 4 KiB. ASCII alone keeps bytes and columns
the same and YAML unescaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from topoalloc.admission.occupancy import Occupancy
from topoalloc.allocation.affinity import Alignment
from topoalloc.allocation.shortfall import Room, rooms_of
from topoalloc.sharing.inventory import Device, Inventory, ResourceKind
from topoalloc.sharing.settings import CORES_PER_GPU
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Nic, Unknown, device_order
from topoalloc.topology.nvlink_shape import nvlink_shape
from topoalloc.topology.outline import Box, BoxKind, devices_in, outline
from topoalloc.topology.outline import Room as Place
from topoalloc.topology.spelling import fabric_name, id_list, model_words, nic_names
from topoalloc.wording import plural

LINE_BYTES_MAX = 138
TEXT_BYTES_MAX = 4096
NAME_CHARACTERS_MAX = 24  # of a model or a port: longer ones are cut
CPU_LIST_CHARACTERS_MAX = 48
INDENT = "  "
NEST_MAX = 4  # switches below switches are indented no further

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Detail:
    """How much is said. Larger machines are told more coarsely, so that the text stays short."""

    gpus_singly: bool
    switches: bool
    nic_names: bool


DETAILS = (
    Detail(gpus_singly=True, switches=True, nic_names=True),
    Detail(gpus_singly=True, switches=True, nic_names=False),
    Detail(gpus_singly=True, switches=False, nic_names=False),
    Detail(gpus_singly=False, switches=False, nic_names=False),
)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What every line draws from. What is None is told by PodResources alone, which does not answer."""

    inventory: Inventory
    rooms: Mapping[str, Room]
    unhealthy: frozenset[str] | None
    taken_nics: frozenset[str] | None
    cpus: tuple[CpuSet, CpuSet] | None  # that can be given out exclusively, and those of them that are
    unserved: tuple[str, ...] = ()
    kept_back: frozenset[str] = frozenset()
    out: frozenset[str] = frozenset()  # GPUs and NICs that nobody can get through any resource now


def node_picture(inventory: Inventory, occupancy: Occupancy | None, alignment: Alignment) -> str:
    """The text, in the finest detail that fits; lines parted by newlines, none at the end."""
    facts = _facts(inventory, occupancy)
    text = ""
    for detail in DETAILS:
        lines = [_cut(_ascii(line)) for line in _lines(facts, alignment, detail)]
        text = "\n".join(lines)
        if len(text) <= TEXT_BYTES_MAX:
            return text
    return _shortened(text.split("\n"))


def _facts(inventory: Inventory, occupancy: Occupancy | None) -> _Facts:
    used = {} if occupancy is None else occupancy.devices_in_use()
    ours = frozenset().union(*(used.get(resource.name, frozenset()) for resource in inventory.resources))
    rooms = {room.gpu: room for room in rooms_of(inventory, ours, None)}
    if occupancy is None:
        return _Facts(inventory, rooms, None, None, None)
    names = _names_of_keys(inventory)
    devices = inventory.devices
    taken = frozenset(names[devices[i].key] for i in ours if i in devices and devices[i].kind is ResourceKind.NIC)
    pinnable = occupancy.allocatable.cpus
    cpus = (pinnable, occupancy.exclusive_cpus() & pinnable) if pinnable else None
    unhealthy = _unhealthy(inventory, occupancy)
    kept_back = _kept_back(inventory, occupancy, ours) - unhealthy
    unserved = tuple(r.name for r in inventory.resources if r.name not in occupancy.allocatable.devices)
    out = _out(inventory, unserved)
    rooms |= {gpu: _nothing_of(room) for gpu, room in rooms.items() if gpu in out}
    return _Facts(inventory, rooms, unhealthy, taken, cpus, unserved, kept_back, out)


def _out(inventory: Inventory, unserved: Sequence[str]) -> frozenset[str]:
    """GPUs whose cores nobody can get and NICs that are in no resource that anybody can get.

    The kubelet also leaves out a resource that is served without one healthy device
    (kubelet pkg/kubelet/cm/devicemanager GetAllocatableDevices).
    """
    names = _names_of_keys(inventory)
    offered = [resource for resource in inventory.resources if resource.kind is not ResourceKind.MEMORY]
    there = {names[device.key] for resource in offered if resource.name not in unserved for device in resource.devices}
    return frozenset(names[device.key] for resource in offered for device in resource.devices) - there


def _nothing_of(room: Room) -> Room:
    return replace(room, cores=0, memory_units=None if room.memory_units is None else 0, untouched=False)


def _names_of_keys(inventory: Inventory) -> dict[str, str]:
    machine = inventory.machine
    gpus = zip(inventory.gpu_keys, (gpu.id for gpu in machine.gpus), strict=True)
    return dict(gpus) | dict(zip(inventory.nic_keys, (nic.id for nic in machine.nics), strict=True))


def _unhealthy(inventory: Inventory, occupancy: Occupancy) -> frozenset[str]:
    """GPUs and NICs of which the kubelet holds every device unhealthy, while others of the resource are healthy.

    One healthy device is enough: what is left of a GPU in use may be reported Unhealthy only to be kept back.
    """
    names = _names_of_keys(inventory)
    told = occupancy.allocatable.devices
    well = {inventory.devices[i].key for ids in told.values() for i in ids if i in inventory.devices}
    return frozenset(
        names[device.key]
        for resource in inventory.resources
        if resource.kind is not ResourceKind.MEMORY and resource.name in told
        for device in resource.devices
        if device.key not in well
    )


def _kept_back(inventory: Inventory, occupancy: Occupancy, in_use: frozenset[str]) -> frozenset[str]:
    """GPUs with free cores none of which the agent offers (allocation/withholding)."""
    core = inventory.resource(inventory.settings.core_resource)
    if core is None or core.name not in occupancy.allocatable.devices:
        return frozenset()
    names, told = _names_of_keys(inventory), occupancy.allocatable.devices[core.name]
    free = [device for device in core.devices if device.id not in in_use]
    return frozenset(names[device.key] for device in free) - {names[d.key] for d in free if d.id in told}


def _lines(facts: _Facts, alignment: Alignment, detail: Detail) -> list[str]:
    lines = [_headline(facts.inventory), *_free_lines(facts, alignment)]
    for place in outline(facts.inventory.machine):
        lines.append(_place_words(place, facts))
        lines.extend(_contents(place.children, facts, detail, 1))
    return [*lines, *_nvlink_lines(facts.inventory)]


def _headline(inventory: Inventory) -> str:
    machine = inventory.machine
    models: dict[str, int] = {}
    for gpu in machine.gpus:
        model = "GPU of unknown model" if isinstance(gpu.model, Unknown) else model_words(gpu.model)
        models[model] = models.get(model, 0) + 1
    gpus = [f"{count} x {model[:NAME_CHARACTERS_MAX]}" for model, count in models.items()] or ["no GPU"]
    nodes = plural(len(machine.numa_nodes), "NUMA node") if machine.numa_nodes else "NUMA nodes unknown"
    return ", ".join((*gpus, nodes, plural(len(machine.nics), "NIC")))


def _free_lines(facts: _Facts, alignment: Alignment) -> list[str]:
    """What is free in all, what is wrong, and the policy that decides what of it fits."""
    parts: list[str] = []
    if facts.unhealthy is None:
        parts.append("free: unknown, PodResources of the kubelet does not answer")
    elif facts.rooms:
        rooms = [room for room in facts.rooms.values() if room.gpu not in facts.unhealthy]
        ill = len(facts.rooms) - len(rooms)
        whole = f"{sum(room.untouched for room in rooms)} of {plural(len(facts.rooms), 'GPU')} whole"
        kept = f", {plural(len(facts.kept_back), 'GPU')} kept back" if facts.kept_back else ""
        parts.append(f"free: {whole}, {_amounts(rooms, facts)}{kept}" + (f", {ill} UNHEALTHY" if ill else ""))
    if alignment.policy is not None:
        parts.append(f"topology manager: {alignment.policy} per {alignment.scope}")
    lines = ["; ".join(parts)] if parts else []
    if facts.unserved:
        lines.append(f"NOT SERVED now: {', '.join(facts.unserved)}")
    return lines


def _place_words(place: Place, facts: _Facts) -> str:
    if place.node is None:
        return "NUMA node unknown"
    words = f"NUMA {place.node.id}"
    if isinstance(place.cpus, CpuSet):
        listed = str(place.cpus)
        shown = listed if len(listed) <= CPU_LIST_CHARACTERS_MAX else listed[: CPU_LIST_CHARACTERS_MAX - 3] + "..."
        words += f"  CPUs {shown}" if listed else "  no CPUs"
        if facts.cpus is not None and listed:
            pinnable, pinned = (cpus & place.cpus for cpus in facts.cpus)
            words += f" ({len(pinnable) - len(pinned)}/{len(pinnable)} free to pin)"
    if not isinstance(place.node.memory_bytes, Unknown) and place.node.memory_bytes:
        words += f"  {_gib(place.node.memory_bytes)}GiB"
    return words


def _contents(children: Sequence[Box | str], facts: _Facts, detail: Detail, nest: int) -> list[str]:
    """GPUs first, then NICs, then what hangs below further switches. A box without a GPU is not drawn."""
    here: list[str] = []
    boxes: list[Box] = []
    for child in children:
        drawn = isinstance(child, Box) and detail.switches and any(d.startswith("GPU") for d in devices_in((child,)))
        if isinstance(child, Box) and drawn:
            boxes.append(child)
        else:
            here.extend(devices_in((child,)))
    indent = INDENT * min(nest, NEST_MAX)
    gpus = [device for device in sorted(here, key=device_order) if device.startswith("GPU")]
    nics = [device for device in sorted(here, key=device_order) if not device.startswith("GPU")]
    lines = _gpu_lines(gpus, facts, detail)
    lines.extend(_nic_lines(nics, facts, detail, LINE_BYTES_MAX - len(indent)))
    lines = [indent + line for line in lines]
    for box in boxes:
        if len(box.children) == 1:  # a host bridge with one switch: the switch says it all
            lines.extend(_contents(box.children, facts, detail, nest))
            continue
        lines.append(indent + _box_words(box))
        lines.extend(_contents(box.children, facts, detail, nest + 1))
    return lines


def _box_words(box: Box) -> str:
    kind = "PCIe switch" if box.kind is BoxKind.SWITCH else box.kind.value
    return f"{kind} {box.address}" if box.address is not None else kind


def _gpu_lines(gpus: Sequence[str], facts: _Facts, detail: Detail) -> list[str]:
    if detail.gpus_singly:
        return [_gpu_words(facts.rooms[gpu], facts) for gpu in gpus]
    if not gpus:
        return []
    bad = facts.unhealthy or frozenset()
    well = [facts.rooms[gpu] for gpu in gpus if gpu not in bad]
    ill = [gpu for gpu in gpus if gpu in bad]
    if facts.out.issuperset(gpus):
        return [f"{id_list(gpus)}: NOT SERVED"]
    words = f"{id_list(gpus)}: {_amounts(well, facts)}" + ("" if facts.unhealthy is None else " free")
    kept = [gpu for gpu in gpus if gpu in facts.kept_back]
    words += f"; kept back: {id_list(kept)}" if kept else ""
    return [words + (f"; UNHEALTHY: {id_list(ill)}" if ill else "")]


def _gpu_words(room: Room, facts: _Facts) -> str:
    """`GPU3   60/100 cores   40/80GiB free`."""
    name = room.gpu.ljust(5)
    if facts.unhealthy is None:
        return f"{name}  {_amounts([room], facts)}"
    if room.gpu in facts.out:
        return f"{name}  NOT SERVED"
    if room.gpu in facts.unhealthy:
        return f"{name}  UNHEALTHY"
    words = f"{name} {f'{room.cores}/{CORES_PER_GPU}':>7} cores"
    memory = _memory([room], facts)
    state = "free (kept back)" if room.gpu in facts.kept_back else "free"
    if not memory:
        return f"{words} {state}"
    width = max(len(_memory([other], facts)) for other in facts.rooms.values())
    return f"{words}  {memory:>{width}} {state}"


def _amounts(rooms: Sequence[Room], facts: _Facts) -> str:
    """Free of all of these GPUs together, or all that they have where nothing tells what is free."""
    total = CORES_PER_GPU * len(rooms)
    memory = _memory(rooms, facts)
    cores = f"{total} cores" if facts.unhealthy is None else f"{sum(room.cores for room in rooms)}/{total} cores"
    return f"{cores} {memory}" if memory else cores


def _memory(rooms: Sequence[Room], facts: _Facts) -> str:
    """`40/80GiB`; empty where memory is not served."""
    inventory = facts.inventory
    units = dict(zip((gpu.id for gpu in inventory.machine.gpus), inventory.memory_units, strict=True))
    if any(room.memory_units is None for room in rooms) or not rooms:
        return ""
    unit_bytes = inventory.settings.memory_unit_bytes
    total = _gib(sum(units[room.gpu] or 0 for room in rooms) * unit_bytes)
    if facts.unhealthy is None:
        return f"{total}GiB"
    return f"{_gib(sum(room.memory_units or 0 for room in rooms) * unit_bytes)}/{total}GiB"


def _nic_lines(nics: Sequence[str], facts: _Facts, detail: Detail, width: int) -> list[str]:
    if not nics:
        return []
    by_id = {nic.id: nic for nic in facts.inventory.machine.nics}
    if detail.nic_names:
        return _wrapped([_nic_words(by_id[nic], facts) for nic in nics], width)
    groups: dict[str, list[str]] = {}
    for nic in nics:
        groups.setdefault(_nic_state(nic, facts), []).append(nic)
    return ["; ".join(f"{id_list(members)} {state}".rstrip() for state, members in groups.items())]


def _nic_words(nic: Nic, facts: _Facts) -> str:
    """`NIC3 mlx5_3 free`."""
    name = next(iter(nic_names(nic)), "")[:NAME_CHARACTERS_MAX]
    return " ".join(filter(None, (nic.id, name, _nic_state(nic.id, facts))))


def _nic_state(nic: str, facts: _Facts) -> str:
    """`free`, `taken`, `UNHEALTHY`, `NOT SERVED`; nothing where nobody can ask for the port or nothing tells."""
    served = {facts.inventory.machine.nics[d.position].id for d in _nic_devices(facts.inventory)}
    if facts.unhealthy is None or facts.taken_nics is None or nic not in served:
        return ""
    if nic in facts.out:
        return "NOT SERVED"
    if nic in facts.unhealthy:
        return "UNHEALTHY"
    return "taken" if nic in facts.taken_nics else "free"


def _nic_devices(inventory: Inventory) -> list[Device]:
    return [device for r in inventory.resources if r.kind is ResourceKind.NIC for device in r.devices]


def _nvlink_lines(inventory: Inventory) -> list[str]:
    """Even fabrics in a line each; other pairs by their number of links."""
    machine = inventory.machine
    shape = nvlink_shape(machine)
    name = fabric_name(machine.gpus)
    lines = []
    for fabric in shape.fabrics:
        through = " through NVSwitch" if fabric.switched else ""
        lines.append(f"{name}: {plural(fabric.count, 'link')} between any two of {id_list(fabric.gpus)}{through}")
    by_count: dict[int, list[str]] = {}
    for link in shape.pairs:
        assert isinstance(link.nvlinks, int)
        by_count.setdefault(link.nvlinks, []).append(f"{link.a[3:]}-{link.b[3:]}")
    for count, pairs in sorted(by_count.items(), reverse=True):
        lines.extend(_wrapped(pairs, LINE_BYTES_MAX, f"{name}: {plural(count, 'link')} between GPUs "))
    if len(machine.gpus) > 1 and not lines and not shape.unknown_pairs:
        lines.append(f"{name}: none")
    return lines


def _wrapped(parts: Sequence[str], width: int, lead: str = "") -> list[str]:
    """The parts joined by commas, in as many lines as they need; the first begins with `lead`."""
    lines = [lead + parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 3 <= width:
            lines[-1] += f", {part}"
        else:
            lines[-1] += ","
            lines.append(" " * len(lead) + part)
    return lines


def _gib(size_bytes: int) -> str:
    """GiB with one decimal where it says something."""
    return f"{size_bytes / _GIB:.1f}".removesuffix(".0")


def _ascii(text: str) -> str:
    return "".join(character if " " <= character <= "~" else "?" for character in text)


def _cut(line: str) -> str:
    return line if len(line) <= LINE_BYTES_MAX else line[: LINE_BYTES_MAX - 3] + "..."


def _shortened(lines: Sequence[str]) -> str:
    """As many lines as fit, and how many did not."""
    kept: list[str] = []
    room = TEXT_BYTES_MAX - LINE_BYTES_MAX
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join((*kept, f"... and {plural(len(lines) - len(kept), 'more line')}"))
