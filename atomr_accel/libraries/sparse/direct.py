"""Direct solvers: factorizations of sparse matrices, and solves with their factors."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, final, get_args

from ..._errors import GpuRefStale, Unsupported
from ...ops import (
    Awaited,
    D,
    Facade,
    LaneSpec,
    Request,
    Submission,
    op,
    require_dtype,
    require_readable,
    same_place,
)
from ...wire.options import real, whole
from ._products import by_rows, require_format
from .part import SparsePart, require_sparse
from .wire._direct import (
    Drop,
    Factorize,
    Kind,
    Pivoting,
    Reordering,
    SolveBy,
    SparseSystem,
    Triangle,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...arrays import GpuRef
    from ...memory import Block
    from ...ops import DeviceView, Preparer
    from ..array.steps import CallSteps
    from .array import SparseRef

T = TypeVar("T")
Trans = Literal["N", "T", "H"]

DIRECT: Final = LaneSpec(
    "sparse-direct",
    {
        "cpu": "atomr_accel.libraries.sparse.host._direct_cpu:CpuDirect",
        "cuda": "atomr_accel.libraries.sparse.host._direct_cuda:CudaDirect",
    },
    own_thread=True,
)
"""Its library orders rows on the host's processor, and waits for the device to tell how it went."""

_TRANS: Final = {"N": 0, "T": 1, "H": 2}
_MOST_STEPS: Final = 1000
_numbers: Final = itertools.count(1)


@final
class SparseLU(Facade[D]):
    """The factors of a sparse matrix, which ``device.sparse.splu`` makes.

    The host keeps them; they are gone after a rebuild. The matrix must not change meanwhile, but
    by ``refactorize``. ``await lu(b)`` is ``await lu.solve(b)``, and ``batch.using(lu)`` is the
    same in a batch.
    """

    def __init__(
        self,
        device: DeviceView,
        steps: Callable[[str, Callable[[CallSteps], GpuRef]], Request[GpuRef]],
        factors: HostFactors,
    ) -> None:
        self.home = device
        self._in_steps: Final = steps
        self._factors: Final = factors

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.matrix!r}>"

    @property
    def matrix(self) -> SparseRef:
        """The matrix whose factors they are."""
        return self._factors.matrix

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        return self._factors.matrix.shape

    @op
    def solve(self, b: GpuRef, trans: Trans = "N") -> Request[GpuRef]:
        """Solve ``op(a) @ x = b``; as ``scipy.sparse.linalg.SuperLU.solve``.

        Vendor function: ``cudssExecute`` with ``CUDSS_PHASE_SOLVE``.

        Args:
            b: shape (n,) or (n, k), the matrix's dtype. Right-hand sides by columns, such as
                ``y.T``, need no copy.
            trans: "N" for the matrix itself, "T" for its transpose, "H" for its conjugate
                transpose: SciPy's letters.

        Returns:
            The solutions, of the shape of ``b``, by columns if ``b`` is.

        Raises:
            LinAlgError: the last ``refactorize`` failed.
            Unsupported: in a recording; "H" of a complex ``csc`` matrix; cases that cuDSS does not
                support, such as a transpose of some kinds of matrices.
        """
        return self._in_steps("solve", self._factors.solving(b, trans))

    @op
    def __call__(self, b: GpuRef) -> Request[GpuRef]:
        """``solve(b)``, as what ``scipy.sparse.linalg.factorized`` gives is called.

        Args:
            b: as for ``solve``.
        """
        return self._in_steps("solve", self._factors.solving(b, "N"))

    @op
    def refactorize(self, a: SparseRef) -> Request[SparseLU[Awaited]]:
        """Factorize another matrix of the same structure.

        The analysis of the structure is reused, so it takes a fraction of the time of ``splu``.

        Vendor function: ``cudssExecute`` with ``CUDSS_PHASE_REFACTORIZATION``.

        Args:
            a: a matrix with the same refs of indices as the first one: ``a.with_data(data)``.

        Returns:
            This object, whose factors are now those of ``a``.

        Raises:
            ValueError: other indices.
            LinAlgError: the matrix is singular, once that is known; there are no factors then.
        """
        lu: Any = self
        factors = self._factors

        def prepare(preparer: Preparer) -> Submission[SparseLU[Awaited]]:
            there = factors.matrix
            require_sparse(a, "a")
            pairs = zip(a.parts[:2], there.parts[:2], strict=True)
            alike = (a.format, a.shape) == (there.format, there.shape)
            if not alike or not all(same_place(one, other) for one, other in pairs):
                raise ValueError(
                    "a must have the refs of indices that the factors were made of: "
                    "lu.matrix.with_data(data)"
                )
            require_dtype(a.data, there.dtype, "a", "the matrix")
            kept = factors.here(preparer)
            return factors.factorizing(preparer, a, kept, lu)

        return Request(DIRECT, "sparse.refactorize", prepare)


