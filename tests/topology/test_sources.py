"""Machines from paths and from a node, and whose fault it is when there is none."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.topology.trees import MACHINES
from topoalloc.errors import InputError
from topoalloc.topology.checks import check_machine
from topoalloc.topology.machine import LinkClass, Unknown
from topoalloc.topology.snapshot import dump
from topoalloc.topology.sources import SOURCES_MAX, discover, is_sysfs_mounted, load_machine

GIB = 1 << 30


def path(name: str) -> str:
    return str(MACHINES / name)


def refusal(*paths: str) -> str:
    with pytest.raises(InputError) as raised:
        load_machine(paths)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_several_sources_of_one_machine_complete_each_other() -> None:
    """Two H200 in a guest: sysfs has the path, the table the NVLinks, the query model, memory and UUID."""
    name = "firecracker-2xh200-nv18"
    machine = load_machine([path(f"{name}{end}") for end in (".sysfs.tar.gz", ".topo-m.txt", ".smi-q.xml")])
    assert [gpu.memory_bytes for gpu in machine.gpus] == [143771 << 20] * 2
    link = machine.links_by_pair()["GPU0", "GPU1"]
    assert (link.pcie, link.nvlinks) == (LinkClass.PHB, 18)
    assert len(machine.sources) == 3


def test_an_addition_alone_is_refused_with_what_to_add() -> None:
    assert "only adds to another source" in refusal(path("asus-esc8000a-e12-4xrtx6000ada.numactl-H.txt"))


def test_a_file_that_cannot_be_read_is_the_inputs_fault() -> None:
    assert "No such file" in refusal("/nowhere/at/all")
    assert InputError.status == 2


def test_no_source_at_all_is_refused() -> None:
    assert "no source is given" in refusal()


def test_more_sources_than_formats_are_refused() -> None:
    assert "at most 32" in refusal(*["synthetic:gpu:1"] * (SOURCES_MAX + 1))


def test_a_snapshot_alone_is_its_machine(tmp_path: Path) -> None:
    machine = load_machine(["synthetic:gpu:2 nic:1"])
    snapshot = tmp_path / "node.json"
    snapshot.write_text(dump(machine))
    assert load_machine([str(snapshot)]) == machine


def test_a_snapshot_is_completed_by_other_sources(tmp_path: Path) -> None:
    name = "firecracker-2xh200-nv18"
    snapshot = tmp_path / "node.json"
    snapshot.write_text(dump(load_machine([path(f"{name}.sysfs.tar.gz")])))
    link = load_machine([str(snapshot), path(f"{name}.topo-m.txt")]).links_by_pair()["GPU0", "GPU1"]
    assert (link.pcie, link.nvlinks) == (LinkClass.PHB, 18)


def test_the_given_gpu_memory_stands_in_where_nothing_else_tells_it(tmp_path: Path) -> None:
    unknown = load_machine(["synthetic:gpu:2"])
    assert all(isinstance(gpu.memory_bytes, Unknown) for gpu in unknown.gpus)
    assert {gpu.memory_bytes for gpu in load_machine(["synthetic:gpu:2"], 80 * GIB).gpus} == {80 * GIB}
    assert {gpu.memory_bytes for gpu in load_machine(["synthetic:gpu:2 mem:40GiB"], 80 * GIB).gpus} == {40 * GIB}
    snapshot = tmp_path / "node.json"
    snapshot.write_text(dump(unknown))
    assert {gpu.memory_bytes for gpu in load_machine([str(snapshot)], 80 * GIB).gpus} == {80 * GIB}
    assert load_machine([str(snapshot)]) == unknown


def test_this_node_is_discovered() -> None:
    machine = discover()
    assert check_machine(machine) == ()
    usable = os.sched_getaffinity(0)
    nodes = [node.cpus for node in machine.numa_nodes if not isinstance(node.cpus, Unknown)]
    if nodes:
        assert usable <= {cpu for cpus in nodes for cpu in cpus}


def test_a_node_is_discovered_below_another_root(tmp_path: Path) -> None:
    name = "ryzen-desktop-4nic-chipset-switch.sysfs.tar.gz"
    with tarfile.open(path(name)) as archive:
        archive.extractall(tmp_path, filter="tar")
    machine = discover(str(tmp_path))
    assert [nic.name for nic in machine.nics] == ["enp3s0", "enp6s0f0", "enp6s0f1", "enp8s0"]
    assert discover(str(tmp_path / "sys")).nics == machine.nics


def test_a_root_without_a_sysfs_is_the_inputs_fault(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no sys/devices"):
        discover(str(tmp_path))


def test_discovering_a_node_loads_none_of_the_formats_of_recorded_machines() -> None:
    """The agent stays small: no decompressors, no XML, and NVML's bindings only where there is an NVIDIA GPU."""
    code = "import sys; from topoalloc.topology.sources import discover; discover(); print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    modules = set(done.stdout.split())
    assert not modules & {"bz2", "lzma", "xml.parsers.expat", "tarfile", "topoalloc.topology.detect"}
    if not any(gpu.vendor == "10de" for gpu in discover().gpus):
        assert "pynvml" not in modules


def test_the_hosts_devices_mounted_alone_are_a_live_sysfs() -> None:
    """As in the DaemonSet: /sys/devices of the host at /host/sys/devices, and nothing at /host/sys."""
    mounts = (
        "24 30 0:22 / /sys ro,nosuid - sysfs sysfs rw\n"
        "61 30 0:22 /devices /host/sys/devices ro,relatime - sysfs sysfs rw\n"
        "62 30 8:1 /srv/tree /unpacked/sys rw - ext4 /dev/sda1 rw\n"
    )

    assert is_sysfs_mounted("/sys", mounts)
    assert is_sysfs_mounted("/host/sys", mounts)
    assert not is_sysfs_mounted("/unpacked/sys", mounts)
    assert not is_sysfs_mounted("/host", mounts)
