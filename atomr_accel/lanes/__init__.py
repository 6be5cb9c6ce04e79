"""The program's half of lanes: ports to submit ops to, hosts to start and end."""

from ._interrupts import uninterrupted
from ._loop_flusher import StaggeredEvent
from ._op import UNWATCHED, MessageTemplate, Op
from ._pinned import CHUNK, STAGING_BYTES, Bytes, Piece, PinnedPool, PinnedStatistics
from ._port import LaneStatistics, Port, fail_some
from ._reserve import NO_RESERVE, Reserve
from ._sanitizer import Sanitizer, SanitizerTool, find_sanitizer, first_error
from ._spawn import END_SECONDS, HostDied, HostHandle, Isolation, describe_exit, start_host
from .instrument import (
    DeviceInstrument,
    FinishedOps,
    OpTimes,
    Outcome,
    Phases,
    WatchedDevice,
    WatchedOp,
    WatchedTransfer,
)

__all__ = [
    "CHUNK",
    "END_SECONDS",
    "NO_RESERVE",
    "STAGING_BYTES",
    "UNWATCHED",
    "Bytes",
    "DeviceInstrument",
    "FinishedOps",
    "HostDied",
    "HostHandle",
    "Isolation",
    "LaneStatistics",
    "MessageTemplate",
    "Op",
    "OpTimes",
    "Outcome",
    "Phases",
    "Piece",
    "PinnedPool",
    "PinnedStatistics",
    "Port",
    "Reserve",
    "Sanitizer",
    "SanitizerTool",
    "StaggeredEvent",
    "WatchedDevice",
    "WatchedOp",
    "WatchedTransfer",
    "describe_exit",
    "fail_some",
    "find_sanitizer",
    "first_error",
    "start_host",
    "uninterrupted",
]
