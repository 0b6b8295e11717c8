"""The files of the vcuda library, byte for byte: against its table of offsets, and against the struct as C has it."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoalloc.sharing.edits import Mount
from topoalloc.sharing.share import Share, ShareRules
from topoalloc.sharing.vcuda_shim import VcudaShim, config_bytes, pids_bytes

UID = "0f9e8d7c-1234-4567-89ab-0123456789ab"
SHARE = Share("0000:3b:00.0-c00", 0, None, 30, 12 * 268435456, UID, "app")

# offset, size, what is there
LAYOUT = {
    "pod_uid": (0, 48),
    "limit": (48, 4),
    "occupied": (52, 4044),
    "container_name": (4096, 4096),
    "bus_id": (8192, 16),
    "gpu_memory": (8208, 8),
    "utilization": (8216, 4),
    "hard_limit": (8220, 4),
    "driver_major": (8224, 4),
    "driver_minor": (8228, 4),
    "enable": (8232, 4),
    "padding": (8236, 4),
}

READER = r"""
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
struct version { int major, minor; } __attribute__((packed, aligned(8)));
struct data {
    char pod_uid[48];
    int limit;
    char occupied[4044];
    char container_name[4096];
    char bus_id[16];
    uint64_t gpu_memory;
    int utilization;
    int hard_limit;
    struct version driver_version;
    int enable;
} __attribute__((packed, aligned(8)));
int main(void)
{
    struct data data;
    char more;
    if (sizeof data != 8240 || fread(&data, sizeof data, 1, stdin) != 1 || fread(&more, 1, 1, stdin) != 0)
        return 1;
    printf("%s %s %d %d %d %d.%d %d %llu\n", data.pod_uid, data.container_name, data.limit, data.utilization,
           data.hard_limit, data.driver_version.major, data.driver_version.minor, data.enable,
           (unsigned long long)data.gpu_memory);
    return 0;
}
"""


def field(config: bytes, name: str) -> bytes:
    at, size = LAYOUT[name]
    return config[at : at + size]


def number(config: bytes, name: str) -> int:
    return int.from_bytes(field(config, name), "little", signed=True)


def test_the_file_has_the_size_that_the_library_reads() -> None:
    assert len(config_bytes(SHARE, ShareRules(), (580, 159))) == 8240
    assert sum(size for _, size in LAYOUT.values()) == 8240


def test_every_field_is_at_its_place() -> None:
    config = config_bytes(SHARE, ShareRules(), (580, 159))

    assert field(config, "pod_uid") == UID.encode().ljust(48, b"\0")
    assert field(config, "container_name") == b"app".ljust(4096, b"\0")
    numbers = ("limit", "gpu_memory", "utilization", "hard_limit", "driver_major", "driver_minor", "enable")
    assert [number(config, name) for name in numbers] == [0, 12 * 268435456, 30, 1, 580, 159, 1]
    assert not any(field(config, "occupied") + field(config, "bus_id") + field(config, "padding"))


def test_an_elastic_share_has_its_ceiling_and_no_hard_limit() -> None:
    config = config_bytes(SHARE, ShareRules(elastic_cores=80), (0, 0))

    assert (number(config, "limit"), number(config, "hard_limit")) == (80, 0)


def test_a_ceiling_below_the_share_is_none() -> None:
    config = config_bytes(SHARE, ShareRules(elastic_cores=20), (0, 0))

    assert (number(config, "limit"), number(config, "hard_limit")) == (0, 1)


@given(st.text(max_size=5000), st.text(max_size=5000))
def test_text_that_is_too_long_is_cut_and_ends_with_a_zero(uid: str, name: str) -> None:
    config = config_bytes(Share("a", 0, None, 1, 0, uid, name), ShareRules(), (0, 0))

    assert len(config) == 8240
    assert field(config, "pod_uid")[-1] == field(config, "container_name")[-1] == 0


def test_c_reads_the_same(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, program = tmp_path / "reader.c", tmp_path / "reader"
    source.write_text(READER)
    subprocess.run([compiler, "-o", str(program), str(source)], check=True)

    config = config_bytes(SHARE, ShareRules(elastic_cores=80), (580, 159))
    said = subprocess.run([str(program)], input=config, capture_output=True, check=True).stdout.decode()

    assert said == f"{UID} app 80 30 0 580.159 1 3221225472\n"


@given(st.lists(st.integers(-5, 2**33), max_size=1500))
def test_pids_are_sorted_unique_and_as_many_as_the_library_reads(pids: list[int]) -> None:
    content = pids_bytes(pids)

    read = [pid for (pid,) in struct.iter_unpack("<i", content)]
    assert read == sorted({pid for pid in pids if 0 < pid < 2**31})[:1024]


def test_the_container_gets_the_mirror_of_the_driver_and_its_own_directory() -> None:
    edits = VcudaShim(ShareRules(), "/etc/gpu-manager/vdriver/nvidia").enforced(SHARE, "/run/x").edits

    assert edits.mounts == (
        Mount("/run/x", "/etc/vcuda"),
        Mount("/etc/gpu-manager/vdriver/nvidia", "/usr/local/nvidia"),
    )
    assert edits.envs == (("LD_LIBRARY_PATH", "/usr/local/nvidia/lib64"),)