@final
class HostFactors:
    """The program's record of factors in the host, shared by all copies of a ``SparseLU``.

    Attributes:
        matrix: the matrix.
    """

    def __init__(self, part: SparsePart[Any], matrix: SparseRef, system: SparseSystem) -> None:
        self._part: Final = part
        self._system: Final = system
        self._number: Final = next(_numbers)
        self._kept: Block | None = None
        self.matrix = matrix

    def keep(self, preparer: Preparer) -> Block:
        """Return a block that represents the factors, which are going to be made."""
        self._kept = preparer.host_objects.keep(DIRECT.name, "sparse.drop", Drop(self._number))
        return self._kept

    def here(self, preparer: Preparer) -> Block:
        """Return the block that represents the factors."""
        if preparer.host_objects is not self._part._home:
            raise Unsupported(
                "a recording has executors of its own, which have none of these factors; await "
                "lu.solve(b) instead"
            )
        kept = self._kept
        if kept is None or kept.epoch is not preparer.memory.epoch:
            raise GpuRefStale("the device was rebuilt since the factorization; make another")
        return kept

    def factorizing(
        self, preparer: Preparer, matrix: SparseRef, kept: Block, result: T
    ) -> Submission[T]:
        """Return the submission of a factorization, which must be awaited because it may fail."""
        parts = self._parts(preparer, matrix)
        message = Factorize(self._number, self._system, tuple(each.address for each in parts))

        def finish(_answer: Any) -> T:
            self.matrix = matrix
            return result

        return Submission(message, parts, (kept,), finish=finish)

    def solving(self, b: GpuRef, trans: Trans) -> Callable[[CallSteps], GpuRef]:
        """The steps of a solve."""
        if trans not in _TRANS:
            raise ValueError(f"trans must be 'N', 'T' or 'H', not {trans!r}")
        self._part._require_ref(b, "b")
        n = self.matrix.shape[0]
        require_dtype(b, self.matrix.dtype, "b", "the matrix")
        if b.ndim not in (1, 2) or b.shape[0] != n:
            raise ValueError(f"b must have {n} rows, as the matrix has, not shape {b.shape}")
        taken = _TRANS[trans]
        if self._by_columns:  # what was factorized is the transpose
            if taken == 2 and self.matrix.dtype.kind == "c":
                raise Unsupported(
                    "a complex csc matrix is not taken conjugated; convert it with tocsr"
                )
            taken = 0 if taken else 1

        def build(steps: CallSteps) -> GpuRef:
            given = steps.ref(b, "b")
            lying = given.ndim == 2 and given.T.contiguous
            # The library has right sides one after the other.
            right = steps.contiguous(given.T)
            x = steps.output(right.shape, right.dtype)
            count = right.size // n if n else 0

            def prepare(preparer: Preparer) -> Submission[None]:
                parts = self._parts(preparer, self.matrix)
                source, target, kept = right.block, x.block, self.here(preparer)
                message = SolveBy(
                    self._number,
                    tuple(each.address for each in parts),
                    *(source.address, target.address, n, count, taken),
                )
                return Submission(message, (*parts, source), (target, kept))

            steps.do(Request(DIRECT, "sparse.solve", prepare))
            return x.T if lying or x.ndim == 1 else steps.contiguous(x.T)

        return build

    @property
    def _by_columns(self) -> bool:
        return self.matrix.format == "csc"

    def _parts(self, preparer: Preparer, matrix: SparseRef) -> tuple[Block, ...]:
        names = ("major", "indices", "data")
        return tuple(
            require_readable(preparer.stand_in(part), preparer.memory, f"a.{name}")
            for part, name in zip(matrix.parts, names, strict=True)
        )


