"""The configuration file of a kubelet in a test cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.cluster.numa_layout import LaidNode

NUMA_NODES_WITHOUT_OPTION = 8
NO_EVICTION = {
    "nodefs.available": "0%",
    "nodefs.inodesFree": "0%",
    "imagefs.available": "0%",
    "imagefs.inodesFree": "0%",
}
EVICTION_MIB = 1
RESERVED_MIB = 1023  # with the eviction threshold exactly 1 GiB, as the Memory Manager wants it


@dataclass(frozen=True)
class KubeletSettings:
    """What a test varies. `binary` picks another version where one was built."""

    policy: str = "none"
    scope: str = "container"
    cpu_manager: str = "none"
    memory_manager: str = "None"
    options: Mapping[str, str] = field(default_factory=dict)
    gates: Mapping[str, bool] = field(default_factory=dict)
    binary: str = "kubelet"
    verbosity: int = 2


def kubelet_configuration(
    base: Path, number: int, cgroup: str, layout: tuple[LaidNode, ...], settings: KubeletSettings
) -> dict[str, Any]:
    """A KubeletConfiguration (kubelet.config.k8s.io/v1beta1). Ports follow the node's number."""
    options = dict(settings.options)
    if len(layout) > NUMA_NODES_WITHOUT_OPTION:
        options.setdefault("max-allowable-numa-nodes", str(len(layout)))
    content: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{base}/containerd.sock",
        "port": 10250 + 10 * number,
        "healthzPort": 10248 + 10 * number,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": False,
        "oomScoreAdj": 0,
        "evictionHard": {"memory.available": f"{EVICTION_MIB}Mi", **NO_EVICTION},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "maxPods": 250,
        "podLogsDir": f"{base}/pods",
        "staticPodPath": f"{base}/static",
        "fileCheckFrequency": "1s",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "topologyManagerPolicy": settings.policy,
        "topologyManagerScope": settings.scope,
        "cpuManagerPolicy": settings.cpu_manager,
        "memoryManagerPolicy": settings.memory_manager,
        "cpuManagerReconcilePeriod": "5s",
        "systemReserved": {"cpu": "1", "memory": f"{RESERVED_MIB}Mi"},
        "nodeStatusUpdateFrequency": "2s",
        "nodeStatusReportFrequency": "10s",
        "resolvConf": "",
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
    }
    if settings.gates:
        content["featureGates"] = dict(settings.gates)
    if options:
        content["topologyManagerPolicyOptions"] = options
    if settings.memory_manager == "Static":
        content["reservedMemory"] = [
            {"numaNode": layout[0].id, "limits": {"memory": f"{RESERVED_MIB + EVICTION_MIB}Mi"}}
        ]
    return content
