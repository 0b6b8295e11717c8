"""Kubernetes YAML as pods to admit: Pods, Lists, and the pods that a workload's template would become.

What an API server would refuse is refused here, with the file, the document and the path of the fault.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from topoalloc.admission.pod import CPU, HUGE_PAGES_PREFIX, MEMORY, Container, Pod, checked_container, pod_requests
from topoalloc.admission.quantity import Quantity, parse_quantity
from topoalloc.errors import InputError
from topoalloc.kubelet.simulated.places import Place, kind_of, shown
from topoalloc.kubelet.simulated.registration import is_extended_resource_name
from topoalloc.yaml_documents import Document, read_documents

PODS_MAX = 1_000  # a kubelet takes 110 by default and a few hundred in the field; bounds what `replicas` can ask for
CONTAINERS_MAX = 100  # of one pod; real ones have a handful
ITEMS_NESTED_MAX = 4  # a List in a List in ...: nobody writes that, but YAML can
DEFAULT_NAMESPACE = "default"

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_NATIVE_RESOURCES = frozenset({CPU, MEMORY, "ephemeral-storage"})
_REPLICATED = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "ReplicationController"})
_UID_NAMESPACE = uuid.UUID("6f1d4c5e-7d0b-5a39-9c57-0c2b8f0b6a11")  # our own, so that uids repeat from run to run


@dataclass(frozen=True, slots=True)
class Manifests:
    """The pods of a file in its order, and what was passed over (one line each)."""

    pods: tuple[Pod, ...]
    notes: tuple[str, ...]


@dataclass
class _Collected:
    """The pods found so far."""

    pods: list[Pod] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seen: dict[tuple[str, str], int] = field(default_factory=dict)
    generated: dict[str, int] = field(default_factory=dict)

    def add(self, place: Place, name: str, namespace: str, spec: Place) -> None:
        if len(self.pods) >= PODS_MAX:
            raise place.error(f"more than {PODS_MAX} pods: one node does not run that many")
        before = self.seen.get((namespace, name))
        if before is not None:
            what = f"a pod {name!r} in namespace {namespace!r} was already defined in document {before}"
            raise place.at("metadata", "name").error(what)
        self.seen[namespace, name] = place.document.number
        self.pods.append(pod_of(name, namespace, spec))


def read_manifests(path: Path) -> Manifests:
    """The pods of a YAML file. Raises InputError with one line."""
    return manifests_of(read_documents(path))


def manifests_of(documents: Iterable[Document]) -> Manifests:
    """The pods of YAML documents."""
    collected = _Collected()
    for document in documents:
        _take_object(Place(document, "", document.value), collected, 0)
    return Manifests(tuple(collected.pods), tuple(collected.notes))


def _take_object(place: Place, collected: _Collected, depth: int) -> None:
    place.mapping()
    kind = place.at("kind")
    if kind.value is None:
        raise kind.error("is missing: a Kubernetes object says what it is (Pod, Deployment, ...)")
    name = kind.text()
    if name in {"List", "PodList"}:
        if depth >= ITEMS_NESTED_MAX:
            raise place.error(f"Lists nested deeper than {ITEMS_NESTED_MAX}")
        for item in place.at("items").list():
            inner = item if name == "List" else _withkind_of(item, "Pod")
            _take_object(inner, collected, depth + 1)
    elif name == "Pod":
        collected.add(place, _name(place, collected), _namespace(place), place.at("spec"))
    else:
        _take_workload(place, name, collected)


def _withkind_of(place: Place, kind: str) -> Place:
    """Items of a typed list leave out their kind."""
    return replace(place, value={"kind": kind, **place.mapping()})


def _take_workload(place: Place, kind: str, collected: _Collected) -> None:
    spec = place.at("spec")
    if kind in _REPLICATED:
        count = spec.at("replicas").count(1)
    elif kind == "DaemonSet":
        count = 1
    elif kind in {"Job", "CronJob"}:
        spec = spec.at("jobTemplate", "spec") if kind == "CronJob" else spec
        count = spec.at("parallelism").count(1)
        count = min(count, spec.at("completions").count(count))
    else:
        collected.notes.append(
            f"{place.document.file}: document {place.document.number}: a {kind} runs no pods: skipped"
        )
        return
    template = spec.at("template")
    if template.value is None:
        raise template.error(f"is missing: a {kind} needs a pod template")
    name = _name(place, collected)
    if count > PODS_MAX:
        raise place.at("spec").error(f"{count} pods: at most {PODS_MAX} are simulated on one node")
    for number in range(count):
        collected.add(place, f"{name}-{number}", _namespace(place), template.at("spec"))


def _name(place: Place, collected: _Collected) -> str:
    metadata = place.at("metadata")
    given, prefix = metadata.at("name"), metadata.at("generateName")
    if given.value is None and prefix.value is not None:
        number = collected.generated.get(prefix.text(), 0)
        collected.generated[prefix.text()] = number + 1
        return f"{prefix.text()}{number}"
    if given.value is None:
        raise given.error("is missing")
    if not _SUBDOMAIN.fullmatch(given.text()):
        raise given.error(f"{shown(given.value)} is no name: lower case letters, digits, '-' and '.', at most 253")
    return given.text()


def _namespace(place: Place) -> str:
    namespace = place.at("metadata", "namespace")
    if namespace.value is None:
        return DEFAULT_NAMESPACE
    if not _LABEL.fullmatch(namespace.text()):
        raise namespace.error(f"{shown(namespace.value)} is no namespace: lower case letters, digits and '-'")
    return namespace.text()


def pod_of(name: str, namespace: str, spec: Place) -> Pod:
    """The pod of a `spec`, with a uid made of its name. Raises InputError with the place of the fault."""
    if spec.value is None:
        raise spec.error("is missing")
    init = _containers(spec.at("initContainers"), init=True)
    apps = _containers(spec.at("containers"), init=False)
    if not apps:
        raise spec.at("containers").error("is missing or empty: a pod has at least one container")
    containers = (*init, *apps)
    names = [container.name for container in containers]
    twice = next((one for number, one in enumerate(names) if one in names[:number]), None)
    if twice is not None:
        raise spec.at("containers").error(f"two containers are called {twice!r}")
    pod = Pod(
        name=name,
        namespace=namespace,
        uid=str(uuid.uuid5(_UID_NAMESPACE, f"{namespace}/{name}")),
        containers=containers,
        overhead=_quantities(spec.at("overhead")),
    )
    return _with_pod_level(pod, spec.at("resources"))


def _with_pod_level(pod: Pod, resources: Place) -> Pod:
    """Add `spec.resources`. A request left out is that of the containers together, else the limit (defaults.go)."""
    limits, requests = _quantities(resources.at("limits")), _quantities(resources.at("requests"))
    for name in (*limits, *requests):
        if name not in (CPU, MEMORY) and not name.startswith(HUGE_PAGES_PREFIX):
            raise resources.error(f"{name} cannot be asked for at pod level, only cpu, memory and hugepages")
    together = pod_requests(pod)
    defaults = {name: together.get(name, limit) for name, limit in limits.items()}
    asked = {**defaults, **requests}
    for name, limit in limits.items():
        if asked[name] > limit:
            raise resources.error(f"the {name} request {asked[name]} must be less than or equal to the limit {limit}")
    return replace(pod, limits=limits, requests=asked)


def _containers(place: Place, *, init: bool) -> tuple[Container, ...]:
    if place.value is None:
        return ()
    items = place.list()
    if len(items) > CONTAINERS_MAX:
        raise place.error(f"more than {CONTAINERS_MAX} containers in one pod")
    return tuple(_container(item, init=init) for item in items)


def _container(place: Place, *, init: bool) -> Container:
    name = place.at("name")
    if name.value is None:
        raise name.error("is missing")
    if not _LABEL.fullmatch(name.text()):
        raise name.error(f"{shown(name.value)} is no container name: lower case letters, digits and '-', at most 63")
    restart = place.at("restartPolicy")
    restartable = init and restart.value is not None and restart.text() == "Always"
    requests, limits = (_amounts(place.at("resources", kind)) for kind in ("requests", "limits"))
    try:
        return checked_container(name.text(), requests, limits, init=init, restartable=restartable)
    except InputError as error:
        raise place.at("resources").error(str(error)) from error


def _amounts(place: Place) -> dict[str, str]:
    """Resource names and the texts of their amounts."""
    if place.value is None:
        return {}
    amounts = {}
    for name, value in place.mapping().items():
        known = name in _NATIVE_RESOURCES or name.startswith(HUGE_PAGES_PREFIX) or is_extended_resource_name(name)
        if not known:
            raise place.error(f"{shown(name)} is no resource: cpu, memory, hugepages-<size> or <domain>/<name>")
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise place.at(name).error(f"must be a quantity such as 2, 500m or 4Gi, not {kind_of(value)}")
        amounts[name] = str(value)
    return amounts


def _quantities(place: Place) -> dict[str, Quantity]:
    parsed = {}
    for name, text in _amounts(place).items():
        try:
            parsed[name] = parse_quantity(text)
        except InputError as error:
            raise place.at(name).error(str(error)) from error
        if parsed[name] < Quantity(0):
            raise place.at(name).error(f"{text} must be greater than or equal to 0")
    return parsed
