"""One node on the machine itself: containerd, a kubelet without an API server, and the agent, from the packed binaries.

It runs in a mount namespace of its own (see gpu_e2e.py), so that what they write below /var/lib ends with it. Processes
and devices are the machine's own: NVML's process numbers mean the same in here.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

REPOSITORY = Path(__file__).parents[2]
KUBELET_FOLDER = Path("/var/lib/kubelet")
RUN_DIR = Path("/run/topoalloc-gpu-e2e")
LIBRARY_IN_CONTAINER = Path("/usr/local/lib/topoalloc")
CGROUP = "topoalloc-gpu-e2e"
IMAGE = "localhost/topoalloc-gpu-e2e/pause:1"
NODE_NAME = "gpu-node"
PORTS = {"port": 12250, "readOnlyPort": 12255, "healthzPort": 12248}
START_S = 60.0
POLL_S = 0.1
RESOURCES = 2  # GPU cores and memory; NICs where there are any
# Of the machine's /etc, what the loader and the C library look at; the rest is none of a pod's business.
ETC_NEEDED = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "passwd", "group", "nsswitch.conf", "hosts", "alternatives")
HOST_FOLDERS = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt")

WHEELS_FOR = (3, 12)

T = TypeVar("T")


def wait_for(look: Callable[[], T | None], timeout_s: float, what: str) -> T:
    until_s = time.monotonic() + timeout_s
    while True:
        answer = look()
        if answer:
            return answer
        if time.monotonic() > until_s:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(POLL_S)


@dataclass
class GpuNode:
    """`base` is an empty folder; `machine`: arguments of the agent that name a recorded machine, or none."""

    base: Path
    archive: Path
    injection: str = "device-nodes"
    shim: str = "builtin"
    machine: Sequence[str] = ()
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def site(self) -> Path:
        return self.base / "site"

    @property
    def socket(self) -> Path:
        return self.base / "containerd.sock"

    # -- start

    def unpack(self) -> None:
        with tarfile.open(self.archive, "r:xz") as archive:
            archive.extractall(self.base, filter="data")
        for wheel in (self.base / "wheels").glob("*.whl"):
            with zipfile.ZipFile(wheel) as content:
                content.extractall(self.site)
        for folder in ("static", "logs", "pods", "cni", "out"):
            (self.base / folder).mkdir()

    def start(self) -> None:
        LIBRARY_IN_CONTAINER.mkdir(parents=True, exist_ok=True)  # a mount point below the shared, read-only /usr
        self._make_cgroups()
        self._start_containerd()
        self.start_agent()
        self._start_kubelet()
        self.wait_registered(0)

    def _run(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        with (self.base / "logs" / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **(env or {})}
            )

    def log(self, name: str) -> str:
        return (self.base / "logs" / f"{name}.log").read_text(errors="replace")

    def _make_cgroups(self) -> None:
        root = Path("/sys/fs/cgroup")
        if (root / "cgroup.controllers").exists():
            group = root / CGROUP
            group.mkdir(exist_ok=True)
            for folder in (root, group):
                for controller in ("cpuset", "cpu", "io", "memory", "pids", "hugetlb"):
                    with suppress(OSError):  # one that this kernel has not, or that is on
                        (folder / "cgroup.subtree_control").write_text(f"+{controller}")
            return
        for hierarchy in (path for path in root.iterdir() if path.is_dir() and not path.is_symlink()):
            (hierarchy / CGROUP).mkdir(exist_ok=True)
            if hierarchy.name == "cpuset":
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (hierarchy / CGROUP / name).write_text((hierarchy / name).read_text())

    def _start_containerd(self) -> None:
        loopback = {"cniVersion": "1.0.0", "name": "lo", "plugins": [{"type": "loopback"}]}
        (self.base / "cni" / "10-lo.conflist").write_text(json.dumps(loopback))
        (self.base / "containerd.toml").write_text(f"""
version = 3
root = "{self.base}/containerd"
state = "{self.base}/containerd-state"
[grpc]
  address = "{self.socket}"
