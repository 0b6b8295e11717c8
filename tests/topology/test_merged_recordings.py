"""Several recorded sources of one machine make one machine that knows what each of them tells."""

from __future__ import annotations

from functools import cache
from itertools import permutations
from pathlib import Path

import pytest

from topoalloc.errors import InputError
from topoalloc.topology import snapshot
from topoalloc.topology.assemble import assemble
from topoalloc.topology.checks import check_machine
from topoalloc.topology.detect import read_source
from topoalloc.topology.links import nearest_nics
from topoalloc.topology.machine import Link, LinkClass, Machine, known
from topoalloc.topology.reading import Reading
from topoalloc.topology.sources import load_machine

MACHINES = Path(__file__).parent.parent / "machines"
PERLMUTTER = "perlmutter-4xa100-epyc7763-slingshot."
PERLMUTTER_SOURCES = (
    PERLMUTTER + "topo-m.txt",
    PERLMUTTER + "nccl-topo.xml",
    PERLMUTTER + "lspci-tv.txt",
    PERLMUTTER + "gpu-numa.txt",
    "perlmutter-4xa100.nvlink-s.txt",
    "perlmutter-4xa100.topo-p2p-n.txt",
)
ASUS = "asus-esc8000a-e12-4xrtx6000ada."
ASUS_SOURCES = (ASUS + "topo-m.txt", ASUS + "lspci-tv.txt", ASUS + "numactl-H.txt")
FIRECRACKER = "firecracker-2xh200-nv18."
FIRECRACKER_SOURCES = (FIRECRACKER + "topo-m.txt", FIRECRACKER + "sysfs.tar.gz", FIRECRACKER + "smi-q.xml")
A6000 = "3xa6000-one-bridge-pair."
B200 = "hgx-b200-8gpu-container"
B200_SOURCES = (B200 + ".topo-m.txt", B200 + ".nccl-topo.xml", B200 + "-excerpt.nvlink-R.txt")


@cache
def loaded(*names: str) -> Machine:
    machine = load_machine([str(MACHINES / name) for name in names])
    assert check_machine(machine) == ()
    return machine


def reading_of(name: str) -> Reading:
    reading = read_source(str(MACHINES / name))
    assert isinstance(reading, Reading)
    return reading


def link(machine: Machine, a: str, b: str) -> Link:
    return machine.links_by_pair()[a, b]


def addresses(machine: Machine) -> list[str]:
    return [str(gpu.bdf) for gpu in machine.gpus]


def test_perlmutters_table_takes_its_addresses_from_nccl() -> None:
    machine = loaded(PERLMUTTER + "topo-m.txt", PERLMUTTER + "nccl-topo.xml")
    assert addresses(machine) == ["0000:03:00.0", "0000:41:00.0", "0000:82:00.0", "0000:c1:00.0"]
    assert [gpu.numa_node for gpu in machine.gpus] == [3, 2, 1, 0]
    assert {gpu: nearest.nics for gpu, nearest in nearest_nics(machine).items()} == {
        "GPU0": ("NIC0",),
        "GPU1": ("NIC1",),
        "GPU2": ("NIC2",),
        "GPU3": ("NIC3",),
    }
    assert [nic.name for nic in machine.nics] == ["cxi3", "cxi2", "cxi1", "cxi0"]


def test_a_class_hidden_by_nvlink_comes_from_the_other_source() -> None:
    alone = link(loaded(PERLMUTTER + "topo-m.txt"), "GPU0", "GPU1")
    assert known(alone.pcie) is None
    merged = link(loaded(PERLMUTTER + "topo-m.txt", PERLMUTTER + "nccl-topo.xml"), "GPU0", "GPU1")
    assert merged.pcie is LinkClass.SYS
    assert merged.nvlinks == alone.nvlinks == 4


