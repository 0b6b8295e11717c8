"""The outcome of a run as JSON, schema `topoalloc.simulation/v1`."""

from __future__ import annotations

import json

from topoalloc.cli.simulation.outcome import ContainerOutcome, PodOutcome
from topoalloc.cli.simulation.rehearsal import Rehearsal
from topoalloc.kubelet.simulated.device_manager import PluginCall
from topoalloc.kubelet.simulated.settings import KubeletSettings

SCHEMA = "topoalloc.simulation/v1"


def json_text(rehearsal: Rehearsal, settings: KubeletSettings, seed: int) -> str:
    """The document, indented; equal runs give equal bytes."""
    document = {
        "schema": SCHEMA,
        "policy": settings.policy.value,
        "scope": settings.scope.value,
        "seed": seed,
        "pods": [_pod(pod) for pod in rehearsal.pods],
        "warnings": list(rehearsal.warnings),
    }
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


def _pod(pod: PodOutcome) -> dict[str, object]:
    return {
        "name": pod.name,
        "namespace": pod.namespace,
        "admitted": pod.admitted,
        "reason": None if pod.refusal is None else pod.refusal.reason,
        "message": None if pod.refusal is None else pod.refusal.status_message,
        "explanation": pod.why,
        "remedy": pod.remedy,
        "containers": [_container(container) for container in pod.containers],
    }


def _container(container: ContainerOutcome) -> dict[str, object]:
    return {
        "name": container.name,
        "init": container.init,
        "devices": {resource: list(ids) for resource, ids in container.devices.items()},
        "gpus": [
            {"id": share.id, "cores": share.cores, "memory_bytes": share.memory_bytes} for share in container.gpus
        ],
        "nics": list(container.nics),
        "numa_nodes": None if container.numa_nodes is None else list(container.numa_nodes),
        "cpus": container.cpus,
        "memory_nodes": None if container.memory_nodes is None else list(container.memory_nodes),
        "links": [{"a": link.a, "b": link.b, "class": link.link_class} for link in container.links],
        "affinity": None if container.affinity is None else list(container.affinity),
        "calls": [_call(call) for call in container.calls],
    }


def _call(call: PluginCall) -> dict[str, object]:
    """How the plugin was asked: numbers of devices, not their ids, which would fill the screen."""
    return {
        "method": call.method,
        "resource": call.resource,
        "devices": len(call.ids),
        "must_include": len(call.must_include),
        "size": call.size if call.method == "GetPreferredAllocation" else len(call.ids),
        "error": call.error,
    }
