"""What tests ask the API server about pods, and how long they wait for it."""

from __future__ import annotations

import contextlib
import urllib.error
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.namespaces import wait_for

DECIDED_S = 60.0
GONE_S = 60.0
DECIDED = ("Running", "Succeeded", "Failed")
ADMISSION_REASONS = ("TopologyAffinityError", "UnexpectedAdmissionError")


@dataclass(frozen=True)
class Verdict:
    """What became of a pod; `reason` and `message` are the kubelet's where it was refused."""

    admitted: bool
    reason: str
    message: str


def verdicts(cluster: Cluster, names: Iterable[str], timeout_s: float = DECIDED_S) -> dict[str, Verdict]:
    """The verdicts on pods of the default namespace, once all are known."""
    wanted = set(names)
    last: dict[str, Verdict] = {}

    def all_decided() -> bool:
        last.clear()
        last.update(_decided(all_pods(cluster).values(), wanted))
        return len(last) == len(wanted)

    try:
        wait_for(all_decided, timeout_s, f"{len(wanted)} pods decided", 0.2)
    except TimeoutError as error:
        raise TimeoutError(f"{error}; undecided: {sorted(wanted - set(last))[:5]}") from error
    return last


def verdict(cluster: Cluster, name: str) -> Verdict:
    return verdicts(cluster, [name])[name]


def _decided(items: Iterable[Mapping[str, Any]], wanted: set[str]) -> dict[str, Verdict]:
    found = {}
    for item in items:
        name, status = item["metadata"]["name"], item["status"]
        if name in wanted and status.get("phase") in DECIDED:
            refused = status["phase"] == "Failed" and not status.get("containerStatuses")
            refused |= status.get("reason", "") in ADMISSION_REASONS
            found[name] = Verdict(not refused, status.get("reason", ""), status.get("message", ""))
    return found


PODS = "/api/v1/namespaces/default/pods"


def create(cluster: Cluster, *pods: Mapping[str, Any]) -> None:
    """Like `kubectl create`, in a few milliseconds each."""
    for pod in pods:
        cluster.control_plane.request("POST", PODS, pod)


def delete(cluster: Cluster, *names: str, grace_s: int = 1) -> None:
    """Ask for the end of pods; the kubelet ends their containers before they are gone."""
    for name in names:
        with contextlib.suppress(urllib.error.HTTPError):  # gone already
            cluster.control_plane.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds={grace_s}")


def all_pods(cluster: Cluster) -> dict[str, Mapping[str, Any]]:
    return {item["metadata"]["name"]: item for item in cluster.control_plane.request("GET", PODS)["items"]}


def delete_all(cluster: Cluster) -> None:
    """Remove every pod of the default namespace and wait until the kubelet has let go of them."""
    cluster.kubectl("delete", "pods", "--all", "--wait=true", f"--timeout={GONE_S:g}s", "--grace-period=1")


def events_on(cluster: Cluster, pod: str) -> list[Mapping[str, Any]]:
    selector = f"involvedObject.kind=Pod,involvedObject.name={pod}"
    return list(cluster.get("events", "--field-selector", selector)["items"])