class DirectSolves(SparsePart[D]):
    """Systems of sparse matrices, solved by factorizing them."""

    @op
    def splu(
        self,
        a: SparseRef,
        *,
        kind: Kind = "general",
        lower: bool | None = None,
        reordering: Reordering = "default",
        pivoting: Pivoting = "auto",
        pivot_threshold: float | None = None,
        pivot_epsilon: float | None = None,
        refinement: int = 0,
    ) -> Request[SparseLU[Awaited]]:
        """Factorize a square sparse matrix; as ``scipy.sparse.linalg.splu``.

        Vendor functions: ``cudssExecute`` with ``CUDSS_PHASE_ANALYSIS`` and
        ``CUDSS_PHASE_FACTORIZATION``.

        Args:
            a: ``csr`` or ``csc`` with sorted indices, without duplicates; float32, float64,
                complex64 or complex128. cuDSS factorizes the transpose of a ``csc`` matrix.
            kind: "general", "symmetric", "hermitian", or "spd": positive definite, symmetric or
                Hermitian. Kinds other than "general" halve the work. They are not checked, except
                that a matrix of kind "spd" which is not positive definite raises an error.
            lower: for kinds other than "general": only the lower triangle is stored, or if False
                the upper one, with the diagonal. By default all of the matrix is stored.
            reordering: the order of rows and columns: "default", "btf_colamd", "colamd", "amd",
                "nested_dissection" or "none".
            pivoting: the search for pivots, by cuDSS's names: "auto", "none", "global_col",
                "global_row", "diagonal", "local_block" or "bunch_kaufman".
            pivot_threshold: from 0 to 1: the size that a pivot must have relative to the largest
                one.
            pivot_epsilon: pivots of a smaller magnitude count as zero. cuDSS first scales matrices
                so that diagonals are ones, and has its own default. The CPU does not scale, and by
                default only zeros count as zero.
            refinement: steps of iterative refinement of each solve.

        SuperLU, on the CPU, uses ``kind="spd"``, ``lower``, ``pivot_threshold``,
        ``pivot_epsilon`` and ``refinement``, and the orders "none", "colamd" and "amd".

        Returns:
            The factors, with methods ``solve`` and ``refactorize``.

        Raises:
            LinAlgError: the matrix is singular, or not positive definite, once that is known.
            ValueError: on the CPU, also unsorted or duplicate indices.
            LibraryMissing: cuDSS is not installed.
            Unsupported: in a batch or a recording; cases that cuDSS does not support.
        """
        return self._factorized(
            a, kind, lower, reordering, pivoting, pivot_threshold, pivot_epsilon, refinement
        )

    @op
    def factorized(self, a: SparseRef) -> Request[SparseLU[Awaited]]:
        """Factors to be called with right sides; as ``scipy.sparse.linalg.factorized``.

        Args:
            a: as for ``splu``, whose defaults it takes.
        """
        return self._factorized(a)

    @op
    def spsolve(
        self, a: SparseRef, b: GpuRef, *, kind: Kind = "general", refinement: int = 0
    ) -> Request[GpuRef]:
        """Solve ``a @ x = b``; as ``scipy.sparse.linalg.spsolve``.

        The factors are not kept: ``splu`` keeps them, for further right sides.

        Args:
            a: as for ``splu``.
            b: shape (n,) or (n, k), same dtype.
            kind: as for ``splu``.
            refinement: likewise.
        """

        def build(steps: CallSteps) -> GpuRef:
            made = steps.preparer.perform(self._factorized(a, kind, refinement=refinement))
            assert made is not None  # it has a finish, so batches refuse it
            return made._factors.solving(b, "N")(steps)

        require_format(a, "a")
        self._require_ref(b, "b")
        return self._steps("spsolve", build)

    def _factorized(
        self,
        a: SparseRef,
        kind: Kind = "general",
        lower: bool | None = None,
        reordering: Reordering = "default",
        pivoting: Pivoting = "auto",
        threshold: float | None = None,
        epsilon: float | None = None,
        refinement: int = 0,
    ) -> Request[SparseLU[Awaited]]:
        swapped = require_format(a, "a") == "csc"
        if a.shape[0] != a.shape[1]:
            raise ValueError(f"a must be square, not of shape {a.shape}")
        for name, value, known in (
            ("kind", kind, Kind),
            ("reordering", reordering, Reordering),
            ("pivoting", pivoting, Pivoting),
        ):
            if value not in get_args(known):
                names = ", ".join(map(repr, get_args(known)))
                raise ValueError(f"{name} must be one of {names}, not {value!r}")
        if threshold is not None:
            threshold = real(threshold, "pivot_threshold", least=0.0, most=1.0)
        if epsilon is not None:
            epsilon = real(epsilon, "pivot_epsilon", least=0.0)
        steps = whole(refinement, "refinement", least=0, most=_MOST_STEPS)
        triangle: Triangle = "full"
        if lower is not None:
            if kind == "general":
                raise ValueError(f"lower must be None for a general matrix, not {lower!r}")
            triangle = "lower" if lower is not swapped else "upper"

        def prepare(preparer: Preparer) -> Submission[SparseLU[Awaited]]:
            matrix, _ = self._matrix(preparer, by_rows(a), "a", ("csr",))
            options = (kind, triangle, reordering, pivoting, threshold, epsilon, steps)
            system = SparseSystem(matrix, *options, self.home.deterministic)
            factors = HostFactors(self, a, system)
            lu: SparseLU[Awaited] = SparseLU(self._home, self._steps, factors)
            return factors.factorizing(preparer, a, factors.keep(preparer), lu)

        return Request(DIRECT, "sparse.splu", prepare)
