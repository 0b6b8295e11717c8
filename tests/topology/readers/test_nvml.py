"""The real NVML bindings against a made-up libnvidia-ml.so.1, each case in a process of its own."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from topoalloc.topology.machine import LinkClass, MigDevice
from topoalloc.topology.pci import PciAddress
from topoalloc.topology.reading import FarEnd, LinkReading, NvlinkReading, Reading, SourceRefusal, Standing

SOURCE = Path(__file__).parents[1] / "fake_nvml" / "fake_nvml.c"
ROOT = Path(__file__).parents[3]
COMPILER = shutil.which("cc")
ASK = """
import pickle, sys
from topoalloc.topology.readers.nvml import read_nvml
sys.stdout.buffer.write(pickle.dumps(read_nvml()))
"""
GPU_0, GPU_1 = PciAddress(0, 0x0F, 0, 0), PciAddress(0, 0x10, 0, 0)

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler (cc) to build the made-up driver library")


def asked(library_folder: Path) -> Reading | SourceRefusal:
    """What the reader says in a fresh process that finds this driver library."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library_folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ASK], env=environment, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    result = pickle.loads(done.stdout)
    assert isinstance(result, Reading | SourceRefusal)
    return result


def driver(folder: Path, *macros: str) -> Reading | SourceRefusal:
    """What the reader says of a driver built with these macros."""
    assert COMPILER is not None
    command = [COMPILER, "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)]
    subprocess.run([*command, *(f"-D{macro}" for macro in macros)], check=True, timeout=60)
    return asked(folder)


def reading(folder: Path, *macros: str) -> Reading:
    result = driver(folder, *macros)
    assert isinstance(result, Reading), result
    return result


@needs_compiler
def test_each_gpu_is_told_with_all_its_names(tmp_path: Path) -> None:
    read = reading(tmp_path)
    assert read.standing is Standing.ADDITION
    assert [(gpu.index, gpu.bdf, gpu.uuid, gpu.model, gpu.minor) for gpu in read.gpus] == [
        (0, GPU_0, "GPU-fake-0", "NVIDIA H200", 4),
        (1, GPU_1, "GPU-fake-1", "NVIDIA H200", 5),
    ]
    assert {(gpu.memory_bytes, gpu.vendor, gpu.pci_device) for gpu in read.gpus} == {(143771 << 20, "10de", "2335")}


@needs_compiler
def test_links_to_switches_are_counted_per_switch(tmp_path: Path) -> None:
    links = reading(tmp_path).gpus[0].nvlinks
    assert links == tuple(
        NvlinkReading(FarEnd.SWITCH, PciAddress(0, 0xE0 + at, 0, 0), 5 if at < 2 else 4) for at in range(4)
    )


@needs_compiler
def test_switches_that_a_guest_does_not_own_are_one_unseen_switch(tmp_path: Path) -> None:
    read = reading(tmp_path, "HIDDEN")
    assert [gpu.nvlinks for gpu in read.gpus] == [(NvlinkReading(FarEnd.UNSEEN_SWITCH, None, 18),)] * 2


@needs_compiler
def test_direct_links_name_the_other_gpu(tmp_path: Path) -> None:
    read = reading(tmp_path, "REMOTE=0", "LINKS=12")
    assert [gpu.nvlinks for gpu in read.gpus] == [
        (NvlinkReading(FarEnd.GPU, GPU_1, 12),),
        (NvlinkReading(FarEnd.GPU, GPU_0, 12),),
    ]


@needs_compiler
def test_links_to_the_cpu_of_a_power_machine_join_no_gpus(tmp_path: Path) -> None:
    assert [gpu.nvlinks for gpu in reading(tmp_path, "REMOTE=1", "LINKS=3").gpus] == [(), ()]


@needs_compiler
def test_a_gpu_without_nvlink_has_no_links(tmp_path: Path) -> None:
    assert [gpu.nvlinks for gpu in reading(tmp_path, "NO_NVLINK").gpus] == [(), ()]


@needs_compiler
def test_classes_and_peer_access_of_pairs_are_told(tmp_path: Path) -> None:
    assert reading(tmp_path).links == (LinkReading(("gpu", 0), ("gpu", 1), pcie=LinkClass.PHB, peer_access=True),)


@needs_compiler
def test_mig_devices_are_told_with_gaps_between_their_indexes(tmp_path: Path) -> None:
    read = reading(tmp_path, "MIG")
    assert read.gpus[0].mig == (MigDevice(0, "1g.18gb", "MIG-fake-0-0"), MigDevice(2, "1g.18gb", "MIG-fake-0-2"))
    assert read.gpus[1].mig == ()


@needs_compiler
def test_an_old_driver_without_newer_symbols_tells_the_rest(tmp_path: Path) -> None:
    """Missing: remote device type, remote address in its current form, MIG, common ancestor, peer-to-peer status."""
    read = reading(tmp_path, "OLD")
    assert [gpu.uuid for gpu in read.gpus] == ["GPU-fake-0", "GPU-fake-1"]
    assert read.links == ()
    assert read.gpus[0].nvlinks == (NvlinkReading(FarEnd.UNKNOWN, None, 18),)


@needs_compiler
def test_without_remote_types_an_address_of_a_known_gpu_is_that_gpu(tmp_path: Path) -> None:
    read = reading(tmp_path, "OLD", "OLD_WITH_FAR_ENDS", "REMOTE=0", "LINKS=4")
    assert read.gpus[0].nvlinks == (NvlinkReading(FarEnd.GPU, GPU_1, 4),)


@needs_compiler
def test_without_remote_types_an_address_of_all_f_is_an_unseen_switch(tmp_path: Path) -> None:
    read = reading(tmp_path, "OLD", "OLD_WITH_FAR_ENDS", "HIDDEN")
    assert read.gpus[0].nvlinks == (NvlinkReading(FarEnd.UNSEEN_SWITCH, None, 18),)


@needs_compiler
def test_a_lost_gpu_is_reported_and_the_others_keep_their_numbers(tmp_path: Path) -> None:
    read = reading(tmp_path, "LOST", "GPUS=3")
    assert [gpu.index for gpu in read.gpus] == [0, 2]
    assert read.warnings == ("NVML: GPU 1 does not answer (lost, or not visible to this process)",)


@needs_compiler
def test_a_driver_that_is_not_loaded_is_a_verdict_with_its_reason(tmp_path: Path) -> None:
    verdict = driver(tmp_path, "INIT_RESULT=DRIVER_NOT_LOADED")
    assert verdict == SourceRefusal(
        "NVML", "cannot be asked (Driver Not Loaded); is NVIDIA's driver installed and visible here?"
    )


def test_no_driver_library_is_a_verdict_with_its_reason(tmp_path: Path) -> None:
    verdict = asked(tmp_path)
    if isinstance(verdict, Reading):
        pytest.skip("this machine has NVIDIA's driver")
    assert "NVML Shared Library Not Found" in verdict.reason
