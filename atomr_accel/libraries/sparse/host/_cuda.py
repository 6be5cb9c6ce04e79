"""Sparse calls on CUDA: one cuSPARSE handle on one lane.

Descriptors of operands are made for each call, which costs less than finding those of an earlier
one. Analyses and structures of matrices are kept by number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from ctypes import byref, c_int64, c_size_t
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from ...._dtypes import DTYPES
from ...._errors import Unsupported
from ....executors.numbers import CUDA_TYPES
from ....executors.operations import PlacedOperand, pointer_handlers
from ....executors.vendor import undone_on_error
from ....wire.recent import Recent
from ..wire._messages import (
    Analyse,
    ComputeProduct,
    DenseMatrix,
    FindStructure,
    ForgetSparse,
    Matrix,
    MeasureSparse,
    RunSparse,
    Solve,
    decode,
)
from ..wire._vectors import Axpby, Gather, Scatter
from ._cuda_handle import CusparseHandle, load_cusparse
from ._prototypes import ENUMS, LETTERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ..wire._messages import Scalar, SparseSpec

_MOST_KNOWN: Final = 1024
_SOMEWHERE: Final = 1 << 12
"""Address for queries, which read nothing there."""
_ZERO: Final = (0.0, (0.0, 0.0))
_N: Final = ENUMS["CUSPARSE_OPERATION_NON_TRANSPOSE"]
_PENTADIAGONAL_BY_QR: Final = 0
_TIMES_MATRICES: Final = ("bsr", "blocked-ell")
"""Formats that the library multiplies with matrices only."""


class _PreparedCall(NamedTuple):
    """A function of cuSPARSE and its arguments, but for the handle and the scratch memory.

    ``<function>_bufferSize`` takes the same ones.
    """

    function: str
    args: tuple[Any, ...]
    measure: str = "_bufferSize"
    to_device: bool = False


class _Analysis(NamedTuple):
    """The analysis of a triangular matrix."""

    matrix: int
    state: int
    made: ExitStack


class _ProductStructure(NamedTuple):
    """The structure of a product of sparse matrices."""

    factors: tuple[int, int]
    product: int
    state: int
    made: ExitStack


@final
class CudaSparse:
    """Executes sparse messages."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._handle: Final = CusparseHandle(context, stream)
        self._stream: Final = stream
        self._needs: Recent[bytes, int] = Recent(_MOST_KNOWN)
        self._analyses: dict[int, dict[bytes, _Analysis]] = {}
        self._products: dict[int, _ProductStructure] = {}
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            Analyse: self._analyse,
            RunSparse: self._call,
            ForgetSparse: self._forget,
            MeasureSparse: self._measure,
            FindStructure: self._multiply,
            ComputeProduct: self._product,
            Solve: self._solve,
            **pointer_handlers(
                context, {Axpby: self._axpby, Gather: self._gather, Scatter: self._scatter}
            ),
        }
        self._made_of: Final[dict[str, Callable[..., _PreparedCall]]] = {
            "matvec": self._matvec,
            "matmat": self._matmat,
            "sddmm": self._sddmm,
            "dot": self._dot,
            "tridiagonal": self._banded,
            "tridiagonal_batch": self._banded,
            "pentadiagonal": self._banded,
        }

    @staticmethod
    def preload() -> None:
        """Load the library."""
        load_cusparse()

    def close(self) -> None:
        """Destroy the handle, the analyses and the structures."""
        for number in (*self._analyses, *self._products):
            self._forget(ForgetSparse(number))
        self._handle.close()

    # --- calls --------------------------------------------------------------------------------

    def _measure(self, message: MeasureSparse) -> int:
        need = self._need(message.spec, decode(message.spec))
        if self._stream.captures:
            self._handle.scratch(need)  # before anything is captured
        return need

    def _need(self, encoded: bytes, spec: SparseSpec) -> int:
        """Bytes of scratch memory."""
        known = self._needs.get(encoded)
        if known is None:
            known = 0
            if spec.op in self._made_of and not _is_empty(spec):
                places = [_SOMEWHERE] * (3 * len(spec.matrices) + 8)
                number = (1.0, 0.0) if DTYPES[spec.dtype].kind == "c" else 1.0
                with ExitStack() as made:
                    prepared = self._made_of[spec.op](made, spec, places, number, number)
                    asked = prepared.function + prepared.measure
                    known = self._handle.size(asked, *prepared.args)
            self._needs.keep(encoded, known)
        return known

    def _call(self, message: RunSparse) -> None:
        spec, handle = decode(message.spec), self._handle
        at = [handle.pointer(each) for each in message.operands]
        if not self._begun(spec, at, message.beta):
            return
        with ExitStack() as made:
            prepared = self._made_of[spec.op](made, spec, at, message.alpha, message.beta)
            need = self._need(message.spec, spec)
            if message.work >= need:
                scratch = handle.pointer(message.workspace) if message.workspace else 0
            else:
                scratch = handle.scratch(need)
            call = handle.to_device if prepared.to_device else handle.call
            call(prepared.function, *prepared.args, scratch)

    def _begun(self, spec: SparseSpec, at: Sequence[int], beta: Any) -> bool:
        """Write what the library would read, or would not write; whether it has to be called."""
        handle = self._handle
        if spec.op in ("matvec", "matmat"):
            out = spec.dense[1]
            if 0 in out.shape:
                return False
            if beta in _ZERO:
                # The library may multiply what is there, and NaN times zero is NaN.
                handle.clear(out, spec.dtype, at[4])
                return spec.matrices[0].nnz > 0 and 0 not in spec.matrices[0].shape
        elif spec.op == "sddmm":
            nbytes = spec.matrices[0].nnz * DTYPES[spec.dtype].itemsize
            if beta in _ZERO:
                handle.clear(_row(spec.matrices[0].nnz), spec.dtype, at[5])
            else:
                handle.copy(at[5], at[2], nbytes)
            return bool(nbytes)
        elif spec.op == "dot" and not spec.matrices[0].nnz:
            handle.clear(_row(1), spec.dtype, at[3])
            return False
        return True

    # --- products -----------------------------------------------------------------------------

    def _matvec(
        self, made: ExitStack, spec: SparseSpec, at: Sequence[int], alpha: Any, beta: Any
    ) -> _PreparedCall:
        matrix = spec.matrices[0]
        if matrix.format in _TIMES_MATRICES:
            return self._matmat(made, spec, at, alpha, beta, column=True)
        handle, compute = self._handle, computed(spec.dtype)
        name = "CUSPARSE_SPMV_ALG_DEFAULT"
        if spec.deterministic:
            name = "CUSPARSE_SPMV_CSR_ALG2"
        elif matrix.format == "sliced-ell":
            name = "CUSPARSE_SPMV_SELL_ALG1"
        a = handle.matrix(made, matrix, at[:3])
        x, y = (
            handle.dense(made, each, spec.dtype, place)
            for each, place in zip(spec.dense, at[3:5], strict=True)
        )
        numbers = handle.scalar(compute, alpha), handle.scalar(compute, beta)
        args = (spec.trans, numbers[0], a, x, numbers[1], y, CUDA_TYPES[compute], ENUMS[name])
        return _PreparedCall("cusparseSpMV", args)

    def _matmat(
        self,
        made: ExitStack,
        spec: SparseSpec,
        at: Sequence[int],
        alpha: Any,
        beta: Any,
        *,
        column: bool = False,
    ) -> _PreparedCall:
        handle, compute, matrix = self._handle, computed(spec.dtype), spec.matrices[0]
        a = handle.matrix(made, matrix, at[:3])
        b, c = (
            handle.dense(made, each, spec.dtype, place, column=column)
            for each, place in zip(spec.dense, at[3:5], strict=True)
        )
        numbers = handle.scalar(compute, alpha), handle.scalar(compute, beta)
        algorithm = ENUMS[_spmm_algorithm(spec)]
        kinds = CUDA_TYPES[compute], algorithm
        return _PreparedCall(
            "cusparseSpMM", (spec.trans, _N, numbers[0], a, b, numbers[1], c, *kinds)
        )

    def _sddmm(
        self, made: ExitStack, spec: SparseSpec, at: Sequence[int], alpha: Any, beta: Any
    ) -> _PreparedCall:
        handle = self._handle
        c = handle.matrix(made, spec.matrices[0], (*at[:2], at[5]))
        a, b = (
            handle.dense(made, each, spec.dtype, place)
            for each, place in zip(spec.dense, at[3:5], strict=True)
        )
        numbers = handle.scalar(spec.dtype, alpha), handle.scalar(spec.dtype, beta)
        kinds = CUDA_TYPES[spec.dtype], ENUMS["CUSPARSE_SDDMM_ALG_DEFAULT"]
        return _PreparedCall("cusparseSDDMM", (_N, _N, numbers[0], a, b, numbers[1], c, *kinds))

    # --- sparse with sparse -------------------------------------------------------------------

    def _multiply(self, message: FindStructure) -> int:
        spec, handle = decode(message.spec), self._handle
        if "int64" in {each.index for each in spec.matrices}:
            raise Unsupported("cuSPARSE multiplies sparse matrices with int32 indices only")
        at = [handle.pointer(each) for each in message.operands]
        left, right = spec.matrices
        with undone_on_error() as made, ExitStack() as soon:
            a = handle.matrix(made, left, at[:3])
            b = handle.matrix(made, right, at[3:6])
            shape = left.shape[0], right.shape[1]
            c = handle.matrix(made, _empty(spec, shape), (0, 0, 0))
            state = handle.state(made, "SpGEMM")
            args = _N, _N, a, b, c, ENUMS["CUSPARSE_SPGEMM_DEFAULT"], state
            # Each function is called twice: it tells how much memory it needs, and then works.
            self._twice("cusparseSpGEMMreuse_workEstimation", args, (soon,))
            self._twice("cusparseSpGEMMreuse_nnz", args, (soon, made, made))
            rows, columns, nnz = c_int64(), c_int64(), c_int64()
            sizes = byref(rows), byref(columns), byref(nnz)
            handle.bare("cusparseSpMatGetSize", c, *sizes)
        self._products[message.number] = _ProductStructure((a, b), c, state, made)
        return nnz.value

    def _twice(self, function: str, args: tuple[Any, ...], owners: tuple[ExitStack, ...]) -> None:
        """Call a function without scratch memory, then with the scratch memory that it requests."""
        sizes = [c_size_t() for _ in owners]
        self._handle.call(function, *args, *(x for size in sizes for x in (byref(size), 0)))
        memory = [
            self._handle.allocate(owner, size.value)
            for owner, size in zip(owners, sizes, strict=True)
        ]
        pairs = zip(sizes, memory, strict=True)
        self._handle.call(function, *args, *(x for size, at in pairs for x in (byref(size), at)))

    def _product(self, message: ComputeProduct) -> None:
        spec, handle = decode(message.spec), self._handle
        found = self._products[message.number]
        at = [handle.pointer(each) for each in message.operands]
        descriptors = (*found.factors, found.product)
        for start, descriptor in zip((0, 3, 6), descriptors, strict=True):
            handle.bare("cusparseCsrSetPointers", descriptor, *at[start : start + 3])
        algorithm = ENUMS["CUSPARSE_SPGEMM_DEFAULT"]
        if message.structure:
            args = _N, _N, *descriptors, algorithm, found.state
            self._twice("cusparseSpGEMMreuse_copy", args, (found.made,))
        zero = (0.0, 0.0) if DTYPES[spec.dtype].kind == "c" else 0.0
        alpha, beta = handle.scalar(spec.dtype, message.alpha), handle.scalar(spec.dtype, zero)
        kinds = CUDA_TYPES[spec.dtype], algorithm, found.state
        a, b, c = descriptors
        handle.call("cusparseSpGEMMreuse_compute", _N, _N, alpha, a, b, beta, c, *kinds)

    # --- systems ------------------------------------------------------------------------------

    def _analyse(self, message: Analyse) -> None:
        at = [self._handle.pointer(each) for each in message.matrix]
        # Nothing is read of right sides; any memory of the device stands for them.
        self._analysed(message.number, message.spec, at, (at[2], at[2]))

    def _solve(self, message: Solve) -> None:
        spec, handle = decode(message.spec), self._handle
        if 0 in spec.dense[0].shape:
            return
        at = [handle.pointer(each) for each in message.operands]
        if not message.number and self._stream.captures:
            raise Unsupported(
                "a triangular solve in a recording needs its analysis made before: "
                "await device.sparse.analyse_triangular(a), and give that in the place of a"
            )
        found = self._analysed(message.number, message.spec, at[:3], at[3:5])
        try:
            with ExitStack() as made:
                what, args = self._system(
                    made, spec, found.matrix, at[3:5], message.alpha, found.state
                )
                handle.call(f"cusparse{what}_solve", *args)
        finally:
            if not message.number:
                found.made.close()

    def _analysed(
        self, number: int, encoded: bytes, matrix: Sequence[int], vectors: Sequence[int]
    ) -> _Analysis:
        """Return the analysis of a matrix for right-hand sides of a shape, made if it is new."""
        known = self._analyses.get(number, {}).get(encoded)
        if known is not None:
            return known
        spec, handle = decode(encoded), self._handle
        one = (1.0, 0.0) if DTYPES[spec.dtype].kind == "c" else 1.0
        with undone_on_error() as made, ExitStack() as soon:
            a = handle.matrix(made, spec.matrices[0], matrix)
            lower, unit = spec.flags
            handle.mark(a, "FILL_MODE", f"FILL_MODE_{'LOWER' if lower else 'UPPER'}")
            handle.mark(a, "DIAG_TYPE", f"DIAG_TYPE_{'UNIT' if unit else 'NON_UNIT'}")
            state = handle.state(made, _solver(spec))
            what, args = self._system(soon, spec, a, vectors, one, state)
            need = handle.size(f"cusparse{what}_bufferSize", *args)
            # What is kept has memory of its own, which solves read.
            scratch = handle.allocate(made, need) if number else handle.scratch(need)
            handle.call(f"cusparse{what}_analysis", *args, scratch)
        found = _Analysis(a, state, made)
        if number:
            self._analyses.setdefault(number, {})[encoded] = found
        return found

    def _system(
        self,
        made: ExitStack,
        spec: SparseSpec,
        a: int,
        vectors: Sequence[int],
        alpha: Any,
        state: int,
    ) -> tuple[str, tuple[Any, ...]]:
        """Return the name of a system's solver, and the arguments that its functions share."""
        handle, what = self._handle, _solver(spec)
        b, x = (
            handle.dense(made, each, spec.dtype, place)
            for each, place in zip(spec.dense, vectors, strict=True)
        )
        ops = (spec.trans,) if what == "SpSV" else (spec.trans, _N)
        kinds = CUDA_TYPES[spec.dtype], ENUMS[f"CUSPARSE_{what.upper()}_ALG_DEFAULT"]
        return what, (*ops, handle.scalar(spec.dtype, alpha), a, b, x, *kinds, state)

    def _forget(self, message: ForgetSparse) -> None:
        for analysis in self._analyses.pop(message.number, {}).values():
            analysis.made.close()
        product = self._products.pop(message.number, None)
        if product is not None:
            product.made.close()

    def _banded(
        self, _made: ExitStack, spec: SparseSpec, at: Sequence[int], _alpha: Any, _beta: Any
    ) -> _PreparedCall:
        n, count = spec.sizes
        name, arguments = {
            "tridiagonal": ("gtsv2", (n, count, *at[:4], n)),
            "tridiagonal_batch": ("gtsv2StridedBatch", (n, *at[:4], count, n)),
            "pentadiagonal": ("gpsvInterleavedBatch", (_PENTADIAGONAL_BY_QR, n, *at[:6], count)),
        }[spec.op]
        return _PreparedCall(f"cusparse{LETTERS[spec.dtype]}{name}", arguments, "_bufferSizeExt")

    # --- vectors ------------------------------------------------------------------------------

    def _dot(
        self, made: ExitStack, spec: SparseSpec, at: Sequence[int], _alpha: Any, _beta: Any
    ) -> _PreparedCall:
        x = self._handle.vector(made, spec.matrices[0], at[:2])
        y = self._handle.dense(made, spec.dense[0], spec.dtype, at[2])
        conjugated = spec.flags[0] and DTYPES[spec.dtype].kind == "c"
        trans = ENUMS["CUSPARSE_OPERATION_CONJUGATE_TRANSPOSE"] if conjugated else _N
        args = trans, x, y, at[3], CUDA_TYPES[spec.dtype]
        return _PreparedCall("cusparseSpVV", args, to_device=True)

    def _axpby(
        self, x: PlacedOperand, indices: PlacedOperand, y: PlacedOperand, a: Scalar, b: Scalar
    ) -> None:
        handle = self._handle
        if b in _ZERO:  # or NaNs would remain
            handle.clear(DenseMatrix(y.shape), y.dtype, y.pointer)
        with self._pair(x, indices, y) as (sparse, dense):
            factors = handle.scalar(y.dtype, a), handle.scalar(y.dtype, b)
            handle.call("cusparseAxpby", factors[0], sparse, factors[1], dense)

    def _gather(self, y: PlacedOperand, indices: PlacedOperand, out: PlacedOperand) -> None:
        if indices.shape[0]:
            with self._pair(out, indices, y) as (sparse, dense):
                self._handle.call("cusparseGather", dense, sparse)

    def _scatter(self, x: PlacedOperand, indices: PlacedOperand, y: PlacedOperand) -> None:
        if indices.shape[0]:
            with self._pair(x, indices, y) as (sparse, dense):
                self._handle.call("cusparseScatter", sparse, dense)

    @contextmanager
    def _pair(
        self, x: PlacedOperand, indices: PlacedOperand, y: PlacedOperand
    ) -> Iterator[tuple[int, int]]:
        """Descriptors of a sparse vector and a dense one."""
        vector = Matrix("coo", (1, y.shape[0]), x.shape[0], indices.dtype, x.dtype)
        with ExitStack() as made:
            yield (
                self._handle.vector(made, vector, (indices.pointer, x.pointer)),
                self._handle.dense(made, DenseMatrix(y.shape), y.dtype, y.pointer),
            )


