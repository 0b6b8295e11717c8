"""The kubelet's local pods API, v1alpha1 (on by default in Kubernetes 1.37): its pods as protobuf core/v1 bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NoReturn

import grpc

from topoalloc.admission.pod import Container, Resources
from topoalloc.kubelet.simulated.pod_store import Phase, PodStore, StoredPod
from topoalloc.pb import core_v1_pod_pb2 as core
from topoalloc.pb import pods_v1alpha1_pb2 as wire
from topoalloc.pb import pods_v1alpha1_pb2_grpc as wire_grpc


class PodsService(wire_grpc.PodsServicer):
    """Serves every pod whose object exists, with its phase; the pod under admission is Pending.

    Until the kubelet's pod sources are ready it serves nothing.
    """

    def __init__(self, pods: PodStore, sources_ready: Callable[[], bool]) -> None:
        self._pods = pods
        self._sources_ready = sources_ready
        self._lock = threading.Lock()
        self._encoded: dict[tuple[str, Phase], bytes] = {}

    def ListPods(self, request: wire.ListPodsRequest, context: grpc.ServicerContext) -> wire.ListPodsResponse:  # noqa: N802
        if not self._sources_ready():
            _abort_as_initializing(context)
        return wire.ListPodsResponse(pods=[self._bytes_of(stored) for stored in self._pods.all()])

    def GetPod(self, request: wire.GetPodRequest, context: grpc.ServicerContext) -> wire.GetPodResponse:  # noqa: N802
        if not self._sources_ready():
            _abort_as_initializing(context)
        stored = self._pods.find(request.podUID)
        if stored is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"pod with UID {request.podUID} not found")
            raise AssertionError("abort raises")
        return wire.GetPodResponse(pod=self._bytes_of(stored))

    def _bytes_of(self, stored: StoredPod) -> bytes:
        key = stored.pod.uid, stored.phase
        with self._lock:
            known = self._encoded.get(key)
        if known is None:
            known = message_of(stored).SerializeToString(deterministic=True)
            with self._lock:
                self._encoded[key] = known
        return known


def _abort_as_initializing(context: grpc.ServicerContext) -> NoReturn:
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "Kubelet is initializing")
    raise AssertionError("abort raises")


def message_of(stored: StoredPod) -> core.Pod:
    """The pod as core/v1 spells it, as far as admission looks at it."""
    pod = stored.pod
    return core.Pod(
        metadata=core.ObjectMeta(name=pod.name, namespace=pod.namespace, uid=pod.uid),
        spec=core.PodSpec(
            containers=[_container_message(container) for container in pod.containers if not container.init],
            initContainers=[_container_message(container) for container in pod.containers if container.init],
        ),
        status=core.PodStatus(phase=stored.phase.value),
    )


def _container_message(container: Container) -> core.Container:
    return core.Container(
        name=container.name,
        resources=core.ResourceRequirements(
            limits=_quantities(container.limits), requests=_quantities(container.requests)
        ),
        restartPolicy="Always" if container.restartable else "",
    )


def _quantities(resources: Resources) -> dict[str, core.Quantity]:
    return {name: core.Quantity(string=str(quantity)) for name, quantity in resources.items()}
