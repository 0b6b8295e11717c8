"""`nvidia-smi -L`: GPUs and MIG devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.readers.recorded import FACTS, read, refused, text_of
from topoalloc.topology.machine import MigDevice
from topoalloc.topology.readers import smi_list
from topoalloc.topology.reading import Reading, SourceRefusal, Standing

RECORDED = "a100-80gb-mig-7x1g.smi-L.txt"


def listing(text: str) -> Reading:
    return read(smi_list.parse(text, "host.txt"))


def test_the_recorded_list_agrees_with_its_facts() -> None:
    reading = listing(text_of(RECORDED))
    fact = FACTS[RECORDED]["gpus"][0]
    (gpu,) = reading.gpus
    assert (gpu.index, gpu.model) == (fact["index"], fact["name"])
    assert [device.profile for device in gpu.mig] == fact["mig"]
    assert [device.index for device in gpu.mig] == list(range(7))
    assert gpu.uuid == "GPU-00000000-0000-4000-8000-000000000100"
    assert reading.standing is Standing.ADDITION


def test_mig_devices_of_drivers_before_470_are_named_by_their_gpu() -> None:
    text = "GPU 0: A100-PCIE-40GB (UUID: GPU-fb)\n  MIG 3g.20gb Device 0: (UUID: MIG-GPU-fb/1/0)\n"
    assert listing(text).gpus[0].mig == (MigDevice(0, "3g.20gb", "MIG-GPU-fb/1/0"),)


def test_profiles_with_attributes_and_compute_instances_are_kept_whole() -> None:
    text = (
        "GPU 1: H100 (UUID: GPU-a)\n"
        "  MIG 1g.10gb+me Device  0: (UUID: MIG-b)\n"
        "  MIG 1c.3g.40gb Device  1: (UUID: MIG-c)\n"
    )
    assert [device.profile for device in listing(text).gpus[0].mig] == ["1g.10gb+me", "1c.3g.40gb"]


def test_prompts_blank_lines_and_fences_are_passed_over() -> None:
    text = "```\nroot@n:~# nvidia-smi -L\nGPU 0: T4 (UUID: GPU-a)\n\nGPU 1: T4 (UUID: GPU-b)\n```\n"
    assert [gpu.index for gpu in listing(text).gpus] == [0, 1]


def test_a_lost_gpu_is_named_in_a_warning() -> None:
    text = "GPU 0: T4 (UUID: GPU-a)\nUnable to determine the device handle for gpu 0000:18:00.0: Unknown Error\n"
    reading = listing(text)
    assert len(reading.gpus) == 1
    assert "0000:18:00.0" in reading.warnings[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("hello\n", "line 1"),
        ("  MIG 1g.5gb Device 0: (UUID: MIG-a)\n", "above the first GPU"),
        ("GPU 0: T4 (UUID: GPU-a)\nGPU 0: T4 (UUID: GPU-b)\n", "listed twice"),
        ("GPU 0: T4 (UUID: GPU-a)\nGPU 1: T4 (UUID: GPU-a)\n", "share a UUID"),
        ("GPU 0: A (UUID: GPU-a)\n MIG 1g.5gb Device 0: (UUID: MIG-GPU-b/7/0)\n", "another GPU"),
        ("GPU 0: A (UUID: GPU-a)\n" + " MIG 1g.5gb Device 0: (UUID: MIG-c)\n" * 2, "twice"),
        ("".join(f"GPU {at}: A (UUID: GPU-{at})\n" for at in range(300)), "more than"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_line(text: str, reason: str) -> None:
    assert reason in refused(smi_list.parse(text, "host.txt"))


@given(st.integers(0, 700))
def test_a_list_cut_in_a_line_is_refused_and_cut_between_lines_is_shorter(cut: int) -> None:
    whole = text_of(RECORDED)
    result = smi_list.parse(whole[:cut], "host.txt")
    if isinstance(result, Reading):
        mig = listing(whole).gpus[0].mig
        assert result.gpus[0].mig == mig[: len(result.gpus[0].mig)]


@given(st.text())
def test_any_text_is_refused_or_read_without_raising(text: str) -> None:
    assert isinstance(smi_list.parse(text, "host.txt"), Reading | SourceRefusal)
