"""The program's half of lanes: ports to submit ops to, hosts to start and end."""

from ._interrupts import uninterrupted
from ._pinned import CHUNK, STAGING_BYTES, Bytes, Piece, PinnedPool, PinnedStatistics
from ._port import LaneStatistics, Op, Port
from ._spawn import HostDied, HostHandle, Isolation, describe_exit, start_host

__all__ = [
    "CHUNK",
    "STAGING_BYTES",
    "Bytes",
    "HostDied",
    "HostHandle",
    "Isolation",
    "LaneStatistics",
    "Op",
    "Piece",
    "PinnedPool",
    "PinnedStatistics",
    "Port",
    "describe_exit",
    "start_host",
    "uninterrupted",
]