def test_numa_nodes_of_a_list_settle_what_lspci_leaves_between_node_and_sys() -> None:
    alone = loaded(PERLMUTTER + "lspci-tv.txt")
    assert known(link(alone, "GPU0", "GPU1").pcie) is None
    machine = loaded(PERLMUTTER + "lspci-tv.txt", PERLMUTTER + "gpu-numa.txt")
    assert [gpu.numa_node for gpu in machine.gpus] == [3, 2, 1, 0]
    assert link(machine, "GPU0", "GPU1").pcie is LinkClass.SYS
    # The NICs take the node of the GPU below their host bridge, and with it their class to the others.
    assert [nic.numa_node for nic in machine.nics] == [3, 2, 1, 0, 0]
    assert link(machine, "GPU0", "NIC1").pcie is LinkClass.SYS
    assert link(machine, "GPU3", "NIC4").pcie is LinkClass.PHB


def test_all_sources_of_perlmutter_agree_and_add_up() -> None:
    machine = loaded(*PERLMUTTER_SOURCES)
    assert machine.warnings == ()
    assert [gpu.model for gpu in machine.gpus] == ["NVIDIA A100-SXM4-40GB"] * 4
    assert len({gpu.uuid for gpu in machine.gpus}) == 4
    assert [gpu.memory_bytes for gpu in machine.gpus] == [40 << 30] * 4
    assert all(link(machine, f"GPU{a}", f"GPU{b}").peer_access is True for a in range(4) for b in range(a))
    assert [str(nic.bdf) for nic in machine.nics] == [
        "0000:01:00.0",
        "0000:42:00.0",
        "0000:81:00.0",
        "0000:c2:00.0",
        "0000:c3:00.0",
    ]


@pytest.mark.parametrize("names", [PERLMUTTER_SOURCES[:4], ASUS_SOURCES, FIRECRACKER_SOURCES, B200_SOURCES])
def test_the_order_of_recorded_sources_changes_nothing_but_their_order(names: tuple[str, ...]) -> None:
    readings = [reading_of(name) for name in names]

    def facts(order: tuple[Reading, ...]) -> tuple[object, ...]:
        machine = assemble(order, None)
        assert isinstance(machine, Machine)
        return machine.numa_nodes, machine.gpus, machine.nics, machine.links, machine.switch_groups

    assert {facts(order) for order in permutations(readings)} == {facts(tuple(readings))}


def test_the_nic_names_of_a_table_meet_the_addresses_of_lspci_where_the_classes_allow() -> None:
    machine = loaded(*ASUS_SOURCES)
    assert [(nic.name, str(nic.bdf)) for nic in machine.nics] == [
        ("mlx5_0", "0000:21:00.0"),
        ("mlx5_1", "0000:21:00.1"),
        ("mlx5_2", "0000:81:00.0"),
        ("mlx5_3", "0000:81:00.1"),
        ("0000:82:00.0", "0000:82:00.0"),
        ("0000:82:00.1", "0000:82:00.1"),
    ]
    assert [nic.numa_node for nic in machine.nics[:4]] == [0, 0, 1, 1]
    assert len(machine.warnings) == 1
    assert "in bus order, which their link classes allow" in machine.warnings[0]


def test_numactl_adds_memory_and_distances() -> None:
    nodes = loaded(*ASUS_SOURCES).numa_nodes
    assert [(node.id, str(node.cpus), node.memory_bytes, node.distances) for node in nodes] == [
        (0, "0-31", 193129 << 20, (10, 32)),
        (1, "32-63", 193477 << 20, (32, 10)),
    ]


def test_nvlink_status_adds_models_and_uuids_and_contradicts_no_pair() -> None:
    machine = loaded(A6000 + "topo-m.txt", A6000 + "nvlink-s.txt")
    assert [gpu.model for gpu in machine.gpus] == ["NVIDIA RTX A6000"] * 3
    assert [link(machine, a, b).nvlinks for a, b in (("GPU0", "GPU1"), ("GPU0", "GPU2"), ("GPU1", "GPU2"))] == [4, 0, 0]
    assert machine.warnings == ()


