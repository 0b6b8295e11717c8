"""The static CPU manager: hints for whole CPUs, and which CPUs a container gets.

Semantics of pkg/kubelet/cm/cpumanager/policy_static.go (1.37).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from topoalloc.admission.cpu_topology import CpuTopology
from topoalloc.admission.hints import ProviderAnswer
from topoalloc.admission.pod import Container, Pod
from topoalloc.admission.policy import Policy
from topoalloc.admission.refusal import Refusal
from topoalloc.topology.cpus import CpuSet


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """`cpuManagerPolicyOptions` that are understood; others are refused by name."""

    full_pcpus_only: bool = False
    distribute_cpus_across_numa: bool = False
    align_by_socket: bool = False
    distribute_cpus_across_cores: bool = False
    strict_cpu_reservation: bool = False


@dataclass(frozen=True, slots=True)
class CpuManager:
    """What does not change while the kubelet runs."""

    topology: CpuTopology
    reserved: CpuSet
    options: CpuOptions


@dataclass(frozen=True, slots=True)
class CpuState:
    """`shared` is the default CPU set (reserved CPUs included unless strictly reserved); `assigned` is keyed by
    (pod uid, container name). `reusable` belongs to the pod `reuse_pod`."""

    shared: CpuSet
    assigned: Mapping[tuple[str, str], CpuSet] = field(default_factory=dict)
    reuse_pod: str = ""
    reusable: CpuSet = field(default_factory=CpuSet)


def parse_cpu_options(options: Mapping[str, str]) -> CpuOptions:
    """Read `cpuManagerPolicyOptions`. Raises InputError that names the option."""
    raise NotImplementedError


def start(
    topology: CpuTopology, reserved: CpuSet | int, options: CpuOptions, policy: Policy
) -> tuple[CpuManager, CpuState]:
    """The manager of a freshly started kubelet. `reserved` is `reservedSystemCPUs`, or how many CPUs to set aside.

    Raises InputError where the kubelet would not start.
    """
    raise NotImplementedError


def container_hints(manager: CpuManager, state: CpuState, pod: Pod, container: Container) -> ProviderAnswer:
    """The CPU manager's answer in container scope; None unless the container gets CPUs of its own."""
    raise NotImplementedError


def pod_hints(manager: CpuManager, state: CpuState, pod: Pod) -> ProviderAnswer:
    """The CPU manager's answer in pod scope."""
    raise NotImplementedError


def allocate(
    manager: CpuManager, state: CpuState, pod: Pod, container: Container, affinity: int | None
) -> CpuState | Refusal:
    """Give the container its CPUs: first from `affinity`, the rest from elsewhere. Unchanged if it gets none."""
    raise NotImplementedError


def removed(state: CpuState, pod_uid: str, container: str) -> CpuState:
    """The container is gone: its CPUs return to the shared set unless a sibling still has them."""
    raise NotImplementedError


def exclusive_cpus(pod: Pod, container: Container) -> int:
    """How many CPUs of its own the container gets: whole requests of Guaranteed pods, else 0."""
    raise NotImplementedError
