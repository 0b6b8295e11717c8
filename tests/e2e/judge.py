"""Judges a node by what others say: the kubelet's PodResources answer, the OCI specification that containerd wrote, and
the machine's links. Nothing of the agent is asked.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.node import Node
from tests.e2e.pod_resources import Held, PodResourcesOf
from tests.e2e.workloads import CORE, MEMORY, NIC
from topoalloc.topology.machine import LinkClass, Machine, known

UNIT_BYTES = 256 * 2**20
CORES_PER_GPU = 100
WORST = len(LinkClass)


@dataclass(frozen=True)
class Fault:
    """One thing that must not be, with who is concerned."""

    pod: str
    container: str
    text: str

    def __str__(self) -> str:
        return f"{self.pod}/{self.container}: {self.text}"


def faults(cluster: Cluster, node: Node, *, nics_near: bool = True) -> list[Fault]:
    """Everything wrong on a node now: devices held twice, halves apart, far NICs, environments that lie.

    `nics_near=False` where pods came and went at the same time: a NIC that is free now was not when another was chosen.
    """
    listed = PodResourcesOf(node.pod_resources).listed()
    specs = specifications(node)
    found = held_twice(listed)
    for (pod, name), held in listed.items():
        found += [Fault(pod, name, text) for text in apart(held.devices)]
        spec = specs.get((pod, name))
        if spec is not None:
            found += [Fault(pod, name, text) for text in _lies(held, environment(spec))]
    return found + (far_nics(cluster.machine, listed) if nics_near else [])


def held_twice(listed: Mapping[tuple[str, str], Held]) -> list[Fault]:
    owners: dict[str, tuple[str, str]] = {}
    found = []
    for owner, held in sorted(listed.items()):
        for device in (device for ids in held.devices.values() for device in ids):
            other = owners.setdefault(device, owner)
            if other != owner:
                found.append(Fault(*owner, f"{device} is also held by {'/'.join(other)}"))
    return found


def key_of(device: str) -> str:
    """The physical device that a core or memory id names (docs/adr/0001)."""
    return device.rpartition("-")[0]


def apart(devices: Mapping[str, tuple[str, ...]]) -> list[str]:
    """What is wrong with the cores and memory of one container, if anything."""
    cores = Counter(map(key_of, devices.get(CORE, ())))
    memory = Counter(map(key_of, devices.get(MEMORY, ())))
    texts = []
    if 0 < sum(cores.values()) < CORES_PER_GPU and len(cores) > 1:
        texts.append(f"a share over {len(cores)} GPUs: {dict(cores)}")
    if sum(cores.values()) >= CORES_PER_GPU and set(cores.values()) != {CORES_PER_GPU}:
        texts.append(f"whole GPUs that are not whole: {dict(cores)}")
    if memory and set(memory) - set(cores):
        texts.append(f"cores on {sorted(cores)}, memory on {sorted(memory)}")
    return texts


def _lies(held: Held, given: Mapping[str, str]) -> list[str]:
    """The environment of a container against what the kubelet recorded for it."""
    cores = Counter(map(key_of, held.devices.get(CORE, ())))
    memory = Counter(map(key_of, held.devices.get(MEMORY, ())))
    expected = {
        "TOPOALLOC_CORES": ",".join(f"{key}={count}" for key, count in sorted(cores.items())),
        "TOPOALLOC_MEMORY": ",".join(f"{key}={count * UNIT_BYTES}" for key, count in sorted(memory.items())),
        "TOPOALLOC_NIC": ",".join(sorted(held.devices.get(NIC, ()))),
    }
    texts = []
    for name, value in expected.items():
        told = ",".join(sorted(given.get(name, "").split(",")))
        if told != ",".join(sorted(value.split(","))):
            texts.append(f"{name} is {given.get(name)!r}, recorded is {value!r}")
    return texts


def far_nics(machine: Machine, listed: Mapping[tuple[str, str], Held]) -> list[Fault]:
    """Containers whose NIC is farther from their GPUs than one that nobody holds."""
    gpu_ids = {str(known(gpu.bdf)) if known(gpu.bdf) else gpu.id: gpu.id for gpu in machine.gpus}
    nic_ids = {key: nic.id for nic in machine.nics for key in _nic_keys(nic.id, known(nic.bdf))}
    busy = {device for held in listed.values() for device in held.devices.get(NIC, ())}
    found = []
    for (pod, name), held in listed.items():
        gpus = {gpu_ids[key] for key in map(key_of, held.devices.get(CORE, ())) if key in gpu_ids}
        nics = held.devices.get(NIC, ())
        if len(gpus) != 1 or len(nics) != 1 or nics[0] not in nic_ids:
            continue
        (gpu,) = gpus
        mine = _distance(machine, gpu, nic_ids[nics[0]])
        nearer = [nic for key, nic in nic_ids.items() if key not in busy and _distance(machine, gpu, nic) < mine]
        if nearer:
            found.append(Fault(pod, name, f"{gpu} got {nics[0]}, nearer and free: {sorted(nearer)}"))
    return found


def _nic_keys(nic: str, bdf: object) -> tuple[str, ...]:
    return (str(bdf),) if bdf is not None else (nic,)


def _distance(machine: Machine, gpu: str, nic: str) -> int:
    link = machine.links_by_pair().get((gpu, nic))
    return WORST if link is None or not isinstance(link.pcie, LinkClass) else int(link.pcie)


def specifications(node: Node) -> dict[tuple[str, str], dict[str, Any]]:
    """(pod, container) -> the OCI specification as containerd wrote it, of the containers that exist."""
    found = {}
    for file in (node.base / "run").glob("io.containerd.runtime.v2.task/k8s.io/*/config.json.asked"):
        spec = _json_of(file)
        notes = spec.get("annotations", {})
        if notes.get("io.kubernetes.cri.container-type") == "container":
            found[notes["io.kubernetes.cri.sandbox-name"], notes["io.kubernetes.cri.container-name"]] = spec
    return found


def _json_of(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError):  # the container ended, or is being made, at this moment
        return {}


def environment(spec: Mapping[str, Any]) -> dict[str, str]:
    pairs = (text.partition("=") for text in spec["process"]["env"])
    return {name: value for name, _, value in pairs}


def cpus_asked(spec: Mapping[str, Any]) -> str:
    """The cpuset that the kubelet asked the runtime for."""
    return str(spec.get("linux", {}).get("resources", {}).get("cpu", {}).get("cpus", ""))
