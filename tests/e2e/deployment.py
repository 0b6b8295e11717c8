"""topoalloc on a test cluster as an operator puts it there: the manifests of deploy/, applied with kubectl."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.namespaces import wait_for
from tests.e2e.cluster.node import Node
from tests.e2e.pod_resources import PodResourcesOf
from topoalloc.agent.config import parse_config
from topoalloc.agent.process import inventory_for
from topoalloc.sharing.inventory import Inventory

KUSTOMIZE = Path(__file__).parents[2] / "deploy" / "kustomize"
NAMESPACE = "topoalloc-system"
IMAGE = "localhost/topoalloc:e2e"
DAEMON_SET = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "topoalloc", "namespace": NAMESPACE},
}
REGISTERED_S = 60.0
ROLLED_OUT_S = 120.0
AGENT_START_S = 60.0


@dataclass
class Deployment:
    """`config` are keys of the agent's configuration file beside the manifests' own."""

    cluster: Cluster
    config: Mapping[str, Any] = field(default_factory=dict)
    image: str = IMAGE
    overlay: str = "recorded-machine"  # below deploy/kustomize/overlays; empty: the base itself
    patch: Mapping[str, Any] = field(default_factory=dict)  # merged into the DaemonSet

    def apply(self) -> None:
        """Render the overlay for recorded machines with this machine and image, apply it, wait for the roll-out."""
        folder = self.cluster.base / "deploy"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(KUSTOMIZE, folder)
        self.write_overlay(folder)
        self.cluster.kubectl("apply", "-k", str(folder / "e2e"))
        self.wait_rolled_out()

    def write_overlay(self, folder: Path) -> None:
        """What an operator changes: the image, the configuration, and here the machine. The base stays as it is."""
        name, _, tag = self.image.partition(":")
        overlay = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [f"../overlays/{self.overlay}" if self.overlay else "../base"],
            "images": [{"name": "topoalloc", "newName": name, "newTag": tag}],
            "patches": [{"patch": yaml.safe_dump({**DAEMON_SET, "spec": self.patch})}] if self.patch else [],
        }
        (folder / "e2e").mkdir()
        (folder / "e2e" / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
        machine = self.cluster.machine_path.read_text()
        # kustomize writes no text whose first line begins with a tab (see the component's own remark)
        above = "$ nvidia-smi topo -m\n" if machine.startswith("\t") else ""
        (folder / "components" / "recorded-machine" / "machine").write_text(above + machine)
        file = folder / "base" / "config.yaml"
        file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **self.all_keys()}))

    def all_keys(self) -> dict[str, Any]:
        return {"gpu_memory": self.cluster.gpu_memory, "log_level": "debug", **self.config}

    def wait_rolled_out(self) -> None:
        status = ("rollout", "status", "daemonset/topoalloc", f"--timeout={ROLLED_OUT_S:g}s")
        self.cluster.kubectl("-n", NAMESPACE, *status)

    def inventory(self) -> Inventory:
        """What the agent should serve, by the product's own reckoning; its ids are the kubelet's to confirm."""
        return inventory_for(parse_config(yaml.safe_dump(self.all_keys()), "e2e"), self.cluster.machine)

    def wait_registered(self, node: Node | None = None, timeout_s: float = REGISTERED_S) -> None:
        """Until the kubelet has every id of every resource, and has told the API server."""
        node = node or self.cluster.nodes[0]
        wanted = {
            resource.name: frozenset(device.id for device in resource.devices)
            for resource in self.inventory().resources
        }
        wait_for(lambda: self.kubelet_has(node, wanted), timeout_s, "every id at the kubelet")
        for name, ids in wanted.items():
            there = lambda name=name, ids=ids: self.cluster.allocatable(name, node.number) == len(ids)  # noqa: E731
            wait_for(there, timeout_s, f"{name} at the API server", 0.2)

    def wanted(self) -> dict[str, frozenset[str]]:
        """Resource -> every id of it."""
        resources = self.inventory().resources
        return {resource.name: frozenset(device.id for device in resource.devices) for resource in resources}

    def kubelet_has(self, node: Node, wanted: Mapping[str, frozenset[str]]) -> bool:
        there = PodResourcesOf(node.pod_resources).allocatable()
        return all(there.get(name) == ids for name, ids in wanted.items())

    def kubelet_has_some(self, node: Node) -> bool:
        """Whether ids of every resource are healthy, and none that are not ours: beside pods that share GPUs, free ids
        may be kept back."""
        there = PodResourcesOf(node.pod_resources).allocatable()
        return all(there.get(name) and there[name] <= ids for name, ids in self.wanted().items())

    def agent_pid(self, node: Node) -> int | None:
        return self.process(node, "agent")

    def process(self, node: Node, verb: str) -> int | None:
        """The process of `topoalloc VERB` on a node, as this machine numbers it; None while there is none."""
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                groups = (folder / "cgroup").read_text()
            except OSError:  # it ended
                continue
            ours = any(b"topoalloc" in word for word in words[:3])
            if verb.encode() in words[:4] and ours and node.cgroup in groups:
                return int(folder.name)
        return None

    def wait_agent(self, node: Node, other_than: int | None = None, timeout_s: float = AGENT_START_S) -> int:
        """The agent's process, once there is one (and another one)."""
        return wait_for(lambda: _other(self.agent_pid(node), other_than), timeout_s, f"an agent on {node.name}")

    def log(self, node: Node, container: str = "agent") -> str:
        """Everything that container has said on this node, over its restarts and pods, in order of time."""
        files = (node.base / "pods").glob(f"{NAMESPACE}_*/{container}/*.log")
        return "".join(
            file.read_text(errors="replace") for file in sorted(files, key=lambda file: file.stat().st_mtime)
        )


def _other(pid: int | None, than: int | None) -> int | None:
    return None if pid == than else pid
