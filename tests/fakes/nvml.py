"""NVML as the package nvidia-ml-py offers it, of GPUs that there are not."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """Stands in for the package's error; ``value`` holds the number."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


@dataclass(eq=False)
class FakeGpu:
    """A GPU; its numbers are in NVML's units.

    Attributes:
        lacks: names of functions that it does not support.
    """

    uuid: str = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    name: str = "Fake H200"
    utilization: tuple[int, int] = (75, 20)
    memory: tuple[int, int, int, int] = (1000, 600, 300, 100)  # total, used, free, reserved
    milliwatts: int = 350_500
    limit: int = 700_000
    millijoules: int = 123_456
    celsius: int = 61
    clocks: tuple[int, int, int, int] = (1980, 1979, 3201, 1500)
    reasons: int = 0x4 | 0x20
    ecc: dict[tuple[int, int], int] = field(default_factory=lambda: {(0, 0): 3, (1, 1): 1})
    links: tuple[int, ...] = (1, 0, 1)
    processes: list[Any] = field(default_factory=list)
    mig: list[FakeGpu | None] | None = None
    lacks: set[str] = field(default_factory=set)


class FakeNvml:
    """The module's functions that tests use. Calls after ``nvmlShutdown`` fail, as in NVML.

    Attributes:
        threads: the threads that have called it.
        error: a number to fail with, at the next call that reads.
        named: has an entry for each time that a name was asked for, as in each reading.
        missing: a number that ``nvmlInit`` fails with.
    """

    NVMLError = NVMLError

    NVML_SUCCESS = 0
    NVML_ERROR_UNINITIALIZED = 1
    NVML_ERROR_INVALID_ARGUMENT = 2
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_NOT_FOUND = 6
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_TIMEOUT = 10
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_GRAPHICS = 0
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_CLOCK_VIDEO = 3
    NVML_VOLATILE_ECC = 0
    NVML_AGGREGATE_ECC = 1
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_PCIE_UTIL_TX_BYTES = 0
    NVML_PCIE_UTIL_RX_BYTES = 1
    NVML_NVLINK_MAX_LINKS = 36
    NVML_FI_DEV_MEMORY_TEMP = 82
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 138
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 139
    NVML_VALUE_TYPE_DOUBLE = 0
    NVML_VALUE_TYPE_UNSIGNED_INT = 1
    NVML_VALUE_TYPE_UNSIGNED_LONG = 2
    NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3
    NVML_VALUE_TYPE_SIGNED_LONG_LONG = 4
    NVML_VALUE_TYPE_SIGNED_INT = 5
    NVML_VALUE_TYPE_UNSIGNED_SHORT = 6
    NVML_DEVICE_MIG_ENABLE = 1
    nvmlMemory_v2 = 0x02000028
    nvmlEventTypeXidCriticalError = 8
    nvmlClocksEventReasonGpuIdle = 0x1
    nvmlClocksEventReasonApplicationsClocksSetting = 0x2
    nvmlClocksEventReasonSwPowerCap = 0x4
    nvmlClocksEventReasonHwSlowdown = 0x8
    nvmlClocksEventReasonSyncBoost = 0x10
    nvmlClocksEventReasonSwThermalSlowdown = 0x20
    nvmlClocksEventReasonHwThermalSlowdown = 0x40
    nvmlClocksEventReasonHwPowerBrakeSlowdown = 0x80
    nvmlClocksEventReasonDisplayClockSetting = 0x100

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = gpus
        self.opened = 0
        self.sets = 0
        self.threads: set[threading.Thread] = set()
        self.error: int | None = None
        self.missing: int | None = None
        self.named: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def happen(self, gpu: FakeGpu, xid: int, gpu_instance: int = 0xFFFFFFFF) -> None:
        """Have the driver report an Xid."""
        self._events.put(
            SimpleNamespace(
                device=gpu,
                eventType=8,
                eventData=xid,
                gpuInstanceId=gpu_instance,
                computeInstanceId=0xFFFFFFFF,
            )
        )

    def _called(self, handle: FakeGpu | None = None, name: str = "") -> None:
        self.threads.add(threading.current_thread())
        if not self.opened:
            raise NVMLError(self.NVML_ERROR_UNINITIALIZED)
        if handle is not None:
            if self.error is not None:
                error, self.error = self.error, None
                raise NVMLError(error)
            if name in handle.lacks:
                raise NVMLError(self.NVML_ERROR_NOT_SUPPORTED)

    # --- the library ---------------------------------------------------------------------

    def nvmlInit(self) -> None:
        self.threads.add(threading.current_thread())
        if self.missing is not None:
            raise NVMLError(self.missing)
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self._called()
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        self._called()
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        self._called()
        return self.gpus[index]

    # --- values --------------------------------------------------------------------------

    def nvmlDeviceGetUUID(self, handle: FakeGpu) -> str:
        self._called(handle, "nvmlDeviceGetUUID")
        return handle.uuid

    def nvmlDeviceGetName(self, handle: FakeGpu) -> str:
        self._called(handle, "nvmlDeviceGetName")
        self.named.put(None)
        return handle.name

    def nvmlDeviceGetUtilizationRates(self, handle: FakeGpu) -> Any:
        self._called(handle, "nvmlDeviceGetUtilizationRates")
        gpu, memory = handle.utilization
        return SimpleNamespace(gpu=gpu, memory=memory)

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu, version: int | None = None) -> Any:
        self._called(handle, f"nvmlDeviceGetMemoryInfo{'_v2' if version else ''}")
        total, used, free, reserved = handle.memory
        if version is None:
            return SimpleNamespace(total=total, used=used + reserved, free=free)
        return SimpleNamespace(total=total, used=used, free=free, reserved=reserved)

    def nvmlDeviceGetPowerUsage(self, handle: FakeGpu) -> int:
        self._called(handle, "nvmlDeviceGetPowerUsage")
        return handle.milliwatts

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: FakeGpu) -> int:
        self._called(handle, "nvmlDeviceGetEnforcedPowerLimit")
        return handle.limit

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: FakeGpu) -> int:
        self._called(handle, "nvmlDeviceGetTotalEnergyConsumption")
        return handle.millijoules

    def nvmlDeviceGetTemperature(self, handle: FakeGpu, sensor: int) -> int:
        self._called(handle, "nvmlDeviceGetTemperature")
        return handle.celsius + sensor

    def nvmlDeviceGetClockInfo(self, handle: FakeGpu, type: int) -> int:
        self._called(handle, "nvmlDeviceGetClockInfo")
        return handle.clocks[type]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: FakeGpu) -> int:
        self._called(handle, "nvmlDeviceGetCurrentClocksEventReasons")
        return handle.reasons

    def nvmlDeviceGetTotalEccErrors(
        self,
        handle: FakeGpu,
        errorType: int,
        counterType: int,
    ) -> int:
        self._called(handle, "nvmlDeviceGetTotalEccErrors")
        return handle.ecc.get((errorType, counterType), 0)

    def nvmlDeviceGetRemappedRows(self, device: FakeGpu) -> tuple[int, int, int, int]:
        self._called(device, "nvmlDeviceGetRemappedRows")
        return (4, 2, 1, 0)

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: FakeGpu) -> int:
        self._called(handle, "nvmlDeviceGetCurrPcieLinkGeneration")
        return 5

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: FakeGpu) -> int:
        self._called(handle, "nvmlDeviceGetCurrPcieLinkWidth")
        return 16

    def nvmlDeviceGetPcieThroughput(self, device: FakeGpu, counter: int) -> int:
        self._called(device, "nvmlDeviceGetPcieThroughput")
        return (7, 9)[counter]

    def nvmlDeviceGetPcieReplayCounter(self, handle: FakeGpu) -> int:
        self._called(handle, "nvmlDeviceGetPcieReplayCounter")
        return 2

    def nvmlDeviceGetNvLinkState(self, device: FakeGpu, link: int) -> int:
        self._called(device, "nvmlDeviceGetNvLinkState")
        if link >= len(device.links):
            raise NVMLError(self.NVML_ERROR_INVALID_ARGUMENT)
        return device.links[link]

    def nvmlDeviceGetFieldValues(self, handle: FakeGpu, fieldIds: list[Any]) -> list[Any]:
        self._called(handle, "nvmlDeviceGetFieldValues")
        values = []
        for number, scope in fieldIds:
            lacks = number == self.NVML_FI_DEV_MEMORY_TEMP and "memory temperature" in handle.lacks
            kind = self.NVML_VALUE_TYPE_UNSIGNED_INT if number == 82 else 3
            value = SimpleNamespace(uiVal=handle.celsius + 9, ullVal=number * 100 + scope)
            status = self.NVML_ERROR_NOT_SUPPORTED if lacks else self.NVML_SUCCESS
            values.append(SimpleNamespace(nvmlReturn=status, valueType=kind, value=value))
        return values

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeGpu) -> list[Any]:
        self._called(handle, "nvmlDeviceGetComputeRunningProcesses")
        return handle.processes

    # --- MIG -----------------------------------------------------------------------------

    def nvmlDeviceGetMigMode(self, device: FakeGpu) -> list[int]:
        self._called(device, "nvmlDeviceGetMigMode")
        return [0, 1] if device.mig is None else [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: FakeGpu) -> int:
        self._called(device, "nvmlDeviceGetMaxMigDeviceCount")
        return len(device.mig or ())

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: FakeGpu, index: int) -> FakeGpu:
        self._called(device, "nvmlDeviceGetMigDeviceHandleByIndex")
        part = (device.mig or [])[index]
        if part is None:
            raise NVMLError(self.NVML_ERROR_NOT_FOUND)
        return part

    def nvmlDeviceGetGpuInstanceId(self, device: FakeGpu) -> int:
        self._called(device, "nvmlDeviceGetGpuInstanceId")
        return 7

    def nvmlDeviceGetComputeInstanceId(self, device: FakeGpu) -> int:
        self._called(device, "nvmlDeviceGetComputeInstanceId")
        return 0

    # --- events --------------------------------------------------------------------------

    def nvmlEventSetCreate(self) -> object:
        self._called()
        self.sets += 1
        return self._events

    def nvmlEventSetFree(self, eventSet: object) -> None:
        self._called()
        self.sets -= 1

    def nvmlDeviceGetSupportedEventTypes(self, handle: FakeGpu) -> int:
        self._called()
        return 0 if "events" in handle.lacks else 0xFF

    def nvmlDeviceRegisterEvents(self, handle: FakeGpu, eventTypes: int, eventSet: object) -> None:
        self._called()
        assert eventTypes == self.nvmlEventTypeXidCriticalError

    def nvmlEventSetWait(self, eventSet: object, timeoutms: int) -> Any:
        self._called()
        try:
            event = self._events.get(timeout=timeoutms / 1000)
        except queue.Empty:
            raise NVMLError(self.NVML_ERROR_TIMEOUT) from None
        self._called(event.device, "nvmlEventSetWait")
        return event
