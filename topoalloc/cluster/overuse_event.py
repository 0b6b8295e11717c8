"""The event on a pod whose container takes more of a GPU than it was granted. Pure."""

from __future__ import annotations

import hashlib

from topoalloc.cluster.rejection import COMPONENT, HASH_CHARACTERS, NAME_CHARACTERS_MAX, NOTE_BYTES_MAX
from topoalloc.sharing.overuse_record import OveruseRecord

REASON = "GpuShareOveruse"


def overuse_event_name(record: OveruseRecord) -> str:
    """The same for the same finding whoever asks, so that the API server refuses a second one."""
    what = f"{record.uid}/{REASON}/{record.kind}/{record.containers}/{record.gpu}/{record.found_s}"
    digest = hashlib.sha256(what.encode()).hexdigest()[:HASH_CHARACTERS]
    stem = record.pod[: NAME_CHARACTERS_MAX - HASH_CHARACTERS - 1].rstrip("-.")
    return f"{stem}.{digest}"


def overuse_event(record: OveruseRecord, node: str, time: str) -> dict[str, object]:
    """A core/v1 Event on the pod; `time` in RFC 3339."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": overuse_event_name(record), "namespace": record.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": record.namespace,
            "name": record.pod,
            "uid": record.uid,
        },
        "type": "Warning",
        "reason": REASON,
        "message": record.sentence.encode()[:NOTE_BYTES_MAX].decode(errors="ignore"),
        "source": {"component": COMPONENT, "host": node},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }
