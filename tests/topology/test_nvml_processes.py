"""Which processes use a GPU: asked through the session that is open, at most every 50 ms, unknown where it is not."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

from topoalloc.topology.readers.nvml_processes import FRESH_S, GpuProcesses


class FakeError(Exception):
    """What every call may raise."""


class Driver(ModuleType):
    """The calls that are used, with figures of a test's."""

    NVMLError = FakeError

    def __init__(self) -> None:
        super().__init__("driver")
        self.compute: list[tuple[int, int | None]] = []
        self.graphics: list[tuple[int, int | None]] | None = []
        self.is_open = True
        self.asked: list[object] = []

    def _handle(self, kind: str, name: bytes) -> object:
        if not self.is_open:
            raise FakeError
        self.asked.append((kind, name))
        return name

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> object:
        return self._handle("uuid", uuid)

    def nvmlDeviceGetHandleByPciBusId(self, address: bytes) -> object:
        return self._handle("address", address)

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.compute]

    def nvmlDeviceGetGraphicsRunningProcesses_v2(self, handle: object) -> list[SimpleNamespace]:
        if self.graphics is None:
            raise FakeError
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.graphics]


class Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_both_lists_count_and_a_process_in_both_counts_once():
    driver = Driver()
    driver.compute, driver.graphics = [(1, 100), (2, None), (3, None)], [(1, 100), (3, 30), (4, 40)]

    assert GpuProcesses(lambda: driver).memory_bytes("GPU-8e") == {1: 100, 2: None, 3: 30, 4: 40}


def test_a_gpu_that_cannot_tell_who_draws_tells_who_computes():
    driver = Driver()
    driver.compute, driver.graphics = [(1, 100)], None

    assert GpuProcesses(lambda: driver).memory_bytes("GPU-8e") == {1: 100}


def test_a_driver_without_an_open_session_tells_nothing():
    driver = Driver()
    driver.is_open = False

    assert GpuProcesses(lambda: driver).memory_bytes("GPU-8e") is None


def test_a_gpu_is_named_by_uuid_or_address():
    driver = Driver()
    processes = GpuProcesses(lambda: driver)
    for gpu in ("GPU-8e", "0000:3b:00.0", "MIG-1"):
        processes.memory_bytes(gpu)

    assert driver.asked == [("uuid", b"GPU-8e"), ("address", b"0000:3b:00.0"), ("uuid", b"MIG-1")]


def test_an_answer_is_kept_for_50_ms_for_each_gpu():
    driver, clock = Driver(), Clock()
    processes = GpuProcesses(lambda: driver, clock)
    driver.compute = [(1, 100)]
    assert processes.memory_bytes("GPU-8e") == {1: 100}
    driver.compute = [(1, 200)]
    clock.now_s = FRESH_S
    assert processes.memory_bytes("GPU-8e") == {1: 100}
    assert processes.memory_bytes("GPU-9f") == {1: 200}
    clock.now_s = FRESH_S + 0.001

    assert processes.memory_bytes("GPU-8e") == {1: 200}


def test_the_bindings_without_a_driver_tell_nothing():
    assert GpuProcesses().memory_bytes("GPU-8e") is None
