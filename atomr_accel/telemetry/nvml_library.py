"""NVML through the vendor's package: its values as ours. Called in worker threads only."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from .._errors import DeviceUnavailable
from ._gpu_readings import (
    GpuClocks,
    GpuEcc,
    GpuMemory,
    GpuMig,
    GpuNvLink,
    GpuPcie,
    GpuProcess,
    GpuReading,
    GpuUtilization,
    MigInstance,
    Xid,
)
from ._packages import package

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_ABSENT: Final = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_NOT_FOUND",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
)
"""NVML's codes for a value that the card, driver or caller does not have; they are not failures."""

_NO_DRIVER: Final = (
    "NVML_ERROR_LIBRARY_NOT_FOUND",
    "NVML_ERROR_DRIVER_NOT_LOADED",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
)

_REASONS: Final = "nvmlClocksEventReason"
_REASON_NAMES: Final = (
    "GpuIdle",
    "ApplicationsClocksSetting",
    "SwPowerCap",
    "HwSlowdown",
    "SyncBoost",
    "SwThermalSlowdown",
    "HwThermalSlowdown",
    "HwPowerBrakeSlowdown",
    "DisplayClockSetting",
)

_NO_INSTANCE: Final = 0xFFFFFFFF
_MHZ: Final = 1_000_000
_KIB: Final = 1 << 10


