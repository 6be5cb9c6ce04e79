"""The program's half of lanes: ports to submit ops to, hosts to start and end."""

from ._port import LaneStatistics, Op, Port
from ._spawn import HostDied, HostHandle, Isolation, describe_exit, start_host
from ._staging import CHUNK, Piece, Staging

__all__ = [
    "CHUNK",
    "HostDied",
    "HostHandle",
    "Isolation",
    "LaneStatistics",
    "Op",
    "Piece",
    "Port",
    "Staging",
    "describe_exit",
    "start_host",
]
