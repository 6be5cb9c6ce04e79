"""Products: sparse with dense, dense sampled at a pattern, sparse with sparse."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from ..._dtypes import DTYPES
from ..._errors import GpuRefStale
from ...arrays import GpuRef
from ...ops import D, Request, Submission, op, require_dtype, require_no_alias, require_shape
from ..blas.checks import operation, scalar
from ._arithmetic import SparseArithmetic
from ._ell import EllRef
from .array import SparseRef
from .part import FLOATS, LANE, WAITING, laid, place, require_sparse, taken_as
from .wire._messages import ComputeProduct, FindStructure, ForgetSparse, SparseSpec, encode

if TYPE_CHECKING:
    from ...memory import Block
    from ...ops import Preparer
    from ..array.steps import CallSteps
    from ..blas.checks import Number, Trans
    from .wire._messages import Matrix

_MULTIPLIED: Final = ("csr", "csc", "bsr", "blocked-ell", "sliced-ell")
_AS_THEY_ARE: Final = ("bsr", "blocked-ell", "sliced-ell")
_COMPRESSED: Final = ("csr", "csc")

_numbers: Final = itertools.count(1)


@final
class ProductPlan(msgspec.Struct, frozen=True, eq=False):
    """The structure of a product of two sparse matrices, for products of the same structure.

    The host keeps the structure until the next rebuild.

    Attributes:
        shape: of the product.
        nnz: the number of its elements.
        product: the product that was made first.
    """

    product: SparseRef
    _number: int
    _kept: Any
    _spec: SparseSpec
    _structure: tuple[GpuRef, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the product."""
        return self.product.shape

    @property
    def nnz(self) -> int:
        """The number of elements of the product."""
        return self.product.nnz


