"""Batched factorizations on CUDA.

The vendor's functions take column-major matrices by pointer, with any leading dimension. One
transposition turns a batch of row-major matrices into such matrices. It takes the whole batch from
(batch * m) x n to n x (batch * m). The columns of matrix i then begin at i * m, and are batch * m
apart.
"""

from __future__ import annotations

from ctypes import byref, c_int
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._dtypes import DTYPES
from ...._errors import LibraryError
from ..wire._messages import Factor
from ._cuda_routines import CudaBlasRoutines
from ._prototypes import LETTERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from .cuda_handle import CublasHandle


@final
class CudaFactorizations:
    """Executes ``Factor`` messages."""

    def __init__(self, handle: CublasHandle) -> None:
        self._handle: Final = handle
        self._routines: Final = CudaBlasRoutines(handle)
        self._steps: Final = {
            "getrf": self._getrf,
            "getrs": self._getrs,
            "getri": self._getri,
            "matinv": self._matinv,
            "geqrf": self._geqrf,
            "gels": self._gels,
        }
        self.handlers: Final[dict[type, Callable[[Any], None]]] = {Factor: self._factor}

    def _factor(self, message: Factor) -> None:
        handle, batch = self._handle, message.batch
        if message.info:
            handle.clear(handle.pointer(message.info), 4 * batch)
        if batch and message.n and message.m:
            self._steps[message.routine](message)

    def _getrf(self, message: Factor) -> None:
        handle, batch, n = self._handle, message.batch, message.n
        work, table = map(handle.pointer, message.scratch)
        pivots = handle.pointer(message.pivots)
        self._turn(message, work, message.a, n, n)
        matrices = self._point(message, table, work, n)
        info = handle.pointer(message.info)
        self._call(message, n, matrices, batch * n, pivots, info, batch)
        handle.shift("int", pivots, pivots, batch * n, -1)
        self._turn_back(message, message.c, work, n, n)

    def _getrs(self, message: Factor) -> None:
        handle, batch, n, nrhs = self._handle, message.batch, message.n, message.nrhs
        if not nrhs:
            return
        factors, sides, table, pivots = map(handle.pointer, message.scratch)
        self._turn(message, factors, message.a, n, n)
        self._turn(message, sides, message.b, n, nrhs)
        handle.shift("int", pivots, handle.pointer(message.pivots), batch * n, 1)
        matrices = self._point(message, table, factors, n)
        right = self._point(message, table + 8 * batch, sides, n)
        ld = batch * n
        arguments = (n, nrhs, matrices, ld, pivots, right, ld)
        self._checked(message, message.trans, *arguments, batch)
        self._turn_back(message, message.c, sides, n, nrhs)

    def _getri(self, message: Factor) -> None:
        handle, batch, n = self._handle, message.batch, message.n
        factors, inverses, table, pivots = map(handle.pointer, message.scratch)
        self._turn(message, factors, message.a, n, n)
        handle.shift("int", pivots, handle.pointer(message.pivots), batch * n, 1)
        matrices = self._point(message, table, factors, n)
        results = self._point(message, table + 8 * batch, inverses, n)
        ld = batch * n
        info = handle.pointer(message.info)
        self._call(message, n, matrices, ld, pivots, results, ld, info, batch)
        self._turn_back(message, message.c, inverses, n, n)

    def _matinv(self, message: Factor) -> None:
        """The inverse of the transpose is the transpose of the inverse."""
        handle, batch, n = self._handle, message.batch, message.n
        (table,) = map(handle.pointer, message.scratch)
        matrices = self._point(message, table, handle.pointer(message.a), n * n)
        results = self._point(message, table + 8 * batch, handle.pointer(message.c), n * n)
        self._call(message, n, matrices, n, results, n, handle.pointer(message.info), batch)

    def _geqrf(self, message: Factor) -> None:
        handle, batch, m, n = self._handle, message.batch, message.m, message.n
        work, table = map(handle.pointer, message.scratch)
        self._turn(message, work, message.a, m, n)
        matrices = self._point(message, table, work, m)
        tau = self._point(message, table + 8 * batch, handle.pointer(message.tau), min(m, n))
        self._checked(message, m, n, matrices, batch * m, tau, batch)
        self._turn_back(message, message.c, work, m, n)

    def _gels(self, message: Factor) -> None:
        handle, batch = self._handle, message.batch
        m, n, nrhs = message.m, message.n, message.nrhs
        if not nrhs:
            return
        work, sides, table, solved = map(handle.pointer, message.scratch)
        self._turn(message, work, message.a, m, n)
        self._turn(message, sides, message.b, m, nrhs)
        matrices = self._point(message, table, work, m)
        right = self._point(message, table + 8 * batch, sides, m)
        host, ld = c_int(), batch * m
        info = handle.pointer(message.info)
        self._call(message, 0, m, n, nrhs, matrices, ld, right, ld, byref(host), info, batch)
        self._refuse(message, host.value)
        # The solutions are the first n of every m rows.
        self._routines.transpose(message.dtype, solved, sides, nrhs, batch * m)
        row = nrhs * DTYPES[message.dtype].itemsize
        handle.copy_rows(handle.pointer(message.c), n * row, solved, m * row, n * row, batch)

    # --- in common ------------------------------------------------------------------------

    def _call(self, message: Factor, *arguments: Any) -> None:
        self._handle.call(self._name(message), *arguments)

    def _checked(self, message: Factor, *arguments: Any) -> None:
        """Call a function that says which argument it refuses, before the batch's size."""
        host = c_int()
        self._call(message, *arguments[:-1], byref(host), arguments[-1])
        self._refuse(message, host.value)

    def _refuse(self, message: Factor, info: int) -> None:
        if info:
            name = self._name(message)
            raise LibraryError(
                f"{name} refuses its argument {-info}",
                library="cublas",
                call=name,
                status=info,
                status_name="illegal argument",
            )

    @staticmethod
    def _name(message: Factor) -> str:
        return f"cublas{LETTERS[message.dtype]['t']}{message.routine}Batched"

    def _turn(self, message: Factor, to: int, source: int, rows: int, columns: int) -> None:
        """Bring a batch into column-major order."""
        address = self._handle.pointer(source)
        self._routines.transpose(message.dtype, to, address, message.batch * rows, columns)

    def _turn_back(self, message: Factor, to: int, source: int, rows: int, columns: int) -> None:
        address = self._handle.pointer(to)
        self._routines.transpose(message.dtype, address, source, columns, message.batch * rows)

    def _point(self, message: Factor, table: int, first: int, step: int) -> int:
        """Write pointers to what lies ``step`` elements apart, one for each matrix."""
        nbytes = step * DTYPES[message.dtype].itemsize
        places = np.arange(message.batch, dtype=np.uint64) * np.uint64(nbytes)
        places += np.uint64(first)
        self._handle.upload(table, places)
        return table
