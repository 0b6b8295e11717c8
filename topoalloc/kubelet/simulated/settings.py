"""What a simulated kubelet is told: the node's configuration and which interfaces an older node lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from topoalloc.admission.cpus import CpuOptions
from topoalloc.admission.hints import HintNodes
from topoalloc.admission.policy import Options, Policy, Scope
from topoalloc.topology.cpus import CpuSet

EVICTION_MEMORY_BYTES = 100 * 1024**2  # evictionHard memory.available, the default on Linux


@dataclass(frozen=True, slots=True)
class CpuSettings:
    """`cpuManagerPolicy: static`; `reserved` is reservedSystemCPUs, or how many CPUs the reservations round up to."""

    reserved: CpuSet | int
    options: CpuOptions = field(default_factory=CpuOptions)


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """`memoryManagerPolicy: Static`; `reserved_bytes[node][kind]` is reservedMemory.

    Empty: what the node's other reservations add up to, on the first NUMA node.
    """

    reserved_bytes: Mapping[int, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """The node's kubelet configuration as far as it decides an admission.

    `cpu` and `memory` are None where those managers are `none`. `pods_max` None: the number of pods is not limited.
    """

    policy: Policy = Policy.NONE
    scope: Scope = Scope.CONTAINER
    options: Options = field(default_factory=Options)
    cpu: CpuSettings | None = None
    memory: MemorySettings | None = None
    reserved_cpu_milli: int = 0
    reserved_memory_bytes: int = EVICTION_MEMORY_BYTES
    pods_max: int | None = None


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What differs between kubelets. The defaults are those of 1.37 as shipped.

    `pods_api` (on from 1.37) and `pod_resources` switch interfaces off. `loses_reservations` keeps the fault by which
    a List during an Allocate call can make the kubelet forget that call's devices. `limits_requests` is the limit of
    100 PodResources requests a second; off where pods are admitted faster than any real kubelet would.
    """

    pods_api: bool = True
    pod_resources: bool = True
    loses_reservations: bool = True
    limits_requests: bool = True
    hint_nodes: HintNodes = HintNodes.DEVICE
