"""Levels 1 to 3 on CUDA.

A message becomes values for the words of the vendor's arguments, by the roles of its row. In
the column-major view of cuBLAS a row-major matrix is its transpose: the upper triangle is the
lower one, left is right, and m is n. Packed triangles are the vendor's own, and so are bands once
their rows are columns. What a routine needs besides is in ``_CALLS``: conjugates
that this makes necessary and level 2 does not have come from level 3.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from ...._dtypes import DTYPES
from ....executors.numbers import CUDA_TYPES
from ..wire._messages import RunRoutine
from ..wire._rows import REAL_OF, ROWS, Row
from ._prototypes import (
    COMPUTES,
    ENUMS,
    GEMM_DEFAULT,
    GEMV_STRIDED,
    HALF_GEMV,
    LETTERS,
    OP_C,
    OP_N,
    OP_T,
    half_symbol,
    symbol,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from .cuda_handle import CublasHandle

LEFT: Final = ENUMS["CUBLAS_SIDE_LEFT"]
RIGHT: Final = ENUMS["CUBLAS_SIDE_RIGHT"]
LOWER: Final = ENUMS["CUBLAS_FILL_MODE_LOWER"]
UPPER: Final = ENUMS["CUBLAS_FILL_MODE_UPPER"]
TURNED: Final = (OP_T, OP_N)
"""The op of the transposed matrix that gives 0 and 1 of the matrix itself."""

_OF_MATRICES: Final = {"trmv": "trmm", "trsv": "trsm"}
"""The matrix routine that runs a vector routine, with the vector as one row."""

_SCALAR_WORDS: Final = {"a": "alpha", "c": "cosine", "s": "sine"}
"""The vendor's names of scalars that differ from ours."""


class _RoutineCall(NamedTuple):
    """A routine's call.

    Attributes:
        row: the routine.
        message: what came.
        dtype: of the operands.
        sizes, options: by name. Real matrices have no conjugates here.
        values: what the words of the vendor's arguments stand for.
    """

    row: Row
    message: RunRoutine
    dtype: str
    sizes: dict[str, int]
    options: dict[str, int]
    values: dict[str, Any]

    @property
    def conjugates(self) -> bool:
        """Return True if the routine uses the conjugate of the matrix."""
        return self.options.get("trans") == OP_C