@final
class NvmlLibrary:
    """NVML, open from construction to `close`. Every call may take milliseconds.

    Args:
        module: a module with NVML's functions; by default the package nvidia-ml-py.

    Raises:
        LibraryMissing: the package is not installed.
        DeviceUnavailable: the driver is missing, or does not fit the package's version.
    """

    def __init__(self, module: object | None = None) -> None:
        nvml: Any = module or package("pynvml", "nvidia-ml-py")
        self._nvml: Final = nvml
        self._absent: Final = {getattr(nvml, name) for name in _ABSENT if hasattr(nvml, name)}
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            if error.value in {getattr(nvml, name) for name in _NO_DRIVER}:
                raise DeviceUnavailable(
                    f"NVML tells nothing here: {error}. It comes with NVIDIA's driver "
                    "(libnvidia-ml.so.1); in a container, with the capability 'utility'"
                ) from error
            raise
        try:
            self._handles: Final = self._find()
        except BaseException:
            nvml.nvmlShutdown()
            raise
        self._events: Any = None

    def close(self) -> None:
        """Close NVML. Afterwards no call may be made or under way."""
        nvml = self._nvml
        try:
            if self._events is not None:
                nvml.nvmlEventSetFree(self._events)
        finally:
            nvml.nvmlShutdown()

    def _find(self) -> list[Any]:
        nvml = self._nvml
        return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]

    def _ask(self, function: Callable[..., T], *args: Any) -> T | None:
        """Call a function; return None if it has no value for this card."""
        try:
            return function(*args)
        except self._nvml.NVMLError as error:
            if error.value in self._absent:
                return None
            raise

    # --- readings ------------------------------------------------------------------------

    def read(self) -> tuple[GpuReading, ...]:
        """All GPUs, by their index."""
        return tuple(self._read(index, handle) for index, handle in enumerate(self._handles))

    def _read(self, index: int, handle: Any) -> GpuReading:
        nvml = self._nvml

        def ask(function: Callable[..., T], *args: Any) -> T | None:
            return self._ask(function, handle, *args)

        use = ask(nvml.nvmlDeviceGetUtilizationRates)
        reasons = ask(nvml.nvmlDeviceGetCurrentClocksEventReasons)
        milliwatts = ask(nvml.nvmlDeviceGetPowerUsage)
        most_milliwatts = ask(nvml.nvmlDeviceGetEnforcedPowerLimit)
        millijoules = ask(nvml.nvmlDeviceGetTotalEnergyConsumption)
        return GpuReading(
            at=time.monotonic(),
            index=index,
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            name=_text(nvml.nvmlDeviceGetName(handle)),
            utilization=None if use is None else GpuUtilization(use.gpu / 100, use.memory / 100),
            memory=self._memory(handle),
            power=_scaled(milliwatts, 1e-3),
            power_limit=_scaled(most_milliwatts, 1e-3),
            energy=_scaled(millijoules, 1e-3),
            temperature=_scaled(ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU), 1.0),
            memory_temperature=_scaled(self._field(handle, nvml.NVML_FI_DEV_MEMORY_TEMP), 1.0),
            clocks=self._clocks(handle),
            throttled=None
            if reasons is None
            else tuple(
                name for name in _REASON_NAMES if reasons & int(getattr(nvml, _REASONS + name))
            ),
            ecc=self._ecc(handle),
            pcie=self._pcie(handle),
            nvlinks=self._nvlinks(handle),
            processes=self._processes(handle),
            mig=self._mig(handle),
        )

    def _memory(self, handle: Any) -> GpuMemory | None:
        nvml = self._nvml
        got = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
        reserved = None
        if got is not None:
            reserved = int(got.reserved)
        else:  # drivers before 510, and MIG instances of some
            got = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        if got is None:
            return None
        return GpuMemory(int(got.total), int(got.used), int(got.free), reserved)

    def _clocks(self, handle: Any) -> GpuClocks | None:
        nvml = self._nvml
        clocks = [
            self._ask(nvml.nvmlDeviceGetClockInfo, handle, kind)
            for kind in (
                nvml.NVML_CLOCK_GRAPHICS,
                nvml.NVML_CLOCK_SM,
                nvml.NVML_CLOCK_MEM,
                nvml.NVML_CLOCK_VIDEO,
            )
        ]
        return _all_or_none(GpuClocks, *[_times(clock, _MHZ) for clock in clocks])

    def _ecc(self, handle: Any) -> GpuEcc | None:
        nvml = self._nvml
        counts = [
            self._ask(nvml.nvmlDeviceGetTotalEccErrors, handle, kind, since)
            for since in (nvml.NVML_VOLATILE_ECC, nvml.NVML_AGGREGATE_ECC)
            for kind in (
                nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            )
        ]
        rows = self._ask(nvml.nvmlDeviceGetRemappedRows, handle)
        pending, failed = (None, None) if rows is None else (bool(rows[2]), bool(rows[3]))
        return _all_or_none(GpuEcc, *counts, pending, failed)

    def _pcie(self, handle: Any) -> GpuPcie | None:
        nvml = self._nvml
        ask = partial(self._ask, nvml.nvmlDeviceGetPcieThroughput, handle)
        return _all_or_none(
            GpuPcie,
            self._ask(nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
            self._ask(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
            _times(ask(nvml.NVML_PCIE_UTIL_TX_BYTES), _KIB),
            _times(ask(nvml.NVML_PCIE_UTIL_RX_BYTES), _KIB),
            self._ask(nvml.nvmlDeviceGetPcieReplayCounter, handle),
        )

    def _nvlinks(self, handle: Any) -> tuple[GpuNvLink, ...] | None:
        nvml = self._nvml
        links: list[GpuNvLink] = []
        known = False
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            state = self._ask(nvml.nvmlDeviceGetNvLinkState, handle, link)
            if state is None:  # there are no more, or there is none at all
                break
            known = True
            if state:
                sent, received = (
                    _times(self._field(handle, field, link), _KIB)
                    for field in (
                        nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
                        nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
                    )
                )
                links.append(GpuNvLink(link, sent, received))
        return tuple(links) if known else None

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...] | None:
        processes = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        if processes is None:
            return None
        return tuple(
            GpuProcess(
                int(one.pid),
                None if one.usedGpuMemory is None else int(one.usedGpuMemory),
                _instance(one.gpuInstanceId),
            )
            for one in processes
        )

    def _mig(self, handle: Any) -> GpuMig | None:
        nvml = self._nvml
        mode = self._ask(nvml.nvmlDeviceGetMigMode, handle)
        if mode is None:
            return None
        instances: list[MigInstance] = []
        if mode[0] == nvml.NVML_DEVICE_MIG_ENABLE:
            for index in range(self._ask(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
                one = self._ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
                if one is not None:  # numbers have gaps
                    instances.append(
                        MigInstance(
                            _text(nvml.nvmlDeviceGetUUID(one)),
                            self._ask(nvml.nvmlDeviceGetGpuInstanceId, one),
                            self._ask(nvml.nvmlDeviceGetComputeInstanceId, one),
                            self._memory(one),
                        )
                    )
        enabled, pending = (one == nvml.NVML_DEVICE_MIG_ENABLE for one in mode)
        return GpuMig(enabled, pending, tuple(instances))

    def _field(self, handle: Any, field: int, scope: int = 0) -> int | None:
        """One of the values that NVML has by number (``nvmlDeviceGetFieldValues``)."""
        nvml = self._nvml
        values = self._ask(nvml.nvmlDeviceGetFieldValues, handle, [(field, scope)])
        if values is None or values[0].nvmlReturn != nvml.NVML_SUCCESS:
            return None
        member = {
            nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
            nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
            nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
            nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
            nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
            nvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
            nvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
        }[values[0].valueType]
        return int(getattr(values[0].value, member))

    # --- events --------------------------------------------------------------------------

    def listen(self) -> bool:
        """Register for Xids of all GPUs; return True if at least one GPU reports them."""
        nvml = self._nvml
        wanted = nvml.nvmlEventTypeXidCriticalError
        events = self._ask(nvml.nvmlEventSetCreate)
        if events is None:
            return False
        self._events = events
        registered = False
        for handle in self._handles:
            supported = self._ask(nvml.nvmlDeviceGetSupportedEventTypes, handle) or 0
            if supported & wanted:
                nvml.nvmlDeviceRegisterEvents(handle, wanted, events)
                registered = True
        return registered

    def wait_for_xid(self, seconds: float) -> Xid | None:
        """Wait for the next Xid; return None if none arrives within ``seconds``.

        NVML's events do not name the process.
        """
        nvml = self._nvml
        try:
            event = nvml.nvmlEventSetWait(self._events, round(seconds * 1000))
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_TIMEOUT:
                return None
            raise
        return Xid(
            number=int(event.eventData),
            uuid=_text(nvml.nvmlDeviceGetUUID(event.device)),
            at=time.monotonic(),
            gpu_instance=_instance(event.gpuInstanceId),
        )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _times(value: int | None, factor: int) -> int | None:
    return None if value is None else int(value) * factor


def _instance(number: int | None) -> int | None:
    return None if number is None or number == _NO_INSTANCE else int(number)


def _all_or_none(make: Callable[..., T], *values: object) -> T | None:
    """Make a value from several others; return None if all of them are None."""
    return None if all(value is None for value in values) else make(*values)
