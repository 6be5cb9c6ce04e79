"""Systems that are triangular, tridiagonal or pentadiagonal."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from ..._errors import GpuRefStale
from ...arrays import GpuRef
from ...arrays.expressions.expression import broadcast_constant
from ...ops import D, Request, Submission, op, require_dtype, require_no_alias, require_shape
from ...wire.options import flag
from ..blas.checks import operation, scalar
from ._products import by_rows, require_format
from .array import SparseRef
from .part import LANE, SparsePart, laid, place, taken_as
from .wire._messages import Analyse, DenseMatrix, ForgetSparse, Solve, SparseSpec, encode
from .wire._vectors import SINGLE_OR_DOUBLE

if TYPE_CHECKING:
    from ...memory import Block
    from ...ops import Preparer
    from ..array.steps import CallSteps
    from ..blas.checks import Number, Trans
    from .wire._messages import Matrix

_numbers: Final = itertools.count(1)
_LEAST: Final = 3
"""Rows that cuSPARSE's banded solvers want at least; smaller systems get ones on the diagonal."""

_SPARE: Final = 2
"""Rows of ones on the diagonal behind those of pentadiagonal systems, in the same buffers.

On one device, systems of three rows were solved as if the first row of the right sides were zero.
These rows keep other buffers safe from a solver that writes behind the last row.
"""


@final
class TriangularAnalysis(msgspec.Struct, frozen=True, eq=False):
    """The analysis of a triangular matrix, with which its solves begin.

    The host keeps it until the next rebuild. The matrix must not change meanwhile.

    Attributes:
        lower: True for the lower triangle, False for the upper one.
        unit_diagonal: True if the diagonal counts as ones.
        trans: its transposition: 0, 1 or 2.
    """

    matrix: SparseRef
    lower: bool
    unit_diagonal: bool
    trans: int
    _number: int
    _kept: Any


