"""Our own snapshot of a machine: JSON that carries its version and comes back as the equal machine.

Facts stay facts on the way: an unknown one is `{"unknown": "what was looked at"}`, never null, 0 or -1. The reader is
strict: whatever it does not understand is refused with its place in the document, since a snapshot is written by
this program alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import IntEnum
from typing import TypeVar

from topoalloc.topology.assemble import GPUS_MAX, NICS_MAX
from topoalloc.topology.checks import check_machine
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import (
    Gpu,
    Link,
    LinkClass,
    Machine,
    MigDevice,
    Nic,
    NicFunction,
    NicLink,
    NumaNode,
    Unknown,
)
from topoalloc.topology.pci import PciAddress, PciPath
from topoalloc.topology.reading import SourceRefusal

SCHEMA = "topoalloc.snapshot/v1"
# The largest machine that is assembled has 896 devices, so 401,000 links of about 200 characters.
CHARS_MAX = 128 * 2**20
ITEMS_MAX = 500_000  # of one list
# Predictable names built from a MAC address or a GUID (udev, rdma-core): enx001122334455, ibx0c42a10300aabbcc.
_SERIAL_NAME = re.compile(r"((?:en|ib|ww|roce|iw|hns)x)[0-9a-f]{8,16}")
_UUID = re.compile(r"(?:GPU-|MIG-)+[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?:/\d+/\d+)?")

R = TypeVar("R")
E = TypeVar("E", NicFunction, NicLink)
_Decoder = Callable[[object, str], object]


class _SnapshotError(Exception):
    """What is wrong, and where: `path` leads to the value from the document's root, as in `$.gpus[2].bdf`."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


def dump(machine: Machine) -> str:
    """The snapshot as text, one device or link a line; `load` gives the equal machine back."""
    lines = ["{", f' "schema": {json.dumps(SCHEMA)},']
    names = [field.name for field in fields(Machine)]
    for name in names:
        items = [json.dumps(_plain(item)) for item in getattr(machine, name)]
        body = ["[", ",\n".join(f"  {item}" for item in items), " ]"] if items else ["[]"]
        lines.append(f' "{name}": ' + "\n".join(body) + ("," if name != names[-1] else ""))
    return "\n".join([*lines, "}", ""])


def load(text: str, name: str) -> Machine | SourceRefusal:
    """The machine of a snapshot; `name` becomes the source of a refusal. Never raises for bad input."""
    if len(text) > CHARS_MAX:
        return SourceRefusal(name, f"a snapshot larger than {CHARS_MAX >> 20} MiB")
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
        machine = _machine(document)
    except _SnapshotError as error:
        return SourceRefusal(name, f"not a snapshot of this version: {error}")
    except RecursionError:
        return SourceRefusal(name, "damaged JSON: nested too deeply")
    except ValueError as error:  # json.JSONDecodeError, and integers of thousands of digits
        return SourceRefusal(name, f"damaged JSON ({str(error)[:100]}); the file is cut short or altered")
    return machine


def redact(machine: Machine) -> Machine:
    """The machine without what identifies it: UUIDs, names of source files, names built from MAC addresses.

    Serial numbers and host names are no part of a Machine otherwise. Every text in it is cleaned, warnings too.
    """
    cleaned = _scrubbed(machine, _identifying_names(machine))
    assert isinstance(cleaned, Machine), "cleaning keeps the type"
    return replace(cleaned, gpus=tuple(_without_uuids(gpu) for gpu in cleaned.gpus))


def _without_uuids(gpu: Gpu) -> Gpu:
    uuid = gpu.uuid if isinstance(gpu.uuid, Unknown) else Unknown("left out of the record")
    return replace(gpu, uuid=uuid, mig=tuple(replace(device, uuid="") for device in gpu.mig))


def _plain(value: object) -> object:
    """A fact as JSON spells it."""
    if isinstance(value, Unknown):
        return {"unknown": value.evidence}
    if isinstance(value, CpuSet | PciAddress):
        return str(value)
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return table


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is no JSON")


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise _SnapshotError(path, "is no text")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise _SnapshotError(path, "holds half of a character")
    return value


def _count(value: object, path: str) -> int:
    # bool is an int to Python, not to JSON.
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise _SnapshotError(path, "is no number from 0 up")
    return value


def _flag(value: object, path: str) -> bool:
    if not isinstance(value, bool):
        raise _SnapshotError(path, "is neither true nor false")
    return value


def _device_id(value: object, path: str) -> str:
    text = _text(value, path)
    if not re.fullmatch(r"(GPU|NIC)(0|[1-9]\d{0,5})", text):
        raise _SnapshotError(path, f"{text[:40]!r} is neither GPU nor NIC and a number")
    return text


def _cpus(value: object, path: str) -> CpuSet:
    return _spelled(value, path, CpuSet.from_list)


def _address(value: object, path: str) -> PciAddress:
    return _spelled(value, path, PciAddress.parse)


def _spelled(value: object, path: str, parse: Callable[[str], R]) -> R:
    """A value of its one canonical spelling, so that a loaded snapshot is written back letter by letter."""
    text = _text(value, path)
    try:
        parsed = parse(text)
    except ValueError as error:
        raise _SnapshotError(path, str(error)) from None
    if str(parsed) != text:
        raise _SnapshotError(path, f"{text[:60]!r} is spelled {str(parsed)[:60]!r} here")
    return parsed


def _link_class(value: object, path: str) -> LinkClass:
    text = _text(value, path)
    if text not in LinkClass.__members__:
        raise _SnapshotError(path, f"{text[:40]!r} is none of {', '.join(LinkClass.__members__)}")
    return LinkClass[text]


