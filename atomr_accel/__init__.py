"""GPU work as structured as a nursery.

``async with open_device(0) as device:`` and then ``await``. Vendor libraries are typed
actors, buffers are handles with a generation, and a kernel that faults takes down its
context, not the program: the device comes back by itself.
"""

from ._errors import (
    AccelError,
    CompileError,
    ContextPoisoned,
    CpuFallbackWarning,
    DeviceLost,
    DeviceUnavailable,
    GpuRefSealed,
    GpuRefStale,
    KernelHung,
    LibraryError,
    LibraryMissing,
    OutOfMemory,
    RemoteError,
    Unsupported,
)
from .device import Device, DeviceStatistics, open_device
from .memory import GpuRef

__all__ = [
    "AccelError",
    "CompileError",
    "ContextPoisoned",
    "CpuFallbackWarning",
    "Device",
    "DeviceLost",
    "DeviceStatistics",
    "DeviceUnavailable",
    "GpuRef",
    "GpuRefSealed",
    "GpuRefStale",
    "KernelHung",
    "LibraryError",
    "LibraryMissing",
    "OutOfMemory",
    "RemoteError",
    "Unsupported",
    "open_device",
]
