"""GPU work as structured as a nursery.

``async with open_device(0) as device:`` and then ``await``. Vendor libraries are typed
actors, buffers are handles with a generation, and a kernel that faults takes down its
context, not the program: the device comes back by itself.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._errors import (
        AccelError,
        CompileError,
        ContextPoisoned,
        CpuFallbackWarning,
        DeviceLost,
        DeviceUnavailable,
        EventStale,
        GpuRefSealed,
        GpuRefStale,
        KernelHung,
        LibraryError,
        LibraryMissing,
        OutOfMemory,
        RemoteError,
        StandbyWarning,
        Unsupported,
        WorldBroken,
    )
    from .device import (
        Device,
        DeviceStatistics,
        FromAsyncio,
        Requests,
        SharedBuffer,
        StandbyStatistics,
        System,
        from_asyncio,
        open_device,
        open_system,
    )
    from .lanes import DeviceInstrument, OpTimes, WatchedDevice, WatchedOp, WatchedTransfer
    from .memory import GpuRef
    from .wire._trace import traceparent

__all__ = [
    "AccelError",
    "CompileError",
    "ContextPoisoned",
    "CpuFallbackWarning",
    "Device",
    "DeviceInstrument",
    "DeviceLost",
    "DeviceStatistics",
    "DeviceUnavailable",
    "EventStale",
    "FromAsyncio",
    "GpuRef",
    "GpuRefSealed",
    "GpuRefStale",
    "KernelHung",
    "LibraryError",
    "LibraryMissing",
    "OpTimes",
    "OutOfMemory",
    "RemoteError",
    "Requests",
    "SharedBuffer",
    "StandbyStatistics",
    "StandbyWarning",
    "System",
    "Unsupported",
    "WatchedDevice",
    "WatchedOp",
    "WatchedTransfer",
    "WorldBroken",
    "from_asyncio",
    "open_device",
    "open_system",
    "traceparent",
]

__version__ = "0.1.0"

# A host imports this package too, and every rebuild waits for that: it must not load the
# program's half, with trio and all. So names are looked up when they are first used.
_HOME = {
    "Device": "device",
    "DeviceStatistics": "device",
    "FromAsyncio": "device",
    "Requests": "device",
    "SharedBuffer": "device",
    "StandbyStatistics": "device",
    "System": "device",
    "from_asyncio": "device",
    "open_device": "device",
    "open_system": "device",
    "DeviceInstrument": "lanes",
    "OpTimes": "lanes",
    "WatchedDevice": "lanes",
    "WatchedOp": "lanes",
    "WatchedTransfer": "lanes",
    "GpuRef": "memory",
    "traceparent": "wire._trace",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME.get(name, '_errors')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
