"""A KubeletConfiguration file as the settings that decide admissions; what it says about anything else is skipped.

Keys and defaults are those of kubelet.config.k8s.io/v1beta1 in Kubernetes 1.37.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from topoalloc.admission.cpus import parse_cpu_options
from topoalloc.admission.pod import CPU, HUGE_PAGES_PREFIX, MEMORY
from topoalloc.admission.policy import Options, Policy, Scope, parse_options
from topoalloc.admission.quantity import Quantity, parse_quantity
from topoalloc.errors import InputError
from topoalloc.kubelet.simulated.places import Place, kind_of, shown
from topoalloc.kubelet.simulated.settings import (
    EVICTION_MEMORY_BYTES,
    CpuSettings,
    KubeletSettings,
    MemorySettings,
)
from topoalloc.topology.cpus import CpuSet
from topoalloc.yaml_documents import Document, read_documents

KIND = "KubeletConfiguration"
MILLI = 1000
NODES_RESERVED_MAX = 64  # the width of the kubelet's NUMA masks

# Keys that would change an admission and are not simulated; silence about them would mislead.
_NOT_SIMULATED = {
    "podsPerCore": "the number of pods per core is not limited here",
}
_GATES_NOT_SIMULATED = ("PodLevelResourceManagers",)
Word = TypeVar("Word", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Configured:
    """The settings and what a person should know about them (one line each)."""

    settings: KubeletSettings
    notes: tuple[str, ...] = ()


class _CpuPolicy(StrEnum):
    NONE = "none"
    STATIC = "static"


class _MemoryPolicy(StrEnum):
    NONE = "None"
    STATIC = "Static"


def read_configuration(path: Path) -> Configured:
    """The settings of a file. Raises InputError with one line."""
    documents = [
        document
        for document in read_documents(path)
        if not isinstance(document.value, dict) or document.value.get("kind", KIND) == KIND
    ]
    if len(documents) != 1:
        raise InputError(f"{path}: {len(documents)} documents of kind {KIND}: exactly one is needed")
    return configured(documents[0])


def configured(document: Document) -> Configured:
    """The settings of one document."""
    top = Place(document, "", document.value)
    top.mapping()
    notes: list[str] = []
    settings = KubeletSettings(
        policy=_word(top.at("topologyManagerPolicy"), Policy, Policy.NONE),
        scope=_word(top.at("topologyManagerScope"), Scope, Scope.CONTAINER),
        options=_topology_options(top.at("topologyManagerPolicyOptions")),
        pods_max=None if top.at("maxPods").value is None else top.at("maxPods").count(0),
    )
    settings = _with_reservations(settings, top, notes)
    settings = _with_cpu_manager(settings, top, notes)
    settings = _with_memory_manager(settings, top, notes)
    _note_what_is_left_out(top, notes)
    where = f"{document.file}: document {document.number}: "
    return Configured(settings, tuple(where + note for note in notes))


def _topology_options(place: Place) -> Options:
    try:
        return parse_options(_options(place))
    except InputError as error:
        raise place.error(str(error)) from error


def _with_reservations(settings: KubeletSettings, top: Place, notes: list[str]) -> KubeletSettings:
    cpu_milli = memory_bytes = 0
    for key in ("systemReserved", "kubeReserved"):
        reserved = _quantities(top.at(key))
        cpu_milli += reserved.get(CPU, Quantity(0)).milli
        memory_bytes += reserved.get(MEMORY, Quantity(0)).value
    named = _reserved_cpus(top)
    if named:
        cpu_milli = len(named) * MILLI  # reservedSystemCPUs overrules both (server.go)
    eviction_bytes = _eviction_bytes(top.at("evictionHard"), notes)
    return replace(settings, reserved_cpu_milli=cpu_milli, reserved_memory_bytes=memory_bytes + eviction_bytes)


def _with_cpu_manager(settings: KubeletSettings, top: Place, notes: list[str]) -> KubeletSettings:
    if _word(top.at("cpuManagerPolicy"), _CpuPolicy, _CpuPolicy.NONE) is _CpuPolicy.NONE:
        return settings
    options_given, gates = top.at("cpuManagerPolicyOptions"), top.at("featureGates")
    switched = {} if gates.value is None else {name: value is True for name, value in gates.mapping().items()}
    try:
        options = parse_cpu_options(_options(options_given), switched)
    except InputError as error:
        raise options_given.error(str(error)) from error
    named = _reserved_cpus(top)
    count = -(-settings.reserved_cpu_milli // MILLI)
    if not named and not count:
        notes.append(
            "cpuManagerPolicy static without reserved CPUs: a real kubelet would not start; one CPU is set aside here "
            "(set reservedSystemCPUs, or cpu in systemReserved or kubeReserved)"
        )
        count = 1
    return replace(settings, cpu=CpuSettings(named or count, options))


def _with_memory_manager(settings: KubeletSettings, top: Place, notes: list[str]) -> KubeletSettings:
    if _word(top.at("memoryManagerPolicy"), _MemoryPolicy, _MemoryPolicy.NONE) is _MemoryPolicy.NONE:
        return settings
    reserved = _reserved_memory(top.at("reservedMemory"))
    together = sum(kinds.get(MEMORY, 0) for kinds in reserved.values())
    if together != settings.reserved_memory_bytes:
        notes.append(
            f"reservedMemory adds up to {together} bytes, but systemReserved, kubeReserved and evictionHard to "
            f"{settings.reserved_memory_bytes}: a real kubelet would not start; here "
            f"{'reservedMemory is used as it is' if reserved else 'that much is reserved on the first NUMA node'}"
        )
    return replace(settings, memory=MemorySettings(reserved))


def _reserved_cpus(top: Place) -> CpuSet:
    place = top.at("reservedSystemCPUs")
    if place.value is None:
        return CpuSet()
    text = str(place.value) if isinstance(place.value, int) and not isinstance(place.value, bool) else place.text()
    try:
        return CpuSet.from_list(text)
    except ValueError as error:
        raise place.error(f"{error} (write a list such as 0-1,32)") from error


def _reserved_memory(place: Place) -> dict[int, dict[str, int]]:
    reserved: dict[int, dict[str, int]] = {}
    if place.value is None:
        return reserved
    items = place.list()
    if len(items) > NODES_RESERVED_MAX:
        raise place.error(f"more than {NODES_RESERVED_MAX} NUMA nodes")
    for item in items:
        node = item.at("numaNode")
        if node.count(0) in reserved:
            raise node.error(f"NUMA node {node.count(0)} appears twice")
        limits = _quantities(item.at("limits"))
        strange = next((name for name in limits if name != MEMORY and not name.startswith(HUGE_PAGES_PREFIX)), None)
        if strange is not None:
            raise item.at("limits").error(f"{shown(strange)} is neither memory nor hugepages-<size>")
        reserved[node.count(0)] = {name: quantity.value for name, quantity in limits.items()}
    return reserved


def _eviction_bytes(place: Place, notes: list[str]) -> int:
    """`memory.available` is set aside from what pods may have; the default threshold is 100Mi."""
    if place.value is None:
        return EVICTION_MEMORY_BYTES
    threshold = place.at("memory.available")
    if threshold.value is None:
        return 0
    text = str(threshold.value)
    if text.endswith("%"):
        notes.append(f"{threshold.path}: a threshold in percent is not simulated: 100Mi is set aside instead")
        return EVICTION_MEMORY_BYTES
    return _quantity(threshold).value


def _note_what_is_left_out(top: Place, notes: list[str]) -> None:
    given = top.mapping()
    notes.extend(f"{key}: {why}" for key, why in _NOT_SIMULATED.items() if given.get(key))
    gates = top.at("featureGates")
    if gates.value is not None:
        switched_on = gates.mapping()
        notes.extend(f"featureGates.{gate}: not simulated" for gate in _GATES_NOT_SIMULATED if switched_on.get(gate))


def _word(place: Place, words: type[Word], default: Word) -> Word:
    if place.value is None or place.value == "":
        return default
    known = {word.value: word for word in words}
    if not isinstance(place.value, str) or place.value not in known:
        raise place.error(f"{shown(place.value)} is not one of {', '.join(known)}")
    return known[place.value]


def _options(place: Place) -> dict[str, str]:
    """A mapping of texts to texts. A bare true or number is refused by the kubelet too, which reads it strictly."""
    if place.value is None:
        return {}
    return {key: place.at(key).text() for key in place.mapping()}


def _quantities(place: Place) -> dict[str, Quantity]:
    if place.value is None:
        return {}
    return {key: _quantity(place.at(key)) for key in place.mapping()}


def _quantity(place: Place) -> Quantity:
    if isinstance(place.value, bool) or not isinstance(place.value, (str, int, float)):
        raise place.error(f"must be a quantity such as 2, 500m or 4Gi, not {kind_of(place.value)}")
    try:
        quantity = parse_quantity(str(place.value))
    except InputError as error:
        raise place.error(str(error)) from error
    if quantity < Quantity(0):
        raise place.error(f"{shown(place.value)} must be 0 or more")
    return quantity
