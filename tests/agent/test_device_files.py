"""Which device nodes are found for which device, below a root folder of one's own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from tests.handmade import machine
from tests.sharing.test_loader_cache import cache
from topoalloc.agent.device_files import device_files, with_driver_libraries
from topoalloc.sharing.edits import DeviceFiles
from topoalloc.sharing.inventory import Inventory, inventory_of
from topoalloc.sharing.settings import SharingSettings
from topoalloc.topology.machine import Machine, Unknown
from topoalloc.topology.pci_classes import AMD


def served(of: Machine) -> Inventory:
    inventory = inventory_of(of, SharingSettings())
    assert isinstance(inventory, Inventory)
    return inventory


def make(root: Path, *paths: str) -> None:
    for name in paths:
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def amd(plain: Machine) -> Machine:
    return replace(plain, gpus=tuple(replace(gpu, vendor=AMD) for gpu in plain.gpus))


def test_an_nvidia_gpu_has_the_node_of_its_minor_number(tmp_path: Path) -> None:
    plain = machine()
    inventory = served(replace(plain, gpus=tuple(replace(gpu, minor=7 - gpu.index) for gpu in plain.gpus)))
    make(tmp_path, *(f"/dev/nvidia{minor}" for minor in range(8)))

    found = device_files(inventory, tmp_path)

    assert [found.by_key[key] for key in inventory.gpu_keys] == [(f"/dev/nvidia{7 - at}",) for at in range(8)]


def test_nvidias_shared_nodes_are_those_that_exist(tmp_path: Path) -> None:
    make(tmp_path, "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/kfd")

    assert device_files(served(machine()), tmp_path).every_gpu == ("/dev/nvidiactl", "/dev/nvidia-uvm")


def test_a_gpu_whose_minor_number_is_unknown_has_no_node(tmp_path: Path) -> None:
    plain = machine()
    silent = Unknown("not told")
    inventory = served(replace(plain, gpus=(replace(plain.gpus[0], minor=silent), *plain.gpus[1:])))
    make(tmp_path, "/dev/nvidia0", "/dev/nvidia1")

    found = device_files(inventory, tmp_path)

    assert [found.by_key[key] for key in inventory.gpu_keys[:2]] == [(), ("/dev/nvidia1",)]


def test_an_amd_gpu_has_the_render_node_that_its_address_leads_to(tmp_path: Path) -> None:
    inventory = served(amd(machine()))
    make(tmp_path, "/dev/dri/renderD130", "/dev/kfd", "/dev/nvidiactl")
    link = tmp_path / f"dev/dri/by-path/pci-{inventory.machine.gpus[1].bdf}-render"
    link.parent.mkdir()
    link.symlink_to("../renderD130")

    found = device_files(inventory, tmp_path)

    assert [found.by_key[key] for key in inventory.gpu_keys[:2]] == [(), ("/dev/dri/renderD130",)]
    assert found.every_gpu == ("/dev/kfd",)


def test_an_rdma_nic_has_its_verbs_nodes_and_the_connection_manager(tmp_path: Path) -> None:
    inventory = served(machine())
    make(
        tmp_path,
        "/sys/class/infiniband/mlx5_0/device/infiniband_verbs/uverbs3",
        "/dev/infiniband/uverbs3",
        "/dev/infiniband/rdma_cm",
    )

    found = device_files(inventory, tmp_path)

    assert found.by_key[inventory.nic_keys[0]] == ("/dev/infiniband/uverbs3", "/dev/infiniband/rdma_cm")
    assert found.by_key[inventory.nic_keys[1]] == ()


def test_a_nic_without_rdma_needs_no_node(tmp_path: Path) -> None:
    plain = machine()
    inventory = served(replace(plain, nics=tuple(replace(nic, rdma=None) for nic in plain.nics)))
    make(tmp_path, "/dev/infiniband/rdma_cm")

    found = device_files(inventory, tmp_path)

    assert {found.by_key[key] for key in inventory.nic_keys} == {()}


def test_a_verbs_node_that_sysfs_names_but_dev_lacks_is_left_out(tmp_path: Path) -> None:
    inventory = served(machine())
    make(tmp_path, "/sys/class/infiniband/mlx5_0/device/infiniband_verbs/uverbs3", "/dev/infiniband/rdma_cm")

    assert device_files(inventory, tmp_path).by_key[inventory.nic_keys[0]] == ("/dev/infiniband/rdma_cm",)


def test_on_a_node_without_any_of_them_every_device_is_there_without_nodes(tmp_path: Path) -> None:
    inventory = served(machine())

    found = device_files(inventory, tmp_path)

    assert found.by_key == dict.fromkeys((*inventory.gpu_keys, *inventory.nic_keys), ())
    assert found.every_gpu == ()


def test_the_drivers_libraries_are_those_of_its_directory(tmp_path: Path) -> None:
    names = (
        "libcuda.so.1",
        "libcuda.so.580.159.04",
        "libnvidia-ml.so.1",
        "libcuda.so",
        "libc.so.6",
        "libnvidia-tls.so.1",
    )
    make(tmp_path, *(f"/usr/local/nvidia/{name}" for name in names))

    found = with_driver_libraries(DeviceFiles(), "/usr/local/nvidia", tmp_path)

    assert found.libraries == (
        ("libcuda.so.1", "/usr/local/nvidia/libcuda.so.1"),
        ("libcuda.so.580.159.04", "/usr/local/nvidia/libcuda.so.580.159.04"),
        ("libnvidia-ml.so.1", "/usr/local/nvidia/libnvidia-ml.so.1"),
    )


def test_without_a_directory_they_are_looked_up_in_the_loaders_cache(tmp_path: Path) -> None:
    flags = {"x86_64": 0x0303, "aarch64": 0x0A03}.get(os.uname().machine, 0)
    make(tmp_path, "/etc/ld.so.cache")
    libraries = (("libcuda.so.1", "/usr/lib/libcuda.so.1", flags), ("libc.so.6", "/usr/lib/libc.so.6", flags))
    (tmp_path / "etc/ld.so.cache").write_bytes(cache(*libraries))

    found = with_driver_libraries(DeviceFiles(), "", tmp_path)

    assert found.libraries == ((("libcuda.so.1", "/usr/lib/libcuda.so.1"),) if flags else ())


def test_a_node_without_the_driver_has_no_library_of_it(tmp_path: Path) -> None:
    assert with_driver_libraries(DeviceFiles(), "", tmp_path).libraries == ()
    assert with_driver_libraries(DeviceFiles(), "/missing", tmp_path).libraries == ()
