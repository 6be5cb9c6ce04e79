"""The abacus in a host."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from atomr_accel.backends.cpu.host.context import CpuContext, CpuStream
from atomr_accel.libraries.blas.wire._messages import Gemm

from ._messages import Count


class AbacusContext(CpuContext):
    """The CPU's context under another name."""

    backend: ClassVar[str] = "abacus"


class AbacusBlas:
    """Products of whole numbers; fractions are cut off."""

    def __init__(self, context: AbacusContext, stream: CpuStream) -> None:
        self._context = context
        self.handlers = {Gemm: self._gemm}

    def close(self) -> None:
        """Nothing is held."""

    def _gemm(self, message: Gemm) -> None:
        (m, n, k), dtype = message.sizes, np.dtype(message.options.dtype)
        a = self._context.array(message.a, (m, k), dtype)
        b = self._context.array(message.b, (k, n), dtype)
        self._context.array(message.c, (m, n), dtype)[...] = np.trunc(a) @ np.trunc(b)


class Counting:
    """Counts beads."""

    def __init__(self, context: AbacusContext, stream: CpuStream) -> None:
        self._context = context
        self.handlers = {Count: self._count}

    def close(self) -> None:
        """Nothing is held."""

    def _count(self, message: Count) -> int:
        beads = self._context.array(message.address, (message.count,), np.dtype(np.int64))
        return int(beads.sum())