@final
class CudaBlasRoutines:
    """Executes the messages of levels 1, 2 and 3."""

    def __init__(self, handle: CublasHandle) -> None:
        self._handle: Final = handle
        self._pointer: Final = handle.pointer
        self.handlers: Final[dict[type, Callable[[Any], None]]] = {RunRoutine: self._routine}

    def call(self, routine: str, dtype: str, **values: Any) -> None:
        """Call a routine with arguments by their words; ``result`` is on the device."""
        row = ROWS[routine]
        if dtype in LETTERS:
            assert row.vendor is not None
            kind, name, words = row.vendor
            function = symbol(kind, name, dtype)
        else:
            assert row.half is not None
            name, words = row.half
            function = half_symbol(name)
            values |= {"type": CUDA_TYPES[dtype], "scale": CUDA_TYPES["float32"]}
        arguments = [values[word] for word in words.split()]
        self._send(values, function, *arguments)

    def _send(self, values: dict[str, Any], function: str, *arguments: Any) -> None:
        """Call a function with pointers to scalars, or a result, in host or device memory."""
        if values.get("on_device"):
            self._handle.to_device(function, *arguments)
        else:
            self._handle.call(function, *arguments)

    def _routine(self, message: RunRoutine) -> None:
        handle, row, dtype = self._handle, ROWS[message.row], message.dtype
        sizes = dict(zip(row.sizes, message.sizes, strict=True))
        options = dict(zip(row.options, message.options, strict=True))
        shapes = row.shapes(sizes, options)
        written = row.operands[row.written[-1]]
        target = self._pointer(message.places[row.written[-1]])
        target_type = written.dtype_of(dtype)
        count = math.prod(shapes[row.written[-1]])
        if message.clear or (not written.shape and not sizes.get("n", 1)):
            handle.clear(target, count * DTYPES[target_type].itemsize)
        if not count or (row.sizes == ("n",) and not sizes["n"]):
            return
        if written.steps and not all(map(math.prod, shapes)):
            step, beta = message.steps[row.written[-1]], message.scalars[-1]
            assert beta is not None
            handle.scale(target, count, step, dtype, beta)  # an empty sum
            return
        if dtype not in REAL_OF:
            options = {name: OP_T if op == OP_C else op for name, op in options.items()}
        values = self._values(row, message, sizes, options, shapes)
        call = _CALLS.get(row.name, CudaBlasRoutines._plain)
        call(self, _RoutineCall(row, message, dtype, sizes, options, values))
        if written.dtype == "index":
            handle.shift("long long", target, target, 1, -1)

    def _values(
        self,
        row: Row,
        message: RunRoutine,
        sizes: dict[str, int],
        options: dict[str, int],
        shapes: list[tuple[int, ...]],
    ) -> dict[str, Any]:
        """Return the value of each word for row-major matrices read as column-major ones."""
        dtype, pointer = message.dtype, self._pointer
        values: dict[str, Any] = dict(sizes)
        if "m" in sizes:
            values |= {"m": sizes["n"], "n": sizes["m"]}
        places = zip(row.operands, message.places, message.steps, shapes, strict=True)
        for operand, place, step, shape in places:
            word = operand.word
            values[word] = pointer(place)
            if operand.steps:
                values[f"inc{word}"] = step
            elif len(shape) > 1:
                values[f"ld{word}"] = step
        numbers = any(not operand.sizes for operand in row.operands)
        values["on_device"] = numbers or bool(message.at)
        for at, (name, _) in enumerate(row.numbers):
            word = _SCALAR_WORDS.get(name, name)
            values[word] = self._scalar(message, at, row.scalar_dtype(name, dtype))
        values |= options
        if "lower" in options:
            turned = not any(operand.form for operand in row.operands)
            values["uplo"] = UPPER if options["lower"] == turned else LOWER
        if "unit_diagonal" in options:
            values["diag"] = options["unit_diagonal"]
        if "side" in options:
            values["side"] = LEFT if options["side"] else RIGHT
        return values

    def _scalar(self, message: RunRoutine, at: int, dtype: str) -> Any:
        """A pointer to a scalar where all are: in host memory, or on the device.

        Behind the scalars of the row there is a 1.
        """
        number = message.scalars[at] if at < len(message.scalars) else 1.0
        if message.at:
            return self._handle.placed(dtype, number, message.at[at])
        assert number is not None
        return self._handle.scalar(dtype, number)

    # --- calls ----------------------------------------------------------------------------

    def _plain(self, call: _RoutineCall) -> None:
        self.call(call.row.name, call.dtype, **call.values)

    def _copy(self, call: _RoutineCall) -> None:
        values = call.values
        if values["incx"] == values["incy"] == 1:
            nbytes = values["n"] * DTYPES[call.dtype].itemsize
            self._handle.copy(values["y"], values["x"], nbytes)
        else:
            self._plain(call)

    def _gemv(self, call: _RoutineCall) -> None:
        values, dtype = call.values, call.dtype
        op = call.options["trans"]
        if call.conjugates:
            m, n = call.sizes["m"], call.sizes["n"]
            self.gemm(
                dtype,
                (m, 1, n),
                (values["a"], values["lda"], op),
                (values["x"], values["incx"], OP_N),
                (values["y"], values["incy"]),
                values,
            )
            return
        if op:  # the vendor's sizes are those of the matrix as it is stored
            values |= {"m": values["n"], "n": values["m"]}
        values["trans"] = TURNED[op]
        if dtype in HALF_GEMV:
            values |= {"batch": 1, "stride_a": 0, "stride_x": 0, "stride_y": 0}
            words = GEMV_STRIDED.split()
            self._send(values, HALF_GEMV[dtype], *(values[word] for word in words))
        else:
            self._plain(call)

    def _gbmv(self, call: _RoutineCall) -> None:
        """Run ``gbmv`` with the sizes of the matrix before transposing."""
        sizes = call.sizes
        m, n = (sizes["n"], sizes["m"]) if call.options["trans"] else (sizes["m"], sizes["n"])
        call.values.update(m=m, n=n)
        self._of_band(call, sizes["kl"] + sizes["ku"] + 1)

    def _banded(self, call: _RoutineCall) -> None:
        self._of_band(call, call.sizes["k"] + 1)

    def _of_band(self, call: _RoutineCall, diagonals: int) -> None:
        """Turn the storage of a band, whose matrix is not transposed, and run the routine."""
        values, band = call.values, self._pointer(call.message.scratch)
        self.transpose(call.dtype, band, values["a"], diagonals, values["lda"])
        values.update(a=band, lda=diagonals)
        self._plain(call)

    def _hemv(self, call: _RoutineCall) -> None:
        """In the column-major view the vector is a row, and the matrix stands behind it."""
        values = call.values
        values |= {"side": RIGHT, "m": 1, "b": values["x"], "ldb": values["incx"]}
        self.call("hemm", call.dtype, **values, c=values["y"], ldc=values["incy"])

    def _ger(self, call: _RoutineCall) -> None:
        values = call.values
        x, y = (values["y"], values["incy"]), (values["x"], values["incx"])
        values |= {"x": x[0], "incx": x[1], "y": y[0], "incy": y[1]}
        self.call("ger", call.dtype, **values)

    def _gerc(self, call: _RoutineCall) -> None:
        if call.dtype not in REAL_OF:
            self._ger(call)
            return
        values = call.values
        self.gemm(
            call.dtype,
            (call.sizes["m"], call.sizes["n"], 1),
            (values["x"], values["incx"], OP_N),
            (values["y"], values["incy"], OP_C),
            (values["a"], values["lda"]),
            values | {"beta": self._scalar(call.message, 1, call.dtype)},
        )

    def _her(self, call: _RoutineCall) -> None:
        """Run ``her`` or ``her2`` as ``herk`` or ``her2k`` of rows.

        In column-major order the routine would conjugate the other operand.
        """
        values, real = call.values, REAL_OF[call.dtype]
        values |= {"trans": OP_C, "k": 1, "c": values["a"], "ldc": values["lda"]}
        values["beta"] = self._scalar(call.message, 1, real)
        x = values["x"], values["incx"]
        if "y" in values:
            a, lda = values["y"], values["incy"]
            self.call("her2k", call.dtype, **values | {"a": a, "lda": lda, "b": x[0], "ldb": x[1]})
        else:
            self.call("herk", call.dtype, **values | {"a": x[0], "lda": x[1]})

    def _copied(self, call: _RoutineCall) -> int:
        """Copy a vector that a routine changes in place, and return its pointer."""
        message = call.message
        given, target = map(self._pointer, message.places[1:])
        step, inc = message.steps[1:]
        if given != target:
            n = call.sizes["n"]
            self.call("copy", call.dtype, n=n, x=given, incx=step, y=target, incy=inc)
        return target

    def _band_vector(self, call: _RoutineCall) -> None:
        self._copied(call)
        self._banded(call)

    def _packed_vector(self, call: _RoutineCall) -> None:
        self._copied(call)
        self._plain(call)

    def _triangular(self, call: _RoutineCall) -> None:
        """``trmv`` and ``trsv``, in place; with conjugates as ``trmm`` and ``trsm`` of a row."""
        values, dtype = call.values, call.dtype
        target, inc = self._copied(call), values["incx"]
        if not call.conjugates:
            values["trans"] = TURNED[call.options["trans"]]
            self._plain(call)
            return
        values |= {"side": RIGHT, "m": 1, "alpha": self._handle.scalar(dtype, (1.0, 0.0))}
        row = {"b": target, "ldb": inc, "c": target, "ldc": inc}
        self.call(_OF_MATRICES[call.row.name], dtype, **values | row)

    def _gemm3m(self, call: _RoutineCall) -> None:
        values, options = call.values, call.options
        values |= {"a": values["b"], "lda": values["ldb"], "trans_a": options["trans_b"]} | {
            "b": values["a"],
            "ldb": values["lda"],
            "trans_b": options["trans_a"],
        }
        self._plain(call)

    def _trmm(self, call: _RoutineCall) -> None:
        call.values["trans"] = call.options["trans_a"]
        self._plain(call)

    def _trsm(self, call: _RoutineCall) -> None:
        """In place, of a copy."""
        values, (m, n) = call.values, (call.sizes["m"], call.sizes["n"])
        if values["ldb"] == values["ldc"] == n:
            nbytes = m * n * DTYPES[call.dtype].itemsize
            self._handle.copy(values["c"], values["b"], nbytes)
        elif values["c"] != values["b"]:
            b, c = (values["b"], values["ldb"]), (values["c"], values["ldc"])
            self.copy_matrix(call.dtype, OP_N, (n, m), b, c)
        self._trmm(call)

    def _rank_k(self, call: _RoutineCall) -> None:
        """Run a rank-k update with turned matrices, which exchanges the two operands."""
        values = call.values
        turned = OP_C if call.row.operands[-1].structure == "hermitian" else OP_T
        values["trans"] = OP_N if call.options["trans"] else turned
        if "b" in values:
            a, lda = values["a"], values["lda"]
            values |= {"a": values["b"], "lda": values["ldb"], "b": a, "ldb": lda}
        self._plain(call)

    # --- in common ------------------------------------------------------------------------

    def gemm(
        self,
        dtype: str,
        sizes: tuple[int, int, int],
        a: tuple[int, int, int],
        b: tuple[int, int, int],
        c: tuple[int, int],
        values: dict[str, Any],
    ) -> None:
        """A complex product of row-major matrices: (pointer, elements of a row, op) each.

        Pointers to alpha and beta are among the values.
        """
        m, n, k = sizes
        kind = CUDA_TYPES[dtype]
        self._send(
            values,
            "cublasGemmEx_64",
            *(b[2], a[2], n, m, k),
            values["alpha"],
            *(b[0], kind, b[1]),
            *(a[0], kind, a[1]),
            values["beta"],
            *(c[0], kind, c[1]),
            *(COMPUTES["32F" if dtype == "complex64" else "64F"], GEMM_DEFAULT),
        )

    def transpose(self, dtype: str, to: int, source: int, rows: int, columns: int) -> None:
        """Write the transpose of a row-major matrix."""
        self.copy_matrix(dtype, OP_T, (rows, columns), (source, columns), (to, rows))

    def copy_matrix(
        self,
        dtype: str,
        op: int,
        sizes: tuple[int, int],
        source: tuple[int, int],
        to: tuple[int, int],
    ) -> None:
        """Copy a column-major matrix of these sizes: (pointer, elements of a column) each."""
        one = (1.0, 0.0) if dtype in REAL_OF else 1.0
        zero = (0.0, 0.0) if dtype in REAL_OF else 0.0
        m, n = sizes
        self.call(
            "geam",
            dtype,
            trans_a=op,
            trans_b=op,
            m=m,
            n=n,
            alpha=self._handle.scalar(dtype, one),
            a=source[0],
            lda=source[1],
            beta=self._handle.scalar(dtype, zero),
            b=source[0],
            ldb=source[1],
            c=to[0],
            ldc=to[1],
        )


