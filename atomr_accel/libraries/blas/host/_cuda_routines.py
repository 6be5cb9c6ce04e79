"""Levels 1 to 3 on CUDA.

A routine's arguments are looked up by the words of its row in ``_prototypes``. In the
column-major view of cuBLAS a row-major matrix is its transpose: the upper triangle is the
lower one, left is right, and ``op`` turns around where the routine cannot swap operands.
Conjugates that this makes necessary and level 2 does not have come from level 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from ...._dtypes import DTYPES
from ...host._numbers import CUDA_TYPES
from ..wire._messages import MatrixMatrix, MatrixVector, Scalar, Vectors
from ._prototypes import (
    COMPLEX_ROUTINES,
    COMPUTES,
    ENUMS,
    GEMM_DEFAULT,
    HALF_GEMV,
    HALF_GEMV_ARGUMENTS,
    HALF_ROUTINES,
    LETTERS,
    OP_C,
    OP_N,
    OP_T,
    ROUTINES,
    symbol,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._cuda_handle import Handle

_LEFT: Final = ENUMS["CUBLAS_SIDE_LEFT"]
_RIGHT: Final = ENUMS["CUBLAS_SIDE_RIGHT"]
_LOWER: Final = ENUMS["CUBLAS_FILL_MODE_LOWER"]
_UPPER: Final = ENUMS["CUBLAS_FILL_MODE_UPPER"]
_TURNED: Final = (OP_T, OP_N)
"""The op of the transposed matrix that gives 0 and 1 of the matrix itself."""

_REAL_OF: Final = {"complex64": "float32", "complex128": "float64"}
_RESULTS: Final = {"dot": "same", "dotc": "same", "nrm2": "real", "asum": "real"}
_INDICES: Final = ("amax", "amin")


@final
class CudaRoutines:
    """Executes the messages of levels 1, 2 and 3."""

    def __init__(self, handle: Handle) -> None:
        self._handle: Final = handle
        self._pointer: Final = handle.pointer
        self.handlers: Final[dict[type, Callable[[Any], None]]] = {
            Vectors: self._vectors,
            MatrixVector: self._matrix_vector,
            MatrixMatrix: self._matrix_matrix,
        }

    def call(self, routine: str, dtype: str, **values: Any) -> None:
        """Call a routine with arguments by their words; ``result`` is on the device."""
        if dtype in LETTERS:
            kind, name, words = ROUTINES.get(routine) or COMPLEX_ROUTINES[routine]
            function = symbol(kind, name, dtype)
        else:
            function, words = HALF_ROUTINES[routine]
            values |= {"type": CUDA_TYPES[dtype], "scale": CUDA_TYPES["float32"]}
        arguments = [values[word] for word in words.split()]
        if "result" in values:
            self._handle.to_device(function, *arguments)
        else:
            self._handle.call(function, *arguments)

    # --- level 1 --------------------------------------------------------------------------

    def _vectors(self, message: Vectors) -> None:
        handle, pointer = self._handle, self._pointer
        routine, dtype, n = message.routine, message.dtype, message.n
        itemsize = DTYPES[dtype].itemsize
        result = pointer(message.result) if message.result else 0
        if not n:
            if result:
                real = _REAL_OF.get(dtype, dtype) if _RESULTS[routine] == "real" else dtype
                handle.clear(result, DTYPES[real].itemsize)
            return
        x = pointer(message.x)
        y = pointer(message.y) if message.y else 0
        if routine == "copy" and message.incx == message.incy == 1:
            handle.copy(y, x, n * itemsize)
            return
        values = {"n": n, "x": x, "incx": message.incx, "y": y, "incy": message.incy}
        if result:
            values["result"] = result
        compute = "float32" if itemsize == 2 else dtype
        if routine == "rot":
            cosine = dtype if itemsize == 2 else _REAL_OF.get(dtype, dtype)
            values["cosine"] = handle.scalar(cosine, message.scalars[0])
            values["sine"] = handle.scalar(dtype, message.scalars[1])
        elif message.scalars:
            values["alpha"] = handle.scalar(compute, message.scalars[0])
        self.call(routine, dtype, **values)
        if routine in _INDICES:
            handle.shift("long long", result, result, 1, -1)

    # --- level 2 --------------------------------------------------------------------------

    def _matrix_vector(self, message: MatrixVector) -> None:
        handle, pointer = self._handle, self._pointer
        routine, dtype, m, n = message.routine, message.dtype, message.m, message.n
        a, x, y = pointer(message.a), pointer(message.x), pointer(message.y)
        if routine in ("ger", "gerc"):
            self._outer(message, a, x, y)
            return
        rows, columns = (n, m) if message.trans else (m, n)
        if not rows:
            return
        if not columns:
            handle.scale(y, rows, message.incy, dtype, message.beta)
            return
        op = message.trans
        conjugates = op == OP_C and dtype in _REAL_OF
        if op == OP_C and not conjugates:
            op = OP_T
        if routine in ("trmv", "trsv"):
            self._triangular(message, a, x, y, op, conjugates=conjugates)
            return
        compute = "float32" if dtype in HALF_GEMV else dtype
        alpha, beta = handle.scalar(compute, message.alpha), handle.scalar(compute, message.beta)
        vectors = {
            "x": x,
            "incx": message.incx,
            "y": y,
            "incy": message.incy,
            "alpha": alpha,
            "beta": beta,
        }
        uplo = _UPPER if message.lower else _LOWER
        if routine == "gbmv":
            # The band of the matrix as it is: only its storage has to be turned.
            diagonals = message.kl + message.ku + 1
            band = pointer(message.scratch)
            self.transpose(dtype, band, a, diagonals, n)
            self.call(
                "gbmv",
                dtype,
                **vectors,
                trans=op,
                m=m,
                n=n,
                kl=message.kl,
                ku=message.ku,
                a=band,
                lda=diagonals,
            )
        elif routine == "symv":
            self.call("symv", dtype, **vectors, uplo=uplo, n=n, a=a, lda=n)
        elif routine == "hemv":
            # In the column-major view the vector is a row, and the matrix stands behind it.
            self.call(
                "hemm",
                dtype,
                side=_RIGHT,
                uplo=uplo,
                m=1,
                n=n,
                a=a,
                lda=n,
                b=x,
                ldb=message.incx,
                c=y,
                ldc=message.incy,
                alpha=alpha,
                beta=beta,
            )
        elif conjugates:
            self.gemm(
                dtype,
                (rows, 1, columns),
                (a, n, op),
                (x, message.incx, OP_N),
                (y, message.incy),
                message.alpha,
                message.beta,
            )
        elif dtype in HALF_GEMV:
            values = {
                **vectors,
                "trans": _TURNED[op],
                "m": n,
                "n": m,
                "a": a,
                "lda": n,
                "batch": 1,
                "stride_a": 0,
                "stride_x": 0,
                "stride_y": 0,
            }
            handle.call(HALF_GEMV[dtype], *(values[word] for word in HALF_GEMV_ARGUMENTS.split()))
        else:
            self.call("gemv", dtype, **vectors, trans=_TURNED[op], m=n, n=m, a=a, lda=n)

    def _outer(self, message: MatrixVector, a: int, x: int, y: int) -> None:
        m, n, dtype = message.m, message.n, message.dtype
        if message.clear:
            self._handle.clear(a, m * n * DTYPES[dtype].itemsize)
        if not m or not n:
            return
        if message.routine == "gerc" and dtype in _REAL_OF:
            self.gemm(
                dtype,
                (m, n, 1),
                (x, message.incx, OP_N),
                (y, message.incy, OP_C),
                (a, n),
                message.alpha,
                (1.0, 0.0),
            )
            return
        alpha = self._handle.scalar(dtype, message.alpha)
        self.call(
            "ger",
            dtype,
            m=n,
            n=m,
            alpha=alpha,
            a=a,
            lda=n,
            x=y,
            incx=message.incy,
            y=x,
            incy=message.incx,
        )

    def _triangular(
        self, message: MatrixVector, a: int, x: int, y: int, op: int, *, conjugates: bool
    ) -> None:
        dtype, n, inc = message.dtype, message.n, message.incy
        if x != y:
            self.call("copy", dtype, n=n, x=x, incx=message.incx, y=y, incy=inc)
        uplo = _UPPER if message.lower else _LOWER
        if conjugates:
            self.call(
                "trmm" if message.routine == "trmv" else "trsm",
                dtype,
                side=_RIGHT,
                uplo=uplo,
                trans=OP_C,
                diag=int(message.unit),
                m=1,
                n=n,
                alpha=self._handle.scalar(dtype, (1.0, 0.0)),
                a=a,
                lda=n,
                b=y,
                ldb=inc,
                c=y,
                ldc=inc,
            )
            return
        self.call(
            message.routine,
            dtype,
            uplo=uplo,
            trans=_TURNED[op],
            diag=int(message.unit),
            n=n,
            a=a,
            lda=n,
            x=y,
            incx=inc,
        )

    # --- level 3 --------------------------------------------------------------------------

    def _matrix_matrix(self, message: MatrixMatrix) -> None:
        handle, pointer = self._handle, self._pointer
        routine, dtype, m, n = message.routine, message.dtype, message.m, message.n
        c = pointer(message.c)
        if message.clear:
            handle.clear(c, m * n * DTYPES[dtype].itemsize)
        if not m or not n:
            return
        a = pointer(message.a)
        b = pointer(message.b) if message.b else a
        values: dict[str, Any] = {"m": n, "n": m, "a": a, "b": b, "ldb": n, "c": c, "ldc": n}
        op = message.trans_a
        size = n if message.right else m
        if routine in ("syrk", "syr2k", "herk", "her2k"):
            self._rank_k(message, values)
            return
        values |= {
            "alpha": handle.scalar(dtype, message.alpha),
            "beta": handle.scalar(dtype, message.beta),
            "side": _LEFT if message.right else _RIGHT,
            "uplo": _UPPER if message.lower else _LOWER,
            "lda": size,
        }
        if routine == "geam":
            op_b = message.trans_b if message.b else op
            values |= {"trans_a": op, "lda": m if op else n}
            values |= {"trans_b": op_b, "ldb": m if op_b else n}
        elif routine == "dgmm":
            values |= {"lda": n, "x": b, "incx": message.incx}
        elif routine in ("trmm", "trsm"):
            values |= {"trans": op, "diag": int(message.unit)}
            if routine == "trsm":
                handle.copy(c, b, m * n * DTYPES[dtype].itemsize)
        self.call(routine, dtype, **values)

    def _rank_k(self, message: MatrixMatrix, values: dict[str, Any]) -> None:
        routine, dtype, n, k = message.routine, message.dtype, message.n, message.k
        handle = self._handle
        hermitian = routine.startswith("her")
        alpha, beta = message.alpha, message.beta
        real = _REAL_OF.get(dtype, dtype)
        if routine == "her2k":
            assert isinstance(alpha, tuple)
            alpha = (alpha[0], -alpha[1])  # the result is turned, hence conjugated
        turned = OP_C if hermitian else OP_T
        row = max(1, n if message.trans_a else k)
        self.call(
            routine,
            dtype,
            **values
            | {
                "n": n,
                "k": k,
                "uplo": _UPPER if message.lower else _LOWER,
                "trans": OP_N if message.trans_a else turned,
                "lda": row,
                "ldb": row,
                "alpha": handle.scalar(real if routine == "herk" else dtype, alpha),
                "beta": handle.scalar(real if hermitian else dtype, beta),
            },
        )

    # --- in common ------------------------------------------------------------------------

    def gemm(
        self,
        dtype: str,
        sizes: tuple[int, int, int],
        a: tuple[int, int, int],
        b: tuple[int, int, int],
        c: tuple[int, int],
        alpha: Scalar,
        beta: Scalar,
    ) -> None:
        """A complex product of row-major matrices: (pointer, elements of a row, op) each."""
        m, n, k = sizes
        kind = CUDA_TYPES[dtype]
        handle = self._handle
        handle.call(
            "cublasGemmEx_64",
            *(b[2], a[2], n, m, k),
            handle.scalar(dtype, alpha),
            *(b[0], kind, b[1]),
            *(a[0], kind, a[1]),
            handle.scalar(dtype, beta),
            *(c[0], kind, c[1]),
            *(COMPUTES["32F" if dtype == "complex64" else "64F"], GEMM_DEFAULT),
        )

    def transpose(self, dtype: str, to: int, source: int, rows: int, columns: int) -> None:
        """Write the transpose of a row-major matrix."""
        one = (1.0, 0.0) if dtype in _REAL_OF else 1.0
        zero = (0.0, 0.0) if dtype in _REAL_OF else 0.0
        self.call(
            "geam",
            dtype,
            trans_a=OP_T,
            trans_b=OP_T,
            m=rows,
            n=columns,
            alpha=self._handle.scalar(dtype, one),
            a=source,
            lda=columns,
            beta=self._handle.scalar(dtype, zero),
            b=source,
            ldb=columns,
            c=to,
            ldc=rows,
        )
