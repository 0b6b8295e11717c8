"""The machine as `topoalloc.machine/v1`, the JSON that other programs read; null stands for every Unknown."""

from __future__ import annotations

import json
from collections.abc import Mapping

from topoalloc.topology.links import nearest_nics
from topoalloc.topology.machine import Gpu, Link, Machine, NearestNics, Nic, NumaNode, T, Unknown, known

SCHEMA = "topoalloc.machine/v1"

JsonValue = str | int | bool | None | list["JsonValue"] | dict[str, "JsonValue"]


def machine_json(machine: Machine) -> dict[str, JsonValue]:
    """The schema's keys in fixed order, then `nic_links`, `nvswitches`, `sources` and `warnings`.

    `links` holds the GPU-GPU and GPU-NIC pairs, `nic_links` those of two NICs. `nearest_nics` has an entry for
    every GPU; its class is null and its list empty where no NIC's class is known.
    """
    gpus = {gpu.id for gpu in machine.gpus}
    nearest = nearest_nics(machine)
    return {
        "schema": SCHEMA,
        "numa_nodes": [_node(node) for node in machine.numa_nodes],
        "gpus": [_gpu(gpu) for gpu in machine.gpus],
        "nics": [_nic(nic) for nic in machine.nics],
        "links": [_link(link) for link in machine.links if link.a in gpus],
        "switch_groups": [list(group) for group in machine.switch_groups],
        "nearest_nics": {gpu.id: _nearest(nearest, gpu.id) for gpu in machine.gpus},
        "nic_links": [_link(link) for link in machine.links if link.a not in gpus],
        "nvswitches": [str(address) for address in machine.nvswitches],
        "sources": list(machine.sources),
        "warnings": list(machine.warnings),
    }


def json_text(machine: Machine) -> str:
    """`machine_json` as text with a final newline; the same machine gives the same bytes."""
    return json.dumps(machine_json(machine), indent=2, ensure_ascii=False) + "\n"


def _text(value: T | Unknown | None) -> str | None:
    told = None if value is None else known(value)
    return None if told is None else str(told)


def _node(node: NumaNode) -> JsonValue:
    distances = known(node.distances)
    return {
        "id": node.id,
        "cpus": _text(node.cpus),
        "memory_bytes": known(node.memory_bytes),
        "distances": None if distances is None else list(distances),
    }


def _gpu(gpu: Gpu) -> JsonValue:
    return {
        "id": gpu.id,
        "index": gpu.index,
        "bdf": _text(gpu.bdf),
        "uuid": known(gpu.uuid),
        "model": known(gpu.model),
        "memory_bytes": known(gpu.memory_bytes),
        "numa_node": known(gpu.numa_node),
        "cpus": _text(gpu.cpus),
        "vendor": known(gpu.vendor),
        "minor": known(gpu.minor),
        "mig": [{"index": mig.index, "profile": mig.profile, "uuid": mig.uuid} for mig in gpu.mig],
    }


def _nic(nic: Nic) -> JsonValue:
    return {
        "id": nic.id,
        "name": nic.name,
        "bdf": _text(nic.bdf),
        "numa_node": known(nic.numa_node),
        "rdma": _text(nic.rdma),
        "netdev": _text(nic.netdev),
        "function": _text(nic.function),
        "link": _text(nic.link),
        "driver": known(nic.driver),
        "vendor": known(nic.vendor),
        "physical_function": _text(nic.physical_function),
    }


def _link(link: Link) -> JsonValue:
    pcie = known(link.pcie)
    return {
        "a": link.a,
        "b": link.b,
        "class": None if pcie is None else pcie.name,
        "nvlinks": known(link.nvlinks),
        "peer_access": known(link.peer_access),
    }


def _nearest(nearest: Mapping[str, NearestNics], gpu: str) -> JsonValue:
    found = nearest.get(gpu)
    if found is None:
        return {"class": None, "nics": []}
    return {"class": found.pcie.name, "nics": list(found.nics)}