_CALLS: Final[dict[str, Callable[[CudaBlasRoutines, _RoutineCall], None]]] = {
    "copy": CudaBlasRoutines._copy,
    "gemv": CudaBlasRoutines._gemv,
    "gbmv": CudaBlasRoutines._gbmv,
    "hemv": CudaBlasRoutines._hemv,
    "ger": CudaBlasRoutines._ger,
    "gerc": CudaBlasRoutines._gerc,
    **dict.fromkeys(("her", "her2"), CudaBlasRoutines._her),
    **dict.fromkeys(("sbmv", "hbmv"), CudaBlasRoutines._banded),
    **dict.fromkeys(("trmv", "trsv"), CudaBlasRoutines._triangular),
    **dict.fromkeys(("tbmv", "tbsv"), CudaBlasRoutines._band_vector),
    **dict.fromkeys(("tpmv", "tpsv"), CudaBlasRoutines._packed_vector),
    "gemm3m": CudaBlasRoutines._gemm3m,
    "trmm": CudaBlasRoutines._trmm,
    "trsm": CudaBlasRoutines._trsm,
    **dict.fromkeys(("syrk", "herk", "syr2k", "her2k", "syrkx", "herkx"), CudaBlasRoutines._rank_k),
}
"""The routines that take more than the values of their words."""
