"""How GPUs are, through the real NVML bindings and a made-up driver whose GPUs fall ill."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from topoalloc.topology.gpu_condition import GpuCondition, GpuFault
from topoalloc.topology.pci import PciAddress
from topoalloc.topology.readers.nvml_events import EVENTS_MAX

SOURCE = Path(__file__).parents[1] / "fake_nvml" / "health.c"
ROOT = Path(__file__).parents[3]
COMPILER = shutil.which("cc")
GPU_0, GPU_1, NOT_ONE = PciAddress(0, 0x0F, 0, 0), PciAddress(0, 0x10, 0, 0), PciAddress(0, 0x77, 0, 0)
WELL_0, WELL_1 = GpuCondition(GPU_0, False, False, False), GpuCondition(GPU_1, False, False, False)

# `say(name)` makes a GPU ill, `unsay` well; `told` collects what is pickled back.
BEFORE = """
import os, pickle, sys
from pathlib import Path
from topoalloc.topology.pci import PciAddress
from topoalloc.topology.readers.nvml_events import open_gpu_watch
folder = Path(os.environ["FAKE_NVML"])
say = lambda name, text="": (folder / name).write_text(text)
unsay = lambda name: (folder / name).unlink()
told = []
gpus = [PciAddress(0, 0x0F, 0, 0), PciAddress(0, 0x10, 0, 0), PciAddress(0, 0x77, 0, 0)]
watch = open_gpu_watch(gpus)
"""
AFTER = """
sys.stdout.buffer.write(pickle.dumps(told))
"""

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler (cc) to build the made-up driver library")


def build(folder: Path, *macros: str) -> None:
    assert COMPILER is not None
    command = [COMPILER, "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)]
    subprocess.run([*command, *macros], check=True, timeout=60)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    build(folder)
    return folder


@pytest.fixture
def told(library: Path, tmp_path: Path):
    """What a fresh process collects in `told` while it runs these lines."""

    def run(*lines: str) -> list[object]:
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            "PYTHONPATH": str(ROOT),
            "FAKE_NVML": str(tmp_path),
        }
        code = BEFORE + "\n".join(lines) + AFTER
        command = [sys.executable, "-W", "error", "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr.decode()
        found = pickle.loads(done.stdout)
        assert isinstance(found, list)
        return found

    return run


def test_well_gpus_have_no_complaint_and_foreign_addresses_are_left_out(told) -> None:
    assert told("told += watch.conditions()") == [WELL_0, WELL_1]


def test_a_gpu_that_is_lost_is_lost_and_the_others_are_not(told) -> None:
    found = told("watch.conditions()", "say('lost-1')", "told += [*watch.conditions(), watch.is_stale]")

    assert found == [WELL_0, GpuCondition(GPU_1, lost=True), True]


def test_a_gpu_that_was_lost_before_the_session_began_is_lost_too(told) -> None:
    assert told("say('lost-0')", "told += watch.conditions()") == [GpuCondition(GPU_0, lost=True), WELL_1]


def test_a_gpu_that_came_back_is_well_in_a_new_session(told) -> None:
    found = told(
        "say('lost-1')",
        "watch.conditions(); watch.close(); unsay('lost-1')",
        "watch = open_gpu_watch(gpus)",
        "told += [*watch.conditions(), watch.is_stale]",
    )

    assert found == [WELL_0, WELL_1, False]


def test_a_gpu_that_the_driver_does_not_have_is_not_spoken_of(told) -> None:
    assert told("say('absent-0')", "told += watch.conditions()") == [WELL_1]


def test_a_memory_row_that_could_not_be_replaced_is_told(told) -> None:
    assert told("say('rows-0')", "told += watch.conditions()[:1]") == [GpuCondition(GPU_0, False, True, False)]


@pytest.mark.parametrize("action", range(1, 8))
def test_any_action_that_the_driver_asks_for_is_a_need(told, action: int) -> None:
    found = told(f"say('recovery-1', '{action}')", "told += watch.conditions()[1:]")

    assert found == [GpuCondition(GPU_1, False, False, True)]


def test_a_gpu_that_answers_nothing_before_its_reset_needs_it(told) -> None:
    assert told("say('reset-0')", "told += watch.conditions()[:1]") == [GpuCondition(GPU_0, needs_recovery=True)]


def test_what_an_old_driver_does_not_say_is_unknown(told) -> None:
    found = told("say('plain')", "say('event-0', '8 79')", "told += [*watch.conditions(), *watch.faults()]")

    assert found == [GpuCondition(GPU_0, False), GpuCondition(GPU_1, False)]


def test_a_gpu_of_which_every_question_fails_is_silent_and_not_well(told) -> None:
    found = told("watch.conditions()", "say('silent-1')", "told += [*watch.conditions(), watch.is_stale]")

    assert found == [WELL_0, GpuCondition(GPU_1, None, None, None), False]


def test_xids_come_with_their_gpu_in_order(told) -> None:
    found = told("watch.conditions()", "say('event-1', '8 79\\n8 31\\n')", "told += [*watch.faults(), watch.faults()]")

    assert found == [GpuFault(GPU_1, 79), GpuFault(GPU_1, 31), ()]


def test_a_double_bit_error_is_the_xid_of_one(told) -> None:
    assert told("watch.conditions()", "say('event-0', '2 0')", "told += watch.faults()") == [GpuFault(GPU_0, 48)]


def test_an_event_of_a_gpu_that_nobody_knows_has_no_address(told) -> None:
    found = told("watch.conditions()", "say('nameless-0')", "say('event-0', '8 79')", "told += watch.faults()")

    assert found == [GpuFault(None, 79)]


def test_a_gpu_that_sends_events_without_end_does_not_hold_the_thread(told) -> None:
    found = told("watch.conditions()", "say('event-0', '8 79\\n' * 300)", "told += [len(watch.faults())]")

    assert found == [EVENTS_MAX]


def test_an_event_that_waits_when_its_gpu_is_lost_still_has_its_address(told) -> None:
    found = told(
        "watch.conditions()",
        "say('event-1', '8 79'); say('lost-1')",
        "told += [*watch.conditions()[1:], watch.faults(), watch.is_stale]",
    )

    assert found == [GpuCondition(GPU_1, lost=True), (GpuFault(GPU_1, 79),), True]


def test_a_loss_while_events_are_taken_makes_the_session_stale(told) -> None:
    assert told("watch.conditions()", "say('lost-0')", "told += [watch.faults(), watch.is_stale]") == [(), True]


def test_a_driver_that_does_not_answer_is_a_refusal_with_its_reason(tmp_path: Path) -> None:
    build(tmp_path, "-DINIT_RESULT=DRIVER_NOT_LOADED")
    code = "import topoalloc.topology.readers.nvml_events as events; print(events.open_gpu_watch([]))"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert done.stdout.startswith("NVML: cannot be asked for the health of GPUs (")
