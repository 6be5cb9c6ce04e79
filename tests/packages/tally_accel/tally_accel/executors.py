"""Code that runs in hosts: the backend's context, and the library's executor."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from atomr_accel.backends import Stream
from atomr_accel.backends.cpu.host.context import CpuContext
from atomr_accel.executors.operations import array_handlers

from .operations import CountNonzero


class TallyContext(CpuContext):
    """The CPU's context under another name."""

    backend: ClassVar[str] = "tally"


class TallyExecutor:
    """Executes the ops with NumPy."""

    def __init__(self, context: Any, stream: Stream) -> None:
        self.handlers = array_handlers(context, {CountNonzero: count_nonzero})

    def close(self) -> None:
        """Do nothing, because nothing is held."""


def count_nonzero(x: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
    """Write the number of elements that are not zero to ``out``."""
    out[...] = np.count_nonzero(x)
