"""`Cluster`: a whole Kubernetes on this machine, whose nodes have the NUMA layout of a recorded machine.

    with Cluster(machine="azure-ndv5.nccl-topo.xml", policy="restricted", cpu_manager="static") as cluster:
        cluster.kubectl("get", "nodes")

Whatever happens to the test, nothing is left behind: see keeper.py.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.cluster.kubelet_files import KubeletSettings
from tests.e2e.cluster.namespaces import House, wait_for
from tests.e2e.cluster.node import Node
from tests.e2e.cluster.numa_layout import layout_of
from topoalloc.topology.machine import Machine
from topoalloc.topology.sizes import parse_size
from topoalloc.topology.sources import load_machine

MACHINES = Path(__file__).parents[2] / "machines"
EXTENDER_PORT = 18765
READY_S = 120.0
LOGS_VARIABLE = "TOPOALLOC_E2E_LOGS"  # a folder that gets the logs of a cluster whose test failed


class Cluster:
    """A context manager; `nodes` are its Node objects, `seconds` what each step of the start took."""

    def __init__(
        self,
        machine: str,
        policy: str = "none",
        scope: str = "container",
        cpu_manager: str = "none",
        memory_manager: str = "None",
        nodes: int = 1,
        gpu_memory: str = "80GiB",
        settings: KubeletSettings | None = None,
        extender: Mapping[str, object] | None = None,
        images: Sequence[Path] = (),
    ) -> None:
        self.machine_path = MACHINES / machine
        self.machine: Machine = load_machine([str(self.machine_path)], parse_size(gpu_memory))
        self.gpu_memory = gpu_memory
        self.seconds: dict[str, float] = {}
        self._settings = settings or KubeletSettings(policy, scope, cpu_manager, memory_manager)
        self._images, self._extender, self._count = images, extender, nodes
        name = f"ta{os.getpid():06x}{time.time_ns() // 1000 % 4096:03x}"  # of one length: none begins with another
        self.base = Path("/tmp") / name
        self._house = House(self.base, name)
        self.nodes: list[Node] = []
        self.outside = ""  # this machine's address as the cluster sees it
        self.control_plane: ControlPlane

    def __enter__(self) -> Cluster:
        began_s = time.monotonic()
        self._house.__enter__()
        try:
            self._start(began_s)
        except BaseException:
            self._house.__exit__()
            raise
        return self

    def _start(self, began_s: float) -> None:
        self.outside, inside = self._house.cable()
        (self.base / "logs").mkdir()
        self.control_plane = ControlPlane(self.base, self._house.hall(), inside, self._extenders())
        self.control_plane.start()
        self.seconds["control plane"] = time.monotonic() - began_s
        layout = layout_of(self.machine)
        for number in range(self._count):
            base = self.base / f"n{number}"
            node = Node(self._house, base, number, layout, self._settings, self.control_plane.write_kubeconfig, inside)
            self.nodes.append(node)
            node.start()
            for image in self._images:
                node.import_image(image)
        self.wait_ready()
        self.seconds["ready"] = time.monotonic() - began_s

    def _extenders(self) -> list[Mapping[str, object]]:
        """The one extender, at this machine's end of the cable."""
        return (
            []
            if self._extender is None
            else [{"urlPrefix": f"http://{self.outside}:{EXTENDER_PORT}", **self._extender}]
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        folder = os.environ.get(LOGS_VARIABLE)
        if error is not None and folder:
            self.keep_logs(Path(folder) / self.base.name)
        self._house.__exit__()

    def keep_logs(self, folder: Path) -> None:
        """Copy every log of the cluster, those of containers too."""
        for node in self.nodes:
            for part in ("logs", "pods"):
                shutil.copytree(node.base / part, folder / node.name / part, dirs_exist_ok=True)
        shutil.copytree(self.base / "logs", folder / "logs", dirs_exist_ok=True)
        print(f"logs of the cluster: {folder}", file=sys.stderr)

    # -- what tests do with it

    def kubectl(self, *arguments: str, text: str | None = None, check: bool = True) -> str:
        return self.control_plane.kubectl(*arguments, text=text, check=check)

    def get(self, *arguments: str) -> Any:
        """`kubectl get … -o json`, decoded."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply(self, *objects: Mapping[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def wait_ready(self) -> None:
        def all_ready() -> bool:
            for node in self.nodes:
                if not node.processes["kubelet"].alive():
                    raise RuntimeError(f"the kubelet of {node.name} ended:\n{node.processes['kubelet'].tail()}")
            items = json.loads(self.kubectl("get", "nodes", "-o", "json", check=False) or '{"items": []}')["items"]
            ready = [node for node in items if _is_ready(node)]
            account = self.kubectl("get", "serviceaccount", "default", "-o", "name", check=False)
            return len(ready) == self._count and bool(account)

        wait_for(all_ready, READY_S, f"{self._count} node(s) ready", 0.2)

    def allocatable(self, resource: str, node: int = 0) -> int | None:
        """What the API server says can be asked of a node; None where it does not know the resource."""
        value = self.get("node", f"node-{node}")["status"].get("allocatable", {}).get(resource)
        return None if value is None else count_of(value)


def count_of(quantity: str) -> int:
    """A whole quantity of an extended resource: the API server spells 1000 as 1k."""
    scale = {"k": 1000, "M": 10**6}
    return int(quantity[:-1]) * scale[quantity[-1]] if quantity[-1] in scale else int(quantity)


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions = {item["type"]: item["status"] for item in node["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and not node["spec"].get("taints")