def test_the_guests_three_sources_prove_each_other() -> None:
    machine = loaded(*FIRECRACKER_SOURCES)
    assert addresses(machine) == ["0000:00:06.0", "0000:00:07.0"]
    assert [gpu.memory_bytes for gpu in machine.gpus] == [143771 << 20] * 2
    assert [gpu.numa_node for gpu in machine.gpus] == [0, 0], "the table knows what the kernel's -1 does not tell"
    pair = link(machine, "GPU0", "GPU1")
    assert (pair.pcie, pair.nvlinks) == (LinkClass.PHB, 18)
    assert (machine.nics[0].name, known(machine.nics[0].numa_node)) == ("eth0", None)
    assert machine.warnings == ()


def test_the_query_alone_completes_the_sysfs_dump() -> None:
    machine = loaded(FIRECRACKER + "sysfs.tar.gz", FIRECRACKER + "smi-q.xml")
    assert [(gpu.model, gpu.minor) for gpu in machine.gpus] == [("NVIDIA H200", 0), ("NVIDIA H200", 1)]
    assert known(link(machine, "GPU0", "GPU1").nvlinks) is None, "neither source tells of links between GPUs"


def test_an_excerpt_of_nvlink_remotes_joins_the_gpus_it_lists() -> None:
    machine = loaded(*B200_SOURCES)
    assert len(machine.gpus) == 8
    assert [known(gpu.model) for gpu in machine.gpus] == ["NVIDIA B200"] * 2 + [None] * 6
    assert {link.nvlinks for link in machine.links} == {18}
    assert {gpu.memory_bytes for gpu in machine.gpus} == {183359 << 20}
    assert machine.switch_groups == (("GPU0", "GPU1"), ("GPU2", "GPU3"), ("GPU4", "GPU5"), ("GPU6", "GPU7"))
    assert loaded(*B200_SOURCES[1:]).gpus[1].model == "NVIDIA B200"


def test_tables_and_addresses_that_do_not_fit_are_refused_in_one_line() -> None:
    with pytest.raises(InputError, match=r"numbers 8 GPUs .* 4 addresses .*nvidia-smi -q -x") as error:
        loaded("hgx-a100-epyc-nps4-mlx5col.topo-m.txt", PERLMUTTER + "nccl-topo.xml")
    assert "\n" not in str(error.value)


def test_two_machines_given_as_one_are_told_by_their_nics() -> None:
    machine = loaded("hgx-h100-13nic-ib-and-eth-header-shift.topo-m.txt", "oci-bm.gpu.h100.8.nccl-topo.xml")
    assert any(warning.startswith("no NIC of ") and "one machine?" in warning for warning in machine.warnings)


def test_two_machines_given_as_one_are_told_by_their_gpus() -> None:
    machine = loaded("aws-p4d.24xlarge.nccl-topo.xml", "azure-ndv4.nccl-topo.xml")
    assert len(machine.gpus) == 16
    assert any(warning.startswith("no GPU of ") and "one machine?" in warning for warning in machine.warnings)


@pytest.mark.parametrize(
    "name",
    [PERLMUTTER + "topo-m.txt", ASUS + "topo-m.txt", "oci-bm.gpu.h100.8.nccl-topo.xml", FIRECRACKER + "sysfs.tar.gz"],
)
def test_a_snapshot_beside_its_own_source_changes_nothing(name: str, tmp_path: Path) -> None:
    machine = loaded(name)
    saved = tmp_path / "machine.json"
    saved.write_text(snapshot.dump(machine))
    merged = load_machine([str(MACHINES / name), str(saved)])
    assert merged.warnings == machine.warnings
    assert (merged.numa_nodes, merged.gpus, merged.nics) == (machine.numa_nodes, machine.gpus, machine.nics)
    assert [(pair.pcie, pair.nvlinks) for pair in merged.links] == [(pair.pcie, pair.nvlinks) for pair in machine.links]


def test_an_addition_completes_a_snapshot(tmp_path: Path) -> None:
    saved = tmp_path / "machine.json"
    saved.write_text(snapshot.dump(loaded(FIRECRACKER + "sysfs.tar.gz")))
    machine = load_machine([str(saved), str(MACHINES / (FIRECRACKER + "smi-q.xml"))])
    assert [gpu.model for gpu in machine.gpus] == ["NVIDIA H200"] * 2
