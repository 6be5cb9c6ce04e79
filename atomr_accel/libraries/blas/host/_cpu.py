"""BLAS on the CPU, with NumPy and SciPy. 16-bit types are computed in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import msgspec
import numpy as np

from ...._dtypes import DTYPES
from ..wire._messages import (
    Factor,
    Gemm,
    GemmList,
    ProductOptions,
    RunRoutine,
    RunStacked,
)
from ._cpu_routines import apply, execute, number, solve_triangular, wide

if TYPE_CHECKING:
    from ....backends.cpu.host.context import CpuContext, CpuStream

Array = np.ndarray[Any, Any]

_INTEGER_SUMS: Final = np.dtype(np.int32)


@final
class CpuBlas:
    """Executes BLAS messages."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._context: Final = context
        self.handlers: Final = {
            Gemm: self._gemm,
            GemmList: self._gemm_list,
            RunRoutine: self._routine,
            RunStacked: self._stacked,
            Factor: self._factor,
        }

    def close(self) -> None:
        """Nothing is held."""

    # --- products -------------------------------------------------------------------------

    def _gemm(self, message: Gemm) -> None:
        context, options = self._context, message.options
        context.check()
        (m, n, k), batch = message.sizes, message.batch
        dtype = DTYPES[options.dtype]
        shape_a = (k, m) if options.trans_a else (m, k)
        shape_b = (n, k) if options.trans_b else (k, n)
        row_a, row_b, row_c = message.rows or (shape_a[1], shape_b[1], n)
        if batch or message.rows:
            a = self._stack(message.a, batch, (*message.strides_a, row_a), shape_a, dtype)
            b = self._stack(message.b, batch, (*message.strides_b, row_b), shape_b, dtype)
        else:
            a = context.array(message.a, shape_a, dtype)
            b = context.array(message.b, shape_b, dtype)
        dtype_c = DTYPES[options.dtype_c]
        if message.strides_c is None:
            c = context.array(message.c, (*batch, m, n), dtype_c)
        else:
            steps = [step * dtype_c.itemsize for step in (*message.strides_c, row_c, 1)]
            c = context.array(message.c, (*batch, m, n), dtype_c, tuple(steps))
        if message.at:
            kind = DTYPES[options.scalars]
            alpha, beta = (
                self._context.array(at, (), kind).item() if value is None else value
                for at, value in zip(message.at, (message.alpha, message.beta), strict=False)
            )
            message = msgspec.structs.replace(message, alpha=alpha, beta=beta)
        if c.size:
            self._product(a, b, c, message, options)

    def _gemm_list(self, message: GemmList) -> None:
        context, options = self._context, message.options
        context.check()
        dtype, dtype_c = DTYPES[options.dtype], DTYPES[options.dtype_c]
        places = zip(message.a, message.b, message.c, message.shapes, strict=True)
        for at_a, at_b, at_c, (m, n, k) in places:
            a = context.array(at_a, (k, m) if options.trans_a else (m, k), dtype)
            b = context.array(at_b, (n, k) if options.trans_b else (k, n), dtype)
            self._product(a, b, context.array(at_c, (m, n), dtype_c), message, options)

    @staticmethod
    def _product(
        a: Array,
        b: Array,
        c: Array,
        message: Gemm | GemmList | RunStacked,
        options: ProductOptions,
    ) -> None:
        kind = _INTEGER_SUMS if c.dtype.kind == "i" else wide(c.dtype)
        alpha, beta = number(message.alpha), number(message.beta)
        result: Array
        if alpha == 0.0:  # BLAS does not read the factors then
            result = np.zeros(c.shape, kind)
        else:
            left = apply(a.astype(kind, copy=False), options.trans_a)
            right = apply(b.astype(kind, copy=False), options.trans_b)
            result = left @ right
        if alpha not in (0.0, 1.0):
            result = kind.type(alpha) * result
        if beta != 0.0:
            result = result + kind.type(beta) * c.astype(kind)
        c[...] = result.astype(c.dtype)

    def _stack(
        self,
        address: int,
        batch: tuple[int, ...],
        steps: tuple[int, ...],
        shape: tuple[int, int],
        dtype: np.dtype[Any],
    ) -> Array:
        """Matrices at constant steps from one to the next, and from row to row, as one array."""
        if 0 in batch or 0 in shape:
            return np.zeros((*batch, *shape), dtype)
        strides = tuple([step * dtype.itemsize for step in (*steps, 1)])
        return self._context.array(address, (*batch, *shape), dtype, strides)

    # --- routines -------------------------------------------------------------------------

    def _routine(self, message: RunRoutine) -> None:
        self._context.check()
        execute(self._context, message)

    def _stacked(self, message: RunStacked) -> None:
        self._context.check()
        m, n = message.sizes
        batch, dtype, solves = message.batch, DTYPES[message.dtype], message.routine == "trsm"
        right = solves and message.options[0]
        of_a = (n, n) if right else (m, m) if solves else (m, n)
        a = self._stack(message.a, batch, (*message.strides_a, of_a[1]), of_a, dtype)
        alpha = number(message.alpha)
        if solves:
            b = self._context.array(message.b, (*batch, m, n), dtype)
            c = self._context.array(message.c, (*batch, m, n), dtype)
            for at in np.ndindex(batch):
                c[at] = solve_triangular(alpha, a[at], b[at], message.options)
            return
        (trans,) = message.options
        rows, columns = (n, m) if trans else (m, n)
        x = self._stack(message.b, batch, (*message.strides_b, 1), (columns, 1), dtype)
        y = self._context.array(message.c, (*batch, rows, 1), dtype)
        kind = ProductOptions(message.dtype, message.dtype, "", trans, 0)
        if y.size:
            self._product(a, x, y, message, kind)

    def _factor(self, message: Factor) -> None:
        from ._cpu_factor import factor  # which few programs need

        self._context.check()
        factor(self._context, message)
