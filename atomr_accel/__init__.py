"""GPU work as structured as a nursery.

``async with open_device(0) as device:`` and then ``await``. Vendor libraries are typed
actors, buffers are handles with a generation, and a kernel that faults takes down its
context, not the program: the device comes back by itself.
"""

import sys
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
        LinAlgError,
        OutOfMemory,
        RemoteError,
        StandbyWarning,
        Unsupported,
        WorldBroken,
    )
    from ._reports import FaultReport, ReportedBuffer, ReportedNode, ReportedOp, ReportedXid
    from .arrays import GpuRef
    from .device import (
        Blocking,
        Candidate,
        CandidateState,
        ConsistentHash,
        DataLocality,
        Device,
        DeviceLoad,
        Devices,
        DevicesStatistics,
        DeviceStatistics,
        FromAsyncio,
        GetTopology,
        Hints,
        Link,
        MostFreeMemory,
        PlacementPolicy,
        Requests,
        SealedCopies,
        SealedCopiesStatistics,
        SharedBuffer,
        Snapshot,
        SnapshotStatistics,
        Standby,
        StandbyStatistics,
        System,
        Topology,
        from_asyncio,
        open_blocking,
        open_device,
        open_devices,
        open_system,
    )
    from .device.batches.batch import Batch
    from .device.batches.record import Recording, RecordingStatistics
    from .device.calls._event import Event
    from .device.health import Health
    from .lanes import (
        DeviceInstrument,
        FinishedOps,
        OpTimes,
        WatchedDevice,
        WatchedOp,
        WatchedTransfer,
    )
    from .libraries.nvrtc._options import CompileOptions
    from .libraries.nvrtc.cuda_array import CudaArray
    from .libraries.nvrtc.kernel import Kernel
    from .libraries.nvrtc.module import KernelModule
    from .libraries.nvrtc.tensor_map import TensorMap
    from .libraries.nvrtc.texture import Surface, Texture
    from .libraries.sparse._ell import EllRef
    from .libraries.sparse.array import SparseRef
    from .libraries.sparselt._structured import StructuredRef
    from .wire.trace import traceparent

if sys.platform != "linux":
    raise ImportError(
        f"the system must be Linux with Python 3.11 or newer, not {sys.platform}; "
        "on Windows use WSL 2, elsewhere a container"
    )

__all__ = [
    "AccelError",
    "Batch",
    "Blocking",
    "Candidate",
    "CandidateState",
    "CompileError",
    "CompileOptions",
    "ConsistentHash",
    "ContextPoisoned",
    "CpuFallbackWarning",
    "CudaArray",
    "DataLocality",
    "Device",
    "DeviceInstrument",
    "DeviceLoad",
    "DeviceLost",
    "DeviceStatistics",
    "DeviceUnavailable",
    "Devices",
    "DevicesStatistics",
    "EllRef",
    "Event",
    "EventStale",
    "FaultReport",
    "FinishedOps",
    "FromAsyncio",
    "GetTopology",
    "GpuRef",
    "GpuRefSealed",
    "GpuRefStale",
    "Health",
    "Hints",
    "Kernel",
    "KernelHung",
    "KernelModule",
    "LibraryError",
    "LibraryMissing",
    "LinAlgError",
    "Link",
    "MostFreeMemory",
    "OpTimes",
    "OutOfMemory",
    "PlacementPolicy",
    "Recording",
    "RecordingStatistics",
    "RemoteError",
    "ReportedBuffer",
    "ReportedNode",
    "ReportedOp",
    "ReportedXid",
    "Requests",
    "SealedCopies",
    "SealedCopiesStatistics",
    "SharedBuffer",
    "Snapshot",
    "SnapshotStatistics",
    "SparseRef",
    "Standby",
    "StandbyStatistics",
    "StandbyWarning",
    "StructuredRef",
    "Surface",
    "System",
    "TensorMap",
    "Texture",
    "Topology",
    "Unsupported",
    "WatchedDevice",
    "WatchedOp",
    "WatchedTransfer",
    "WorldBroken",
    "from_asyncio",
    "open_blocking",
    "open_device",
    "open_devices",
    "open_system",
    "traceparent",
]

__version__ = "0.1.0"

# A host imports this package too, and every rebuild waits for that: it must not load the
# program's half, with trio and all. So names are looked up when they are first used.
_HOMES = {
    "_reports": "FaultReport ReportedBuffer ReportedNode ReportedOp ReportedXid",
    "device": (
        "Blocking Candidate CandidateState ConsistentHash DataLocality Device DeviceLoad "
        "DeviceStatistics Devices DevicesStatistics FromAsyncio GetTopology Hints Link "
        "MostFreeMemory PlacementPolicy Requests SealedCopies SealedCopiesStatistics "
        "SharedBuffer Snapshot SnapshotStatistics Standby StandbyStatistics System Topology "
        "from_asyncio open_blocking open_device open_devices open_system"
    ),
    "device.health": "Health",
    "lanes": "DeviceInstrument FinishedOps OpTimes WatchedDevice WatchedOp WatchedTransfer",
    "arrays": "GpuRef",
    "device.batches.batch": "Batch",
    "device.batches.record": "Recording RecordingStatistics",
    "device.calls._event": "Event",
    "libraries.nvrtc.kernel": "Kernel",
    "libraries.nvrtc.module": "KernelModule",
    "libraries.nvrtc._options": "CompileOptions",
    "libraries.sparse._ell": "EllRef",
    "libraries.sparse.array": "SparseRef",
    "libraries.sparselt._structured": "StructuredRef",
    "libraries.nvrtc.cuda_array": "CudaArray",
    "libraries.nvrtc.texture": "Surface Texture",
    "libraries.nvrtc.tensor_map": "TensorMap",
    "wire.trace": "traceparent",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in __all__:
        # ``from atomr_accel import name`` asks from importlib whether there is such a name.
        asking = sys._getframe(1).f_globals.get("__name__")
        names = import_module("._other_names", __name__)
        raise names.not_in_package(name, imported=asking == "importlib._bootstrap")
    value = getattr(import_module(f".{_HOME.get(name, '_errors')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
