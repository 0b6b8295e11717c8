"""What a grant puts into a container, for every way of injection."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.handmade import GIB, machine
from topoalloc.sharing.edits import ContainerEdits, DeviceFiles, Injection, Mount, edits_of, nic_variable
from topoalloc.sharing.inventory import Inventory, inventory_of
from topoalloc.sharing.settings import CORE_RESOURCE, MEMORY_RESOURCE, NIC_RESOURCE, SharingSettings
from topoalloc.topology.machine import Machine

CDI_KIND = "nvidia.com/gpu"
MIB = 1024**2


def served(of: Machine) -> Inventory:
    inventory = inventory_of(of, SharingSettings())
    assert isinstance(inventory, Inventory)
    return inventory


def with_uuids(plain: Machine) -> Machine:
    return replace(plain, gpus=tuple(replace(gpu, uuid=f"GPU-{gpu.index:04d}-aaaa") for gpu in plain.gpus))


BY_INDEX = served(machine(memory_bytes=4 * GIB))
BY_UUID = served(with_uuids(machine(memory_bytes=4 * GIB)))
GPU0, GPU1, GPU2 = BY_INDEX.gpu_keys[:3]
NIC0, NIC1 = BY_INDEX.nic_keys[:2]
FILES = DeviceFiles(
    {GPU0: ("/dev/nvidia0",), GPU1: ("/dev/nvidia1",), NIC0: ("/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm")},
    ("/dev/nvidiactl",),
)


def ids(inventory: Inventory, resource: str, **counts: int) -> list[str]:
    """The first ids of some GPUs or NICs, by position: `_0=30`."""
    found = inventory.resource(resource)
    assert found is not None
    taken: list[str] = []
    for position, count in counts.items():
        taken += [device.id for device in found.devices if device.position == int(position[1:])][:count]
    return taken


def edits(
    resource: str, injection: Injection, inventory: Inventory = BY_INDEX, files: DeviceFiles = FILES, **counts: int
) -> ContainerEdits:
    found = inventory.resource(resource)
    assert found is not None
    return edits_of(inventory, found, ids(inventory, resource, **counts), injection, files, CDI_KIND)


@pytest.mark.parametrize("injection", Injection)
def test_the_cores_of_every_gpu_are_described_however_devices_are_injected(injection: Injection) -> None:
    assert dict(edits(CORE_RESOURCE, injection, _0=30).envs)["TOPOALLOC_CORES"] == f"{GPU0}=30"


@pytest.mark.parametrize("injection", Injection)
def test_a_share_names_no_whole_gpu(injection: Injection) -> None:
    assert "TOPOALLOC_WHOLE_GPUS" not in dict(edits(CORE_RESOURCE, injection, _0=99).envs)


def test_whole_gpus_are_described_in_the_order_of_the_machine() -> None:
    envs = dict(edits(CORE_RESOURCE, Injection.NONE, _2=100, _0=100).envs)

    assert envs == {"TOPOALLOC_CORES": f"{GPU0}=100,{GPU2}=100", "TOPOALLOC_WHOLE_GPUS": f"{GPU0},{GPU2}"}


def test_the_order_of_the_ids_says_nothing() -> None:
    found = BY_INDEX.resource(CORE_RESOURCE)
    assert found is not None
    some = ids(BY_INDEX, CORE_RESOURCE, _0=100, _1=100)

    one = edits_of(BY_INDEX, found, some, Injection.DEVICE_NODES, FILES, CDI_KIND)

    assert edits_of(BY_INDEX, found, some[::-1], Injection.DEVICE_NODES, FILES, CDI_KIND) == one


@pytest.mark.parametrize("injection", Injection)
def test_memory_is_described_in_bytes_for_each_gpu_and_injects_nothing(injection: Injection) -> None:
    found = edits(MEMORY_RESOURCE, injection, BY_UUID, _0=2, _1=16)

    assert found == ContainerEdits((("TOPOALLOC_MEMORY", f"{GPU0}={512 * MIB},{GPU1}={4 * GIB}"),))


def test_device_nodes_of_the_gpus_come_with_those_that_every_gpu_needs() -> None:
    paths = edits(CORE_RESOURCE, Injection.DEVICE_NODES, _0=100, _1=100).device_paths

    assert paths == ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl")


def test_device_nodes_of_a_nic_come_without_those_of_gpus() -> None:
    paths = edits(NIC_RESOURCE, Injection.DEVICE_NODES, _0=1).device_paths

    assert paths == ("/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm")


def test_a_device_without_nodes_gets_none() -> None:
    assert edits(NIC_RESOURCE, Injection.DEVICE_NODES, _1=1).device_paths == ()


@pytest.mark.parametrize("injection", [Injection.ENVVAR, Injection.CDI, Injection.NONE])
@pytest.mark.parametrize("resource", [CORE_RESOURCE, NIC_RESOURCE])
def test_device_nodes_are_given_only_where_they_are_asked_for(injection: Injection, resource: str) -> None:
    assert edits(resource, injection, _0=1).device_paths == ()


@pytest.mark.parametrize(
    ("inventory", "names"),
    [(BY_UUID, ("GPU-0000-aaaa", "GPU-0002-aaaa")), (BY_INDEX, ("0", "2"))],
    ids=["uuid", "index"],
)
def test_the_runtime_is_told_the_granted_gpus_by_uuid_or_else_by_index(
    inventory: Inventory, names: tuple[str, ...]
) -> None:
    found = edits(CORE_RESOURCE, Injection.ENVVAR, inventory, _0=100, _2=100)

    assert dict(found.envs)["NVIDIA_VISIBLE_DEVICES"] == ",".join(names)
    assert (found.device_paths, found.cdi_devices) == ((), ())


@pytest.mark.parametrize(
    ("inventory", "names"),
    [(BY_UUID, ("GPU-0000-aaaa", "GPU-0002-aaaa")), (BY_INDEX, ("0", "2"))],
    ids=["uuid", "index"],
)
def test_cdi_names_are_the_granted_gpus_by_uuid_or_else_by_index(inventory: Inventory, names: tuple[str, ...]) -> None:
    found = edits(CORE_RESOURCE, Injection.CDI, inventory, _0=100, _2=100)

    assert found.cdi_devices == tuple(f"{CDI_KIND}={name}" for name in names)
    assert "NVIDIA_VISIBLE_DEVICES" not in dict(found.envs)


@pytest.mark.parametrize("injection", [Injection.DEVICE_NODES, Injection.CDI, Injection.NONE])
def test_nothing_else_tells_the_runtime_which_gpus_to_show(injection: Injection) -> None:
    assert "NVIDIA_VISIBLE_DEVICES" not in dict(edits(CORE_RESOURCE, injection, _0=1).envs)


@pytest.mark.parametrize("injection", Injection)
def test_the_nics_of_a_pool_are_named_in_its_variable_and_show_no_gpu(injection: Injection) -> None:
    found = edits(NIC_RESOURCE, injection, _0=1, _1=1)

    assert found.envs == ((nic_variable(NIC_RESOURCE), f"{NIC0},{NIC1}"),)
    assert found.cdi_devices == ()


def test_every_pool_has_a_variable_of_its_own() -> None:
    names = {nic_variable(name) for name in ("topoalloc.io/nic", "topoalloc.io/nic-rdma", "site.test/fast.nic")}

    assert names == {"TOPOALLOC_NIC", "TOPOALLOC_NIC_RDMA", "TOPOALLOC_FAST_NIC"}


LIBRARIES = (("libcuda.so.1", "/usr/lib/libcuda.so.1"), ("libnvidia-ml.so.1", "/usr/lib/libnvidia-ml.so.1"))
WITH_DRIVER = replace(FILES, libraries=LIBRARIES)


def test_with_mounts_cores_bring_the_device_nodes_and_the_drivers_libraries() -> None:
    found = edits(CORE_RESOURCE, Injection.MOUNTS, files=WITH_DRIVER, _0=30)

    assert found.device_paths == ("/dev/nvidia0", "/dev/nvidiactl")
    assert found.mounts == (
        Mount("/usr/lib/libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1"),
        Mount("/usr/lib/libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1"),
    )
    assert dict(found.envs)["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib64"


def test_with_mounts_a_nic_brings_its_device_nodes_alone() -> None:
    found = edits(NIC_RESOURCE, Injection.MOUNTS, files=WITH_DRIVER, _0=1)

    assert found.device_paths == ("/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm")
    assert found.mounts == ()


@pytest.mark.parametrize("injection", [each for each in Injection if each is not Injection.MOUNTS])
def test_the_drivers_libraries_are_mounted_only_where_that_is_asked_for(injection: Injection) -> None:
    found = edits(CORE_RESOURCE, injection, files=WITH_DRIVER, _0=30)

    assert found.mounts == ()
    assert "LD_LIBRARY_PATH" not in dict(found.envs)


def test_of_a_variable_or_a_place_that_both_set_the_latter_stays() -> None:
    one = ContainerEdits((("A", "1"), ("B", "1")), ("/dev/a",), ("x/y=0",), (Mount("/a", "/place"), Mount("/b", "/b")))
    other = ContainerEdits((("A", "2"),), ("/dev/a", "/dev/b"), ("x/y=1",), (Mount("/c", "/place"),))

    assert one.joined(other) == ContainerEdits(
        (("B", "1"), ("A", "2")), ("/dev/a", "/dev/b"), ("x/y=0", "x/y=1"), (Mount("/b", "/b"), Mount("/c", "/place"))
    )
