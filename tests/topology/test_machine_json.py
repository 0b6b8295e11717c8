"""The JSON of a machine has exactly the keys that other programs were promised, and null for every unknown."""

from __future__ import annotations

import json
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.hash_seeds import outputs_of
from topoalloc.topology.machine_json import json_text, machine_json
from topoalloc.topology.sources import load_machine

MACHINES = Path(__file__).parent.parent / "machines"
NAMES = [
    "dgx-a100-epyc-nps4-10nic.topo-m.txt",
    "oci-bm.gpu.h100.8.nccl-topo.xml",
    "firecracker-2xh200-nv18.sysfs.tar.gz",
    "hp-2socket-3xc2050-mlx4.hwloc.xml",
    "perlmutter-4xa100-epyc7763-slingshot.lspci-tv.txt",
    "aws-g5.48xlarge.nccl-topo.xml",
    "vm-memory-only-nodes-tiers.sysfs.tar.bz2",
    "cloud-vm-1gpu-numa-na.topo-m.txt",
]
# Promised, in this order; further keys may follow.
TOP = ["schema", "numa_nodes", "gpus", "nics", "links", "switch_groups", "nearest_nics"]
NODE = ["id", "cpus", "memory_bytes", "distances"]
GPU = ["id", "index", "bdf", "uuid", "model", "memory_bytes", "numa_node", "cpus"]
NIC = ["id", "name", "bdf", "numa_node", "rdma"]
LINK = ["a", "b", "class", "nvlinks"]
CLASSES = {"PIX", "PXB", "PHB", "NODE", "SYS", None}


@cache
def document(name: str) -> dict[str, Any]:
    text = json_text(load_machine([str(MACHINES / name)]))
    loaded = json.loads(text)
    assert isinstance(loaded, dict)
    return loaded


@pytest.mark.parametrize("name", NAMES)
def test_every_promised_key_is_there_in_order(name: str) -> None:
    machine = document(name)
    assert machine["schema"] == "topoalloc.machine/v1"
    assert list(machine)[: len(TOP)] == TOP
    for kind, keys in (("numa_nodes", NODE), ("gpus", GPU), ("nics", NIC), ("links", LINK)):
        for item in machine[kind]:
            assert list(item)[: len(keys)] == keys


@pytest.mark.parametrize("name", NAMES)
def test_links_hold_every_pair_of_gpus_and_of_gpu_and_nic(name: str) -> None:
    machine = document(name)
    gpus = [gpu["id"] for gpu in machine["gpus"]]
    nics = [nic["id"] for nic in machine["nics"]]
    pairs = [(link["a"], link["b"]) for link in machine["links"]]
    assert sorted(pairs) == sorted([*combinations(gpus, 2), *((gpu, nic) for gpu in gpus for nic in nics)])
    assert [(link["a"], link["b"]) for link in machine["nic_links"]] == list(combinations(nics, 2))
    for link in machine["links"] + machine["nic_links"]:
        assert link["class"] in CLASSES
        assert link["nvlinks"] is None or link["nvlinks"] >= 0
        assert link["peer_access"] in {True, False, None}


@pytest.mark.parametrize("name", NAMES)
def test_every_gpu_says_which_nics_are_nearest(name: str) -> None:
    machine = document(name)
    assert list(machine["nearest_nics"]) == [gpu["id"] for gpu in machine["gpus"]]
    for nearest in machine["nearest_nics"].values():
        assert list(nearest) == ["class", "nics"]
        assert (nearest["class"] is None) == (nearest["nics"] == [])


def test_cpus_are_linux_lists_and_a_node_without_cpus_has_the_empty_one() -> None:
    nodes = document("vm-memory-only-nodes-tiers.sysfs.tar.bz2")["numa_nodes"]
    assert [(node["id"], node["cpus"]) for node in nodes] == [
        (0, "0-1"),
        (1, "2-3"),
        (2, "4-5"),
        (4, ""),
        (6, ""),
        (8, ""),
        (9, ""),
    ]
    assert nodes[3]["distances"] == [20, 20, 20, 10, 20, 20, 20]


def test_an_address_has_four_domain_digits_and_lower_case() -> None:
    gpus = document("oci-bm.gpu.h100.8.nccl-topo.xml")["gpus"]
    assert [gpu["bdf"] for gpu in gpus[:3]] == ["0000:0f:00.0", "0000:2d:00.0", "0000:44:00.0"]


def test_unknown_is_null_and_a_hidden_class_too() -> None:
    machine = document("dgx-a100-epyc-nps4-10nic.topo-m.txt")
    assert machine["gpus"][0]["bdf"] is None
    assert machine["links"][0] == {"a": "GPU0", "b": "GPU1", "class": None, "nvlinks": 12, "peer_access": None}
    assert machine["nics"][8]["numa_node"] is None
    assert machine["nearest_nics"]["GPU0"] == {"class": "PXB", "nics": ["NIC0", "NIC1"]}


def test_a_machine_without_nics_gives_each_gpu_an_empty_answer() -> None:
    assert document("cloud-vm-1gpu-numa-na.topo-m.txt")["nearest_nics"] == {"GPU0": {"class": None, "nics": []}}


def test_warnings_are_part_of_the_document() -> None:
    warnings = document("aws-g5.48xlarge.nccl-topo.xml")["warnings"]
    assert len(warnings) == 1
    assert "9 PCI devices have no class" in warnings[0]


def test_the_same_machine_gives_the_same_bytes_in_every_process() -> None:
    path = str(MACHINES / "dgx-a100-epyc-nps4-10nic.topo-m.txt")
    assert len(outputs_of("-m", "topoalloc", "show", "--from", path, "--as", "json")) == 1


def test_the_document_is_json_and_ends_with_a_line_end() -> None:
    path = str(MACHINES / "dgx-a100-epyc-nps4-10nic.topo-m.txt")
    assert json_text(load_machine([path])).endswith("}\n")
    assert json.loads(json_text(load_machine([path]))) == machine_json(load_machine([path]))
