"""Reading who holds which device from the kubelet's PodResources API."""

from __future__ import annotations

from pathlib import Path

import grpc

from topoalloc.allocation.ledger import ListedContainer, Owner
from topoalloc.errors import KubeletError
from topoalloc.kubelet.channel import code_of, reason_of, unix_channel, within_rate
from topoalloc.pb import podresources_v1_pb2 as pb
from topoalloc.pb.podresources_v1_pb2_grpc import PodResourcesListerStub

# List needs 332 ms with 10,000 known devices on two cores; every call of ours to the kubelet has to end in time for
# the kubelet's call that waits for it (agent/desk.py adds them up).
LIST_TIMEOUT_S = 1.5
GET_TIMEOUT_S = 0.5
# The kubelet answers Get of an unknown or ended pod with a plain Go error, which gRPC calls UNKNOWN.
NO_SUCH_POD = frozenset({grpc.StatusCode.UNKNOWN, grpc.StatusCode.NOT_FOUND})


class PodResources:
    """Client of one PodResources socket."""

    def __init__(self, socket: Path, resources: frozenset[str]) -> None:
        self._socket = socket
        self._resources = resources
        self._channel = unix_channel(socket)
        self._stub = PodResourcesListerStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def list_containers(self, *, patient: bool) -> tuple[ListedContainer, ...]:
        """Every container of the node with the ids of ours it holds; raises KubeletError.

        `patient`: the kubelet is known to be there (it is calling), so wait while the connection comes back.
        A List makes the kubelet forget devices of dead pods, so it is never called from inside Allocate.
        """
        if not self._socket.exists():
            raise KubeletError(f"{self._socket} does not exist")
        try:
            answer = within_rate(
                lambda: self._stub.List(pb.ListPodResourcesRequest(), timeout=LIST_TIMEOUT_S, wait_for_ready=patient)
            )
        except grpc.RpcError as error:
            raise KubeletError(f"PodResources List failed: {reason_of(error)}") from error
        return tuple(item for pod in answer.pod_resources for item in self._containers(pod))

    def holds(self, owner: Owner, ids: frozenset[str]) -> bool:
        """Whether a container still holds one of these ids, by Get, which has no side effect; raises KubeletError."""
        pod = self._get(owner)
        return pod is not None and any(
            item.container == owner.container and item.ids & ids for item in self._containers(pod)
        )

    def has_pod(self, owner: Owner) -> bool:
        """Whether a container's pod is still there, by Get; raises KubeletError."""
        return self._get(owner) is not None

    def _get(self, owner: Owner) -> pb.PodResources | None:
        request = pb.GetPodResourcesRequest(pod_name=owner.pod, pod_namespace=owner.namespace)
        try:
            return within_rate(
                lambda: self._stub.Get(request, timeout=GET_TIMEOUT_S, wait_for_ready=True)
            ).pod_resources
        except grpc.RpcError as error:
            if code_of(error) in NO_SUCH_POD:
                return None
            raise KubeletError(f"PodResources Get failed: {reason_of(error)}") from error

    def _containers(self, pod: pb.PodResources) -> tuple[ListedContainer, ...]:
        return tuple(
            ListedContainer(
                pod.namespace,
                pod.name,
                container.name,
                frozenset(
                    device_id
                    for devices in container.devices
                    if devices.resource_name in self._resources
                    for device_id in devices.device_ids
                ),
            )
            for container in pod.containers
        )
