"""Shares under the real kubelet and containerd: containers on one GPU keep to their limits, and what a tenant tries
against that leads nowhere.

The GPU is a recorded machine's; in its place is the fake driver of tests/shim, one device for all containers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.namespaces import wait_for
from tests.e2e.deployment import Deployment
from tests.e2e.judge import faults
from tests.e2e.pods import create, delete, verdict
from tests.e2e.tenants import PROGRAMS, UNIT_BYTES, VERIFY, GpuNode, Share, ended, restarts_of_agent, said
from tests.e2e.workloads import CORE, MEMORY
from tests.shim.container import CONTEXT_BYTES, MARGIN_BYTES, MIB

MACHINE, GPU_MEMORY = "h100-pcie-kvm-1gpu-1nic.topo-m.txt", "16GiB"
METRICS_PORT = 9400
PIECE = "64M"
PIECE_BYTES = 64 * MIB
KERNEL_NS = "1000000"
SECONDS = 2.0
TURNS_S = 5.0
WORDS_OF = "import struct, sys; print(*struct.unpack('=QQQ', open('/etc/topoalloc/' + sys.argv[1], 'rb').read())[1:])"
POINTS = 20  # permille either way
BELOW = 45  # the made-up device takes a tenth of a slice to change contexts, more often on a busy machine
BELOW_IN_TURNS = 30  # it seldom changes then
SEEN_S = 15.0
GONE_S = 45.0  # the agent lists settled pods every 15 s, and the list may come just before the end
TENANTS = {"alice/c": Share(30, 16), "bob/c": Share(40, 20), "pair/one": Share(10, 8), "pair/two": Share(10, 8)}
SPARE = Share(10, 8)  # what the others leave
READ_ONLY = {"EROFS", "EBUSY", "EXDEV", "EPERM", "EACCES", "EEXIST"}  # EBUSY: a mount point

Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def cluster(images: tuple[Path, ...]) -> Iterator[Cluster]:
    with Cluster(MACHINE, "best-effort", gpu_memory=GPU_MEMORY, images=images) as made:
        yield made


@pytest.fixture(scope="module")
def deployment(cluster: Cluster) -> Deployment:
    config = {"shim": "builtin", "metrics": f"127.0.0.1:{METRICS_PORT}", "context": f"{CONTEXT_BYTES // MIB}MiB"}
    made = Deployment(cluster, config, patch={"template": {"spec": {"hostPID": True}}})
    made.apply()
    made.wait_registered()
    return made


@pytest.fixture(scope="module")
def gpu(cluster: Cluster, deployment: Deployment) -> GpuNode:
    """The node with the tenants on its one GPU: two pods, and one with two containers."""
    made = GpuNode(cluster)
    pods: dict[str, dict[str, Share]] = {}
    for where, share in TENANTS.items():
        name, _, container = where.partition("/")
        pods.setdefault(name, {})[container] = share
    create(cluster, *(made.pod(name, shares) for name, shares in pods.items()))
    made.wait_running(*pods)
    return made


@contextmanager
def guest(gpu: GpuNode, name: str, *command: str, restarts: bool = False) -> Iterator[str]:
    """A pod with the share that is left, for one test."""
    create(gpu.cluster, gpu.pod(name, {"c": SPARE}, command or ("sleep", "infinity"), restarts=restarts))
    gpu.wait_running(name)
    try:
        yield f"{name}/c"
    finally:
        delete(gpu.cluster, name)
        gpu.cluster.kubectl("wait", "--for=delete", f"pod/{name}", "--timeout=60s")


def fills(gpu: GpuNode, where: str, *before: str) -> dict[str, int]:
    """What a program gets that takes memory until it is refused; `before` comes before it on its command line."""
    return gpu.run(where, *before, f"{PROGRAMS}/memory", "linked", "plain", PIECE).facts


def is_whole_share(facts: dict[str, int], share: Share) -> bool:
    """Refused, at the limit: nothing beyond it was taken, and nearly all of it was."""
    least = share.memory_bytes - UNIT_BYTES - MARGIN_BYTES
    return facts["error"] == 2 and least <= facts["taken"] <= share.memory_bytes


def holds(gpu: GpuNode, where: str) -> subprocess.Popen[str]:
    return gpu.start(where, f"{PROGRAMS}/memory", "linked", "hold", PIECE)


def launches(gpu: GpuNode, where: str, seconds: float = SECONDS) -> subprocess.Popen[str]:
    return gpu.start(where, f"{PROGRAMS}/launches", "linked", "plain", KERNEL_NS, str(seconds))


def words(gpu: GpuNode, where: str, file: str) -> list[int]:
    """What the agent says in a file of the share, and since when that is so."""
    return [int(word) for word in gpu.run(where, "python3", "-c", WORDS_OF, file).output.split()]


def is_near(facts: dict[str, int], cores: int, below: int = BELOW) -> bool:
    """Never above the share; below it by the time the program was kept from running, and that contexts took."""
    least = cores * 10 * (1000 - facts["starved_permille"]) // 1000
    return least - below <= facts["permille"] <= cores * 10 + POINTS


# -- limits


def test_containers_on_one_gpu_each_see_their_own_share_of_it(gpu: GpuNode) -> None:
    assert faults(gpu.cluster, gpu.node) == []
    for where, share in TENANTS.items():
        facts = gpu.run(where, f"{PROGRAMS}/reports", "linked").facts
        shown = {facts[key] for key in ("total", "device_total", "nvml_total", "nvml_total_v2")}
        assert shown == {share.memory_bytes}, (where, facts)
        assert facts["free"] <= share.memory_bytes - CONTEXT_BYTES


def test_all_take_what_they_can_at_once_and_each_gets_its_own_limit_and_no_byte_more(
    gpu: GpuNode, record_property: Record
) -> None:
    running = {where: holds(gpu, where) for where in TENANTS}
    held = {where: said(process, "held") for where, process in running.items()}
    contexts = len(TENANTS) * CONTEXT_BYTES
    taken, _, _ = gpu.truth()
    shown = gpu.top()
    for process in running.values():
        ended(process)

    for where, share in TENANTS.items():
        room = share.memory_bytes - CONTEXT_BYTES
        assert room - UNIT_BYTES - MARGIN_BYTES <= held[where] <= room, where
        usage, limits = shown[where]["usage"], shown[where]["limits"]
        assert (limits["memory_bytes"], limits["cores_percent"]) == (share.memory_bytes, share.cores)
        assert held[where] <= usage["explicit_bytes"] <= share.memory_bytes
        assert (usage["processes"], usage["refused"] > 0) == (1, True)
    assert taken == sum(held.values()) + contexts
    assert gpu.truth()[0] == 0
    figures = {where: f"{held[where] // MIB} of {share.memory_bytes // MIB} MiB" for where, share in TENANTS.items()}
    record_property("held at once beside a context each", figures)


def test_two_containers_that_compute_at_once_get_each_its_own_part_of_the_time(
    gpu: GpuNode, record_property: Record
) -> None:
    asked = {"alice/c": 30, "bob/c": 40}
    running = {where: launches(gpu, where) for where in asked}
    facts = {where: ended(process).facts for where, process in running.items()}

    record_property("GPU time of 30 and 40 % at once, permille", {where: facts[where]["permille"] for where in asked})
    assert all(is_near(facts[where], cores) for where, cores in asked.items()), facts


def test_containers_that_want_most_of_a_gpu_take_turns_on_it_and_have_no_less(
    gpu: GpuNode, record_property: Record
) -> None:
    asked = {"alice/c": 30, "bob/c": 40, "pair/one": 10}
    running = {where: launches(gpu, where, TURNS_S) for where in asked}
    deadline_s = time.monotonic() + TURNS_S
    turns = dict.fromkeys(asked, 0)
    while not all(turns.values()) and time.monotonic() < deadline_s:
        turns = {where: words(gpu, where, "turn")[0] for where in asked}
    facts = {where: ended(process).facts for where, process in running.items()}

    record_property(
        "GPU time of 30, 40 and 10 % in turns, permille", {where: facts[where]["permille"] for where in asked}
    )
    begins = sorted(turn >> 32 for turn in turns.values())
    assert (begins[0], len(set(begins))) == (0, 3), turns
    assert all(is_near(facts[where], cores, BELOW_IN_TURNS) for where, cores in asked.items()), facts


def test_each_container_is_told_what_its_neighbours_took(gpu: GpuNode) -> None:
    def told() -> bool:
        cores, seen_at_ns = words(gpu, "alice/c", "neighbours")
        return 0 <= cores <= 10_000 and seen_at_ns > 0

    wait_for(told, SEEN_S, "alice is told of its neighbours")


def test_two_containers_of_one_pod_compute_within_their_own_parts(gpu: GpuNode) -> None:
    asked = {"pair/one": 10, "pair/two": 10}
    running = {where: launches(gpu, where) for where in asked}
    facts = {where: ended(process).facts for where, process in running.items()}

    assert all(is_near(facts[where], cores) for where, cores in asked.items()), facts


def test_verify_finds_every_limit_active_inside_and_top_shows_both_tenants(gpu: GpuNode) -> None:
    for command in (("topoalloc", "verify"), (VERIFY,)):
        done = gpu.run("alice/c", *command)
        assert "PASS usage" in done.output
        assert "FAIL" not in done.output
    table = gpu.in_agent("topoalloc", "top", "--once", "--interval", "0.2")
    print(table)
    for where, share in TENANTS.items():
        (line,) = (line for line in table.splitlines() if f"default/{where}" in line)
        assert f"{share.memory_bytes // MIB}MiB" in line.split()


# -- attacks


def test_a_tenant_that_clears_its_environment_keeps_its_limit(gpu: GpuNode) -> None:
    share = TENANTS["alice/c"]
    for before in (("env", "-i"), ("env", "LD_PRELOAD="), ("env", "-u", "LD_PRELOAD"), ("sh", "-c", 'exec "$@"', "sh")):
        assert is_whole_share(fills(gpu, "alice/c", *before), share), before


def test_a_share_of_the_tenants_own_making_is_not_read(gpu: GpuNode) -> None:
    folder = gpu.attack("alice/c", "own_share")["made"]
    share = TENANTS["alice/c"]

    assert is_whole_share(fills(gpu, "alice/c", "env", f"TOPOALLOC_SHARE_DIR={folder}"), share)


def test_nothing_that_holds_a_limit_can_be_written_replaced_renamed_removed_or_unmounted(gpu: GpuNode) -> None:
    before = contents(gpu.share_of("alice"))
    found = gpu.attack("alice/c", "files")
    assert set(found.values()) <= READ_ONLY, found
    assert {found[key] for key in found if key.startswith(("write", "truncate", "chmod"))} == {"EROFS"}
    assert contents(gpu.share_of("alice")) == before
    assert is_whole_share(fills(gpu, "alice/c"), TENANTS["alice/c"])


def contents(leaf: Path) -> dict[str, tuple[int, bytes]]:
    return {name: ((leaf / name).stat().st_ino, (leaf / name).read_bytes()) for name in ("share", "ld.so.preload")}


def test_links_cannot_be_planted_where_the_agent_writes(gpu: GpuNode) -> None:
    leaf = gpu.share_of("alice")
    names = sorted(path.name for path in leaf.iterdir())

    found = gpu.attack("alice/c", "links")

    assert set(found.values()) <= READ_ONLY, found
    assert sorted(path.name for path in leaf.iterdir()) == names
    assert not any(path.is_symlink() for path in leaf.iterdir())


def test_a_tenant_sees_its_own_socket_and_no_other_and_none_of_the_agents_folders(gpu: GpuNode) -> None:
    found = gpu.attack("alice/c", "sockets")

    assert found == {"sockets": ["/etc/topoalloc/agent.sock"], "folders": []}


def test_whatever_a_tenant_says_at_its_socket_it_is_asked_for_itself_alone(
    gpu: GpuNode, deployment: Deployment
) -> None:
    """There is no request that names a process, a container or a figure: all but `measure` ends the connection."""
    agent = deployment.agent_pid(gpu.node)
    before = gpu.metrics(METRICS_PORT)['topoalloc_agent_socket_total{outcome="refused"}']

    found = gpu.attack("alice/c", "forge")

    honest = found.pop("honest")
    assert honest == "unknown"  # a recorded machine has no driver that the agent could ask
    assert found.pop("bind") == "EADDRINUSE"
    assert found.pop("another's credentials") in {"done", "EPERM"}
    assert set(found.values()) == {"closed"}
    refused = 'topoalloc_agent_socket_total{outcome="refused"}'
    wait_for(lambda: gpu.metrics(METRICS_PORT)[refused] >= before + len(found), SEEN_S, "refusals counted", 0.5)
    assert gpu.metrics(METRICS_PORT)['topoalloc_agent_socket_total{outcome="foreign"}'] == 0
    assert deployment.agent_pid(gpu.node) == agent


def test_a_tenant_that_floods_its_socket_keeps_no_other_waiting(
    gpu: GpuNode, deployment: Deployment, record_property: Record
) -> None:
    agent = deployment.agent_pid(gpu.node)
    flood = gpu.start("alice/c", "python3", f"{PROGRAMS}/attacks.py", "flood", "4")
    paused = 'topoalloc_agent_socket_total{outcome="paused"}'
    wait_for(lambda: gpu.metrics(METRICS_PORT)[paused] > 0, SEEN_S, "the flood is held back", 0.2)
    found = gpu.attack("bob/c", "waits", "20")
    sent = ended(flood).output.strip()

    record_property("another tenant's question during a flood, ms at most", found["longest_ms"])
    assert found["answers"] == ["unknown"], sent
    assert found["longest_ms"] < 1000
    assert deployment.agent_pid(gpu.node) == agent


@pytest.mark.parametrize("damage", ["truncate", "scribble"])
def test_a_tenant_that_destroys_its_account_harms_itself_alone_and_it_shows(
    gpu: GpuNode, deployment: Deployment, damage: str
) -> None:
    agent, share = deployment.agent_pid(gpu.node), TENANTS["bob/c"]
    with guest(gpu, f"vandal-{damage}") as vandal:
        other = holds(gpu, "bob/c")
        held = said(other, "held")
        gpu.attack(vandal, damage)
        # Without an account the library refuses memory rather than give it uncounted.
        after = gpu.run(vandal, f"{PROGRAMS}/memory", "linked", "plain", PIECE, check=False)
        assert after.facts.get("taken", 0) <= SPARE.memory_bytes, after
        print(f"after {damage}: {after.status}, {after.facts}")
        assert "unreadable" in gpu.top()[vandal]
        readable = f'topoalloc_share_usage_readable{{share="{gpu.share_of(vandal).name}"'
        seen = lambda: [v for k, v in gpu.metrics(METRICS_PORT).items() if k.startswith(readable)]  # noqa: E731
        wait_for(lambda: seen() == [0.0], SEEN_S, "the metric tells", 0.5)

        assert gpu.truth()[0] == held + CONTEXT_BYTES
        ended(other)
        assert is_whole_share(fills(gpu, "bob/c"), share)
    assert deployment.agent_pid(gpu.node) == agent


# -- life and death


def test_a_pod_that_asks_for_more_than_is_left_is_refused_in_words_that_its_user_reads(gpu: GpuNode) -> None:
    left_cores = 100 - sum(share.cores for share in TENANTS.values())
    left_units = 64 - sum(share.units for share in TENANTS.values())
    for number, (share, resource) in enumerate([(Share(left_cores + 1, 1), CORE), (Share(1, left_units + 1), MEMORY)]):
        create(gpu.cluster, gpu.pod(f"greedy-{number}", {"c": share}))
        seen = verdict(gpu.cluster, f"greedy-{number}")
        print(seen)
        assert not seen.admitted
        assert resource in f"{seen.reason} {seen.message}"
        delete(gpu.cluster, f"greedy-{number}")


def test_a_process_killed_in_the_middle_gives_back_what_it_held(gpu: GpuNode) -> None:
    process = holds(gpu, "alice/c")
    said(process, "held")
    assert gpu.attack("alice/c", "kill", "memory") == {"killed": 1}
    ended(process, check=False)

    assert gpu.truth()[0] == 0
    assert is_whole_share(fills(gpu, "alice/c"), TENANTS["alice/c"])


def test_a_container_killed_gives_its_share_to_the_next_and_its_directory_goes(gpu: GpuNode) -> None:
    before = {path.name for path in gpu.shares.iterdir()}
    with guest(gpu, "killed"):
        leaf = gpu.share_of("killed")
        inode = leaf.stat().st_ino
        gpu.kill_container("killed")
        wait_for(lambda: gpu.cluster.get("pod", "killed")["status"]["phase"] == "Failed", SEEN_S, "the pod ended", 0.2)
        with guest(gpu, "next") as where:  # there is room for one of them
            assert gpu.share_of("next").stat().st_ino != inode
            assert is_whole_share(fills(gpu, where), SPARE)
    wait_for(lambda: {path.name for path in gpu.shares.iterdir()} == before, GONE_S, "the directories gone", 0.2)


def test_a_container_that_the_kubelet_restarts_keeps_its_share_and_directory(gpu: GpuNode) -> None:
    with guest(gpu, "again", restarts=True) as where:
        leaf = gpu.share_of("again")
        before = contents(leaf), leaf.stat().st_ino
        gpu.kill_container("again")
        gpu.wait_running("again", restarts=1)

        assert (contents(leaf), leaf.stat().st_ino) == before
        assert is_whole_share(fills(gpu, where), SPARE)


def test_the_agent_killed_under_load_changes_nothing(
    gpu: GpuNode, deployment: Deployment, record_property: Record
) -> None:
    leaves = {where: gpu.share_of(where) for where in TENANTS}
    before = {
        where: (leaf.stat().st_ino, (leaf / "usage").stat().st_ino, contents(leaf)) for where, leaf in leaves.items()
    }
    holding = holds(gpu, "alice/c")
    held = said(holding, "held")
    computing = launches(gpu, "bob/c", 4.0)
    agent = deployment.wait_agent(gpu.node)
    began_s = time.monotonic()
    os.kill(agent, signal.SIGKILL)
    deployment.wait_agent(gpu.node, other_than=agent)
    facts = ended(computing).facts
    deployment.wait_registered(gpu.node)
    record_property("agent back after kill -9, seconds", round(time.monotonic() - began_s, 1))

    assert gpu.truth()[0] == held + CONTEXT_BYTES
    assert is_near(facts, 40), facts
    refused = fills(gpu, "alice/c")  # a second process finds the rest of its container's share taken
    assert refused.get("taken", 0) + held + CONTEXT_BYTES <= TENANTS["alice/c"].memory_bytes
    ended(holding)
    after = {
        where: (leaf.stat().st_ino, (leaf / "usage").stat().st_ino, contents(leaf)) for where, leaf in leaves.items()
    }
    assert after == before
    assert is_whole_share(fills(gpu, "alice/c"), TENANTS["alice/c"])
    wait_for(lambda: gpu.attack("bob/c", "waits", "1")["answers"] == ["unknown"], SEEN_S, "its sockets answer", 0.5)
    assert restarts_of_agent(deployment) == 1
