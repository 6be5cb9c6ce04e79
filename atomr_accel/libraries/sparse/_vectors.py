"""Sparse vectors, as the indices and the elements of a dense one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...arrays import GpuRef
from ...ops import (
    D,
    Request,
    Submission,
    op,
    require_dtype,
    require_no_alias,
    require_readable,
    require_shape,
    require_writable,
)
from ...wire.options import flag
from ..blas.checks import scalar
from .part import LANE, SINGLE_OR_DOUBLE, SparsePart
from .wire._messages import DenseMatrix, Matrix, SparseSpec

if TYPE_CHECKING:
    from ...memory import Block
    from ...ops import Preparer
    from ..blas.checks import Number


class Vectors(SparsePart[D]):
    """Sparse vectors; each index should be there once."""

    @op
    def axpby(
        self, x: GpuRef, indices: GpuRef, y: GpuRef, *, a: Number = 1.0, b: Number = 1.0
    ) -> Request[GpuRef]:
        """Add a sparse vector to a dense one, in place: ``y = b * y; y[indices] += a * x``.

        Vendor function: ``cusparseAxpby``.

        Args:
            x: the elements, shape (k,); float32, float64, complex64 or complex128.
            indices: where they are, shape (k,), int32 or int64, each once.
            y: shape (n,), same dtype, not sealed.
            a: what the elements are multiplied with.
            b: what ``y`` is multiplied with.
        """

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            spec, blocks = self._sparse(preparer, "axpby", x, indices, y, written="y")
            return self._call(
                preparer,
                spec,
                blocks,
                blocks[2:],
                y,
                alpha=scalar(a, y.dtype, "a"),
                beta=scalar(b, y.dtype, "b"),
            )

        return Request(LANE, "sparse.axpby", prepare)

    @op
    def gather(self, y: GpuRef, indices: GpuRef, *, out: GpuRef | None = None) -> Request[GpuRef]:
        """Elements of a dense vector: ``y[indices]``.

        Vendor function: ``cusparseGather``.

        Args:
            y: shape (n,), float32, float64, complex64 or complex128.
            indices: shape (k,), int32 or int64.
            out: where they go, shape (k,).
        """

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            made = preparer.output(indices.shape, y.dtype) if out is None else out
            spec, blocks = self._sparse(preparer, "gather", made, indices, y, written="out")
            return self._call(preparer, spec, blocks, blocks[1:2], made)

        return Request(LANE, "sparse.gather", prepare)

    @op
    def scatter(self, x: GpuRef, indices: GpuRef, y: GpuRef) -> Request[GpuRef]:
        """Write elements of a dense vector, in place: ``y[indices] = x``.

        Vendor function: ``cusparseScatter``.

        Args:
            x: the elements, shape (k,); float32, float64, complex64 or complex128.
            indices: where they go, shape (k,), int32 or int64, each once.
            y: shape (n,), same dtype, not sealed.
        """

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            spec, blocks = self._sparse(preparer, "scatter", x, indices, y, written="y")
            return self._call(preparer, spec, blocks, blocks[2:], y)

        return Request(LANE, "sparse.scatter", prepare)

    @op
    def dot(
        self,
        x: GpuRef,
        indices: GpuRef,
        y: GpuRef,
        *,
        conjugate: bool = False,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """The product of a sparse vector and a dense one: ``x @ y[indices]``.

        Vendor function: ``cusparseSpVV``.

        Args:
            x: the elements, shape (k,); float32, float64, complex64 or complex128.
            indices: where they are, shape (k,), int32 or int64.
            y: shape (n,), same dtype.
            conjugate: whether ``x`` is conjugated.
            out: where it goes, shape ().
        """
        conjugated = flag(conjugate, "conjugate")

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            spec, blocks = self._sparse(preparer, "dot", x, indices, y, conjugated=conjugated)
            made = preparer.output((), y.dtype) if out is None else out
            target = require_writable(made, preparer.memory, "out")
            require_dtype(made, y.dtype, "out", "y")
            require_shape(made, (), "out")
            given = [("x", x), ("indices", indices), ("y", y)]
            require_no_alias("dot", [("out", made)], given)
            return self._call(preparer, spec, [*blocks, target], [target], made)

        return Request(LANE, "sparse.dot", prepare)

    def _sparse(
        self,
        preparer: Preparer,
        name: str,
        x: GpuRef,
        indices: GpuRef,
        y: GpuRef,
        *,
        written: str = "",
        conjugated: bool = False,
    ) -> tuple[SparseSpec, list[Block]]:
        """The spec, and the blocks of indices, elements and the dense vector."""
        named = "out" if written == "out" else "x"
        refs = {"indices": indices, named: x, "y": y}
        blocks = [
            (require_writable if what == written else require_readable)(ref, preparer.memory, what)
            for what, ref in refs.items()
        ]
        if y.dtype.name not in SINGLE_OR_DOUBLE:
            raise TypeError(f"y is {y.dtype.name}; it must be one of {', '.join(SINGLE_OR_DOUBLE)}")
        require_dtype(x, y.dtype, named, "y")
        if indices.dtype.name not in ("int32", "int64"):
            raise TypeError(f"indices is {indices.dtype.name}; it must be int32 or int64")
        for what, ref in refs.items():
            if ref.ndim != 1:
                raise ValueError(f"{what} must have one dimension, not shape {ref.shape}")
        if x.shape != indices.shape:
            raise ValueError(f"there are {x.size} elements and {indices.size} indices")
        if written:
            others = [(what, ref) for what, ref in refs.items() if what != written]
            require_no_alias(name, [(written, refs[written])], others)
        # A vector is a matrix of one row whose second array of indices alone counts.
        vector = Matrix("coo", (1, y.size), x.size, indices.dtype.name, y.dtype.name)
        spec = SparseSpec(
            name, y.dtype.name, (vector,), (DenseMatrix(y.shape),), flags=(conjugated,)
        )
        return spec, blocks