[ttrpc]
  address = "{self.socket}.ttrpc"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  enable_cdi = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{self.base}/bin"]
  conf_dir = "{self.base}/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = "{self.base}/bin/runc"
""")
        path = f"{self.base}/bin:{os.environ['PATH']}"
        library_path = f"{self.base}/lib:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
        env = {"PATH": path, "LD_LIBRARY_PATH": library_path}
        self._run("containerd", [f"{self.base}/bin/containerd", "-c", f"{self.base}/containerd.toml"], env)
        wait_for(self._containerd_answers, START_S, "containerd answers")
        self._ctr("images", "import", "--local", str(self.base / "pause.tar"))

    def _containerd_answers(self) -> bool:
        if self.processes["containerd"].poll() is not None:
            raise RuntimeError(f"containerd ended:\n{self.log('containerd')[-2000:]}")
        try:
            self._ctr("version")
        except subprocess.CalledProcessError:
            return False
        return True

    def _ctr(self, *words: str) -> None:
        command = [f"{self.base}/bin/ctr", "-a", str(self.socket), "-n", "k8s.io", *words]
        subprocess.run(command, check=True, capture_output=True, timeout=START_S)

    def start_agent(self) -> None:
        keys = {"injection": self.injection}
        if self.shim != "none":
            keys |= {"shim": self.shim, "run_dir": str(RUN_DIR), "lib_dir": f"{self.base}/library"}
        (self.base / "agent.yaml").write_text("".join(f"{key}: {value}\n" for key, value in keys.items()))
        command = [sys.executable, "-m", "topoalloc", "agent", "--config", str(self.base / "agent.yaml")]
        self._run("agent", [*command, *self.machine], {"PYTHONPATH": self.python_path, "PYTHONUNBUFFERED": "1"})

    @property
    def python_path(self) -> str:
        return f"{self.site}:{REPOSITORY}" if self.wheels_fit else str(REPOSITORY)

    @property
    def wheels_fit(self) -> bool:
        """Elsewhere the dependencies are those of this interpreter."""
        return sys.version_info[:2] == WHEELS_FOR

    def wait_registered(self, since: int) -> None:
        """Until the agent, from this place of its log on, has told the kubelet of both GPU resources."""

        def registered() -> bool:
            if self.processes["agent"].poll() is not None:
                raise RuntimeError(f"the agent ended:\n{self.log('agent')[-2000:]}")
            return self.log("agent")[since:].count("registered ") >= RESOURCES

        wait_for(registered, START_S, "the agent is registered")

    def _start_kubelet(self) -> None:
        configuration = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            **PORTS,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{CGROUP}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "localStorageCapacityIsolation": False,
            "oomScoreAdj": 0,
            "evictionHard": {
                "memory.available": "1Mi",
                "nodefs.available": "0%",
                "nodefs.inodesFree": "0%",
                "imagefs.available": "0%",
                "imagefs.inodesFree": "0%",
            },
            "podLogsDir": f"{self.base}/pods",
            "staticPodPath": f"{self.base}/static",
            "fileCheckFrequency": "1s",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "resolvConf": "",
        }
        KUBELET_FOLDER.mkdir(parents=True, exist_ok=True)
        (KUBELET_FOLDER / "config.yaml").write_text(json.dumps(configuration))
        words = (f"--config={KUBELET_FOLDER}/config.yaml", f"--hostname-override={NODE_NAME}", "--node-ip=127.0.0.1")
        self._run("kubelet", [f"{self.base}/bin/kubelet", *words, f"--cert-dir={self.base}/pki", "--v=2"])

    # -- pods

    def start_pod(self, name: str, cores: int, memory_units: int, command: Sequence[str]) -> Path:
        """A static pod with one container; returns the folder that it shares with us as /out."""
        out = self.base / "out" / name
        out.mkdir(parents=True)
        etc = out.with_name(f"{name}-etc")
        etc.mkdir()
        for entry in (Path("/etc") / needed for needed in ETC_NEEDED):
            if entry.is_dir():
                shutil.copytree(entry, etc / entry.name, symlinks=True)
            elif entry.exists():
                shutil.copy(entry, etc / entry.name)
        folders = {folder: (folder, True) for folder in HOST_FOLDERS if Path(folder).exists()}
        for prefix in {sys.prefix, sys.base_prefix}:
            if not any(prefix.startswith(f"{folder}/") or prefix == folder for folder in folders):
                folders[prefix] = (prefix, True)
        folders |= {"/repository": (str(REPOSITORY), True), "/site": (str(self.site), True)}
        folders |= {"/etc": (str(etc), False), "/out": (str(out), False)}
        (out / "tmp").mkdir()
        folders["/tmp"] = (str(out / "tmp"), False)
        self._write_manifest(name, cores, memory_units, command, folders)
        return out

    def _write_manifest(
        self,
        name: str,
        cores: int,
        memory_units: int,
        command: Sequence[str],
        folders: Mapping[str, tuple[str, bool]],
    ) -> None:
        kept = ("PATH", "LD_LIBRARY_PATH")
        env = {key: os.environ[key] for key in kept if key in os.environ}
        env |= {"TOPOALLOC_POD": name, "HOME": "/tmp", "PYTHONUNBUFFERED": "1"}
        limits = {"topoalloc.io/vgpu-core": str(cores), "topoalloc.io/vgpu-memory": str(memory_units)}
        container = {
            "name": "tenant",
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "command": list(command),
            "env": [{"name": key, "value": value} for key, value in env.items()],
            "resources": {"limits": limits},
            "volumeMounts": [
                {"name": f"v{number}", "mountPath": target, "readOnly": read_only}
                for number, (target, (_, read_only)) in enumerate(folders.items())
            ],
        }
        volumes = [
            {"name": f"v{number}", "hostPath": {"path": source}} for number, (source, _) in enumerate(folders.values())
        ]
        spec = {
            "hostNetwork": True,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": volumes,
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}
        part = self.base / f"{name}.json"
        part.write_text(json.dumps(pod))
        part.rename(self.base / "static" / f"{name}.json")

    def remove_pod(self, name: str) -> None:
        (self.base / "static" / f"{name}.json").unlink()

    def pod_status(self, name: str) -> dict[str, Any]:
        """As the kubelet tells it; empty before it knows the pod."""
        address = f"http://127.0.0.1:{PORTS['readOnlyPort']}/pods"
        with suppress(OSError), urllib.request.urlopen(address, timeout=5) as answer:
            for pod in json.load(answer).get("items") or []:
                if pod["metadata"]["name"] == f"{name}-{NODE_NAME}":
                    status: dict[str, Any] = pod.get("status", {})
                    return status
        return {}

    # -- end

    def stop(self) -> None:
        self._end("kubelet")
        self._end("agent")
        for pid in self._left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._end("containerd")
        self._remove_cgroups()
        with suppress(OSError):
            LIBRARY_IN_CONTAINER.rmdir()  # only if it is ours: an empty one

    def _end(self, name: str) -> None:
        process = self.processes.get(name)
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _left(self) -> list[int]:
        """Processes of our control groups, and the shims of our containerd."""
        pids = {int(pid) for group in self._groups() for pid in (group / "cgroup.procs").read_text().split()}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if str(self.socket).encode() in words and b"shim" in words[0]:
                    pids.add(int(folder.name))
        return sorted(pids)

    @staticmethod
    def _groups() -> list[Path]:
        root = Path("/sys/fs/cgroup")
        tops = [root / CGROUP, *(path / CGROUP for path in root.iterdir())]
        found = [path.parent for top in tops if top.is_dir() for path in top.rglob("cgroup.procs")]
        return sorted(found, key=lambda path: -len(path.parts))

    def _remove_cgroups(self) -> None:
        for _ in range(20):
            for group in self._groups():
                with suppress(OSError):
                    group.rmdir()
            if not self._groups():
                return
            time.sleep(POLL_S)
