"""Pods that the tests create, and the random ones that several tests share."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

CORE, MEMORY, NIC = "topoalloc.io/vgpu-core", "topoalloc.io/vgpu-memory", "topoalloc.io/nic"
IMAGE = "localhost/topoalloc-e2e/workload:1"
GRACE_S = 1


def container(
    name: str,
    limits: Mapping[str, int | str],
    command: Sequence[str] = (),
    *,
    sidecar: bool = False,
    requests: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A container of the test image; without a command it waits until it is ended."""
    made: dict[str, Any] = {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "resources": {"limits": {key: str(value) for key, value in limits.items()}, "requests": dict(requests or {})},
    }
    if command:
        made["command"] = ["/pause", *command]
    if sidecar:
        made["restartPolicy"] = "Always"
    return made


def pod(
    name: str,
    containers: Sequence[Mapping[str, Any]],
    init: Sequence[Mapping[str, Any]] = (),
    *,
    node: str | None = "node-0",
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A pod bound to a node without the scheduler, or, with `node=None`, one that it places."""
    spec: dict[str, Any] = {
        "hostNetwork": True,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": [{"operator": "Exists"}],
        "containers": list(containers),
        "initContainers": list(init),
    }
    if node is not None:
        spec["nodeName"] = node
    metadata = {"name": name, "namespace": "default", "labels": {"app": "e2e", **(labels or {})}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def random_limits(draw: random.Random) -> dict[str, int]:
    """What one container asks for; a few requests make no sense and have to be refused."""
    kind = draw.random()
    if kind < 0.45:
        return {CORE: draw.choice([10, 20, 25, 30, 50, 60, 75, 99]), MEMORY: draw.choice([4, 8, 16, 32, 64])}
    if kind < 0.55:
        return {CORE: 100 * draw.choice([1, 1, 2])}
    if kind < 0.65:
        return {CORE: 100, NIC: 1}
    if kind < 0.88:
        return {CORE: draw.choice([25, 50]), MEMORY: draw.choice([8, 16]), NIC: 1}
    if kind < 0.93:
        return {CORE: 200, NIC: 2}
    if kind < 0.96:
        return {NIC: 1}
    return draw.choice([{CORE: 150}, {CORE: 30}, {MEMORY: 8}, {CORE: 10, MEMORY: 400}])


def random_pod(draw: random.Random, name: str) -> dict[str, Any]:
    """One or two containers, at times an init container or a sidecar before them."""
    shape = draw.random()
    if shape < 0.65:
        return pod(name, [container("c", random_limits(draw))])
    if shape < 0.82:
        return pod(name, [container("c1", random_limits(draw)), container("c2", random_limits(draw))])
    if shape < 0.94:
        return pod(name, [container("c", random_limits(draw))], [container("i", random_limits(draw), ["0.1"])])
    return pod(name, [container("c", random_limits(draw))], [container("s", random_limits(draw), sidecar=True)])
