"""The labels of a node: few, for selection; a fact that is not known for every device gives no label."""

from __future__ import annotations

import re

from topoalloc.allocation.affinity import Alignment
from topoalloc.topology.machine import Machine, Unknown
from topoalloc.topology.spelling import fabric_name, model_words

PREFIX = "topoalloc.io/"
GPU_MODEL = PREFIX + "gpu-model"
GPU_COUNT = PREFIX + "gpu-count"
GPU_MEMORY = PREFIX + "gpu-memory"
NVLINK = PREFIX + "nvlink"
NUMA_NODES = PREFIX + "numa-nodes"
NIC_COUNT = PREFIX + "nic-count"
TOPOLOGY_POLICY = PREFIX + "topology-policy"
TOPOLOGY_SCOPE = PREFIX + "topology-scope"
# Labels that are ours to remove; others below the same prefix may be an operator's own.
OWN_LABELS = (
    GPU_MODEL,
    GPU_COUNT,
    GPU_MEMORY,
    NVLINK,
    NUMA_NODES,
    NIC_COUNT,
    TOPOLOGY_POLICY,
    TOPOLOGY_SCOPE,
)
MIXED = "mixed"
VALUE_CHARACTERS_MAX = 63  # apimachinery pkg/util/validation LabelValueMaxLength

_NOT_IN_VALUES = re.compile(r"[^A-Za-z0-9._-]+")
_GIB, _MIB = 1 << 30, 1 << 20


def node_labels(machine: Machine, alignment: Alignment) -> dict[str, str]:
    """Label values by key; every value is one that the API server takes."""
    labels = {
        GPU_COUNT: str(len(machine.gpus)),
        NIC_COUNT: str(len(machine.nics)),
        GPU_MODEL: _one([_model(gpu.model) for gpu in machine.gpus]),
        GPU_MEMORY: _one([_memory(gpu.memory_bytes) for gpu in machine.gpus]),
        NVLINK: _nvlink(machine),
        NUMA_NODES: str(len(machine.numa_nodes)) if machine.numa_nodes else None,
        TOPOLOGY_POLICY: None if alignment.policy is None else alignment.policy.value,
        TOPOLOGY_SCOPE: None if alignment.policy is None else alignment.scope.value,
    }
    return {key: value for key, value in labels.items() if value}


def label_value(text: str) -> str:
    """The text as a label value: other characters become `-`, at most 63, a letter or digit at both ends."""
    replaced = _NOT_IN_VALUES.sub("-", text)
    return replaced.lstrip("._-")[:VALUE_CHARACTERS_MAX].rstrip("._-")


def _one(values: list[str | None]) -> str | None:
    """The value that all devices share, `mixed`, or None where one is unknown or there is none."""
    distinct = set(values)
    if not distinct or None in distinct:
        return None
    return distinct.pop() if len(distinct) == 1 else MIXED


def _model(model: str | Unknown) -> str | None:
    return None if isinstance(model, Unknown) else label_value(model_words(model)) or None


def _memory(memory_bytes: int | Unknown) -> str | None:
    """As a Kubernetes quantity that says no more than is there: `80Gi`, `81559Mi`."""
    if isinstance(memory_bytes, Unknown):
        return None
    return f"{memory_bytes // _GIB}Gi" if memory_bytes % _GIB == 0 else f"{memory_bytes // _MIB}Mi"


def _nvlink(machine: Machine) -> str | None:
    """`NV12` where every pair of GPUs has 12 links, `none`, `mixed`; `XGMI1` between AMD GPUs."""
    gpus = {gpu.id for gpu in machine.gpus}
    counts = {link.nvlinks for link in machine.links if link.a in gpus and link.b in gpus}
    if not gpus or any(isinstance(count, Unknown) for count in counts):
        return None
    if counts <= {0}:
        return "none"
    prefix = "XGMI" if fabric_name(machine.gpus) == "XGMI" else "NV"
    return f"{prefix}{counts.pop()}" if len(counts) == 1 else MIXED
