"""The smallest change that makes a node say what it should: only our keys, and nothing where nothing differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from topoalloc.cluster.node_labels import OWN_LABELS, PREFIX

TOPOLOGY_ANNOTATION = PREFIX + "topology"
OWN_ANNOTATIONS = (TOPOLOGY_ANNOTATION,)


@dataclass(frozen=True, slots=True)
class NodeWords:
    """Labels and annotations of a node: wanted ones, or those that are there."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def merge_patch(wanted: NodeWords, present: NodeWords) -> dict[str, dict[str, dict[str, str | None]]] | None:
    """A JSON merge patch (RFC 7396; null removes), or None where the node says it all already."""
    changes = {
        "labels": _changes(wanted.labels, present.labels, OWN_LABELS),
        "annotations": _changes(wanted.annotations, present.annotations, OWN_ANNOTATIONS),
    }
    told = {part: keys for part, keys in changes.items() if keys}
    return {"metadata": told} if told else None


def _changes(wanted: Mapping[str, str], present: Mapping[str, str], own: tuple[str, ...]) -> dict[str, str | None]:
    assert wanted.keys() <= set(own), "only keys of ours are written, so that all of them can be removed again"
    return {key: wanted.get(key) for key in own if wanted.get(key) != present.get(key)}
