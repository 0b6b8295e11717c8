"""The topology manager's four policies: many hints in, one set of NUMA nodes and a verdict out.

Semantics of pkg/kubelet/cm/topologymanager/policy*.go, the same from 1.34 to 1.37.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from topoalloc.admission.hints import Hint, ProviderAnswer
from topoalloc.topology.machine import Machine


class Policy(StrEnum):
    """`topologyManagerPolicy` of the kubelet configuration."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class Scope(StrEnum):
    """`topologyManagerScope`: align each container by itself, or the pod as one."""

    CONTAINER = "container"
    POD = "pod"


NODES_MAX_DEFAULT = 8  # the kubelet refuses to start above it, because it enumerates every subset of nodes


@dataclass(frozen=True, slots=True)
class Options:
    """`topologyManagerPolicyOptions`."""

    prefer_closest_numa_nodes: bool = False
    max_allowable_numa_nodes: int = NODES_MAX_DEFAULT


@dataclass(frozen=True, slots=True)
class NumaInfo:
    """The machine's NUMA nodes as the kubelet sees them: all of them, CPU-less ones too.

    `distances[node]` is the row of that node as the kernel prints it; the kubelet indexes the row by node id.
    Empty where distances are unknown.
    """

    nodes: tuple[int, ...]
    distances: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The merged hint (stored as the affinity of the container when admitted) and whether the policy admits it."""

    hint: Hint
    admit: bool


def numa_info(machine: Machine) -> NumaInfo:
    """The NUMA nodes of a machine; unknown distances are left out."""
    raise NotImplementedError


def parse_options(options: Mapping[str, str]) -> Options:
    """Read `topologyManagerPolicyOptions`. Raises InputError with the kubelet's reason."""
    raise NotImplementedError


def start_refusal(policy: Policy, options: Options, numa: NumaInfo) -> str | None:
    """Why a kubelet would not start (or would crash) on this machine with this policy; None when it would run."""
    raise NotImplementedError


def merge(policy: Policy, options: Options, answers: Iterable[ProviderAnswer], numa: NumaInfo) -> Verdict:
    """Merge the providers' hints. The result does not depend on the order of providers or resources.

    Policy none stores no affinity and admits always. best-effort admits always; restricted and
    single-numa-node admit a preferred result only.
    """
    raise NotImplementedError


def hint_lists(answers: Iterable[ProviderAnswer]) -> list[tuple[Hint, ...]]:
    """One list of hints per provider and resource, with "no opinion" and "impossible" spelt out."""
    raise NotImplementedError


def better(current: Hint | None, candidate: Hint, widest_need: int, options: Options, numa: NumaInfo) -> Hint | None:
    """Which of two merged hints the kubelet keeps (masks are never None here)."""
    raise NotImplementedError


def single_node_hints(lists: Sequence[tuple[Hint, ...]]) -> list[tuple[Hint, ...]]:
    """What single-numa-node looks at: preferred hints of one node, or of any."""
    raise NotImplementedError
