"""Memory of GPU models by name and by PCI id."""

from __future__ import annotations

import pytest

from topoalloc.topology import gpu_models
from topoalloc.topology.agreement import fuller_name
from topoalloc.topology.gpu_models import memory_of


@pytest.mark.parametrize(
    ("model", "mebibytes"),
    [
        ("NVIDIA A100-SXM4-40GB", 40960),
        ("A100-SXM4-80GB", 81920),
        ("NVIDIA A100 80GB PCIe", 81920),
        ("NVIDIA Corporation GA100 [A100 SXM4 40GB]", 40960),
        ("NVIDIA H100 80GB HBM3", 81559),
        ("NVIDIA H100 NVL", 95830),
        ("NVIDIA H200", 143771),
        ("NVIDIA B200", 183359),
        ("NVIDIA B300 SXM6 AC", 275040),
        ("NVIDIA GB200", 189471),
        ("NVIDIA L4", 23034),
        ("NVIDIA L40S", 46068),
        ("Tesla T4", 15360),
        ("Tesla V100-SXM2-32GB", 32768),
        ("NVIDIA RTX A6000", 49140),
        ("NVIDIA Corporation AD102GL [RTX 6000 Ada Generation]", 49140),
        ("NVIDIA GeForce RTX 3090", 24576),
        ("NVIDIA GeForce RTX 3090 Ti", 24564),
        ("NVIDIA GeForce RTX 4090", 24564),
        ("AMD Instinct MI300X", 196592),
        ("AMD Instinct MI300X VF", 196288),
    ],
)
def test_a_model_is_found_however_it_is_spelt(model: str, mebibytes: int) -> None:
    assert memory_of(model, None, None) == mebibytes << 20


@pytest.mark.parametrize(
    "model",
    [
        "NVIDIA A100",  # 40 or 80 GB
        "Tesla V100",  # 16 or 32 GB
        "NVIDIA A10-4Q",  # a vGPU profile of 4 GB
        "GRID T4-8C",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GB10",  # the host's memory
        "NVIDIA Something",
        "",
    ],
)
def test_a_name_that_leaves_the_size_open_matches_nothing(model: str) -> None:
    assert memory_of(model, None, None) is None


def test_the_pci_id_stands_in_for_a_name_that_tells_nothing() -> None:
    assert memory_of(None, "10de", "2335") == 143771 << 20
    assert memory_of("NVIDIA Graphics Device", "10de", "2335") == 143771 << 20
    assert memory_of(None, "1002", "2335") is None
    assert memory_of(None, "10de", None) is None


def test_a_vgpu_of_a_known_card_is_not_taken_for_the_card() -> None:
    assert memory_of("NVIDIA A10-4Q", "10de", "2236") is None


def test_every_name_of_the_table_finds_itself() -> None:
    for model, mebibytes in (gpu_models._MIB_OF_NVIDIA_MODEL | gpu_models._MIB_OF_AMD_MODEL).items():
        assert memory_of(model, None, None) == mebibytes << 20, model


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"),
        ("NVIDIA Corporation GA100 [A100 SXM4 40GB]", "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", None),
        ("NVIDIA L4", "NVIDIA L40", None),
    ],
)
def test_two_spellings_of_one_model_agree_in_either_order(a: str, b: str, expected: str | None) -> None:
    assert fuller_name(a, b) == fuller_name(b, a) == expected
