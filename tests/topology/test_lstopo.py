"""hwloc's lstopo reads the same sysfs trees independently; where it has what it needs, it agrees.

It builds the PCI tree from bus numbers in the configuration space where this program follows the kernel's paths, and
takes a device's node from its local CPUs where this program takes numa_node: two other ways to the same facts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.topology.trees import FACTS, MACHINES
from topoalloc.topology.cpus import CpuSet
from topoalloc.topology.machine import Unknown
from topoalloc.topology.readers.files import FolderFiles
from topoalloc.topology.readers.hwloc_xml import read_hwloc_xml
from topoalloc.topology.readers.sysfs import read_machine_tree
from topoalloc.topology.readers.xml_document import XmlElement, read_xml
from topoalloc.topology.reading import GpuReading, NicReading, Reading

LSTOPO = shutil.which("lstopo-no-graphics") or shutil.which("lstopo")

pytestmark = pytest.mark.skipif(LSTOPO is None, reason="lstopo is not installed (Debian package hwloc or hwloc-nox)")


@dataclass(frozen=True)
class Comparison:
    """A recorded tree, and devices on which lstopo is known to differ, with the reason."""

    name: str
    path_differs: dict[str, str] = field(default_factory=dict)
    node_differs: dict[str, str] = field(default_factory=dict)


LEFT_OUT = "lstopo 2.9 leaves out bridge 0000:5f:03.0, which the kernel's own path of the device has"
# Unpacking thousands of small files is what takes the time: two trees in the quick run, all in the slow one.
COMPARISONS = [
    pytest.param(Comparison("amd-4socket-sparse-node-ids.sysfs.tar.bz2"), marks=pytest.mark.slow),
    Comparison("kvm-pci-domain-10000.sysfs.tar.bz2"),
    Comparison("vm-memory-only-nodes-tiers.sysfs.tar.bz2"),
    pytest.param(
        Comparison(
            "nec-aurora-8ve-2ib-2switch.sysfs.tar.bz2",
            path_differs={"0000:60:00.0": LEFT_OUT, "0000:60:00.1": LEFT_OUT},
        ),
        marks=pytest.mark.slow,
    ),
    pytest.param(Comparison("dell-dcs8000-xeonphi-mlx4.sysfs.tar.bz2"), marks=pytest.mark.slow),
    pytest.param(
        Comparison(
            "dell-4socket-qib-numa-minus1.sysfs.tar.bz2",
            node_differs={"0000:43:00.0": "numa_node says 2, its local CPUs are all, which lstopo believes"},
        ),
        marks=pytest.mark.slow,
    ),
    pytest.param(Comparison("amd-4socket-8node-uneven-memory.sysfs.tar.bz2"), marks=pytest.mark.slow),
    pytest.param(Comparison("kunpeng920-2socket-4node.sysfs.tar.bz2"), marks=pytest.mark.slow),
    pytest.param(Comparison("intel-4socket-nosnc.sysfs.tar.xz"), marks=pytest.mark.slow),
]


def both(comparison: Comparison, folder: Path) -> tuple[Reading, Reading]:
    """This program's reading of the unpacked tree, and that of the XML which lstopo makes of it."""
    with tarfile.open(MACHINES / comparison.name) as archive:
        archive.extractall(folder, filter="tar")
    root = folder / FACTS[comparison.name]["root_inside_archive"]
    assert LSTOPO is not None
    done = subprocess.run(
        [LSTOPO, "--of", "xml", "--filter", "all", "-"],
        env={**os.environ, "HWLOC_FSROOT": str(root), "HWLOC_COMPONENTS": "-x86,-pci"},
        capture_output=True,
        timeout=120,
        check=True,
    )
    document = read_xml(done.stdout, "lstopo")
    assert isinstance(document, XmlElement), document
    theirs, ours = read_hwloc_xml(document, "lstopo"), read_machine_tree(FolderFiles(root), "sysfs")
    assert isinstance(theirs, Reading), theirs
    assert isinstance(ours, Reading), ours
    return ours, theirs


def known_node(device: GpuReading | NicReading) -> int | None:
    return device.numa_node if isinstance(device.numa_node, int) else None


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda comparison: comparison.name)
def test_lstopo_agrees(comparison: Comparison, tmp_path: Path) -> None:
    ours, theirs = both(comparison, tmp_path)
    assert [(node.id, node.memory_bytes) for node in ours.numa_nodes] == [
        (node.id, node.memory_bytes) for node in theirs.numa_nodes
    ]
    for our_node, their_node in zip(ours.numa_nodes, theirs.numa_nodes, strict=True):
        # lstopo gives a node without CPUs those of the node beside it, and no distances to a single node.
        assert our_node.cpus in (their_node.cpus, CpuSet())
        assert our_node.distances == their_node.distances or isinstance(their_node.distances, Unknown)
    for our_devices, their_devices in ((ours.gpus, theirs.gpus), (ours.nics, theirs.nics)):
        assert [device.bdf for device in our_devices] == [device.bdf for device in their_devices]
        for our_device, their_device in zip(our_devices, their_devices, strict=True):
            address = str(our_device.bdf)
            assert (our_device.path != their_device.path) == (address in comparison.path_differs)
            if known_node(our_device) is not None:
                assert (our_device.numa_node != their_device.numa_node) == (address in comparison.node_differs)
