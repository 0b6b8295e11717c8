"""What a watch sees: of a live node through sysfs and a driver session, of a recorded machine through its files."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.agent.test_health import ADDRESSES, INVENTORY, KEYS, WELL, WHOLE
from topoalloc.agent.health_watch import (
    LOOK_PERIOD_S,
    RESCAN_PERIOD_S,
    SESSION_PAUSE_S,
    LiveWatch,
    RecordedWatch,
    file_marks,
)
from topoalloc.errors import InputError
from topoalloc.topology.gpu_condition import GpuCondition, GpuFault
from topoalloc.topology.machine import Machine
from topoalloc.topology.pci import PciAddress
from topoalloc.topology.reading import SourceRefusal

NO_HOTPLUG = SourceRefusal("udev", "no events here")


@dataclass
class Session:
    """A driver whose GPUs are as ill as a test wants."""

    ill: dict[PciAddress, GpuCondition] = field(default_factory=dict)
    waiting: list[GpuFault] = field(default_factory=list)
    is_stale: bool = False
    is_closed: bool = False
    absent: set[PciAddress] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)

    def conditions(self) -> tuple[GpuCondition, ...]:
        self.calls.append("conditions")
        return tuple(self.ill.get(well.address, well) for well in WELL if well.address not in self.absent)

    def faults(self) -> tuple[GpuFault, ...]:
        self.calls.append("faults")
        taken, self.waiting = tuple(self.waiting), []
        return taken

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Node:
    """A made-up live node: PCI functions below a folder, and what reading the machine anew would give."""

    sysfs: Path
    machine: Machine = WHOLE
    rescans: int = 0
    sessions: list[Session] = field(default_factory=list)
    refusal: SourceRefusal | None = None
    absent: set[PciAddress] = field(default_factory=set)  # from the driver, in sessions that begin now

    def __post_init__(self) -> None:
        for device in (*WHOLE.gpus, *WHOLE.nics):
            self.function(device.bdf).mkdir(parents=True, exist_ok=True)

    def function(self, address: object) -> Path:
        return self.sysfs / "bus" / "pci" / "devices" / str(address)

    def rescan(self) -> Machine:
        self.rescans += 1
        return self.machine

    def open_session(self, addresses: Sequence[PciAddress]) -> Session | SourceRefusal:
        assert tuple(addresses) == ADDRESSES
        if self.refusal is not None:
            return self.refusal
        self.sessions.append(Session(absent=set(self.absent)))
        return self.sessions[-1]

    def watch(self, ignored_xids: Sequence[int] = (31,)) -> LiveWatch:
        return LiveWatch(
            INVENTORY, self.rescan, str(self.sysfs), ignored_xids, self.open_session, hotplug=lambda: NO_HOTPLUG
        )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_node_where_nothing_happens_is_well_and_seldom_read_again(node: Node) -> None:
    watch = node.watch()

    assert [dict(watch.reasons(float(second))) for second in range(60)] == [{}] * 60
    assert node.rescans == 0
    watch.reasons(RESCAN_PERIOD_S)
    assert node.rescans == 1


def test_a_gpu_whose_function_is_gone_is_out_within_the_look_period(node: Node) -> None:
    watch = node.watch()
    watch.reasons(0.0)
    node.function(ADDRESSES[2]).rmdir()
    node.machine = replace(WHOLE, gpus=WHOLE.gpus[:2] + WHOLE.gpus[3:])

    assert watch.reasons(LOOK_PERIOD_S) == {KEYS[2]: "it is not there"}


def test_a_gpu_whose_function_is_back_is_in_order_within_the_look_period(node: Node) -> None:
    node.function(ADDRESSES[2]).rmdir()
    watch = node.watch()
    node.machine = replace(WHOLE, gpus=WHOLE.gpus[:2] + WHOLE.gpus[3:])
    watch.reasons(0.0)
    assert watch.reasons(RESCAN_PERIOD_S).keys() == {KEYS[2]}
    node.function(ADDRESSES[2]).mkdir()
    node.machine = WHOLE

    assert watch.reasons(RESCAN_PERIOD_S + LOOK_PERIOD_S) == {}


def test_a_look_that_fails_keeps_the_last_good_picture(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Machine:
        raise RuntimeError("half a sysfs")

    watch = LiveWatch(INVENTORY, fail, str(node.sysfs), (), node.open_session, hotplug=lambda: NO_HOTPLUG)
    watch.reasons(0.0)

    assert watch.reasons(RESCAN_PERIOD_S) == {}
    assert "looking at the machine again failed" in caplog.text


def test_a_critical_xid_is_out_at_the_next_call(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    watch = node.watch()
    watch.reasons(0.0)
    node.sessions[0].waiting = [GpuFault(ADDRESSES[1], 79)]

    assert watch.reasons(1.0) == {KEYS[1]: "Xid 79"}
    assert f"Xid 79 on {ADDRESSES[1]}" in caplog.text


def test_an_ignored_xid_is_said_and_changes_nothing(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    watch = node.watch(ignored_xids=(31,))
    watch.reasons(0.0)
    node.sessions[0].waiting = [GpuFault(ADDRESSES[1], 31)]

    assert watch.reasons(1.0) == {}
    assert f"Xid 31 on {ADDRESSES[1]}, ignored" in caplog.text


def test_a_lost_gpu_is_out_until_a_new_session_has_it_again(node: Node) -> None:
    watch = node.watch()
    watch.reasons(0.0)
    first = node.sessions[0]
    first.ill[ADDRESSES[0]] = GpuCondition(ADDRESSES[0], lost=True)
    first.is_stale = True

    assert watch.reasons(LOOK_PERIOD_S) == {KEYS[0]: "the driver has lost it"}
    assert watch.reasons(SESSION_PAUSE_S) == {}
    assert first.is_closed
    assert len(node.sessions) == 2


def test_a_lost_gpu_that_a_new_session_does_not_have_is_out_until_a_later_one_has_it(node: Node) -> None:
    watch = node.watch()
    watch.reasons(0.0)
    node.sessions[0].ill[ADDRESSES[0]] = GpuCondition(ADDRESSES[0], lost=True)
    node.sessions[0].is_stale = True
    node.absent = {ADDRESSES[0]}
    out = {KEYS[0]: "the driver has lost it"}

    assert watch.reasons(LOOK_PERIOD_S) == out
    assert watch.reasons(SESSION_PAUSE_S) == out
    node.absent = set()
    assert watch.reasons(SESSION_PAUSE_S + LOOK_PERIOD_S) == out
    assert watch.reasons(2 * SESSION_PAUSE_S) == {}
    assert len(node.sessions) == 3


def test_faults_are_taken_before_the_driver_is_asked_for_conditions(node: Node) -> None:
    """A question that finds a GPU lost may be the end of the events that wait."""
    watch = node.watch()
    watch.reasons(0.0)
    node.sessions[0].calls.clear()

    watch.reasons(LOOK_PERIOD_S)

    assert node.sessions[0].calls == ["faults", "conditions"]


def test_a_fault_that_comes_without_end_is_one_line_a_minute(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    watch = node.watch()
    watch.reasons(0.0)
    for second in range(1, 122):
        node.sessions[0].waiting = [GpuFault(ADDRESSES[1], 94)] * 10
        watch.reasons(float(second))

    lines = [record.message for record in caplog.records if "Xid" in record.message]
    assert lines == [f"Xid 94 on {ADDRESSES[1]}, {count} times" for count in (10, 600, 600)]


def test_faults_that_wait_in_a_session_are_taken_before_it_is_closed(node: Node) -> None:
    watch = node.watch()
    watch.reasons(0.0)
    node.sessions[0].is_stale = True
    node.sessions[0].waiting = [GpuFault(ADDRESSES[1], 79)]

    assert watch.reasons(SESSION_PAUSE_S).keys() == {KEYS[1]}


def test_a_driver_that_cannot_be_asked_is_tried_again_and_said_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.refusal = SourceRefusal("NVML", "cannot be asked")
    watch = node.watch()
    for second in range(int(SESSION_PAUSE_S)):
        assert watch.reasons(float(second)) == {}
    node.refusal = None
    for look in range(1, 3):
        watch.reasons(look * SESSION_PAUSE_S)

    assert len(node.sessions) == 1
    assert caplog.text.count("faults of GPUs go unnoticed") == 1


def test_a_driver_that_fails_again_after_it_could_be_asked_is_said_again(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    watch, refusal = node.watch(), SourceRefusal("nvml", "the driver is not loaded")
    for number, answer in enumerate([refusal, None, refusal, refusal]):
        node.refusal = answer
        for session in node.sessions:
            session.is_stale = True
        watch.reasons(number * SESSION_PAUSE_S)

    assert caplog.text.count("faults of GPUs go unnoticed") == 2


def test_a_machine_without_nvidias_gpus_asks_no_driver(node: Node) -> None:
    inventory = replace(INVENTORY, machine=replace(WHOLE, gpus=(), links=()), gpu_keys=())
    watch = LiveWatch(inventory, node.rescan, str(node.sysfs), (), node.open_session, hotplug=lambda: NO_HOTPLUG)

    watch.reasons(0.0)

    assert node.sessions == []


def test_a_closed_watch_has_closed_its_session(node: Node) -> None:
    watch = node.watch()
    watch.reasons(0.0)

    watch.close()

    assert node.sessions[0].is_closed


@dataclass
class Recording:
    """A file whose content does not matter, and what reading it would give."""

    path: Path
    machine: Machine | InputError = WHOLE
    reads: int = 0

    def write(self, text: str) -> None:
        beside = self.path.with_suffix(".new")
        beside.write_text(text)
        beside.replace(self.path)

    def reread(self) -> Machine:
        self.reads += 1
        if isinstance(self.machine, InputError):
            raise self.machine
        return self.machine

    def watch(self) -> RecordedWatch:
        paths = [str(self.path), "synthetic:gpu:2"]
        return RecordedWatch(INVENTORY, paths, file_marks(paths), self.reread)


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    made = Recording(tmp_path / "machine.json")
    made.write("eight GPUs")
    return made


def test_a_recorded_machine_that_does_not_change_is_not_read_again(recording: Recording) -> None:
    watch = recording.watch()

    assert [dict(watch.reasons(float(second))) for second in range(5)] == [{}] * 5
    assert recording.reads == 0


def test_a_device_that_is_gone_from_the_recording_is_out_and_back_with_it(recording: Recording) -> None:
    watch = recording.watch()
    recording.write("seven GPUs")
    recording.machine = replace(WHOLE, gpus=WHOLE.gpus[1:])
    assert [dict(watch.reasons(0.0)), dict(watch.reasons(1.0))] == [{}, {KEYS[0]: "it is not there"}]
    recording.write("all eight GPUs")
    recording.machine = WHOLE

    assert [watch.reasons(2.0).keys(), watch.reasons(3.0).keys()] == [{KEYS[0]}, set()]


def test_a_file_that_is_still_being_written_is_not_read(recording: Recording) -> None:
    watch = recording.watch()
    with recording.path.open("a") as file:
        for second in range(4):
            file.write("more")
            file.flush()
            watch.reasons(float(second))
            assert recording.reads == 0
    watch.reasons(4.0)

    assert recording.reads == 1


def test_a_broken_recording_keeps_the_last_good_picture_with_one_warning(
    recording: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    watch = recording.watch()
    recording.write("seven GPUs")
    recording.machine = replace(WHOLE, gpus=WHOLE.gpus[1:])
    watch.reasons(0.0)
    watch.reasons(1.0)
    recording.write("{")
    recording.machine = InputError("machine.json: is no JSON")

    assert {frozenset(watch.reasons(2.0 + second)) for second in range(5)} == {frozenset({KEYS[0]})}
    assert caplog.text.count("machine.json: is no JSON; the devices stay as they were") == 1


def test_a_recording_that_is_gone_keeps_the_last_good_picture(recording: Recording) -> None:
    watch = recording.watch()
    recording.path.unlink()
    recording.machine = InputError("machine.json: cannot be read")

    assert [dict(watch.reasons(float(second))) for second in range(3)] == [{}] * 3
    assert recording.reads == 1


def test_a_link_that_leads_elsewhere_is_a_change(recording: Recording, tmp_path: Path) -> None:
    """As a mounted ConfigMap changes: the folder behind a link is exchanged, the files in it are never written."""
    link = tmp_path / "current"
    link.symlink_to(recording.path)
    before = file_marks([str(link)])
    (tmp_path / "other.json").write_text("ten GPUs!!")
    (tmp_path / "next").symlink_to(tmp_path / "other.json")
    (tmp_path / "next").replace(link)

    assert file_marks([str(link)]) != before
