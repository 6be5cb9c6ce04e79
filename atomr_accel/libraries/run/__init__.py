"""The program's own functions, run in the host: messages, executors and pickling."""

from ._messages import Buffer, Call, Fetch, Forget, Initialize, Keep
from ._pickling import dumps, loads

__all__ = ["Buffer", "Call", "Fetch", "Forget", "Initialize", "Keep", "dumps", "loads"]