def _one_of(kind: type[E]) -> _Decoder:
    def decode(value: object, path: str) -> E:
        text = _text(value, path)
        for member in kind:
            if member.value == text:
                return member
        raise _SnapshotError(path, f"{text[:40]!r} is none of {', '.join(kind)}")

    return decode


def _known(inner: _Decoder) -> _Decoder:
    """The fact, or `{"unknown": evidence}`."""

    def decode(value: object, path: str) -> object:
        if isinstance(value, dict) and value.keys() == {"unknown"}:
            return Unknown(_text(value["unknown"], f"{path}.unknown"))
        return inner(value, path)

    return decode


def _or_null(inner: _Decoder) -> _Decoder:
    def decode(value: object, path: str) -> object:
        return None if value is None else inner(value, path)

    return decode


def _many(inner: _Decoder) -> _Decoder:
    def decode(value: object, path: str) -> tuple[object, ...]:
        if not isinstance(value, list):
            raise _SnapshotError(path, "is no list")
        if len(value) > ITEMS_MAX:
            raise _SnapshotError(path, f"has more than {ITEMS_MAX} items")
        return tuple(inner(item, f"{path}[{at}]") for at, item in enumerate(value))

    return decode


def _record(kind: Callable[..., R], parts: Mapping[str, _Decoder]) -> Callable[[object, str], R]:
    def decode(value: object, path: str) -> R:
        if not isinstance(value, dict):
            raise _SnapshotError(path, "is no object")
        for key in value:
            if key not in parts:
                raise _SnapshotError(f"{path}.{str(key)[:40]}", "is not known here")
        for key in parts:
            if key not in value:
                raise _SnapshotError(f"{path}.{key}", "is missing")
        return kind(**{key: decoder(value[key], f"{path}.{key}") for key, decoder in parts.items()})

    return decode


_PATH = _record(PciPath, {"host_bridge": _text, "bridges": _many(_address)})
_NODE = _record(
    NumaNode,
    {"id": _count, "cpus": _known(_cpus), "memory_bytes": _known(_count), "distances": _known(_many(_count))},
)
_GPU = _record(
    Gpu,
    {
        "id": _device_id,
        "index": _count,
        "bdf": _known(_address),
        "uuid": _known(_text),
        "model": _known(_text),
        "memory_bytes": _known(_count),
        "numa_node": _known(_count),
        "cpus": _known(_cpus),
        "path": _known(_PATH),
        "vendor": _known(_text),
        "minor": _known(_count),
        "mig": _many(_record(MigDevice, {"index": _count, "profile": _text, "uuid": _text})),
    },
)
_NIC = _record(
    Nic,
    {
        "id": _device_id,
        "name": _text,
        "bdf": _known(_address),
        "numa_node": _known(_count),
        "rdma": _or_null(_known(_text)),
        "netdev": _or_null(_known(_text)),
        "path": _known(_PATH),
        "function": _known(_one_of(NicFunction)),
        "link": _known(_one_of(NicLink)),
        "driver": _known(_text),
        "vendor": _known(_text),
        "physical_function": _or_null(_known(_address)),
    },
)
_LINK = _record(
    Link,
    {
        "a": _device_id,
        "b": _device_id,
        "pcie": _known(_link_class),
        "nvlinks": _known(_count),
        "peer_access": _known(_flag),
    },
)
_MACHINE = _record(
    Machine,
    {
        "numa_nodes": _many(_NODE),
        "gpus": _many(_GPU),
        "nics": _many(_NIC),
        "links": _many(_LINK),
        "switch_groups": _many(_many(_device_id)),
        "nvswitches": _many(_address),
        "sources": _many(_text),
        "warnings": _many(_text),
    },
)


def _machine(document: object) -> Machine:
    if not isinstance(document, dict):
        raise _SnapshotError("$", "is no object")
    schema = document.get("schema")
    if schema != SCHEMA:
        what = "is missing" if schema is None else f"is {str(schema)[:60]!r}"
        raise _SnapshotError("$.schema", f"{what}, and {SCHEMA} is read here")
    machine = _MACHINE({key: value for key, value in document.items() if key != "schema"}, "$")
    # Before the check, whose cost grows with the square of the devices.
    if len(machine.gpus) > GPUS_MAX or len(machine.nics) > NICS_MAX:
        raise _SnapshotError("$", f"has more than {GPUS_MAX} GPUs or {NICS_MAX} NICs")
    broken = check_machine(machine)
    if broken:
        raise _SnapshotError("$", broken[0])
    return machine


def _scrubbed(value: object, names: Mapping[str, str]) -> object:
    """A fact with every text in it cleaned."""
    if isinstance(value, str) and type(value) is str:
        for identifying, neutral in names.items():
            value = value.replace(identifying, neutral)
        return _UUID.sub("(uuid)", value)
    if isinstance(value, tuple):
        return tuple(_scrubbed(item, names) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _scrubbed(getattr(value, field.name), names) for field in fields(value)})
    return value


def _identifying_names(machine: Machine) -> dict[str, str]:
    """What to put in place of which text, longest first, so that no name is cut by a shorter one inside it."""
    names = {source: source.partition(" (")[0] for source in machine.sources}
    names |= {gpu.uuid: "(uuid)" for gpu in machine.gpus if isinstance(gpu.uuid, str) and gpu.uuid}
    nic_names = [name for nic in machine.nics for name in (nic.name, nic.netdev, nic.rdma) if isinstance(name, str)]
    serial = [match for name in dict.fromkeys(nic_names) if (match := _SERIAL_NAME.fullmatch(name))]
    names |= {match.group(): f"{match.group(1)}{at}" for at, match in enumerate(serial)}
    return dict(sorted(names.items(), key=lambda item: (-len(item[0]), item[0])))
