"""`nvidia-smi nvlink -s` and `-R`: how many NVLinks a GPU has and where they go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.readers.recorded import FACTS, names, read, refused, text_of
from topoalloc.topology.pci import PciAddress
from topoalloc.topology.readers import nvlink_text
from topoalloc.topology.reading import FarEnd, NvlinkReading, Reading, SourceRefusal, Standing

RECORDED = [*names(".nvlink-s.txt"), *names(".nvlink-R.txt")]


def links(text: str) -> Reading:
    return read(nvlink_text.parse(text, "host.txt"))


def remote(index: int, *far_ends: str) -> str:
    lines = [f"\t Link {at}: Remote Device {far}" for at, far in enumerate(far_ends)]
    return "\n".join([f"GPU {index}: NVIDIA A100-SXM4-40GB (UUID: GPU-{index})", *lines, ""])


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_output_agrees_with_its_facts(name: str) -> None:
    reading, facts = links(text_of(name)), FACTS[name]["gpus"]
    assert [str(gpu.index) for gpu in reading.gpus] == list(facts)
    for gpu in reading.gpus:
        fact = facts[str(gpu.index)]
        assert gpu.model == fact["name"]
        assert gpu.nvlinks is not None
        assert sum(link.count for link in gpu.nvlinks) == fact["links"]
        hidden = sum(link.count for link in gpu.nvlinks if link.far_end is FarEnd.UNSEEN_SWITCH)
        assert hidden == fact["remote"].get("ffffffff:ff:ff.0", 0)
    assert reading.standing is Standing.ADDITION
    assert reading.warnings == ()


def test_status_tells_counts_but_no_far_ends() -> None:
    gpu = links(text_of("perlmutter-4xa100.nvlink-s.txt")).gpus[0]
    assert gpu.nvlinks == (NvlinkReading(FarEnd.UNKNOWN, None, 12),)


def test_an_error_line_in_place_of_links_is_a_gpu_without_links() -> None:
    assert links(text_of("3xa6000-one-bridge-pair.nvlink-s.txt")).gpus[2].nvlinks == ()


@pytest.mark.parametrize("state", ["<inactive>", "inactive", "0 GB/s", "0.000 GB/s"])
def test_inactive_links_do_not_count(state: str) -> None:
    text = f"GPU 0: V100 (UUID: GPU-a)\n\t Link 0: 25.781 GB/s\n\t Link 1: {state}\n"
    assert links(text).gpus[0].nvlinks == (NvlinkReading(FarEnd.UNKNOWN, None, 1),)
    assert links(text.replace("25.781 GB/s", "<inactive>")).gpus[0].nvlinks == ()


def test_a_gpu_of_which_the_driver_says_nothing_stays_unknown_with_a_warning() -> None:
    reading = links("GPU 0: T4 (UUID: GPU-a)\nGPU 1: A30 (UUID: GPU-b)\n\t Link 0: 25 GB/s\n")
    assert reading.gpus[0].nvlinks is None
    assert "GPU 0" in reading.warnings[0]


def test_two_gpus_whose_links_lead_to_each_other_are_joined_directly() -> None:
    reading = links(
        remote(0, "00000000:D5:00.0: Link 1", "00000000:D5:00.0: Link 0")
        + remote(1, "00000000:27:00.0: Link 1", "00000000:27:00.0: Link 0")
    )
    assert reading.gpus[0].nvlinks == (NvlinkReading(FarEnd.GPU, PciAddress(0, 0xD5, 0, 0), 2),)
    assert reading.gpus[1].nvlinks == (NvlinkReading(FarEnd.GPU, PciAddress(0, 0x27, 0, 0), 2),)


def test_far_ends_that_all_gpus_share_are_switches() -> None:
    reading = links(
        remote(0, "00000008:00:00.0: Link 29", "00000008:00:00.0: Link 28", "00000005:00:00.0: Link 34")
        + remote(1, "00000005:00:00.0: Link 3", "00000008:00:00.0: Link 1", "00000008:00:00.0: Link 2")
    )
    assert {(link.far_end, link.target, link.count) for link in reading.gpus[0].nvlinks or ()} == {
        (FarEnd.SWITCH, PciAddress(8, 0, 0, 0), 2),
        (FarEnd.SWITCH, PciAddress(5, 0, 0, 0), 1),
    }


def test_a_far_end_that_nothing_explains_keeps_its_address_and_stays_unknown() -> None:
    reading = links(remote(0, "00000000:D5:00.0: Link 1"))
    assert reading.gpus[0].nvlinks == (NvlinkReading(FarEnd.UNKNOWN, PciAddress(0, 0xD5, 0, 0), 1),)


def test_fewer_links_on_the_last_gpu_than_on_others_of_its_model_are_pointed_out() -> None:
    text = text_of("perlmutter-4xa100.nvlink-s.txt")
    cut = text[: text.rindex("\t Link 6")]
    assert "cut short" in links(cut).warnings[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("\t Link 0: 25 GB/s\n", "above the first GPU"),
        ("GPU 0: A (UUID: GPU-a)\n\t Link 0: 25 GB/s\n\t Link 0: 25 GB/s\n", "link 0 of GPU 0 is there twice"),
        ("GPU 0: A (UUID: GPU-a)\n\t Link 0: 25 G", "link 0 of GPU 0"),
        ("GPU 0: A (UUID: GPU-a)\n\t Link 0: Remote Device 00000000:D5:FF.0: Link 1\n", "link 0 of GPU 0"),
        ("GPU 0: A (UUID: GPU-a)\nNVML: Unable to retriev", "cut short"),
        ("GPU 0: A (UUID: GPU-a)\n\t Link 0, P2P is supported: true\n", "line 2"),
        ("GPU 0: A (UUID: GPU-a)\nGPU 0: A (UUID: GPU-a)\n", "listed twice"),
        ("GPU 0: A (UUID: GPU-a)\n" + "".join(f" Link {at}: 25 GB/s\n" for at in range(200)), "more than"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, reason: str) -> None:
    assert reason in refused(nvlink_text.parse(text, "host.txt"))


@given(st.sampled_from(RECORDED), st.data())
def test_an_output_cut_anywhere_is_refused_or_warned_of_or_tells_nothing_false_of_whole_gpus(
    name: str, data: st.DataObject
) -> None:
    text = text_of(name)
    whole = links(text).gpus
    result = nvlink_text.parse(text[: data.draw(st.integers(0, len(text)))], name)
    if isinstance(result, Reading):
        shown = len(result.gpus)
        assert result.gpus[:-1] == whole[: shown - 1]
        # A first GPU cut between two lines has no other to be compared with.
        assert result.gpus[-1] == whole[shown - 1] or result.warnings or shown == 1


@given(st.text(st.sampled_from("GPU 0:Link Remote Device\n\tf.")))
def test_any_text_is_refused_or_read_without_raising(text: str) -> None:
    assert isinstance(nvlink_text.parse(text, "host.txt"), Reading | SourceRefusal)
