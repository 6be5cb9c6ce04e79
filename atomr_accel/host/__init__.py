"""What runs inside a host: lanes' threads, and the language they share with the program.

Nothing in here imports trio or knows a vendor. A backend provides the context and its
streams, a library the executors; a host loads them by name.
"""

from ._address import OFFSET_MASK, SLAB_SHIFT, shared_fd
from ._interop import ON_GPU, ON_HOST, Borrowed, DeviceArray, borrow, device_type
from ._load import load
from ._memory import Copy, Fill, Probe, Protect, Unprotect
from ._protocol import Executor, Fusion, HostContext, StickyFault, Stream
from ._wire import (
    WITHDRAWN,
    ControlReply,
    ControlRequest,
    CreateSlab,
    DeviceInfo,
    Elapsed,
    Failure,
    Fault,
    Frames,
    MapPinned,
    MapSlab,
    Message,
    Open,
    Opened,
    OpenLane,
    Preload,
    RecordEvent,
    Reply,
    StreamPlan,
    UnmapSlabs,
    Value,
    append_frame,
    encoder,
    unpack_exception,
)

__all__ = [
    "OFFSET_MASK",
    "ON_GPU",
    "ON_HOST",
    "SLAB_SHIFT",
    "WITHDRAWN",
    "Borrowed",
    "ControlReply",
    "ControlRequest",
    "Copy",
    "CreateSlab",
    "DeviceArray",
    "DeviceInfo",
    "Elapsed",
    "Executor",
    "Failure",
    "Fault",
    "Fill",
    "Frames",
    "Fusion",
    "HostContext",
    "MapPinned",
    "MapSlab",
    "Message",
    "Open",
    "OpenLane",
    "Opened",
    "Preload",
    "Probe",
    "Protect",
    "RecordEvent",
    "Reply",
    "StickyFault",
    "Stream",
    "StreamPlan",
    "UnmapSlabs",
    "Unprotect",
    "Value",
    "append_frame",
    "borrow",
    "device_type",
    "encoder",
    "load",
    "shared_fd",
    "unpack_exception",
]
