"""BLAS on the CPU, with NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ..._dtypes import DTYPES
from ._messages import Gemm

if TYPE_CHECKING:
    from ...backends.cpu._context import CpuContext, CpuStream


@final
class CpuBlas:
    """Executes BLAS messages with NumPy; 16-bit types are computed in float32."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._context: Final = context
        self.handlers: Final = {Gemm: self._gemm}

    def close(self) -> None:
        """Nothing is held."""

    def _gemm(self, message: Gemm) -> None:
        context = self._context
        context.check()
        m, n, k = message.m, message.n, message.k
        dtype = DTYPES[message.dtype]
        a = context.array(message.a, (k, m) if message.trans_a else (m, k), dtype)
        b = context.array(message.b, (n, k) if message.trans_b else (k, n), dtype)
        c = context.array(message.c, (m, n), dtype)
        wide = dtype if dtype.itemsize > 2 else np.dtype(np.float32)
        product: np.ndarray[Any, Any] = _op(a, wide, transpose=message.trans_a) @ _op(
            b, wide, transpose=message.trans_b
        )
        if message.alpha != 1.0:
            product = wide.type(message.alpha) * product
        if message.beta != 0.0:
            product = product + wide.type(message.beta) * c.astype(wide)
        c[...] = product.astype(dtype)


def _op(
    array: np.ndarray[Any, Any], dtype: np.dtype[Any], *, transpose: bool
) -> np.ndarray[Any, Any]:
    converted = array.astype(dtype, copy=False)
    return converted.T if transpose else converted
