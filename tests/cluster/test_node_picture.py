"""The picture in the annotation: what kubectl shows whole, and what an operator reads."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.random_machines import machines
from tests.handmade import UNTOLD, machine
from topoalloc.admission.occupancy import Allocatable, ContainerUse, Occupancy
from topoalloc.admission.policy import Policy, Scope
from topoalloc.allocation.affinity import UNKNOWN_ALIGNMENT, Alignment
from topoalloc.cluster.node_picture import LINE_BYTES_MAX, TEXT_BYTES_MAX, node_picture
from topoalloc.sharing.inventory import Inventory, inventory_of
from topoalloc.sharing.settings import SharingSettings
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Machine
from topoalloc.topology.sources import load_machine

ALIGNMENT = Alignment(Policy.SINGLE_NUMA_NODE)


def cut(made: Machine) -> Inventory:
    inventory = inventory_of(made, SharingSettings())
    assert isinstance(inventory, Inventory)
    return inventory


def occupied(inventory: Inventory, *held: str, unhealthy: str = "", cpus: str = "", pinned: str = "") -> Occupancy:
    """Devices whose id begins with one of `held` are in use, with `unhealthy` not there."""
    use = {
        r.name: frozenset(d.id for d in r.devices if any(d.id.startswith(stem) for stem in held))
        for r in inventory.resources
    }
    there = {
        r.name: {d.id: d.numa_nodes for d in r.devices if not unhealthy or not d.id.startswith(unhealthy)}
        for r in inventory.resources
    }
    return Occupancy(
        (ContainerUse("ns", "p", "a", use, CpuSet.from_list(pinned)),), Allocatable(there, CpuSet.from_list(cpus))
    )


def test_a_node_reads_so():
    inventory = cut(machine(numa=2, switches=1, gpus=2, nics=1, nvlinks=4))
    keys = inventory.gpu_keys
    held = [*(f"{keys[0]}-c{unit:02d}" for unit in range(40)), *(f"{keys[0]}-m{unit:04d}" for unit in range(6))]
    occupancy = occupied(
        inventory, *held, f"{keys[1]}-", inventory.nic_keys[1], unhealthy=keys[3], cpus="1-7,9-15", pinned="2-3"
    )

    assert node_picture(inventory, occupancy, Alignment(Policy.RESTRICTED, Scope.POD)).split("\n") == [
        "4 x Handmade GPU, 2 NUMA nodes, 2 NICs",
        "free: 1 of 4 GPUs whole, 160/300 cores 6.5/12GiB, 1 UNHEALTHY; topology manager: restricted per pod",
        "NUMA 0  CPUs 0-7 (5/7 free to pin)  64GiB",
        "  PCIe switch 0000:10:00.0",
        "    GPU0   60/100 cores  2.5/4GiB free",
        "    GPU1    0/100 cores    0/4GiB free",
        "    NIC0 mlx5_0 free",
        "NUMA 1  CPUs 8-15 (7/7 free to pin)  64GiB",
        "  PCIe switch 0000:20:00.0",
        "    GPU2  100/100 cores    4/4GiB free",
        "    GPU3   UNHEALTHY",
        "    NIC1 mlx5_1 taken",
        "NVLink: 4 links between any two of GPU0-3",
    ]


def test_what_is_kept_back_of_a_gpu_is_free_and_marked():
    inventory = cut(machine(numa=1, switches=1, gpus=3, nics=0))
    core, memory = (inventory.resource(f"topoalloc.io/vgpu-{kind}") for kind in ("core", "memory"))
    assert core is not None
    assert memory is not None
    use = {
        core.name: frozenset(d.id for d in core.devices if d.unit < (60, 70, 100)[d.position]),
        memory.name: frozenset(d.id for d in memory.devices if d.unit < (8, 8, 0)[d.position]),
    }
    held = use[core.name] | use[memory.name]
    there = {r.name: {d.id: d.numa_nodes for d in r.devices if d.id in held or d.position == 0} for r in (core, memory)}
    occupancy = Occupancy((ContainerUse("ns", "p", "a", use),), Allocatable(there))

    lines = node_picture(inventory, occupancy, UNKNOWN_ALIGNMENT).split("\n")

    assert lines[1].startswith("free: 0 of 3 GPUs whole, 70/300 cores 4/12GiB, 1 GPU kept back")
    assert [line.strip() for line in lines if line.strip().startswith("GPU")] == [
        "GPU0   40/100 cores  2/4GiB free",
        "GPU1   30/100 cores  2/4GiB free (kept back)",
        "GPU2    0/100 cores  0/4GiB free",
    ]


def test_without_pod_resources_what_is_free_is_unknown():
    picture = node_picture(cut(machine()), None, UNKNOWN_ALIGNMENT)

    assert "free: unknown" in picture
    assert "100 cores 4GiB" in picture
    assert "/100" not in picture


def test_a_resource_that_nobody_serves_is_named():
    inventory = cut(machine())
    there = occupied(inventory)
    devices = {name: ids for name, ids in there.allocatable.devices.items() if name != "topoalloc.io/nic"}

    picture = node_picture(inventory, replace(there, allocatable=Allocatable(devices)), ALIGNMENT)

    assert "NOT SERVED now: topoalloc.io/nic" in picture
    assert "UNHEALTHY" not in picture


def without(occupancy: Occupancy, *resources: str) -> Occupancy:
    """As the kubelet leaves out a resource that has no healthy device."""
    devices = {name: ids for name, ids in occupancy.allocatable.devices.items() if name not in resources}
    return replace(occupancy, allocatable=replace(occupancy.allocatable, devices=devices))


def test_where_all_gpus_are_unhealthy_none_is_free():
    inventory = cut(machine(numa=1, switches=1, gpus=2, nics=1))
    occupancy = without(occupied(inventory), "topoalloc.io/vgpu-core", "topoalloc.io/vgpu-memory")

    assert node_picture(inventory, occupancy, Alignment(Policy.RESTRICTED)).split("\n")[1:8] == [
        "free: 0 of 2 GPUs whole, 0/200 cores 0/8GiB; topology manager: restricted per container",
        "NOT SERVED now: topoalloc.io/vgpu-core, topoalloc.io/vgpu-memory",
        "NUMA 0  CPUs 0-7  64GiB",
        "  PCIe switch 0000:10:00.0",
        "    GPU0   NOT SERVED",
        "    GPU1   NOT SERVED",
        "    NIC0 mlx5_0 free",
    ]


def test_where_all_nics_are_unhealthy_none_is_free():
    inventory = cut(machine())
    picture = node_picture(inventory, without(occupied(inventory), "topoalloc.io/nic"), ALIGNMENT)

    assert "NIC0 mlx5_0 NOT SERVED" in picture
    assert picture.count("NOT SERVED") == len(inventory.machine.nics) + 1
    assert "GPU0  100/100 cores" in picture


def test_gpus_that_nobody_can_get_are_told_together_on_a_large_machine():
    inventory = cut(machine(numa=16, switches=1, gpus=16, nics=4))
    picture = node_picture(inventory, without(occupied(inventory), "topoalloc.io/vgpu-core"), ALIGNMENT)

    assert "GPU0-15: NOT SERVED" in picture
    assert "0/25600 cores" in picture


def test_gpus_of_unknown_memory_show_cores_alone():
    inventory = cut(machine(memory_bytes=UNTOLD))

    assert "GPU0  100/100 cores free" in node_picture(inventory, occupied(inventory), ALIGNMENT)


@pytest.mark.parametrize(("numa", "gpus", "nics"), [(8, 2, 2), (8, 2, 16), (1, 16, 16), (8, 8, 40), (16, 16, 4)])
def test_large_machines_stay_below_4_kib_and_name_every_node_or_say_what_is_left_out(numa: int, gpus: int, nics: int):
    inventory = cut(machine(numa=numa, switches=1, gpus=gpus, nics=nics))

    picture = node_picture(inventory, occupied(inventory), ALIGNMENT)

    assert len(picture.encode()) <= TEXT_BYTES_MAX
    named = all(f"NUMA {node} " in picture for node in range(numa))
    assert named or "more line" in picture


def test_sixteen_gpus_on_eight_nodes_are_told_one_by_one():
    inventory = cut(machine(numa=8, switches=2, gpus=1, nics=2))

    picture = node_picture(inventory, occupied(inventory), ALIGNMENT)

    assert all(f"GPU{index:<2} 100/100 cores" in picture for index in range(16))


@given(machines(), st.integers(0, 2**32))
def test_every_line_of_every_machine_is_one_that_kubectl_shows_whole(made: Machine, seed: int):
    inventory = inventory_of(made, SharingSettings())
    if not isinstance(inventory, Inventory):
        return
    chance = random.Random(seed)
    stems = [key for key in (*inventory.gpu_keys, *inventory.nic_keys) if chance.random() < 0.5]
    for occupancy in (None, occupied(inventory, *stems)):
        picture = node_picture(inventory, occupancy, ALIGNMENT)

        assert picture.isascii()
        assert len(picture) <= TEXT_BYTES_MAX
        assert all(line.strip() and line.isprintable() and len(line) <= LINE_BYTES_MAX for line in picture.split("\n"))


@given(machines())
def test_every_gpu_and_nic_is_in_the_picture_of_a_small_machine(made: Machine):
    inventory = inventory_of(made, SharingSettings())
    if not isinstance(inventory, Inventory):
        return
    picture = node_picture(inventory, occupied(inventory), ALIGNMENT)

    if "more line" not in picture:
        assert all(gpu.id in picture for gpu in made.gpus)
        assert all(nic.id in picture for nic in made.nics)


def test_the_same_node_gives_the_same_picture_every_time():
    inventory = cut(load_machine(["tests/machines/dgx-a100-epyc-nps4-10nic.topo-m.txt"], 40 * 1024**3))
    occupancy = occupied(inventory, *inventory.gpu_keys[:3])

    assert node_picture(inventory, occupancy, ALIGNMENT) == node_picture(inventory, occupancy, ALIGNMENT)
