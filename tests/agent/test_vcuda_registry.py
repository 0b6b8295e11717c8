"""Registration of the vcuda library, by a real gRPC client over the share's own socket."""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from tests.agent.made_shares import no_descriptors_left
from tests.sharing.enforcements import enforcement
from topoalloc.agent import vcuda_registry
from topoalloc.agent.share_directories import ShareDirectories
from topoalloc.agent.vcuda_registry import CONNECTIONS_PER_SHARE_MAX, PAUSE_S, VcudaRegistry
from topoalloc.pb.vcuda_pb2 import VDeviceRequest
from topoalloc.pb.vcuda_pb2_grpc import VCUDAServiceStub
from topoalloc.sharing.cgroup_path import PodCgroup
from topoalloc.sharing.share import Share

UID = "0f9e8d7c-1234-4567-89ab-0123456789ab"
OTHER_UID = "11111111-1234-4567-89ab-0123456789ab"
ID = "4a" * 32
SHARE = Share("0000:3b:00.0-c00", 0, None, 30, 1024**3, UID, "app")
LIMIT_S = 30.0
ME = os.getpid()


class Processes:
    """Which processes there are and whose they are; this test's own is in the share's container."""

    def __init__(self) -> None:
        self.places: dict[int, PodCgroup | None] = {
            ME: PodCgroup(UID, ID),
            70: PodCgroup(UID, ID),
            7: PodCgroup(UID, ID),
        }
        self.places |= {8: PodCgroup(UID, "5b" * 32), 9: PodCgroup(OTHER_UID, ID), 10: None}

    def placed(self, pid: int) -> PodCgroup | None:
        return self.places.get(pid)

    def pids(self) -> list[int]:
        return list(self.places)


class Served:
    def __init__(self, run_dir: Path) -> None:
        self.processes = Processes()
        self.registry = VcudaRegistry(run_dir / "shares", self.processes.placed, self.processes.pids)
        self.directories = ShareDirectories(run_dir, enforcement("vcuda"), (self.registry,))
        self.leaf = run_dir / "shares" / SHARE.name
        self.directories.put(SHARE, fresh=True)

    def register(self, **fields: str) -> grpc.StatusCode:
        with grpc.insecure_channel(f"unix:{self.leaf}/vcuda.sock") as channel:
            try:
                VCUDAServiceStub(channel).RegisterVDevice(VDeviceRequest(**fields), timeout=LIMIT_S)
            except grpc.RpcError as error:
                code: grpc.StatusCode = error.code()
                return code
        return grpc.StatusCode.OK

    def pids(self) -> list[int]:
        return [pid for (pid,) in struct.iter_unpack("<i", (self.leaf / "pids.config").read_bytes())]


@contextmanager
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="ta-", dir="/tmp") as folder:  # a socket's path is short
        one = Served(Path(folder) / "run")
        try:
            yield one
        finally:
            one.directories.close()


