"""Lanes: dedicated threads in a host, each with a socket to the program.

``Port`` is the program's half of a lane and ``Lane`` the host's. Nothing here knows a
vendor: a backend provides the context and its streams, a library what runs on them.
"""

from ._memory import Copy, Download, Fill, Probe, Protect, Unprotect, Upload
from ._port import LaneStatistics, Op, Port
from ._protocol import Executor, HostContext, StickyFault, Stream
from ._spawn import HostDied, HostHandle, Isolation, describe_exit, start_host
from ._wire import (
    ControlReply,
    ControlRequest,
    CreateSlab,
    DeviceInfo,
    Fault,
    MapSlab,
    Message,
    Open,
    Opened,
    OpenLane,
    Preload,
    UnmapSlabs,
)

__all__ = [
    "ControlReply",
    "ControlRequest",
    "Copy",
    "CreateSlab",
    "DeviceInfo",
    "Download",
    "Executor",
    "Fault",
    "Fill",
    "HostContext",
    "HostDied",
    "HostHandle",
    "Isolation",
    "LaneStatistics",
    "MapSlab",
    "Message",
    "Op",
    "Open",
    "OpenLane",
    "Opened",
    "Port",
    "Preload",
    "Probe",
    "Protect",
    "StickyFault",
    "Stream",
    "UnmapSlabs",
    "Unprotect",
    "Upload",
    "describe_exit",
    "start_host",
]
