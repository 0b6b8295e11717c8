"""Short spellings of hints and devices for the tables in these tests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from topoalloc.admission.hints import DeviceView, Hint
from topoalloc.admission.numa_mask import mask_of, nodes_of
from topoalloc.admission.pod import Container, Pod, checked_container


def mask(text: str) -> int:
    """`{0,1}` as a mask."""
    return mask_of(int(node) for node in text.strip("{}").split(","))


def hints(text: str) -> tuple[Hint, ...]:
    """`{0}P {0,1}n any-P`: P preferred, n not; empty text is the empty list."""
    found: list[Hint] = []
    for word in text.split():
        match = re.fullmatch(r"(any-|\{[0-9,]+\})([Pn])", word)
        assert match, word
        found.append(Hint(None if match[1] == "any-" else mask(match[1]), match[2] == "P"))
    return tuple(found)


def spelt(found: Iterable[Hint] | None) -> str | None:
    """The same the other way round."""
    if found is None:
        return None
    return " ".join(
        ("any-" if hint.mask is None else "{" + ",".join(map(str, nodes_of(hint.mask))) + "}")
        + ("P" if hint.preferred else "n")
        for hint in found
    )


def devices(text: str) -> dict[str, tuple[int, ...] | None]:
    """`A@0 B@0,1 C C@` : on node 0, on both, without topology, with an empty topology message; `D0-3@0` a range."""
    table: dict[str, tuple[int, ...] | None] = {}
    for word in text.split():
        name, at, places = word.partition("@")
        nodes = tuple(int(node) for node in places.split(",") if node) if at else None
        span = re.fullmatch(r"([a-zA-Z]+)(\d+)-(\d+)", name)
        names = [f"{span[1]}{i}" for i in range(int(span[2]), int(span[3]) + 1)] if span else [name]
        table.update(dict.fromkeys(names, nodes))
    return table


def view(text: str, *, unhealthy: str = "", allocated: str = "") -> DeviceView:
    table = devices(text)
    return DeviceView(table, frozenset(table) - frozenset(devices(unhealthy)), frozenset(devices(allocated)))


def app(name: str = "app", **limits: str) -> Container:
    """A container with equal requests and limits; `cpu`, `memory`, and `core`/`nic` for device resources."""
    return checked_container(name, named(limits), named(limits))


def init(name: str = "init", **limits: str) -> Container:
    return checked_container(name, named(limits), named(limits), init=True)


def sidecar(name: str = "sidecar", **limits: str) -> Container:
    return checked_container(name, named(limits), named(limits), init=True, restartable=True)


CORE = "topoalloc.io/vgpu-core"
NIC = "topoalloc.io/nic"
RESOURCE_NAMES = {"core": CORE, "nic": NIC, "huge": "hugepages-2Mi"}


def named(limits: Mapping[str, str]) -> dict[str, str]:
    return {RESOURCE_NAMES.get(name, name): amount for name, amount in limits.items()}


def pod(*containers: Container, uid: str = "pod") -> Pod:
    return Pod(uid, "default", uid, containers)
