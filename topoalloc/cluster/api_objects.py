"""The API server's JSON, decoded into the few fields that are read here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

import msgspec

from topoalloc.admission.pod import Pod
from topoalloc.cluster.node_patch import NodeWords
from topoalloc.cluster.rejection import Rejection
from topoalloc.errors import InputError, TopoallocError
from topoalloc.kubelet.simulated.manifests import pod_of
from topoalloc.kubelet.simulated.places import Place
from topoalloc.yaml_documents import Document

GONE = 410  # the resource version is too old to go on from


class ApiContentError(TopoallocError):
    """The API server answered something that is not what was asked for."""


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 -- the API's own spelling, here and below
    creationTimestamp: datetime | None = None  # noqa: N815
    continue_: str = msgspec.field(name="continue", default="")
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _PodStatus(msgspec.Struct, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    startTime: datetime | None = None  # noqa: N815


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Metadata
    status: _PodStatus = _PodStatus()
    spec: msgspec.Raw = msgspec.Raw(b"null")


class _PodList(msgspec.Struct, frozen=True):
    metadata: _Metadata
    items: tuple[_Pod, ...] = ()


class _Node(msgspec.Struct, frozen=True):
    metadata: _Metadata


class _Status(msgspec.Struct, frozen=True):
    code: int = 0
    reason: str = ""
    message: str = ""


class _WatchEvent(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


Decoded = TypeVar("Decoded")

_NODE = msgspec.json.Decoder(_Node)
_POD = msgspec.json.Decoder(_Pod)
_PODS = msgspec.json.Decoder(_PodList)
_STATUS = msgspec.json.Decoder(_Status)
_EVENT = msgspec.json.Decoder(_WatchEvent)


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod as the API server shows it. `rejection` is given where the kubelet rejected it for reasons of ours.

    `began_s` is when the kubelet first saw it, or else when it was made (seconds since 1970; None: not told).
    """

    uid: str
    began_s: float | None
    rejection: Rejection | None


@dataclass(frozen=True, slots=True)
class PodPage:
    """A page of a list: go on with `more` unless it is empty, watch from `resource_version`."""

    pods: tuple[SeenPod, ...]
    resource_version: str
    more: str


@dataclass(frozen=True, slots=True)
class Changed:
    """A watch told of a pod; it goes on from `resource_version`."""

    pod: SeenPod
    resource_version: str


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Nothing happened up to `resource_version`."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class WatchFault:
    """The server ended the watch; `code` GONE: list again."""

    code: int
    message: str


def node_words(body: bytes) -> NodeWords:
    """Labels and annotations of a Node, or of its metadata alone. Raises ApiContentError."""
    metadata = _decoded(_NODE, body, "a Node").metadata
    return NodeWords(metadata.labels or {}, metadata.annotations or {})


def pod_page(body: bytes) -> PodPage:
    """Raises ApiContentError."""
    pods = _decoded(_PODS, body, "a PodList")
    return PodPage(tuple(_seen(pod) for pod in pods.items), pods.metadata.resourceVersion, pods.metadata.continue_)


def watch_line(line: bytes) -> Changed | Bookmark | WatchFault:
    """One line of a watch on pods. Raises ApiContentError."""
    event = _decoded(_EVENT, line, "a watch event")
    if event.type == "ERROR":
        status = _decoded(_STATUS, bytes(event.object), "a Status")
        return WatchFault(status.code, status.message or status.reason)
    pod = _decoded(_POD, bytes(event.object), "a Pod")
    if event.type == "BOOKMARK":
        return Bookmark(pod.metadata.resourceVersion)
    seen = _seen(pod)
    if (
        event.type == "DELETED"
    ):  # the last state once more: whatever it tells was told before, and nobody can look it up
        seen = replace(seen, rejection=None)
    return Changed(seen, pod.metadata.resourceVersion)


def status_message(body: bytes) -> str:
    """What a refusal says, on one line; empty where it is no Status."""
    try:
        status = _STATUS.decode(body)
    except msgspec.DecodeError:
        return ""
    return " ".join((status.message or status.reason).split())


def _decoded(decoder: msgspec.json.Decoder[Decoded], body: bytes, what: str) -> Decoded:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiContentError(f"the API server's answer is not {what}: {error}") from error


def _seen(pod: _Pod) -> SeenPod:
    metadata, status = pod.metadata, pod.status
    rejection = None
    if status.phase == "Failed":
        rejection = Rejection(metadata.namespace, metadata.name, metadata.uid, status.reason, status.message, None)
        if rejection.concerns_topology:
            rejection = replace(rejection, pod=_pod(metadata, bytes(pod.spec)))
        else:
            rejection = None
    began = status.startTime or metadata.creationTimestamp
    return SeenPod(metadata.uid, None if began is None else began.timestamp(), rejection)


def _pod(metadata: _Metadata, spec: bytes) -> Pod | None:
    """What the pod asks for; None where its spec is not understood here."""
    document = Document(f"pod {metadata.namespace}/{metadata.name}", 1, None)
    try:
        value: object = msgspec.json.decode(spec)
        pod = pod_of(metadata.name, metadata.namespace, Place(document, "spec", value))
    except (msgspec.DecodeError, InputError):
        return None
    return replace(pod, uid=metadata.uid)