def computed(dtype: str) -> str:
    """The dtype in which sums are made."""
    return "float32" if DTYPES[dtype].itemsize == 2 else dtype


def _solver(spec: SparseSpec) -> str:
    return "SpSV" if len(spec.dense[0].shape) == 1 else "SpSM"


def _spmm_algorithm(spec: SparseSpec) -> str:
    form = spec.matrices[0].format
    if form == "blocked-ell":
        return "CUSPARSE_SPMM_BLOCKED_ELL_ALG1"
    if form == "csr" and spec.deterministic:
        return "CUSPARSE_SPMM_CSR_ALG3"
    by_rows = all(each.by_rows and len(each.shape) == 2 for each in spec.dense)
    if form == "csr" and by_rows and not spec.trans:
        return "CUSPARSE_SPMM_CSR_ALG2"
    return "CUSPARSE_SPMM_ALG_DEFAULT"


def _row(count: int) -> DenseMatrix:
    return DenseMatrix((count,))


def _is_empty(spec: SparseSpec) -> bool:
    """Return True if an extent is zero, so that there is nothing to compute."""
    shapes = (*(each.shape for each in spec.matrices), *(each.shape for each in spec.dense))
    return any(0 in shape for shape in (*shapes, spec.sizes))


def _empty(spec: SparseSpec, shape: tuple[int, int]) -> Matrix:
    """A matrix of which nothing is known yet."""
    return Matrix("csr", shape, 0, spec.matrices[0].index, spec.dtype)
