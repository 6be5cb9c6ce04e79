"""Batches at levels 2 and 3 on CUDA.

``_cuda_routines`` tells what becomes of row-major matrices.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._dtypes import DTYPES
from ..wire._messages import RunStacked
from ..wire._rows import REAL_OF
from ._cuda_routines import LEFT, LOWER, RIGHT, TURNED, UPPER
from ._prototypes import HALF_GEMV, HALF_GEMV_BATCHED, LETTERS, OP_C, OP_T

if TYPE_CHECKING:
    from collections.abc import Callable

    from .cuda_handle import CublasHandle


@final
class CudaStacked:
    """Executes ``RunStacked`` messages."""

    def __init__(self, handle: CublasHandle) -> None:
        self._handle: Final = handle
        self._routines: Final = {"gemv": self._gemv, "trsm": self._trsm}
        self.handlers: Final[dict[type, Callable[[Any], None]]] = {RunStacked: self._stacked}

    def _stacked(self, message: RunStacked) -> None:
        if 0 not in message.batch:
            self._routines[message.routine](message)

    def _gemv(self, message: RunStacked) -> None:
        handle, dtype, batch = self._handle, message.dtype, message.batch
        (m, n), (trans,) = message.sizes, message.options
        made = n if trans else m
        count, target = math.prod(batch), handle.pointer(message.c)
        if not m or not n:
            handle.scale(target, count * made, 1, dtype, message.beta)  # empty sums
            return
        kind = "float32" if dtype in HALF_GEMV else dtype
        alpha, beta = handle.scalar(kind, message.alpha), handle.scalar(kind, message.beta)
        sizes = (TURNED[1 if trans else 0], n, m)
        if len(batch) < 2:
            function = HALF_GEMV.get(dtype) or f"{_begin(dtype)}gemvStridedBatched_64"
            a, x = handle.pointer(message.a), handle.pointer(message.b)
            step_a, step_x = (
                strides[0] if strides else 0 for strides in (message.strides_a, message.strides_b)
            )
            handle.call(
                function,
                *(*sizes, alpha, a, n, step_a, x, 1, step_x, beta, target, 1, made, count),
            )
            return
        function = HALF_GEMV_BATCHED.get(dtype) or f"{_begin(dtype)}gemvBatched_64"
        a, x, y = self._point(message, made)
        handle.call(function, *(*sizes, alpha, a, n, x, 1, beta, y, 1, count))

    def _trsm(self, message: RunStacked) -> None:
        """In place, of a copy."""
        handle, dtype, (m, n) = self._handle, message.dtype, message.sizes
        side, lower, trans, diag = message.options
        count = math.prod(message.batch)
        nbytes = count * m * n * DTYPES[dtype].itemsize
        if not nbytes:
            return
        handle.copy(handle.pointer(message.c), handle.pointer(message.b), nbytes)
        if dtype not in REAL_OF and trans == OP_C:
            trans = OP_T
        a, _, c = self._point(message, m * n)
        handle.call(
            f"{_begin(dtype)}trsmBatched",
            *(LEFT if side else RIGHT, UPPER if lower else LOWER, trans, diag, n, m),
            handle.scalar(dtype, message.alpha),
            *(a, n if side else m, c, n, count),
        )

    def _point(self, message: RunStacked, made: int) -> tuple[int, int, int]:
        """Tables of pointers to a, b and c."""
        handle, batch = self._handle, message.batch
        itemsize, count = DTYPES[message.dtype].itemsize, math.prod(message.batch)
        table = np.concatenate(
            [
                places(handle.pointer(message.a), batch, message.strides_a, itemsize),
                places(handle.pointer(message.b), batch, message.strides_b, itemsize),
                places(handle.pointer(message.c), (count,), (made,), itemsize),
            ]
        )
        first = handle.pointer(message.pointers)
        handle.upload(first, table)
        return first, first + 8 * count, first + 16 * count


def places(
    pointer: int, batch: tuple[int, ...], steps: tuple[int, ...], itemsize: int
) -> np.ndarray[Any, Any]:
    """The pointers of matrices at constant steps along each dimension of a batch."""
    at = np.full(batch, pointer, np.uint64)
    for axis, (size, step) in enumerate(zip(batch, steps, strict=True)):
        shape = [1] * len(batch)
        shape[axis] = size
        at += (np.arange(size, dtype=np.uint64) * np.uint64(step * itemsize)).reshape(shape)
    return at.ravel()


def _begin(dtype: str) -> str:
    """Return the beginning of the function names for a dtype."""
    return f"cublas{LETTERS[dtype]['t']}"
