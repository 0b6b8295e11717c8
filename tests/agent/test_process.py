"""The agent as a process: it registers, follows the kubelet, remembers through kill -9 and goes away cleanly."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from tests.agent.served import LIMIT_S, MACHINE, agent_process, gone, kubelet_on, node_directory, pod, serving
from topoalloc.agent import process
from topoalloc.kubelet.simulated.kubelet import SimulatedKubelet
from topoalloc.kubelet.simulated.settings import Behaviour

CORE = "topoalloc.io/vgpu-core"


def ours(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("topoalloc-*.sock"))


def test_every_resource_is_registered_on_a_socket_of_its_own():
    with node_directory() as sockets, kubelet_on(sockets) as kubelet, agent_process(sockets):
        assert serving(kubelet)

        assert len(ours(sockets.plugin_directory)) == 3


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_end_gives_status_0_and_removes_our_sockets(signum: signal.Signals):
    with node_directory() as sockets, kubelet_on(sockets) as kubelet, agent_process(sockets) as agent:
        assert serving(kubelet)

        assert agent.end(signum) == 0
        assert ours(sockets.plugin_directory) == []


def test_an_agent_started_before_the_kubelet_waits_for_it():
    with node_directory() as sockets, agent_process(sockets) as agent:
        agent.wait_for_words("waiting for the kubelet")
        with kubelet_on(sockets) as kubelet:
            assert serving(kubelet)


def test_a_restarted_kubelet_gets_every_resource_again_on_new_sockets():
    with node_directory() as sockets, kubelet_on(sockets) as kubelet, agent_process(sockets):
        assert serving(kubelet)
        before = ours(sockets.plugin_directory)

        kubelet.restart()

        assert serving(kubelet)
        assert set(before).isdisjoint(ours(sockets.plugin_directory))


def test_a_kubelet_restarted_many_times_is_followed_every_time():
    with node_directory() as sockets, kubelet_on(sockets) as kubelet, agent_process(sockets):
        for _ in range(5):
            kubelet.restart()
            assert serving(kubelet)
        assert kubelet.admit(pod("a", vgpu_core=100, nic=1)).admitted


def test_sockets_of_a_killed_agent_are_removed_and_foreign_ones_are_not():
    with node_directory() as sockets, kubelet_on(sockets) as kubelet:
        other = socket.socket(socket.AF_UNIX)
        other.bind(str(sockets.plugin_directory / "other.sock"))
        with agent_process(sockets) as agent:
            assert serving(kubelet)
            dead = ours(sockets.plugin_directory)
            agent.end(signal.SIGKILL)
            assert ours(sockets.plugin_directory) == dead
            assert gone(kubelet)
        with agent_process(sockets):
            assert serving(kubelet)

            assert set(dead).isdisjoint(ours(sockets.plugin_directory))
        assert (sockets.plugin_directory / "other.sock").exists()
        other.close()


def test_what_running_pods_hold_is_remembered_through_kill_9():
    with node_directory() as sockets, kubelet_on(sockets) as kubelet:
        with agent_process(sockets) as agent:
            assert serving(kubelet)
            first = kubelet.admit(pod("first", vgpu_core=700))
            assert first.admitted
            agent.end(signal.SIGKILL)
            assert gone(kubelet)
        with agent_process(sockets):
            assert serving(kubelet)

            # Memory of all eight GPUs looks free to the kubelet, but seven are held whole.
            shares = [kubelet.admit(pod(f"share{n}", vgpu_core=10, vgpu_memory=32)) for n in range(3)]

            assert all(share.admitted for share in shares)
            held = {i.rpartition("-")[0] for ids in first.devices.values() for i in ids}
            used = {i.rpartition("-")[0] for share in shares for ids in share.devices.values() for i in ids}
            assert held.isdisjoint(used)
            assert len(used) == 1


def test_without_pod_resources_it_runs_and_warns():
    behaviour = Behaviour(pods_api=False, pod_resources=False)
    with node_directory() as sockets, kubelet_on(sockets, behaviour) as kubelet, agent_process(sockets) as agent:
        assert serving(kubelet)
        assert "PodResources cannot be asked" in agent.wait_for_words("PodResources cannot be asked")

        assert kubelet.admit(pod("a", vgpu_core=30, vgpu_memory=8)).admitted


def test_a_refusal_reaches_the_user_with_our_words():
    with node_directory() as sockets, kubelet_on(sockets) as kubelet, agent_process(sockets):
        assert serving(kubelet)

        refusal = kubelet.admit(pod("a", vgpu_core=150)).refusal

        assert refusal is not None
        assert "150 is neither a share of one GPU (1 to 99) nor whole GPUs" in refusal.message


def put_in_place(path: Path, text: str) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.replace(path)


def without_gpu(nccl_xml: str, address: str) -> str:
    return "".join(line for line in nccl_xml.splitlines(keepends=True) if f'busid="{address}"' not in line)


def healthy_cores(kubelet: SimulatedKubelet, count: int) -> bool:
    """Wait until so many cores are healthy; never are there fewer ids than 800, healthy or not."""
    return kubelet.devices.wait_until(
        lambda listed: (len(listed[CORE].nodes), len(listed[CORE].healthy)) == (800, count), LIMIT_S
    )


def test_a_gpu_that_goes_from_the_recording_and_comes_back_changes_what_is_healthy_and_no_pod(tmp_path: Path):
    recording = tmp_path / "machine.xml"
    whole = Path(MACHINE).read_text()
    put_in_place(recording, whole)
    with (
        node_directory() as sockets,
        kubelet_on(sockets) as kubelet,
        agent_process(sockets, machine=str(recording)) as agent,
    ):
        assert serving(kubelet)
        assert kubelet.admit(pod("a", vgpu_core=800)).admitted
        answers = kubelet.devices.answers()

        put_in_place(recording, without_gpu(whole, "0001:00:00.0"))
        assert healthy_cores(kubelet, 700)
        agent.wait_for_words("0001:00:00.0 is out of order: it is not there")
        put_in_place(recording, "<system")
        agent.wait_for_words("the devices stay as they were")
        put_in_place(recording, whole)
        assert healthy_cores(kubelet, 800)

        agent.wait_for_words("0001:00:00.0 is in order again")
        assert kubelet.devices.answers() == answers


def test_a_gpu_that_is_out_of_order_is_given_to_nobody(tmp_path: Path):
    recording = tmp_path / "machine.xml"
    whole = Path(MACHINE).read_text()
    put_in_place(recording, whole)
    with (
        node_directory() as sockets,
        kubelet_on(sockets) as kubelet,
        agent_process(sockets, machine=str(recording)),
    ):
        assert serving(kubelet)
        put_in_place(recording, without_gpu(whole, "0001:00:00.0"))
        assert healthy_cores(kubelet, 700)

        given = kubelet.admit(pod("a", vgpu_core=700))

        assert given.admitted
        assert not any(one.startswith("0001:00:00.0") for ids in given.devices.values() for one in ids)
        assert not kubelet.admit(pod("b", vgpu_core=100)).admitted


def test_a_thread_that_meets_the_end_of_the_interpreter_ends_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[str] = []

    def at_the_end() -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    process._watched(at_the_end, lambda: failures.append("failed"))()

    assert (failures, caplog.text) == ([], "")
