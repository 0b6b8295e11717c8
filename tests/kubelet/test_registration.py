"""Register against a server that waits for the plugin's socket as a kubelet does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from topoalloc.errors import KubeletError
from topoalloc.kubelet.registration import register
from topoalloc.pb import deviceplugin_v1beta1_pb2 as pb
from topoalloc.pb.deviceplugin_v1beta1_pb2_grpc import RegistrationServicer, add_RegistrationServicer_to_server

ENDPOINT = "ours.sock"
DIAL_S = 10.0


class Dialling(RegistrationServicer):
    """Removes the plugin's socket when it is told of it, as a kubelet that started at that moment has done, and waits
    for it as long as a kubelet does."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.over = threading.Event()

    def Register(self, request: pb.RegisterRequest, context: grpc.ServicerContext) -> pb.Empty:
        (self.directory / request.endpoint).unlink()
        context.add_callback(self.over.set)
        if not self.over.wait(DIAL_S):
            context.abort(grpc.StatusCode.UNKNOWN, "failed to dial device plugin: context deadline exceeded")
        return pb.Empty()


@pytest.fixture
def dialling(tmp_path: Path) -> Iterator[Dialling]:
    kubelet = Dialling(tmp_path)
    server = grpc.server(ThreadPoolExecutor(1))
    add_RegistrationServicer_to_server(kubelet, server)
    server.add_insecure_port(f"unix:{tmp_path}/kubelet.sock")
    server.start()
    yield kubelet
    server.stop(None).wait()


def test_nobody_waits_for_a_kubelet_that_dials_a_socket_which_it_has_removed(dialling: Dialling):
    (dialling.directory / ENDPOINT).touch()

    with pytest.raises(KubeletError, match=r"removed ours\.sock"):
        register(dialling.directory / "kubelet.sock", ENDPOINT, "topoalloc.io/nic", lambda: False)

    assert dialling.over.wait(DIAL_S / 2)
