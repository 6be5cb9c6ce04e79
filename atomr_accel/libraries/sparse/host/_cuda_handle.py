"""A cuSPARSE handle, descriptors of operands, and scratch memory."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from ctypes import byref, c_int, c_size_t, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any, Final, final

from ...._dtypes import DTYPES
from ...._errors import Unsupported
from ....backends.cuda.host.driver import check, driver
from ....executors.numbers import CUDA_TYPES, Scalars
from ....executors.vendor import VendorLibrary, undone_on_error
from ._prototypes import ENUMS, INDEX_TYPES, NOT_SUPPORTED, PROTOTYPES, STATUS_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ..wire._messages import DenseMatrix, Matrix, Scalar

HOST: Final = ENUMS["CUSPARSE_POINTER_MODE_HOST"]
DEVICE: Final = ENUMS["CUSPARSE_POINTER_MODE_DEVICE"]
_BASE: Final = ENUMS["CUSPARSE_INDEX_BASE_ZERO"]
_ROW: Final = ENUMS["CUSPARSE_ORDER_ROW"]
_COLUMN: Final = ENUMS["CUSPARSE_ORDER_COL"]


@cache
def load_cusparse() -> VendorLibrary:
    """The library, loaded once."""
    return VendorLibrary("cusparse", PROTOTYPES, STATUS_NAME)


@final
class CusparseHandle:
    """A cuSPARSE handle on a stream.

    Attributes:
        pointer: the device pointer of an address.
    """

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._library: Final = load_cusparse()
        self._stream: Final = stream
        self._scalars: Final = Scalars()
        self._scratch = 0
        self._scratch_bytes = 0
        self.pointer: Final = context.pointer
        with undone_on_error() as self._made:
            handle = c_void_p()
            self._library.call("cusparseCreate", byref(handle))
            self._made.callback(self._library.call, "cusparseDestroy", handle.value)
            self._value: Final = handle.value
            self._library.call("cusparseSetStream", self._value, stream.pointer)

    def close(self) -> None:
        """Destroy the handle, and free memory."""
        self._made.close()

    # --- calls --------------------------------------------------------------------------------

    def call(self, function: str, *args: Any) -> None:
        """Call a function on the handle.

        Raises:
            LibraryError: it refused.
            Unsupported: it does not do this, with these types, on this device.
        """
        self.bare(function, self._value, *args)

    def bare(self, function: str, *args: Any) -> None:
        """Call a function that takes no handle."""
        status = self._library.functions[function](*args)
        if status:
            error = self._library.error(function, status)
            if status in NOT_SUPPORTED:
                raise Unsupported(f"{error}: not with these types on this device")
            raise error

    def size(self, function: str, *args: Any) -> int:
        """Bytes of scratch memory that a function tells."""
        nbytes = c_size_t()
        self.call(function, *args, byref(nbytes))
        return nbytes.value

    def to_device(self, function: str, *args: Any) -> None:
        """Call a function whose result goes to a device pointer."""
        self.call("cusparseSetPointerMode", DEVICE)
        try:
            self.call(function, *args)
        finally:
            self.call("cusparseSetPointerMode", HOST)

    def scalar(self, dtype: str, value: Scalar) -> Any:
        """A pointer to a number of that dtype."""
        return self._scalars.pointer(dtype, value)

    # --- descriptors --------------------------------------------------------------------------

    def create(self, made: ExitStack, what: str, *args: Any) -> int:
        """A descriptor, which goes when ``made`` is closed.

        The names of its functions end with ``what``.
        """
        cell = c_void_p()
        self.bare(f"cusparseCreate{what}", byref(cell), *args)
        kind = what if what in ("SpVec", "DnVec", "DnMat") else "SpMat"
        made.callback(self._library.functions[f"cusparseDestroy{kind}"], cell.value)
        assert cell.value is not None
        return cell.value

    def state(self, made: ExitStack, what: str) -> int:
        """Return the state that functions of one kind keep between their calls."""
        cell = c_void_p()
        self.bare(f"cusparse{what}_createDescr", byref(cell))
        made.callback(self._library.functions[f"cusparse{what}_destroyDescr"], cell.value)
        assert cell.value is not None
        return cell.value

    def matrix(self, made: ExitStack, matrix: Matrix, parts: Sequence[int]) -> int:
        """A sparse matrix whose parts are at these pointers."""
        index, dtype = INDEX_TYPES[matrix.index], CUDA_TYPES[matrix.dtype]
        rows, columns = matrix.shape
        if matrix.format != "bsr" and matrix.nnz > rows * columns:
            raise Unsupported(
                f"cuSPARSE takes no {rows} by {columns} matrix with {matrix.nnz} elements: some "
                "are there more than once, so add them up first: "
                "await device.sparse.sum_duplicates(a)"
            )
        kinds = index, index, _BASE, dtype
        if matrix.format == "blocked-ell":
            size = matrix.block[0]
            width = matrix.nnz * size // (rows // size)
            sizes: tuple[int, ...] = rows, columns, size, width
            return self.create(made, "BlockedEll", *sizes, *parts[1:], *kinds[1:])
        if matrix.format == "sliced-ell":
            sizes = matrix.nnz, matrix.padded, matrix.block[0]
            return self.create(made, "SlicedEll", rows, columns, *sizes, *parts, *kinds)
        if matrix.format == "bsr":
            r, c = matrix.block
            if r != c:
                raise Unsupported(
                    f"cuSPARSE takes square blocks only, not {r} by {c}: convert the matrix "
                    "first: await device.sparse.tocsr(a)"
                )
            sizes = rows // r, columns // c, matrix.nnz, r, c
            return self.create(made, "Bsr", *sizes, *parts, *kinds, _ROW)
        what = matrix.format.capitalize()
        return self.create(made, what, rows, columns, matrix.nnz, *parts, *kinds)

    def vector(self, made: ExitStack, vector: Matrix, parts: Sequence[int]) -> int:
        """A sparse vector, which messages have as a matrix of one row."""
        kinds = INDEX_TYPES[vector.index], _BASE, CUDA_TYPES[vector.dtype]
        return self.create(made, "SpVec", vector.shape[1], vector.nnz, *parts, *kinds)

    def dense(
        self, made: ExitStack, dense: DenseMatrix, dtype: str, pointer: int, *, column: bool = False
    ) -> int:
        """A dense vector, perhaps as a matrix of one column, or a matrix."""
        kind = CUDA_TYPES[dtype]
        if len(dense.shape) == 1:
            (n,) = dense.shape
            if column:
                return self.create(made, "DnMat", n, 1, max(n, 1), pointer, kind, _COLUMN)
            return self.create(made, "DnVec", n, pointer, kind)
        order = _ROW if dense.by_rows else _COLUMN
        return self.create(made, "DnMat", *dense.shape, max(dense.ld, 1), pointer, kind, order)

    def mark(self, descriptor: int, attribute: str, value: str) -> None:
        """Set an attribute of a sparse matrix."""
        cell = c_int(ENUMS[f"CUSPARSE_{value}"])
        self.bare(
            "cusparseSpMatSetAttribute",
            *(descriptor, ENUMS[f"CUSPARSE_SPMAT_{attribute}"], byref(cell), ctypes.sizeof(cell)),
        )

    # --- memory -------------------------------------------------------------------------------

    def allocate(self, made: ExitStack, nbytes: int) -> int:
        """Device memory that goes with ``made``; it waits for the device then."""
        if not nbytes:
            return 0
        memory = int(check("cuMemAlloc", driver.cuMemAlloc(nbytes)))
        made.callback(lambda: check("cuMemFree", driver.cuMemFree(memory)))
        return memory

    def scratch(self, nbytes: int) -> int:
        """Return memory for calls that bring none; older memory stays, as graphs may use it."""
        if nbytes > self._scratch_bytes:
            self._scratch = self.allocate(self._made, nbytes)
            self._scratch_bytes = nbytes
        return self._scratch

    def clear(self, dense: DenseMatrix, dtype: str, pointer: int) -> None:
        """Fill a dense operand with zeros."""
        itemsize = DTYPES[dtype].itemsize
        inner, outer = dense.shape[-1], dense.shape[0] if len(dense.shape) == 2 else 1
        if not dense.by_rows:
            inner, outer = outer, inner
        if not inner or not outer:
            return
        stream = self._stream.handle
        if outer == 1 or dense.ld == inner:
            cleared = driver.cuMemsetD8Async(pointer, 0, inner * outer * itemsize, stream)
            check("cuMemsetD8Async", cleared)
            return
        pitch = dense.ld * itemsize
        rows = driver.cuMemsetD2D8Async(pointer, pitch, 0, inner * itemsize, outer, stream)
        check("cuMemsetD2D8Async", rows)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Copy inside the device."""
        if nbytes:
            copied = driver.cuMemcpyDtoDAsync(to, source, nbytes, self._stream.handle)
            check("cuMemcpyDtoDAsync", copied)
