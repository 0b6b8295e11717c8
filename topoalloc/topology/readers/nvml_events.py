"""How NVIDIA's GPUs are, from a session with the driver that stays open; beside nvml.py the only module with pynvml.

A session keeps the picture it had when it began: a GPU that was lost answers in a new session at the earliest, which
is what `is_stale` says.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import ModuleType

from topoalloc.topology.gpu_condition import GpuCondition, GpuFault
from topoalloc.topology.pci import PciAddress
from topoalloc.topology.reading import SourceRefusal

SOURCE = "NVML"
# Taken in one go. A GPU in trouble can send the same event without end; what is left comes with the next drain.
EVENTS_MAX = 256
# An uncorrectable memory error has an event type of its own and a number in the list of Xid errors.
DOUBLE_BIT_XID = 48
_NO_WAIT_MS = 0


def open_gpu_watch(addresses: Sequence[PciAddress]) -> GpuWatch | SourceRefusal:
    """Begin to watch these GPUs; those that the driver does not have are left out."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return SourceRefusal(SOURCE, f"cannot be asked for the health of GPUs ({error})")
    try:
        return GpuWatch(pynvml, addresses)
    except pynvml.NVMLError as error:
        pynvml.nvmlShutdown()
        return SourceRefusal(SOURCE, f"tells no events of GPUs ({error})")


class GpuWatch:
    """One session. Used by one thread; a call can hang for as long as the driver does."""

    def __init__(self, nvml: ModuleType, addresses: Sequence[PciAddress]) -> None:
        self._nvml = nvml
        self._addresses = tuple(addresses)
        self._handles: dict[PciAddress, object] = {}
        # By the pointer that a handle is; of a lost GPU too, whose events may still wait.
        self._addresses_by_pointer: dict[int | None, PciAddress] = {}
        self.is_stale = False
        self._events: object | None = nvml.nvmlEventSetCreate()

    def conditions(self) -> tuple[GpuCondition, ...]:
        """Ask every GPU that the driver has."""
        return tuple(found for address in self._addresses if (found := self._condition(address)) is not None)

    def faults(self) -> tuple[GpuFault, ...]:
        """What happened since the last call, without waiting."""
        nvml, found = self._nvml, list[GpuFault]()
        for _ in range(EVENTS_MAX):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, _NO_WAIT_MS)
            except nvml.NVMLError_Timeout:
                break
            except nvml.NVMLError:  # a GPU is lost, and asking each will tell which
                self.is_stale = True
                break
            xid = DOUBLE_BIT_XID if event.eventType == nvml.nvmlEventTypeDoubleBitEccError else int(event.eventData)
            found.append(GpuFault(self._address_of(event.device), xid))
        return tuple(found)

    def close(self) -> None:
        """End the session; to be called once."""
        for end, arguments in ((self._nvml.nvmlEventSetFree, (self._events,)), (self._nvml.nvmlShutdown, ())):
            self._answer(end, *arguments)

    def _condition(self, address: PciAddress) -> GpuCondition | None:
        nvml = self._nvml
        try:
            handle = self._handles.get(address) or self._opened(address)
            if handle is None:
                return None
            # The other two are not supported by every GPU; this one is, and fails for one that is lost.
            memory = self._answer(nvml.nvmlDeviceGetMemoryInfo, handle)
            rows = self._answer(nvml.nvmlDeviceGetRemappedRows, handle)
            fields = self._answer(nvml.nvmlDeviceGetFieldValues, handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        except nvml.NVMLError_GpuIsLost:
            self._handles.pop(address, None)
            self.is_stale = True
            return GpuCondition(address, lost=True)
        except nvml.NVMLError_ResetRequired:
            return GpuCondition(address, needs_recovery=True)
        rows_failed, needs_recovery = _rows_failed(rows), self._needs_recovery(fields)
        is_silent = memory is None and rows_failed is None and needs_recovery is None
        return GpuCondition(address, None if is_silent else False, rows_failed, needs_recovery)

    def _opened(self, address: PciAddress) -> object | None:
        """A handle of the GPU, its faults registered for; None where the driver does not have it."""
        nvml = self._nvml
        handle: object | None = self._answer(nvml.nvmlDeviceGetHandleByPciBusId, str(address).encode())
        if handle is None:
            return None
        supported = self._answer(nvml.nvmlDeviceGetSupportedEventTypes, handle)
        wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
        if isinstance(supported, int) and supported & wanted:
            self._answer(nvml.nvmlDeviceRegisterEvents, handle, supported & wanted, self._events)
        self._handles[address] = handle
        self._addresses_by_pointer[_pointer(handle)] = address
        return handle

    def _answer(self, call: object, *arguments: object) -> object | None:
        """The call's answer, None where this GPU or driver has none; raises the two errors that tell of a dead GPU."""
        assert callable(call)
        nvml = self._nvml
        try:
            answer: object = call(*arguments)
        except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired):
            raise
        except nvml.NVMLError:
            return None
        return answer

    def _needs_recovery(self, fields: object) -> bool | None:
        """Drivers before 570 do not know the field and say so in its own result."""
        if not isinstance(fields, ctypes.Array) or fields[0].nvmlReturn != self._nvml.NVML_SUCCESS:
            return None
        return bool(fields[0].value.uiVal != self._nvml.NVML_GPU_RECOVERY_ACTION_NONE)

    def _address_of(self, device: object) -> PciAddress | None:
        """Events name their GPU by the pointer that its handle is."""
        return self._addresses_by_pointer.get(_pointer(device))


def _rows_failed(rows: object) -> bool | None:
    """The last of four: corrected and uncorrected rows, replacement pending, replacement failed."""
    return bool(rows[3]) if isinstance(rows, tuple) else None


def _pointer(handle: object) -> int | None:
    assert isinstance(handle, ctypes._Pointer)
    return ctypes.cast(handle, ctypes.c_void_p).value
