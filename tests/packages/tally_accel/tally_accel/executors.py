"""Code that runs in hosts: the backend's context, and the library's executor."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from atomr_accel.backends import Stream
from atomr_accel.backends.cpu.host.context import CpuContext

from .messages import CountNonzero


class TallyContext(CpuContext):
    """The CPU's context under another name."""

    backend: ClassVar[str] = "tally"


class TallyExecutor:
    """Executes the messages with NumPy."""

    def __init__(self, context: Any, stream: Stream) -> None:
        self._context = context
        self.handlers = {CountNonzero: self._count_nonzero}

    def close(self) -> None:
        """Do nothing, because nothing is held."""

    def _count_nonzero(self, message: CountNonzero) -> None:
        self._context.check()
        x = self._context.array(message.x, (message.count,), np.dtype(message.dtype))
        result = self._context.array(message.result, (), np.dtype(np.int64))
        result[...] = np.count_nonzero(x)
