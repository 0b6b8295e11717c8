"""One life of a simulated kubelet: its managers and the servers on its sockets, from start to end."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path

import grpc

from topoalloc.admission.policy import NumaInfo
from topoalloc.errors import MachineError
from topoalloc.kubelet.plugin_directory import KUBELET_SOCKET, SOCKET_PATH_BYTES_MAX
from topoalloc.kubelet.simulated.device_manager import DeviceManager, PluginCall
from topoalloc.kubelet.simulated.exclusive import ExclusiveResources
from topoalloc.kubelet.simulated.pod_resources import PodResourcesService
from topoalloc.kubelet.simulated.pod_store import PodStore
from topoalloc.kubelet.simulated.pods_api import PodsService
from topoalloc.kubelet.simulated.registration import RegistrationService
from topoalloc.kubelet.simulated.settings import Behaviour, KubeletSettings
from topoalloc.kubelet.simulated.topology_manager import TopologyManager
from topoalloc.pb import deviceplugin_v1beta1_pb2_grpc as plugin_grpc
from topoalloc.pb import podresources_v1_pb2_grpc as resources_grpc
from topoalloc.pb import pods_v1alpha1_pb2_grpc as pods_grpc

SERVER_THREADS_MAX = 16  # a Register waits for the plugin's answers meanwhile; an agent has a handful of resources
STOP_LIMIT_S = 5.0  # a stopped server ends its calls at once; longer is a fault that must not hang the caller


@dataclass(frozen=True, slots=True)
class Sockets:
    """Where the kubelet listens."""

    plugin_directory: Path
    pod_resources: Path
    pods_api: Path

    @classmethod
    def below(cls, root: Path) -> Sockets:
        """The kubelet's usual layout, below a directory of one's own."""
        pod_resources = root / "pod-resources" / "kubelet.sock"
        return cls(root / "device-plugins", pod_resources, root / "pods-api" / "pods-api.sock")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What outlives a kubelet process."""

    sockets: Sockets
    settings: KubeletSettings
    behaviour: Behaviour
    numa: NumaInfo
    exclusive: ExclusiveResources
    chance: random.Random
    now_s: Callable[[], float]
    on_call: Callable[[PluginCall], None]
    note: Callable[[str], None]


class KubeletProcess:
    """Starts when it is made; `end` cuts every connection."""

    def __init__(self, around: Surroundings, pods: PodStore, *, sources_ready: bool) -> None:
        sockets, behaviour = around.sockets, around.behaviour
        sockets.plugin_directory.mkdir(parents=True, exist_ok=True, mode=0o750)
        self.devices = DeviceManager(
            sockets.plugin_directory, pods, behaviour, around.chance, around.now_s, around.on_call
        )
        self.devices.sources_ready = sources_ready
        self.topology_manager = TopologyManager(around.settings, around.numa, self.devices, around.exclusive)
        # Every socket in the directory goes, the plugins' too: that is how they learn of the restart.
        for path in sorted(sockets.plugin_directory.iterdir()):
            if path.is_socket():
                path.unlink(missing_ok=True)
        self._servers: list[grpc.Server] = []
        self._registration = RegistrationService(sockets.plugin_directory, self.devices, around.note)
        try:
            self._serve_all(around, pods)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """The process is gone: streams are cancelled, sockets are dead."""
        self._registration.close()
        for stopped in [server.stop(grace=None) for server in self._servers]:
            stopped.wait(STOP_LIMIT_S)
        self._servers.clear()

    def _serve_all(self, around: Surroundings, pods: PodStore) -> None:
        sockets, behaviour = around.sockets, around.behaviour
        if behaviour.pod_resources:
            clock = around.now_s if behaviour.limits_requests else None
            service = PodResourcesService(pods, self.devices, around.exclusive, clock)
            server = self._server()
            resources_grpc.add_PodResourcesListerServicer_to_server(service, server)
            self._listen(server, sockets.pod_resources)
        if behaviour.pods_api:
            server = self._server()
            pods_grpc.add_PodsServicer_to_server(PodsService(pods, lambda: self.devices.sources_ready), server)
            self._listen(server, sockets.pods_api)
        # Last, because plugins take this socket for the sign that the kubelet is there.
        server = self._server()
        plugin_grpc.add_RegistrationServicer_to_server(self._registration, server)
        self._listen(server, sockets.plugin_directory / KUBELET_SOCKET)

    def _server(self) -> grpc.Server:
        server = grpc.server(
            futures.ThreadPoolExecutor(SERVER_THREADS_MAX, thread_name_prefix="simulated-kubelet"),
            options=(("grpc.so_reuseport", 0),),
        )
        self._servers.append(server)
        return server

    def _listen(self, server: grpc.Server, path: Path) -> None:
        if len(str(path).encode()) > SOCKET_PATH_BYTES_MAX:
            raise MachineError(f"{path}: longer than the {SOCKET_PATH_BYTES_MAX} bytes a unix socket's path may have")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        path.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{path}")
        server.start()
