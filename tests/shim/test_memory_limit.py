"""Every family of calls ends at the limit in bytes really taken, and gives back what it frees."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tests.shim.container import GIB, MARGIN_BYTES, MIB, UNIT_BYTES, Container, Share, agent_of, finished

LIMIT = 4 * GIB
OUT_OF_MEMORY = 2
WAYS = (
    "linked",
    "dlsym",
    "dlsym-threads",
    "procaddress",
    "procaddress-v1",
    "procaddress-threads",
    "constructor",
    "fork",
)

FAMILIES = [
    ("memory", "plain", "64M"),
    ("memory", "plain", "2052K"),
    ("memory", "pitch", "64M"),
    ("memory", "managed", "64M"),
    ("arrays", "array", "64M"),
    ("arrays", "array3d", "64M"),
    ("arrays", "mipmap", "64M"),
    ("pools", "async", "64M"),
    ("pools", "async", "20M"),
    ("pools", "pool", "64M"),
    ("vmm", "create", "64M"),
    ("vmm", "fabric", "64M"),
    ("vmm", "mapped", "64M"),
    ("graphs", "node", "64M"),
    ("graphs", "addnode", "64M"),
    ("graphs", "captured", "64M"),
]
IMPLICIT = [("implicit", "module", "64M"), ("implicit", "module", "3M"), ("implicit", "context", "0")]


def exact(facts: dict[str, int], *, room: int = UNIT_BYTES) -> None:
    assert facts["error"] == OUT_OF_MEMORY
    assert facts["taken"] <= LIMIT
    assert facts["taken"] >= LIMIT - room
    assert facts["give_error"] == 0
    assert facts["left"] <= facts["before"]
    piece = facts["obtained"] // max(facts["pieces"], 1)
    assert abs(facts["again"] - facts["pieces"]) * piece <= max(piece, MARGIN_BYTES)


@pytest.mark.parametrize("family", FAMILIES, ids="-".join)
def test_a_family_gets_its_limit_and_not_a_byte_more(container: Container, family: tuple[str, str, str]) -> None:
    program, kind, size = family
    exact(container.run(program, "linked", kind, size))


@pytest.mark.parametrize("family", FAMILIES[:1] + FAMILIES[7:8] + FAMILIES[10:11] + FAMILIES[13:14], ids="-".join)
@pytest.mark.parametrize("way", WAYS[1:])
def test_no_way_to_the_driver_passes_the_limit(container: Container, way: str, family: tuple[str, str, str]) -> None:
    program, kind, size = family
    exact(container.run(program, way, kind, size))


def test_small_pieces_are_charged_by_the_granules_they_lie_in(container: Container) -> None:
    exact(container.run("memory", "linked", "plain", "600K"))


@pytest.mark.parametrize("family", IMPLICIT, ids="-".join)
def test_what_the_driver_takes_beside_is_charged_once_it_is_measured(
    measured: Container, family: tuple[str, str, str]
) -> None:
    facts = measured.run(family[0], "linked", *family[1:])
    exact(facts, room=UNIT_BYTES if family[1] != "context" else 500 * MIB + UNIT_BYTES)


@pytest.mark.parametrize("kind", ["heap", "stack"])
def test_a_larger_heap_or_stack_is_refused_before_it_is_taken(container: Container, kind: str) -> None:
    facts = container.run("implicit", "linked", kind, "128M" if kind == "heap" else "1024")
    assert facts["error"] == OUT_OF_MEMORY
    assert facts["taken"] <= LIMIT
    assert facts["back"] == 0


def test_a_library_that_loads_at_its_first_launch_is_charged_within_a_second_and_a_half(measured: Container) -> None:
    facts = measured.run("implicit", "linked", "library", "512M")
    assert facts["launch"] == 0
    assert facts["error"] == OUT_OF_MEMORY
    assert facts["taken"] <= LIMIT


@pytest.mark.parametrize("has_agent", [True, False])
def test_memory_that_a_graph_will_take_stays_charged_until_it_does(container: Container, has_agent: bool) -> None:
    with agent_of(container) if has_agent else nullcontext():
        facts = container.run("graphs", "linked", "unlaunched", "64M")
    assert facts["error"] == OUT_OF_MEMORY
    assert facts["taken"] <= LIMIT
    assert facts["launched"] == 0


def test_allocations_and_modules_at_once_stay_below_the_limit(measured: Container) -> None:
    for _ in range(3):
        assert measured.run("implicit", "linked", "mixed", "32M")["taken"] <= LIMIT


def test_a_lifted_limit_leaves_the_whole_device(container: Container) -> None:
    container.grant(Share(memory=None))
    assert container.run("memory", "linked", "plain", "256M")["taken"] > 15 * GIB


def test_no_granted_memory_refuses_every_allocation(container: Container) -> None:
    container.grant(Share(memory=0))
    facts = container.run("memory", "linked", "plain", "1M")
    assert facts.get("start") == OUT_OF_MEMORY or facts["pieces"] == 0


def test_sixteen_threads_at_once_get_no_byte_over(container: Container) -> None:
    facts = container.run("memory", "linked", "threads", "32M")
    assert LIMIT - UNIT_BYTES <= facts["taken"] <= LIMIT


def test_legal_frees_of_each_others_memory_free_it(container: Container) -> None:
    facts = container.run("pools", "linked", "cross")
    assert facts["crossed"] == 1
    assert facts["leaked"] <= 0


@pytest.mark.parametrize("way", ["dlsym-threads", "procaddress-threads"])
def test_legal_frees_work_in_a_threads_own_stream_too(container: Container, way: str) -> None:
    assert container.run("pools", way, "cross")["crossed"] == 1


def test_a_destroyed_pool_gives_back_what_it_had(container: Container) -> None:
    assert container.run("pools", "linked", "die")["destroyed"] == 1


def test_what_a_pool_keeps_stays_charged_until_it_is_trimmed(container: Container) -> None:
    facts = container.run("pools", "linked", "threshold")
    assert facts["kept"] > 2 * GIB
    assert facts["refused"] == OUT_OF_MEMORY
    assert facts["after_trim"] == 0


def test_imported_memory_is_not_charged_again(container: Container) -> None:
    facts = container.run("vmm", "linked", "import")
    assert facts["imported"] == 1
    assert facts["after_release"] == 0


def test_memory_of_another_process_can_be_opened(container: Container) -> None:
    facts = container.run("foreign", "linked", "ipc")
    assert facts["ipc"] == 1
    assert facts["opened_takes"] == 0


def test_external_memory_counts_like_any_other(container: Container) -> None:
    for size, error in (("1G", 0), ("3G", 0), ("32G", OUT_OF_MEMORY)):
        facts = container.run("foreign", "linked", "external", size)
        assert facts["imported"] == error
        assert facts.get("external", 0) == (error == 0)


@pytest.mark.parametrize("way", ["linked", "procaddress-threads"])
def test_a_capture_comes_out_whole(container: Container, way: str) -> None:
    container.grant(Share(cores=5000))
    assert container.run("graphs", way, "capture")["captured"] == 1


def test_every_report_shows_the_share(container: Container) -> None:
    facts = container.run("reports", "linked")
    assert facts["total"] == facts["device_total"] == facts["nvml_total"] == facts["nvml_total_v2"] == LIMIT
    assert 0 <= LIMIT - 500 * MIB - facts["free"] <= MARGIN_BYTES
    assert abs(facts["free"] - 512 * MIB - facts["free_after"]) <= MARGIN_BYTES
    assert abs(facts["nvml_free_v2"] - facts["free_after"]) <= MARGIN_BYTES
    assert abs(facts["nvml_used"] + facts["free_after"] - LIMIT) <= MARGIN_BYTES


def test_errno_is_kept_and_an_unknown_free_is_the_drivers_to_refuse(container: Container) -> None:
    facts = container.run("memory", "linked", "errno", "64M")
    assert facts["errno"] == 4711
    assert (facts["got"], facts["refused"], facts["unknown_free"]) == (0, OUT_OF_MEMORY, 1)


def test_the_limit_may_change_while_a_program_runs(container: Container) -> None:
    holder = container.start("memory", "linked", "hold", "64M")
    assert holder.stdout
    assert holder.stdout.readline() == "start=0\n"
    holder.stdout.readline()
    container.grant(Share(memory=6 * GIB, generation=2))
    second = container.run("memory", "linked", "plain", "64M")
    finished(holder)
    assert 6 * GIB - LIMIT - 500 * MIB - UNIT_BYTES <= second["obtained"] <= 6 * GIB - LIMIT
