"""Reading the node's pods and their requests from the kubelet's local pods API (1.37; k/k KEP 4188)."""

from __future__ import annotations

from pathlib import Path

import grpc
from google.protobuf.message import DecodeError

from topoalloc.admission.quantity import parse_quantity
from topoalloc.allocation.demand import ContainerDemand, PodDemand
from topoalloc.errors import InputError, KubeletError
from topoalloc.kubelet.channel import reason_of, unix_channel, within_rate
from topoalloc.pb import pods_v1alpha1_pb2 as pb
from topoalloc.pb.core_v1_pod_pb2 import Container, Pod
from topoalloc.pb.pods_v1alpha1_pb2_grpc import PodsStub

# 2 to 5 ms on a live kubelet, whose own call waits for it. On a node in distress a late answer is better than none:
# without it the container has to be guessed.
LIST_TIMEOUT_S = 1.0
ENDED_PHASES = frozenset({"Succeeded", "Failed"})
RESTARTABLE = "Always"  # an init container with this restart policy is a sidecar


class PodsApi:
    """Client of one pods API socket."""

    def __init__(self, socket: Path, resources: frozenset[str]) -> None:
        self._socket = socket
        self._resources = resources
        self._channel = unix_channel(socket)
        self._stub = PodsStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def roster(self, *, patient: bool) -> tuple[PodDemand, ...]:
        """The active pods with what their containers ask of us; raises KubeletError.

        `patient`: wait while the connection comes back.
        """
        if not self._socket.exists():
            raise KubeletError(f"{self._socket} does not exist")
        try:
            answer = within_rate(
                lambda: self._stub.ListPods(pb.ListPodsRequest(), timeout=LIST_TIMEOUT_S, wait_for_ready=patient)
            )
            pods = [Pod.FromString(data) for data in answer.pods]
        except grpc.RpcError as error:
            raise KubeletError(f"pods API ListPods failed: {reason_of(error)}") from error
        except DecodeError as error:
            raise KubeletError(f"pods API ListPods answered something that is no pod: {error}") from error
        return tuple(pod_demand(pod, self._resources) for pod in pods if pod.status.phase not in ENDED_PHASES)


def pod_demand(pod: Pod, resources: frozenset[str]) -> PodDemand:
    """The part of a pod that concerns us, containers in the kubelet's admission order."""
    admitted = pod.status.phase == "Running"
    init = [_container(c, resources, admitted, in_init=True) for c in pod.spec.initContainers]
    apps = [_container(c, resources, admitted, in_init=False) for c in pod.spec.containers]
    return PodDemand(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid, (*init, *apps))


def _container(container: Container, resources: frozenset[str], admitted: bool, *, in_init: bool) -> ContainerDemand:
    limits = ((name, _count(quantity.string)) for name, quantity in container.resources.limits.items())
    amounts = tuple(sorted((name, count) for name, count in limits if name in resources and count > 0))
    sidecar = in_init and container.restartPolicy == RESTARTABLE
    return ContainerDemand(
        container.name, amounts, init=in_init and not sidecar, sidecar=sidecar, past_admission=admitted
    )


def _count(text: str) -> int:
    """An extended resource's amount, which comes in canonical form (`1k`). 0: nothing that a list could meet."""
    try:
        quantity = parse_quantity(text)
    except InputError:
        return 0
    return max(0, quantity.value) if quantity.is_whole else 0