def is_ended(client: socket.socket) -> bool:
    """Wait for the other side to end the connection."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:  # before it was accepted
        return True


def test_registering_writes_the_pids_of_the_callers_container_sorted() -> None:
    with served() as node:
        assert node.pids() == []

        assert node.register(bus_id="", pod_uid=UID, container_name="app") is grpc.StatusCode.OK

        assert node.pids() == sorted([7, 70, ME])
        assert stat.S_IMODE((node.leaf / "pids.config").stat().st_mode) == 0o444


def test_newer_clients_send_the_containers_id() -> None:
    with served() as node:
        assert node.register(pod_uid=UID, container_id=ID) is grpc.StatusCode.OK
        assert node.pids() == sorted([7, 70, ME])


def test_one_that_was_started_before_its_pod_was_known_registers_without_a_uid() -> None:
    with served() as node:
        node.directories.put(replace(SHARE, pod_uid="", container=""), fresh=False)

        assert node.register(container_name=SHARE.name) is grpc.StatusCode.OK


@pytest.mark.parametrize(
    "fields",
    [
        {"pod_uid": OTHER_UID, "container_name": "app"},
        {"pod_uid": UID, "container_name": "another"},
        {"pod_uid": UID, "container_id": "5b" * 32},
        {"pod_uid": UID, "container_id": "../../etc"},
    ],
)
def test_who_says_that_it_is_another_is_refused_and_counted(fields: dict[str, str]) -> None:
    with served() as node:
        assert node.register(**fields) is grpc.StatusCode.PERMISSION_DENIED

        assert node.pids() == []
        assert node.registry.refused == {SHARE.name: 1}


@pytest.mark.parametrize("place", [None, PodCgroup(OTHER_UID, ID)], ids=["no container", "another pod's"])
def test_a_caller_that_is_not_of_this_shares_pod_is_refused(place: PodCgroup | None) -> None:
    with served() as node:
        node.processes.places[ME] = place

        assert node.register(pod_uid=UID, container_name="app") is grpc.StatusCode.PERMISSION_DENIED
        assert node.pids() == []


def test_a_registration_after_a_restart_of_the_agent_finds_the_socket_again() -> None:
    with served() as node:
        inode = node.leaf.stat().st_ino
        node.directories.close()
        node.directories = ShareDirectories(node.leaf.parents[1], enforcement("vcuda"), (node.registry,))
        node.directories.settle({SHARE.name: SHARE}, remove_others=True)

        assert node.leaf.stat().st_ino == inode
        assert node.register(pod_uid=UID, container_name="app") is grpc.StatusCode.OK


def test_the_socket_of_an_earlier_grant_is_gone_with_it() -> None:
    with served() as node, socket.socket(socket.AF_UNIX) as client:
        client.connect(f"{node.leaf}/vcuda.sock")
        client.settimeout(LIMIT_S)

        node.directories.put(SHARE, fresh=True)

        assert is_ended(client)
        assert node.register(pod_uid=UID, container_name="app") is grpc.StatusCode.OK


def test_who_connects_and_says_nothing_or_nonsense_keeps_nobody_from_registering() -> None:
    with served() as node:
        clients = []
        try:
            for number in range(CONNECTIONS_PER_SHARE_MAX * 2):
                client = socket.socket(socket.AF_UNIX)
                client.connect(f"{node.leaf}/vcuda.sock")
                clients.append(client)
                if number % 2:
                    client.sendall(b"nonsense\r\n" * 10)

            assert node.register(pod_uid=UID, container_name="app") is grpc.StatusCode.OK
        finally:
            for client in clients:
                client.close()


def test_a_silent_connection_ends_after_a_while() -> None:
    with served() as node, socket.socket(socket.AF_UNIX) as client:
        client.settimeout(LIMIT_S)
        client.connect(f"{node.leaf}/vcuda.sock")

        assert is_ended(client)


def test_registrations_that_cannot_be_taken_are_said_once_each_time_that_it_happens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with served() as node:
        place = f"{node.leaf}/vcuda.sock"
        for times in (1, 2):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(LIMIT_S)
                with no_descriptors_left():
                    client.connect(place)
                    began_s = time.monotonic()  # long enough for more than one try
                    while caplog.text.count("be taken") < times or time.monotonic() < began_s + 3 * PAUSE_S:
                        assert time.monotonic() < began_s + LIMIT_S
                        threading.Event().wait(0.01)
                assert caplog.text.count("vcuda: registrations cannot be taken: Too many open files") == times
                client.sendall(b"nonsense\r\n" * 10)
                assert is_ended(client)
        assert node.register(pod_uid=UID, container_name="app") is grpc.StatusCode.OK


def test_a_link_in_the_place_of_the_pids_is_replaced_and_not_followed() -> None:
    with served() as node:
        canary = node.leaf.parents[1] / "canary"
        canary.write_text("alive")
        (node.leaf / "pids.config").unlink()
        (node.leaf / "pids.config").symlink_to(canary)

        assert node.register(pod_uid=UID, container_name="app") is grpc.StatusCode.OK

        assert canary.read_text() == "alive"
        assert node.pids() == sorted([7, 70, ME])


def test_processes_are_those_of_the_node() -> None:
    assert ME in vcuda_registry._all_pids()


ELSEWHERE = """
import sys
from pathlib import Path
from tests.agent.test_vcuda_registry import SHARE
from tests.sharing.enforcements import enforcement
from topoalloc.agent.share_directories import ShareDirectories
from topoalloc.agent.vcuda_registry import VcudaRegistry
run = Path(sys.argv[1])
ShareDirectories(run, enforcement("vcuda"), (VcudaRegistry(run / "shares"),)).put(SHARE, fresh=True)
print("ready", flush=True)
sys.stdin.read()
"""


def test_an_agent_that_cannot_see_the_callers_pid_refuses_and_says_what_it_needs() -> None:
    with tempfile.TemporaryDirectory(prefix="ta-", dir="/tmp") as folder:
        run = Path(folder) / "run"
        command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", ELSEWHERE, str(run)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, **pipes) as agent:  # type: ignore[call-overload]
            if agent.stdout.readline() != b"ready\n":
                pytest.skip("no PID namespaces here")
            channel = grpc.insecure_channel(f"unix:{run}/shares/{SHARE.name}/vcuda.sock")
            with channel, pytest.raises(grpc.RpcError) as refused:
                VCUDAServiceStub(channel).RegisterVDevice(VDeviceRequest(container_name="app"), timeout=LIMIT_S)

            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert "it needs hostPID" in refused.value.details()
            assert (run / "shares" / SHARE.name / "pids.config").read_bytes() == b""
