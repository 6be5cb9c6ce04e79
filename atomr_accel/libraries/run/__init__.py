"""The program's own functions, run in the host: messages, executors and pickling."""

from ._messages import Buffer, Call, Fetch, Forget, Initialize, Keep, Left, Supply
from ._pickling import INLINE, Bytes, TakesLong, TooMuch, dumps, loads

__all__ = [
    "INLINE",
    "Buffer",
    "Bytes",
    "Call",
    "Fetch",
    "Forget",
    "Initialize",
    "Keep",
    "Left",
    "Supply",
    "TakesLong",
    "TooMuch",
    "dumps",
    "loads",
]
