"""One node of a test cluster: containerd and a kubelet that sees a made-up NUMA layout, in a room of their own."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.cluster import keeper
from tests.e2e.cluster.binaries import binary
from tests.e2e.cluster.kubelet_files import KubeletSettings, kubelet_configuration
from tests.e2e.cluster.namespaces import House, Process, Room, wait_for
from tests.e2e.cluster.numa_layout import LaidNode, meminfo, write_sysfs

KUBELET_FOLDER = "/var/lib/kubelet"
PAUSE_IMAGE = "localhost/topoalloc-e2e/pause:1"
START_S = 60.0
# What a kubelet writes below /proc/sys; shadowed by private files so that it changes nothing of this machine.
KERNEL_TUNABLES = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
MOUNTS_IN_DEV = ("/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/hugepages")
MANAGER_STATES = ("cpu_manager_state", "memory_manager_state")


@dataclass
class Node:
    """`number` decides name and ports. Files are below `base`, the kubelet's own below `base/kubelet`."""

    house: House
    base: Path
    number: int
    layout: tuple[LaidNode, ...]
    settings: KubeletSettings
    write_kubeconfig: Callable[[Path, str], None]
    address: str
    room: Room = field(init=False)
    processes: dict[str, Process] = field(default_factory=dict)
    generation: int = 0

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def kubelet_folder(self) -> Path:
        """What the node calls /var/lib/kubelet, as this machine sees it."""
        return self.base / "kubelet"

    @property
    def pod_resources(self) -> Path:
        return self.kubelet_folder / "pod-resources" / "kubelet.sock"

    @property
    def plugin_folder(self) -> Path:
        return self.kubelet_folder / "device-plugins"

    def start(self) -> None:
        for folder in ("kubelet", "sys", "tunables", "logs", "pods", "log", "cni", "dev", "static"):
            (self.base / folder).mkdir(parents=True)
        self.room = self.house.room()
        self._make_cgroups()
        self._mount()
        self.write_kubeconfig(self.base / "kubeconfig", f"system:node:{self.name}")
        self.start_containerd()
        self.start_kubelet()

    def _make_cgroups(self) -> None:
        """The kubelet's groups, `kubepods` too: its own attempt would use CPUs that do not exist here."""
        for root in keeper.cgroup_hierarchies():
            for group in (root / self.cgroup, root / self.cgroup / "kubepods"):
                group.mkdir(exist_ok=True)
                if root.name == "cpuset":
                    for name in ("cpuset.cpus", "cpuset.mems"):
                        (group / name).write_text((root / name).read_text())

    @property
    def cgroup(self) -> str:
        return f"{self.house.name}-{self.number}"

    def _mount_devices(self) -> None:
        """A /dev of the node's own, so that tests can make device nodes in it."""
        own = self.base / "dev"
        self.room.run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(own))
        self.room.run("cp", "--archive", "--one-file-system", "/dev/.", str(own))
        for path in MOUNTS_IN_DEV:
            if Path(path).is_dir():
                self.room.run("mount", "--rbind", path, f"{own}/{Path(path).name}")
        self.room.run("mount", "--rbind", str(own), "/dev")

    def make_device(self, path: str, like: str) -> None:
        """A character device in the node's /dev that is another name of one that exists."""
        number = Path(like).stat().st_rdev
        self.room.run("mkdir", "-p", str(Path(path).parent))
        self.room.run("mknod", path, "c", str(os.major(number)), str(os.minor(number)))

    def _mount(self) -> None:
        self._mount_devices()
        # What containerd, its network plugins and runc write there ends with the node.
        for folder in ("/run", "/var/lib"):
            self.room.mount_empty(folder)
        self.room.run("mkdir", KUBELET_FOLDER)
        self.room.mount(self.base / "log", "/var/log")
        self.room.mount(self.kubelet_folder, KUBELET_FOLDER)
        write_sysfs(self.base / "sys", self.layout)
        self.room.mount(self.base / "sys" / "node", "/sys/devices/system/node")
        self.room.mount(self.base / "sys" / "cpu", "/sys/devices/system/cpu")
        for name, value in KERNEL_TUNABLES.items():
            file = self.base / "tunables" / name.replace("/", "_")
            file.write_text(value + "\n")
            self.room.mount(file, f"/proc/sys/{name}")
        (self.base / "meminfo").write_text(meminfo(self.layout))
        self.room.mount(self.base / "meminfo", "/proc/meminfo")

    # -- containerd

    @property
    def containerd_socket(self) -> Path:
        return self.base / "containerd.sock"

    def start_containerd(self) -> None:
        self._write_containerd_files()
        search = f"{binary('containerd').parent}:{os.environ['PATH']}"
        self._run("containerd", [str(binary("containerd")), "-c", f"{self.base}/containerd.toml"], {"PATH": search})
        wait_for(self._containerd_answers, START_S, f"containerd of {self.name} answers")

    def _containerd_answers(self) -> bool:
        if not self.processes["containerd"].alive():
            raise RuntimeError(f"containerd ended:\n{self.processes['containerd'].tail()}")
        try:
            self.ctr("version")
        except RuntimeError:
            return False
        return True

    def ctr(self, *arguments: str) -> str:
        return self.room.run(str(binary("ctr")), "-a", str(self.containerd_socket), "-n", "k8s.io", *arguments)

    def import_image(self, archive: Path) -> None:
        self.ctr("images", "import", "--local", str(archive))

    def tag_image(self, name: str, other: str) -> None:
        self.ctr("images", "tag", name, other)

    def _write_containerd_files(self) -> None:
        subnet = f"10.244.{self.number}.0/24"
        network = {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "ptp",
                    "ipam": {
                        "type": "host-local",
                        "dataDir": f"{self.base}/addresses",
                        "ranges": [[{"subnet": subnet}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
            ],
        }
        (self.base / "cni" / "10-pods.conflist").write_text(json.dumps(network))
        runtime = binary("runc-any-cpus")
        (self.base / "containerd.toml").write_text(f"""
version = 3
root = "{self.base}/containerd"
state = "{self.base}/run"
oom_score = 0
[grpc]
  address = "{self.containerd_socket}"
[ttrpc]
  address = "{self.containerd_socket}.ttrpc"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ["{self.base}/cdi"]
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "{self.base}/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = "{runtime}"
""")

    def restart_containerd(self, kind: signal.Signals = signal.SIGTERM) -> None:
        """Containers live on: their shims are not containerd's children."""
        self.processes["containerd"].end(kind)
        self.start_containerd()

    # -- kubelet

    def start_kubelet(self) -> None:
        self.generation += 1
        configuration = kubelet_configuration(self.base, self.number, self.cgroup, self.layout, self.settings)
        text = json.dumps(configuration, indent=1)
        (self.base / "kubelet.yaml").write_text(text)
        (self.kubelet_folder / "config.yaml").write_text(text)  # where kubeadm puts it, and where agents look
        arguments = [
            str(binary(self.settings.binary)),
            f"--config={KUBELET_FOLDER}/config.yaml",
            f"--kubeconfig={self.base}/kubeconfig",
            f"--cert-dir={self.base}/pki",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            f"--v={self.settings.verbosity}",
        ]
        self._run("kubelet", arguments)

    def stop_kubelet(self, kind: signal.Signals = signal.SIGTERM) -> None:
        self.processes["kubelet"].end(kind)

    def restart_kubelet(self, kind: signal.Signals = signal.SIGTERM) -> None:
        self.stop_kubelet(kind)
        self.start_kubelet()

    def reconfigure(self, settings: KubeletSettings) -> None:
        """Other policies, as an administrator sets them: the managers' state files have to go (kubelet's own rule)."""
        self.stop_kubelet()
        for name in MANAGER_STATES:
            (self.kubelet_folder / name).unlink(missing_ok=True)
        self.settings = settings
        self.start_kubelet()

    def reboot(self) -> None:
        """Every process of the node ends and new ones start; what is on disk stays."""
        self.stop_kubelet(signal.SIGKILL)
        self.kill_containers()
        self.processes["containerd"].end(signal.SIGKILL)
        self.start_containerd()
        self.start_kubelet()

    def kill_containers(self) -> None:
        """The whole tree below every shim of this node."""
        self.room.run(
            "pkill", "-KILL", "-f", f"containerd-shim-runc-v2.*{re.escape(str(self.containerd_socket))}", check=False
        )
        for root in keeper.cgroup_hierarchies():
            for tasks in (root / self.cgroup).rglob("cgroup.procs"):
                for pid in tasks.read_text().split():
                    if int(pid) > 1:
                        self._kill(int(pid))

    @staticmethod
    def _kill(pid: int) -> None:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def updates_of(self, pod: str) -> int:
        """How often the kubelet had the resources of a pod's containers changed."""
        count = 0
        for asked in (self.base / "run").glob("io.containerd.runtime.v2.task/k8s.io/*/config.json.asked"):
            notes = json.loads(asked.read_text()).get("annotations", {})
            updates = asked.with_name("updates.asked")
            if notes.get("io.kubernetes.cri.sandbox-name") == pod and updates.exists():
                count += len(updates.read_text().splitlines())
        return count

    def log(self, name: str) -> str:
        return (self.base / "logs" / f"{name}.log").read_text(errors="replace")

    def _run(self, name: str, arguments: list[str], env: dict[str, str] | None = None) -> None:
        self.processes[name] = self.room.start(name, arguments, self.base / "logs" / f"{name}.log", env)