class SparseProducts(SparseArithmetic[D]):
    """Products with sparse matrices."""

    @op
    def matmul(
        self,
        a: SparseRef | EllRef,
        x: GpuRef,
        *,
        trans: Trans = 0,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Multiply a sparse matrix with a dense vector or matrix: ``alpha * op(a) @ x``.

        Vendor functions: ``cusparseSpMV`` of vectors, ``cusparseSpMM`` of matrices.

        Args:
            a: op(a) has shape (m, k); any format, float16, bfloat16, float32, float64, complex64 or
                complex128. 16-bit types are summed in float32. Duplicate elements are added up. A
                ``coo`` matrix is sorted at each call, so convert it with ``tocsr`` for several
                products.
            x: shape (k,) or (k, n), same dtype; by rows or by columns, as ``y.T`` is. For
                ``sliced-ell`` it must be a vector.
            trans: transposition of ``a``; must be 0 for ``bsr`` and the formats of ``EllRef``.
            alpha: scales the product.
            beta: scales ``out`` before the product is added; with 0 ``out`` is not read.
            out: where to put the result: shape (m,) or (m, n), by rows or by columns, not sealed.

        Raises:
            ValueError: shapes that do not fit, ``bsr`` transposed, ``beta`` without ``out``, or
                ``out`` shares memory with another operand.
        """
        taken = operation(trans, "trans")
        if type(a) is not SparseRef or a.format != "coo":
            return self._product(a, x, taken, alpha, beta, out)

        def build(steps: CallSteps) -> GpuRef:
            # cuSPARSE wants rows in order, and only the device knows in which these are.
            return steps.do(self._product(self._to(steps, a, "csr"), x, taken, alpha, beta, out))

        return self._steps("matmul", build)

    def _product(
        self,
        a: SparseRef | EllRef,
        x: GpuRef,
        taken: int,
        alpha: Number,
        beta: Number,
        out: GpuRef | None,
    ) -> Request[GpuRef]:
        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            matrix, parts = self._matrix(preparer, a, "a", _MULTIPLIED, FLOATS)
            source = place(x, preparer, "x")
            given = laid(x, "x")
            require_dtype(x, a.dtype, "x", "a")
            if taken and a.format in _AS_THEY_ARE:
                raise ValueError(
                    f"a {a.format} matrix is multiplied as it is; take a csr one, which tocsr "
                    "makes of a bsr one"
                )
            if a.format == "sliced-ell" and x.ndim != 1:
                raise ValueError("a sliced-ell matrix is multiplied with vectors only")
            if (a.format == "csc") != bool(taken) or a.format in _AS_THEY_ARE:
                self._refuse_unsteady("such a product", "take a csr matrix")
            m, k = a.shape[::-1] if taken else a.shape
            if x.shape[0] != k:
                raise ValueError(
                    f"x must have {k} rows, because a is taken with shape {(m, k)}, "
                    f"not shape {x.shape}"
                )
            shape = (m, *x.shape[1:])
            if out is None and beta:
                raise ValueError("beta multiplies out, so it needs one")
            made = preparer.output(shape, a.dtype) if out is None else out
            target = place(made, preparer, "out", writable=True)
            require_dtype(made, a.dtype, "out", "a")
            require_shape(made, shape, "out")
            require_no_alias("matmul", [("out", made)], [("x", x), *_named(a, "a")])
            spec = SparseSpec(
                "matvec" if x.ndim == 1 else "matmat",
                matrix.dtype,
                (matrix,),
                (given, laid(made, "out")),
                taken_as(taken, a.dtype),
                deterministic=self.home.deterministic,
            )
            compute = DTYPES["float32"] if a.dtype.itemsize == 2 else a.dtype
            return self._call(
                preparer,
                spec,
                [*parts, source, target],
                [target],
                made,
                alpha=scalar(alpha, compute, "alpha"),
                beta=scalar(beta, compute, "beta"),
            )

        return Request(LANE, "sparse.matmul", prepare)

    @op
    def sddmm(
        self,
        a: GpuRef,
        b: GpuRef,
        pattern: SparseRef,
        *,
        alpha: Number = 1.0,
        beta: Number = 0.0,
    ) -> Request[SparseRef]:
        """Multiply dense matrices where a sparse one has elements.

        The result is ``alpha * (a @ b) * (pattern has an element) + beta * pattern``.

        Vendor function: ``cusparseSDDMM``.

        Args:
            a: shape (m, k), float32, float64, complex64 or complex128; by rows or by columns.
            b: shape (k, n), same dtype.
            pattern: shape (m, n), same dtype, ``csr`` or ``csc``.
            alpha: what the product is multiplied with.
            beta: what the pattern's elements are multiplied with.

        Returns:
            A matrix of the pattern's indices, with data of its own.
        """

        def prepare(preparer: Preparer) -> Submission[SparseRef]:
            # A matrix by columns is the transpose of one by rows: (a @ b).T is b.T @ a.T.
            swapped = require_format(pattern, "pattern") == "csc"
            left, right = (b.T, a.T) if swapped else (a, b)
            matrix, parts = self._matrix(preparer, by_rows(pattern), "pattern", ("csr",))
            blocks = [place(ref, preparer, name) for ref, name in ((left, "a"), (right, "b"))]
            for ref, name in ((a, "a"), (b, "b")):
                require_dtype(ref, pattern.dtype, name, "pattern")
                if ref.ndim != 2:
                    raise ValueError(f"{name} must have two dimensions, not shape {ref.shape}")
            if a.shape[1] != b.shape[0] or (a.shape[0], b.shape[1]) != pattern.shape:
                raise ValueError(
                    "a, b and pattern must have shapes (m, k), (k, n) and (m, n), "
                    f"not {a.shape}, {b.shape} and {pattern.shape}"
                )
            data = preparer.output(pattern.data.shape, pattern.dtype)
            target = data.block
            spec = SparseSpec(
                "sddmm", pattern.dtype.name, (matrix,), (laid(left, "a"), laid(right, "b"))
            )
            return self._call(
                preparer,
                spec,
                [*parts, *blocks, target],
                [target],
                pattern.with_data(data),
                alpha=scalar(alpha, pattern.dtype, "alpha"),
                beta=scalar(beta, pattern.dtype, "beta"),
            )

        return Request(LANE, "sparse.sddmm", prepare)

    # --- sparse with sparse -------------------------------------------------------------------

    @op
    def spgemm(self, a: SparseRef, b: SparseRef, *, alpha: Number = 1.0) -> Request[SparseRef]:
        """Multiply two sparse matrices: ``alpha * (a @ b)``.

        How many elements the product has only the device knows, so this waits for it.

        Vendor functions: ``cusparseSpGEMMreuse_*``.

        Args:
            a: shape (m, k), ``csr`` or ``csc``, float32, float64, complex64 or complex128.
            b: shape (k, n), of the same format and dtypes.
            alpha: what the product is multiplied with.

        Returns:
            The product, in the same format. Elements that cancel out are stored, as zeros.

        Raises:
            Unsupported: in a batch or a recording; int64 indices on CUDA.
        """

        def prepare(preparer: Preparer) -> Submission[SparseRef]:
            plan = self._structure_of(preparer, a, b)
            return self._filled(preparer, plan, a, b, alpha, plan.product, structure=True)

        return Request(WAITING, "sparse.spgemm", prepare)

    @op
    def spgemm_plan(self, a: SparseRef, b: SparseRef) -> Request[ProductPlan]:
        """Multiply two sparse matrices, and keep the structure of the product.

        ``spgemm_reuse`` uses it for products of other matrices with the same indices, which takes a
        fraction of the time.

        Args:
            a: as for ``spgemm``.
            b: as for ``spgemm``.

        Returns:
            The plan, with the product as its attribute ``product``.
        """

        def prepare(preparer: Preparer) -> Submission[ProductPlan]:
            plan = self._structure_of(preparer, a, b)
            filled = self._filled(preparer, plan, a, b, 1.0, plan.product, structure=True)
            return Submission(filled.message, filled.reads, filled.writes, plan)

        return Request(WAITING, "sparse.spgemm_plan", prepare)

    @op
    def spgemm_reuse(
        self, plan: ProductPlan, a: SparseRef, b: SparseRef, *, alpha: Number = 1.0
    ) -> Request[SparseRef]:
        """Multiply matrices with the indices of those that a plan was made of.

        Vendor function: ``cusparseSpGEMMreuse_compute``.

        Args:
            plan: as ``spgemm_plan`` has made it.
            a: with the same indices as then, perhaps other data.
            b: likewise.
            alpha: what the product is multiplied with.

        Returns:
            The product, which shares its indices with ``plan.product``.

        Raises:
            ValueError: other indices than those of then.
            GpuRefStale: the device was rebuilt since.
        """

        def prepare(preparer: Preparer) -> Submission[SparseRef]:
            if type(plan) is not ProductPlan:
                raise TypeError("plan is what spgemm_plan makes")
            for each, name in ((a, "a"), (b, "b")):
                require_format(each, name)
            there = (*a.parts[:2], *b.parts[:2])
            if any(one is not other for one, other in zip(there, plan._structure, strict=True)):
                raise ValueError(
                    "a and b must have the refs of indices that the plan was made of: "
                    "a.with_data(data)"
                )
            data = preparer.output(plan.product.data.shape, plan.product.dtype)
            product = plan.product.with_data(data)
            return self._filled(preparer, plan, a, b, alpha, product, structure=False)

        return Request(WAITING, "sparse.spgemm_reuse", prepare)

    def _structure_of(self, preparer: Preparer, a: SparseRef, b: SparseRef) -> ProductPlan:
        spec, blocks = self._factors(preparer, a, b)
        encoded = encode(spec)
        key = ("spgemm", *map(id, (*a.parts, *b.parts)))

        def multiply(asking: Preparer) -> Submission[tuple[int, tuple[int, Block]]]:
            number = next(_numbers)  # one for each time that it is prepared
            kept = asking.host_objects.keep(WAITING.name, "sparse.forget", ForgetSparse(number))
            message = FindStructure(number, encoded, tuple(block.address for block in blocks))
            found = (number, kept)
            return Submission(message, tuple(blocks), (kept,), finish=lambda nnz: (int(nnz), found))

        answer = preparer.perform(Request(WAITING, "sparse.spgemm", multiply, key))
        assert answer is not None  # it has a finish, so batches refuse it
        nnz, (made, kept) = answer
        form = a.format
        shape = (a.shape[0], b.shape[1])
        majors = shape[0] if form == "csr" else shape[1]
        index = a.index_dtype
        product = SparseRef(
            form,
            shape,
            preparer.output((nnz,), a.dtype),
            preparer.output((majors + 1,), index),
            preparer.output((nnz,), index),
        )
        return ProductPlan(product, made, kept, spec, (*a.parts[:2], *b.parts[:2]))

    def _factors(
        self, preparer: Preparer, a: SparseRef, b: SparseRef
    ) -> tuple[SparseSpec, list[Block]]:
        """Both factors by rows: of matrices by columns, (a @ b).T is b.T @ a.T."""
        for each, name in ((a, "a"), (b, "b")):
            require_format(each, name)
        if a.format != b.format:
            raise TypeError(f"a is {a.format} and b {b.format}; both must be the same")
        if a.shape[1] != b.shape[0]:
            raise ValueError(
                f"a and b must have shapes (m, k) and (k, n), not {a.shape} and {b.shape}"
            )
        if a.dtype is not b.dtype or a.index_dtype is not b.index_dtype:
            raise TypeError(
                f"a has {a.dtype.name} with {a.index_dtype.name}, b {b.dtype.name} with "
                f"{b.index_dtype.name}; both must be the same"
            )
        pair = (a, b) if a.format == "csr" else (b.T, a.T)
        found = [self._matrix(preparer, each, "a", ("csr",)) for each in pair]
        matrices: tuple[Matrix, ...] = tuple(matrix for matrix, _ in found)
        spec = SparseSpec("spgemm", a.dtype.name, matrices)
        return spec, [block for _, blocks in found for block in blocks]

    def _filled(
        self,
        preparer: Preparer,
        plan: ProductPlan,
        a: SparseRef,
        b: SparseRef,
        alpha: Number,
        product: SparseRef,
        *,
        structure: bool,
    ) -> Submission[SparseRef]:
        spec, blocks = self._factors(preparer, a, b)
        if spec != plan._spec:
            raise TypeError("a and b have other dtypes or shapes than those of the plan")
        kept: Block = plan._kept
        if kept.epoch is not preparer.memory.epoch:
            raise GpuRefStale("the device was rebuilt since the plan was made; make another")
        outputs = [part.block for part in product.parts]
        operands = tuple(block.address for block in (*blocks, *outputs))
        message = ComputeProduct(
            plan._number, encode(spec), operands, structure, scalar(alpha, a.dtype, "alpha")
        )
        written = outputs if structure else outputs[2:]
        return Submission(message, (*blocks, *outputs), (*written, kept), product)


def require_format(a: SparseRef, name: str) -> str:
    """Require a matrix compressed by rows or columns, and return its format."""
    require_sparse(a, name)
    if a.format not in _COMPRESSED:
        raise TypeError(f"{name} is {a.format}; csr or csc is needed here: convert it with tocsr")
    return a.format


def by_rows(a: SparseRef) -> SparseRef:
    """The matrix, or its transpose, as ``csr``."""
    return a if a.format == "csr" else a.T


def _named(a: SparseRef | EllRef, name: str) -> list[tuple[str, GpuRef]]:
    names = ("row", "col", "data") if a.format == "coo" else ("indptr", "indices", "data")
    named = zip(names[-len(a.parts) :], a.parts, strict=True)
    return [(f"{name}.{what}", part) for what, part in named]
