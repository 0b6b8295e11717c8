"""`topoalloc simulate` as a command: what it prints, how it ends, what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.hash_seeds import outputs_of
from topoalloc.cli.main import main
from topoalloc.kubelet.plugin_directory import DirectoryWatch

MACHINES = Path(__file__).parent.parent / "machines"
DGX_A100 = MACHINES / "dgx-a100-epyc-nps4-10nic.topo-m.txt"
CORE, MEMORY, NIC = "topoalloc.io/vgpu-core", "topoalloc.io/vgpu-memory", "topoalloc.io/nic"
GIB = 2**30
END_LIMIT_S = 60.0


def pod_yaml(name: str, *containers: dict[str, int]) -> str:
    specs = [{"name": f"c{number}", "resources": {"limits": limits}} for number, limits in enumerate(containers)]
    return json.dumps({"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": specs}})


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A short directory of one's own, below which the command keeps its sockets."""
    with tempfile.TemporaryDirectory(prefix="tt-", dir="/tmp") as directory:
        yield Path(directory)


def pods_file(scratch: Path, *documents: str) -> str:
    file = scratch / "pods.yaml"
    file.write_text("\n---\n".join(documents))
    return str(file)


def simulated(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> dict:  # type: ignore[type-arg]
    assert main(["simulate", *arguments, "--as", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert isinstance(document, dict)
    return document


SHARE = {CORE: 30, MEMORY: 32, NIC: 1}


def test_a_configuration_with_log_level_debug_prints_what_the_kubelet_offered_and_what_was_answered(
    scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = pods_file(scratch, pod_yaml("share", SHARE))
    config = scratch / "config.yaml"
    config.write_text("log_level: debug\n")
    arguments = ["--node", str(DGX_A100), "--pods", pods, "--gpu-memory", "40GiB", "--config", str(config)]
    assert main(["simulate", *arguments]) == 0
    asked = [line for line in capsys.readouterr().err.splitlines() if ": asked " in line]
    resources = sorted(line.partition(": asked ")[2].partition(" for default/share/c0: ")[0] for line in asked)
    assert resources == sorted(SHARE)
    assert all(", must include []: answered [" in line for line in asked)


def test_a_share_and_two_whole_gpus_on_a_dgx_land_next_to_their_nics(
    scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = pods_file(scratch, pod_yaml("share", SHARE), pod_yaml("pair", {CORE: 200, NIC: 2}))
    document = simulated(
        capsys,
        ["--node", str(DGX_A100), "--pods", pods, "--policy", "single-numa-node", "--gpu-memory", "40GiB"],
    )
    assert {key: document[key] for key in ("schema", "policy", "scope", "seed")} == {
        "schema": "topoalloc.simulation/v1",
        "policy": "single-numa-node",
        "scope": "container",
        "seed": 0,
    }
    share, pair = document["pods"]
    (only,) = share["containers"]
    (gpu,) = only["gpus"]
    assert (share["admitted"], share["reason"], share["message"]) == (True, None, None)
    assert (gpu["cores"], gpu["memory_bytes"], only["init"], only["cpus"]) == (30, 8 * GIB, False, None)
    assert {name: len(ids) for name, ids in only["devices"].items()} == {CORE: 30, MEMORY: 32, NIC: 1}
    assert only["links"] == [{"a": gpu["id"], "b": only["nics"][0], "class": "PXB"}]
    (both,) = pair["containers"]
    assert [gpu["memory_bytes"] for gpu in both["gpus"]] == [40 * GIB] * 2
    assert [link["class"] for link in both["links"]] == ["NV12", "PXB", "PXB", "PXB", "PXB"]
    assert len(both["numa_nodes"]) == 1


def test_a_refused_pod_is_a_result_with_the_kubelets_words_and_what_was_lacking(
    scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = pods_file(scratch, pod_yaml("big", {CORE: 500}))
    document = simulated(capsys, ["--node", str(DGX_A100), "--pods", pods, "--policy", "single-numa-node"])
    (big,) = document["pods"]
    assert (big["admitted"], big["reason"]) == (False, "TopologyAffinityError")
    assert big["message"] == "Pod was rejected: Resources cannot be allocated with Topology locality"
    assert big["containers"] == []
    assert "200" in big["remedy"]


def test_containers_of_a_refused_pod_are_those_that_had_been_given_devices(
    scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = pods_file(scratch, pod_yaml("half", {CORE: 100}, {CORE: 150}))
    (half,) = simulated(capsys, ["--node", str(DGX_A100), "--pods", pods])["pods"]
    assert (half["admitted"], half["reason"]) == (False, "UnexpectedAdmissionError")
    assert half["message"].startswith("Pod was rejected: Allocate failed due to rpc error: code = FailedPrecondition")
    assert [one["name"] for one in half["containers"]] == ["c0"]


def test_the_same_seed_gives_the_same_bytes_in_every_process(scratch: Path) -> None:
    mixed = [pod_yaml(f"p{n}", {CORE: 10 + n, MEMORY: 8, NIC: 1} if n % 2 else {CORE: 100}) for n in range(8)]
    pods = pods_file(scratch, *mixed)
    arguments = ["--node", str(DGX_A100), "--pods", pods, "--gpu-memory", "40GiB", "--seed", "3"]
    assert len(outputs_of("-m", "topoalloc", "simulate", *arguments)) == 1


def kept_back(scratch: Path) -> str:
    config = scratch / "config.yaml"
    config.write_text("leftovers: withhold\n")
    return str(config)


@pytest.mark.parametrize("without", [(), ("--without", "pods-api")], ids=["pods told", "pods not told"])
def test_leftovers_that_are_kept_back_are_the_same_in_every_process(scratch: Path, without: tuple[str, ...]) -> None:
    amounts = [60, 30, 60, 45, 60, 100, 60, 20, 60, 35, 60, 10, 150]
    pods = pods_file(scratch, *(pod_yaml(f"p{n}", {CORE: c, MEMORY: 40}, {CORE: 7}) for n, c in enumerate(amounts)))
    arguments = ["--node", str(DGX_A100), "--pods", pods, "--gpu-memory", "40GiB", "--policy", "best-effort", *without]
    arguments += ["--config", kept_back(scratch)]
    assert len(outputs_of("-m", "topoalloc", "simulate", *arguments)) == 1


def test_pods_that_fill_more_than_half_of_a_gpu_are_spread_over_all_numa_nodes(
    scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = pods_file(scratch, *(pod_yaml(f"p{number}", {CORE: 60, MEMORY: 32}) for number in range(9)))
    arguments = ["--node", str(DGX_A100), "--pods", pods, "--gpu-memory", "40GiB", "--policy", "restricted"]
    document = simulated(capsys, [*arguments, "--config", kept_back(scratch)])
    assert [pod["admitted"] for pod in document["pods"]] == [True] * 8 + [False]
    gpus = [gpu["id"] for pod in document["pods"] for one in pod["containers"] for gpu in one["gpus"]]
    assert sorted(gpus) == [f"GPU{number}" for number in range(8)]


def test_a_kubelet_configuration_switches_the_static_cpu_manager_on(
    scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubelet = scratch / "kubelet.yaml"
    kubelet.write_text(
        "kind: KubeletConfiguration\ntopologyManagerPolicy: single-numa-node\ntopologyManagerScope: pod\n"
        "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n"
    )
    pods = pods_file(scratch, pod_yaml("g", {CORE: 100, "cpu": 2, "memory": GIB}, {"cpu": 2, "memory": GIB}))
    machine = MACHINES / "aws-p4d.24xlarge.nccl-topo.xml"
    document = simulated(capsys, ["--node", str(machine), "--pods", pods, "--kubelet-config", str(kubelet)])
    assert (document["policy"], document["scope"]) == ("single-numa-node", "pod")
    assert [one["cpus"] for one in document["pods"][0]["containers"]] == ["1-2", "3-4"]


def test_under_the_static_memory_manager_a_container_is_told_where_its_memory_is(
    scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubelet = scratch / "kubelet.yaml"
    kubelet.write_text(
        "kind: KubeletConfiguration\ntopologyManagerPolicy: single-numa-node\nmemoryManagerPolicy: Static\n"
        "reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]\n"
    )
    pods = pods_file(scratch, pod_yaml("g", {CORE: 100, "cpu": 2, "memory": GIB}), pod_yaml("shared", {CORE: 100}))
    sources = [str(MACHINES / f"asus-esc8000a-e12-4xrtx6000ada.{kind}.txt") for kind in ("topo-m", "numactl-H")]
    document = simulated(capsys, ["--node", *sources, "--pods", pods, "--kubelet-config", str(kubelet)])
    guaranteed, shared = (pod["containers"][0] for pod in document["pods"])
    assert (guaranteed["memory_nodes"], shared["memory_nodes"]) == (guaranteed["numa_nodes"], None)


def test_arguments_go_before_the_kubelet_configuration(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kubelet = scratch / "kubelet.yaml"
    kubelet.write_text("topologyManagerPolicy: restricted\ntopologyManagerScope: pod\n")
    arguments = ["--node", str(DGX_A100), "--pods", pods_file(scratch, pod_yaml("a", {})), "--kubelet-config"]
    document = simulated(capsys, [*arguments, str(kubelet), "--policy", "none"])
    assert (document["policy"], document["scope"]) == ("none", "pod")


def test_the_agents_configuration_renames_the_resources(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = scratch / "agent.yaml"
    config.write_text("resource_names: tencent\ngpu_memory: 40GiB\n")
    pods = pods_file(scratch, pod_yaml("a", {"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 4}))
    document = simulated(capsys, ["--node", str(DGX_A100), "--pods", pods, "--config", str(config)])
    (one,) = document["pods"][0]["containers"]
    assert [(gpu["cores"], gpu["memory_bytes"]) for gpu in one["gpus"]] == [(20, GIB)]


def test_a_resource_that_nobody_serves_is_admitted_without_devices_and_said(
    scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = pods_file(scratch, pod_yaml("other", {"vendor.test/gpu": 1}))
    assert main(["simulate", "--node", str(DGX_A100), "--pods", pods]) == 0
    said = capsys.readouterr()
    assert "nobody serves vendor.test/gpu on this node" in said.err
    assert "1 pod: 1 admitted, 0 refused" in said.out


@pytest.mark.parametrize("lacking", ["pods-api", "pod-resources"])
def test_on_an_older_node_without_one_of_the_interfaces_whoever_is_admitted_has_both_halves_on_one_gpu(
    scratch: Path, capsys: pytest.CaptureFixture[str], lacking: str
) -> None:
    pods = pods_file(scratch, *(pod_yaml(f"p{number}", SHARE) for number in range(4)))
    document = simulated(
        capsys, ["--node", str(DGX_A100), "--pods", pods, "--without", lacking, "--gpu-memory", "40GiB"]
    )
    shares = [pod["containers"][0]["gpus"] for pod in document["pods"] if pod["admitted"]]
    assert len(shares) >= 3
    assert all([(gpu["cores"], gpu["memory_bytes"]) for gpu in gpus] == [(30, 8 * GIB)] for gpus in shares)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--seed", "-1"], "is no whole number of 0 or more"),
        (["--policy", "numa"], "invalid choice"),
        (["--gpu-memory", "40G"], "--gpu-memory: '40G' has the unit 'G'"),
        (["--kubelet-config", "/nothing"], "/nothing: cannot be read: No such file or directory"),
        (["--pods", "/nothing"], "/nothing: cannot be read: No such file or directory"),
    ],
)
def test_bad_arguments_end_with_status_2_and_the_reason(
    scratch: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    pods = pods_file(scratch, pod_yaml("a", {}))
    command = ["simulate", "--node", str(DGX_A100), "--pods", pods, *arguments]
    try:
        status: object = main(command)
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert expected in capsys.readouterr().err.splitlines()[-1]


def test_a_fault_in_the_pods_is_one_line_and_status_2(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pods = pods_file(scratch, "kind: Pod\n\tmetadata: x")
    assert main(["simulate", "--node", str(DGX_A100), "--pods", pods]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"topoalloc simulate: {pods}: document 1: line 2, column 1: a tab cannot indent YAML: use spaces"


def test_a_machine_with_too_many_nodes_for_the_policy_is_refused_as_the_kubelet_would(
    scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubelet = scratch / "kubelet.yaml"
    kubelet.write_text('topologyManagerPolicyOptions: {max-allowable-numa-nodes: "7"}\n')
    pods = pods_file(scratch, pod_yaml("a", {}))
    command = ["simulate", "--node", str(DGX_A100), "--pods", pods, "--policy", "restricted"]
    assert main([*command, "--kubelet-config", str(kubelet)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "max-allowable-numa-nodes" in line


def command(scratch: Path, pods: str) -> list[str]:
    return [sys.executable, "-m", "topoalloc", "simulate", "--node", str(DGX_A100), "--pods", pods]


def left_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.name != "pods.yaml"]


def test_nothing_is_left_behind_after_success(scratch: Path) -> None:
    pods = pods_file(scratch, pod_yaml("a", {CORE: 100}))
    environment = {**os.environ, "TMPDIR": str(scratch)}
    done = subprocess.run(
        command(scratch, pods), env=environment, capture_output=True, timeout=END_LIMIT_S, check=False
    )
    assert (done.returncode, left_in(scratch)) == (0, [])


def wait_for_file(root: Path, pattern: str) -> None:
    """Wait for a file whose directory is there already."""
    (directory,) = root.glob(str(Path(pattern).parent)) if "/" in pattern else (root,)
    watch = DirectoryWatch(directory)
    watch.wait(0)  # from here on nothing is missed
    end_s = time.monotonic() + END_LIMIT_S
    while not list(root.glob(pattern)):
        assert time.monotonic() < end_s, f"{pattern} was never there"
        watch.wait(END_LIMIT_S)
    watch.close()


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_nothing_is_left_behind_after_an_interruption(scratch: Path, sent: signal.Signals, status: int) -> None:
    many = json.dumps(
        {
            "kind": "Deployment",
            "metadata": {"name": "many"},
            "spec": {
                "replicas": 1000,
                "template": {"spec": {"containers": [{"name": "c", "resources": {"limits": {CORE: 1}}}]}},
            },
        }
    )
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen(
        command(scratch, pods_file(scratch, many)),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background ignores interrupts, and a child inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - no threads here
    ) as running:
        try:
            for pattern in ("topoalloc-*", "topoalloc-*/device-plugins", "topoalloc-*/device-plugins/kubelet.sock"):
                wait_for_file(scratch, pattern)
            running.send_signal(sent)
            out, err = running.communicate(timeout=END_LIMIT_S)
        finally:
            running.kill()
    assert "Traceback" not in err
    assert (running.returncode, out, left_in(scratch)) == (status, "", [])
