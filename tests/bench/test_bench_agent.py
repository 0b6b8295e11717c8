"""What the agent costs: from exec to every resource registered, and one container's admission over the sockets."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count

from pytest_benchmark.fixture import BenchmarkFixture

from tests.agent.served import MACHINE, agent_process, kubelet_on, node_directory, pod, serving
from topoalloc.agent.config import Config
from topoalloc.cli.simulation.rehearsal import running_node
from topoalloc.kubelet.simulated.settings import Behaviour, KubeletSettings
from topoalloc.topology.sources import load_machine


def test_from_exec_to_every_resource_registered(benchmark: BenchmarkFixture):
    def start() -> None:
        with node_directory() as sockets, kubelet_on(sockets) as kubelet, agent_process(sockets):
            assert serving(kubelet)

    benchmark.pedantic(start, rounds=5)


def test_admission_of_a_share_with_a_nic(benchmark: BenchmarkFixture):
    machine = load_machine([MACHINE], 80 * 1024**3)
    names = count()
    with ExitStack() as stack:
        behaviour = Behaviour(limits_requests=False)
        node = stack.enter_context(running_node(machine, Config(), KubeletSettings(), behaviour, 0))

        def admit() -> None:
            name = f"pod{next(names)}"
            assert node.kubelet.admit(pod(name, vgpu_core=10, vgpu_memory=8, nic=1)).admitted
            node.kubelet.finish(f"uid-{name}")
            node.kubelet.delete(f"uid-{name}")

        benchmark.pedantic(admit, rounds=200, warmup_rounds=10)