class Solves(SparsePart[D]):
    """Systems of sparse matrices."""

    @op
    def analyse_triangular(
        self,
        a: SparseRef,
        *,
        lower: bool = True,
        unit_diagonal: bool = False,
        trans: Trans = 0,
        columns: int | None = None,
    ) -> Request[TriangularAnalysis]:
        """Find out which unknowns of a triangular system depend on which, for solves to come.

        Vendor functions: ``cusparseSpSV_analysis``, ``cusparseSpSM_analysis``.

        Args:
            a: square, ``csr`` or ``csc`` with sorted indices, float32, float64, complex64 or
                complex128.
            lower: which triangle counts; what the other one holds is not looked at.
            unit_diagonal: ones stand for the diagonal, whatever it holds.
            trans: how to take the matrix; of complex ``csc`` not conjugated.
            columns: of the right sides to come; None: vectors.

        Returns:
            What ``spsolve_triangular`` takes in the place of the matrix.
        """
        taken = operation(trans, "trans")
        flags = flag(lower, "lower"), flag(unit_diagonal, "unit_diagonal")

        def prepare(preparer: Preparer) -> Submission[TriangularAnalysis]:
            matrix, blocks, way = self._triangle(preparer, a, flags, taken)
            number = next(_numbers)
            kept = preparer.host_objects.keep(LANE.name, "sparse.forget", ForgetSparse(number))
            n = a.shape[0]
            lying = (
                DenseMatrix((n,))
                if columns is None
                else DenseMatrix((n, columns), ld=max(columns, 1))
            )
            spec = SparseSpec("solve", a.dtype.name, (matrix,), (lying, lying), way[0], (), way[1:])
            message = Analyse(number, encode(spec), tuple(block.address for block in blocks))
            made = TriangularAnalysis(a, *flags, taken, number, kept)
            return Submission(message, tuple(blocks), (kept,), made)

        return Request(LANE, "sparse.analyse_triangular", prepare)

    @op
    def spsolve_triangular(
        self,
        a: SparseRef | TriangularAnalysis,
        b: GpuRef,
        lower: bool = True,
        *,
        unit_diagonal: bool = False,
        trans: Trans = 0,
        alpha: Number = 1.0,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Solve ``op(a) @ x = alpha * b`` where ``a`` is triangular.

        As ``scipy.sparse.linalg.spsolve_triangular``. A zero on the diagonal gives what dividing
        by it gives.

        Vendor functions: ``cusparseSpSV_solve``, ``cusparseSpSM_solve``.

        Args:
            a: the matrix, as for ``analyse_triangular``; or what that has made, which then says
                ``lower``, ``unit_diagonal`` and ``trans``.
            b: shape (n,) or (n, k), same dtype; by rows or by columns.
            lower: which triangle counts.
            unit_diagonal: ones stand for the diagonal.
            trans: how to take the matrix.
            alpha: what ``b`` is multiplied with.
            out: where the solution goes, by rows or by columns as ``b``; not in the memory of
                another operand.
        """
        taken = operation(trans, "trans")
        known = a if type(a) is TriangularAnalysis else None
        matrix_of: Any = known.matrix if known is not None else a
        if known is not None:
            flags, taken = (known.lower, known.unit_diagonal), known.trans
        else:
            flags = flag(lower, "lower"), flag(unit_diagonal, "unit_diagonal")

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            matrix, parts, way = self._triangle(preparer, matrix_of, flags, taken)
            n = matrix.shape[0]
            source = place(b, preparer, "b")
            given = laid(b, "b")
            require_dtype(b, matrix_of.dtype, "b", "a")
            if b.shape[0] != n:
                raise ValueError(f"b must have {n} rows, as a has, not shape {b.shape}")
            made = preparer.output(b.shape, b.dtype) if out is None else out
            target = place(made, preparer, "out", writable=True)
            require_dtype(made, b.dtype, "out", "b")
            require_shape(made, b.shape, "out")
            named = zip(("a.indptr", "a.indices", "a.data"), matrix_of.parts, strict=True)
            require_no_alias("spsolve_triangular", [("out", made)], [("b", b), *named])
            spec = SparseSpec(
                "solve",
                b.dtype.name,
                (matrix,),
                (given, laid(made, "out")),
                way[0],
                (),
                way[1:],
            )
            number, kept = 0, []
            if known is not None:
                number, kept = known._number, self._analysed(preparer, known, spec, parts)
            operands = (*parts, source, target)
            message = Solve(
                number,
                encode(spec),
                tuple(block.address for block in operands),
                scalar(alpha, b.dtype, "alpha"),
            )
            return Submission(message, operands, (target, *kept), made)

        return Request(LANE, "sparse.spsolve_triangular", prepare)

    def _analysed(
        self, preparer: Preparer, known: TriangularAnalysis, spec: SparseSpec, parts: list[Block]
    ) -> list[Block]:
        """Return the block of an analysis; a recording has it made again before its replays."""
        kept: Block = known._kept
        if kept.epoch is not preparer.memory.epoch:
            raise GpuRefStale("the device was rebuilt since the analysis was made; make another")
        if preparer.home is not self._home:
            message = Analyse(known._number, encode(spec), tuple(each.address for each in parts))
            made: Submission[None] = Submission(message, tuple(parts), ())
            preparer.perform(Request(LANE, "sparse.analyse_triangular", lambda _preparer: made))
        return [kept]

    def _triangle(
        self, preparer: Preparer, a: SparseRef, flags: tuple[bool, bool], taken: int
    ) -> tuple[Matrix, list[Block], tuple[Any, ...]]:
        """The matrix by rows, and how to take that: the operation, lower, unit diagonal."""
        lower, unit = flags
        swapped = require_format(a, "a") == "csc"
        if swapped != bool(taken):
            self._refuse_unsteady(
                "such a solve", "take a csr matrix as it is, or a csc matrix transposed"
            )
        if a.shape[0] != a.shape[1]:
            raise ValueError(f"a must be square, not of shape {a.shape}")
        matrix, blocks = self._matrix(preparer, by_rows(a), "a", ("csr",))
        if not swapped:
            return matrix, blocks, (taken_as(taken, a.dtype), lower, unit)
        if taken == 2 and a.dtype.kind == "c":
            raise ValueError("a complex csc matrix is not taken conjugated; convert it with tocsr")
        return matrix, blocks, (0 if taken else 1, not lower, unit)

    # --- bands --------------------------------------------------------------------------------

    @op
    def solve_banded(self, l_and_u: tuple[int, int], ab: GpuRef, b: GpuRef) -> Request[GpuRef]:
        """Solve systems of a tridiagonal or pentadiagonal matrix; as ``scipy.linalg.solve_banded``.

        Vendor functions: ``cusparse<t>gtsv2``, which pivots, for one tridiagonal matrix;
        ``cusparse<t>gtsv2StridedBatch``, which does not, for a stack of them, so they should be
        diagonally dominant; ``cusparse<t>gpsvInterleavedBatch``, by QR, for pentadiagonal ones.

        Args:
            l_and_u: diagonals below and above the main one: (1, 1) or (2, 2).
            ab: the diagonals, shape (..., 3 or 5, n), float32, float64, complex64 or complex128:
                ``ab[u + i - j, j]`` is the element of row i and column j. What lies outside of
                the matrix is not looked at.
            b: right sides, same dtype: shape (n,) or (n, k) for one matrix; with leading
                dimensions for several (..., n).
        """
        if l_and_u not in ((1, 1), (2, 2), [1, 1], [2, 2]):
            raise ValueError(f"l_and_u must be (1, 1) or (2, 2), not {l_and_u!r}")
        reach = l_and_u[0]
        for ref, name in ((ab, "ab"), (b, "b")):
            self._require_ref(ref, name)
            if ref.dtype.name not in SINGLE_OR_DOUBLE:
                raise TypeError(f"{name} must be a ref of one of {', '.join(SINGLE_OR_DOUBLE)}")
        require_dtype(b, ab.dtype, "b", "ab")
        if ab.ndim < 2 or ab.shape[-2] != 2 * reach + 1:
            raise ValueError(f"ab must have shape (..., {2 * reach + 1}, n), not {ab.shape}")
        stack, n = ab.shape[:-2], ab.shape[-1]
        fits = b.shape == (*stack, n) if stack else b.shape[:1] == (n,) and b.ndim <= 2
        if not fits:
            raise ValueError(f"ab and b must have shapes that fit, not {ab.shape} and {b.shape}")

        def build(steps: CallSteps) -> GpuRef:
            if not b.size:
                return steps.output(b.shape, b.dtype)
            # One matrix with several right sides is a stack for the solver that takes no such.
            one = not stack and (reach == 1 or b.ndim == 1)
            bands = steps.contiguous(steps.ref(ab, "ab"))
            right = steps.contiguous(steps.ref(b, "b") if stack or b.ndim == 1 else b.T)
            right = right.reshape(-1, n)
            bands = bands.reshape(-1, 2 * reach + 1, n)
            count = right.shape[0]
            if not one and not stack:
                bands = bands.broadcast_to((count, 2 * reach + 1, n))
            solved = self._banded(steps, reach, bands, right, one=one)
            if not stack and b.ndim == 2:
                return steps.contiguous(solved.T)
            return steps.contiguous(solved).reshape(b.shape)

        return self._steps("solve_banded", build)

    def _banded(
        self, steps: CallSteps, reach: int, bands: GpuRef, right: GpuRef, *, one: bool
    ) -> GpuRef:
        """Solve on copies, which the vendor overwrites; solutions are (count, n), as ``right``."""
        (count, n), dtype = right.shape, right.dtype
        systems = bands.shape[0]
        size = max(n, _LEAST)
        interleaved = reach == 2

        def scratch(rows: int, value: int) -> GpuRef:
            lines = size + _SPARE if interleaved else size
            made = steps.evaluate(broadcast_constant((rows * lines,), dtype, value))
            return made.reshape(lines, rows)[:size].T if interleaved else made.reshape(rows, lines)

        diagonals = []
        for offset in range(-reach, reach + 1):
            # Row i of the band's diagonal is column i + offset of it in ab.
            made = scratch(systems, 0 if offset else 1)
            low, high = max(0, -offset), min(n, n - offset)
            if low < high:
                source = bands[:, reach - offset, low + offset : high + offset]
                steps.assign((source, made[:, low:high]))
            diagonals.append(made)
        target = scratch(count, 0)
        steps.assign((right, target[:, :n]))
        name = "pentadiagonal" if interleaved else "tridiagonal" if one else "tridiagonal_batch"
        spec = SparseSpec(name, dtype.name, sizes=(size, count))
        blocks = [each.block.base for each in (*diagonals, target)]

        def prepare(preparer: Preparer) -> Submission[None]:
            return self._call(preparer, spec, blocks, blocks, None)

        steps.do(Request(LANE, f"sparse.{name}", prepare))
        return target[:, :n]
