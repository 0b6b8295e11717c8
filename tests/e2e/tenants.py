"""Containers with shares of one GPU that is not there: the fake driver of tests/shim in the place of NVIDIA's, put into
containers as NVIDIA's runtime puts the real one, and one device state that all of them use."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.cluster.binaries import binary
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.namespaces import wait_for
from tests.e2e.deployment import IMAGE, NAMESPACE, Deployment
from tests.e2e.pod_resources import PodResourcesOf
from tests.e2e.pods import all_pods
from tests.e2e.workloads import CORE, MEMORY, pod
from tests.shim.built import HERE, PROGRAM_SOURCES, ran
from tests.shim.container import facts_of

LIBRARIES = f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"
PROGRAMS, DEVICE = "/opt/programs", "/fake-gpu"
VERIFY = "/usr/local/lib/topoalloc/topoalloc-verify"  # the agent's, in every container with a share
STATE = f"{DEVICE}/state"
UNIT_BYTES = 256 << 20
EXEC_S = 90.0
RUNNING_S = 60.0
ATTACKS = Path(__file__).with_name("attacks.py")
DRIVER_FILES = {"cuda": "libcuda.so.1", "nvml": "libnvidia-ml.so.1"}


@dataclass(frozen=True)
class Ran:
    """What a program in a container said and how it ended."""

    status: int
    output: str
    complaints: str

    @property
    def facts(self) -> dict[str, int]:
        return facts_of(self.output)


@dataclass(frozen=True)
class Share:
    cores: int
    units: int

    @property
    def memory_bytes(self) -> int:
        return self.units * UNIT_BYTES

    @property
    def limits(self) -> dict[str, int | str]:
        return {CORE: self.cores, MEMORY: self.units}


class GpuNode:
    """The node's side of it: driver, programs and device below the node's folder."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.node = cluster, cluster.nodes[0]
        self.folder = self.node.base / "gpu"
        self.driver, self.programs, self.device = (self.folder / name for name in ("driver", "programs", "device"))
        self.device.mkdir(parents=True)
        ran("make", "-s", "-C", str(HERE / "fake_driver"), f"OUT={self.driver}")
        ran("make", "-s", "-C", str(PROGRAM_SOURCES), f"DRIVER={self.driver}", f"OUT={self.programs}")
        (self.programs / "attacks.py").write_bytes(ATTACKS.read_bytes())
        for folder in (self.device, self.programs, self.folder):
            folder.chmod(0o755)

    # -- pods

    def pod(
        self,
        name: str,
        shares: Mapping[str, Share],
        command: Sequence[str] = ("sleep", "infinity"),
        *,
        restarts: bool = False,
    ) -> dict[str, Any]:
        """A pod with a container for each share."""
        mounts = [*self.driver_mounts(), {"name": "programs", "mountPath": PROGRAMS, "readOnly": True}]
        containers = [
            {
                "name": container,
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "command": list(command),
                "env": [{"name": "FAKE_GPU_STATE", "value": STATE}],
                "resources": {"limits": {key: str(value) for key, value in share.limits.items()}},
                "volumeMounts": mounts,
            }
            for container, share in shares.items()
        ]
        made = pod(name, containers)
        made["spec"] |= {"hostNetwork": False, "volumes": [*self.driver_volumes(), self._folder("programs")]}
        made["spec"]["restartPolicy"] = "Always" if restarts else "Never"
        return made

    def _folder(self, name: str) -> dict[str, Any]:
        return {"name": name, "hostPath": {"path": str(self.folder / name), "type": "Directory"}}

    def driver_volumes(self) -> list[dict[str, Any]]:
        files = [
            {"name": name, "hostPath": {"path": str(self.driver / file), "type": "File"}}
            for name, file in DRIVER_FILES.items()
        ]
        return [*files, self._folder("device")]

    def driver_mounts(self) -> list[dict[str, Any]]:
        files = [
            {"name": name, "mountPath": f"{LIBRARIES}/{file}", "readOnly": True} for name, file in DRIVER_FILES.items()
        ]
        return [*files, {"name": "device", "mountPath": DEVICE}]

    def wait_running(self, *names: str, restarts: int = 0) -> None:
        def is_running(item: Mapping[str, Any] | None) -> bool:
            statuses = (item or {}).get("status", {}).get("containerStatuses", [])
            return bool(statuses) and all(
                "running" in status["state"] and status["restartCount"] >= restarts for status in statuses
            )

        def all_running() -> bool:
            there = all_pods(self.cluster)
            return all(is_running(there.get(name)) for name in names)

        wait_for(all_running, RUNNING_S, f"{', '.join(names)} running", 0.1)

    def pod_uid(self, name: str) -> str:
        return str(all_pods(self.cluster)[name]["metadata"]["uid"])

    # -- programs in containers

    def _exec(self, target: Sequence[str], words: Sequence[str]) -> list[str]:
        configuration = str(self.cluster.control_plane.kubeconfig)
        return [str(binary("kubectl")), "--kubeconfig", configuration, "exec", "-i", *target, "--", *words]

    def start(self, where: str, *words: str) -> subprocess.Popen[str]:
        """A program in a container over kubectl exec; `where` is POD or POD/CONTAINER."""
        name, _, container = where.partition("/")
        target = [name, *(["-c", container] if container else [])]
        return subprocess.Popen(
            self._exec(target, words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, where: str, *words: str, check: bool = True) -> Ran:
        return ended(self.start(where, *words), check=check)

    def attack(self, where: str, verb: str, *words: str) -> dict[str, Any]:
        """What a verb of attacks.py met with in a container."""
        output = self.run(where, "python3", f"{PROGRAMS}/attacks.py", verb, *words).output
        return dict(json.loads(output.splitlines()[-1]))

    # -- the agent

    def in_agent(self, *words: str) -> str:
        """The output of a program in the agent's container."""
        target = ["-n", NAMESPACE, "daemonset/topoalloc", "-c", "agent"]
        done = subprocess.run(
            self._exec(target, words),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=EXEC_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def top(self, interval_s: float = 0.2) -> dict[str, dict[str, Any]]:
        """What `topoalloc top` shows on the node, by POD/CONTAINER (by share where the owner is not known)."""
        text = self.in_agent("topoalloc", "top", "--once", "--as", "json", "--interval", str(interval_s))
        shares = json.loads(text)["shares"]
        return {f"{s['owner']['pod']}/{s['owner']['container']}" if "owner" in s else s["share"]: s for s in shares}

    def metrics(self, port: int) -> dict[str, float]:
        """Name and labels of each metric with its value."""
        ask = f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:{port}/metrics').read().decode())"
        lines = self.in_agent("python3", "-c", ask).splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    # -- the node's files

    @property
    def shares(self) -> Path:
        """The directories of shares, as this machine sees them."""
        return Path(f"/proc/{self.node.room.holder}/root/run/topoalloc/shares")

    def share_of(self, where: str) -> Path:
        """The directory of a container's share, by the ids that the kubelet recorded for it."""
        name, _, container = where.partition("/")
        held = PodResourcesOf(self.node.pod_resources).listed()
        (devices,) = (one.devices for (pod, other), one in held.items() if pod == name and container in ("", other))
        return self.shares / min(devices[CORE]).lower()

    def truth(self) -> tuple[int, int, int]:
        """Bytes taken, managed, and nanoseconds busy of the whole device, asked past any limiter."""
        done = subprocess.run(
            [str(self.programs / "truth")],
            env={"FAKE_GPU_STATE": str(self.device / "state"), "LD_LIBRARY_PATH": str(self.driver)},
            input="0\n",
            capture_output=True,
            text=True,
            timeout=EXEC_S,
            check=True,
        )
        taken, managed, busy = done.stdout.split()
        return int(taken), int(managed), int(busy)

    def container_id(self, where: str) -> str:
        """What the runtime calls a container."""
        name, _, container = where.partition("/")
        statuses = all_pods(self.cluster)[name]["status"]["containerStatuses"]
        (identity,) = (
            status["containerID"].rpartition("/")[2] for status in statuses if container in ("", status["name"])
        )
        return str(identity)

    def kill_container(self, where: str) -> None:
        """SIGKILL to the first process of a container, as the kernel does when it is out of memory."""
        self.node.ctr("tasks", "kill", "--signal", "SIGKILL", self.container_id(where))


def ended(process: subprocess.Popen[str], *, check: bool = True) -> Ran:
    """Closes the program's standard input and waits for its end."""
    output, complaints = process.communicate(timeout=EXEC_S)
    assert not check or process.returncode == 0, f"{process.args!r}: {process.returncode}\n{output}{complaints}"
    return Ran(process.returncode, output, complaints)


def said(process: subprocess.Popen[str], key: str) -> int:
    """The value of the first line `key=value`."""
    assert process.stdout is not None
    for line in process.stdout:
        facts = facts_of(line)
        if key in facts:
            return facts[key]
    _, complaints = process.communicate(timeout=EXEC_S)
    raise AssertionError(f"{process.args!r} ended without {key}: {complaints}")


def restarts_of_agent(deployment: Deployment) -> int:
    items = json.loads(deployment.cluster.kubectl("-n", NAMESPACE, "get", "pods", "-o", "json"))["items"]
    return sum(status["restartCount"] for item in items for status in item["status"]["containerStatuses"])
