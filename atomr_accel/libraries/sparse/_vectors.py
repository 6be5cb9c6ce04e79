"""Sparse vectors, as the indices and the elements of a dense one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...arrays import GpuRef
from ...ops import (
    D,
    Request,
    Submission,
    op,
    op_of,
    require_dtype,
    require_no_alias,
    require_rank,
    require_readable,
    require_shape,
    require_writable,
)
from ...wire.options import flag
from ..blas.checks import scalar
from .part import LANE, SparsePart
from .wire._messages import DenseMatrix, Matrix, SparseSpec
from .wire._vectors import INDICES, SINGLE_OR_DOUBLE, Axpby, Gather, Scatter

if TYPE_CHECKING:
    from ...ops import Preparer
    from .wire._messages import Scalar


def _factors(call: Axpby, _preparer: Preparer) -> dict[str, Scalar]:
    dtype = call.y.dtype
    return {"a": scalar(call.a, dtype, "a"), "b": scalar(call.b, dtype, "b")}


class Vectors(SparsePart[D]):
    """Sparse vectors; each index should be there once."""

    axpby: Final = op_of(Axpby, LANE, plan=_factors)
    gather: Final = op_of(Gather, LANE)
    scatter: Final = op_of(Scatter, LANE)

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
            given = {"x": x, "indices": indices, "y": y}
            blocks = [require_readable(ref, preparer.memory, name) for name, ref in given.items()]
            if y.dtype.name not in SINGLE_OR_DOUBLE:
                allowed = ", ".join(SINGLE_OR_DOUBLE)
                raise TypeError(f"y is {y.dtype.name}; it must be one of {allowed}")
            require_dtype(x, y.dtype, "x", "y")
            if indices.dtype.name not in INDICES.dtypes:
                raise TypeError(f"indices is {indices.dtype.name}; it must be int32 or int64")
            for name, ref in given.items():
                require_rank(ref, 1, name)
            if x.shape != indices.shape:
                raise ValueError(f"there are {x.size} elements and {indices.size} indices")
            made = preparer.output((), y.dtype) if out is None else out
            target = require_writable(made, preparer.memory, "out")
            require_dtype(made, y.dtype, "out", "y")
            require_shape(made, (), "out")
            require_no_alias("dot", [("out", made)], list(given.items()))
            # A vector is a matrix of one row whose second array of indices alone counts.
            vector = Matrix("coo", (1, y.size), x.size, indices.dtype.name, y.dtype.name)
            dense = DenseMatrix(y.shape)
            spec = SparseSpec("dot", y.dtype.name, (vector,), (dense,), flags=(conjugated,))
            operands = [blocks[1], blocks[0], blocks[2], target]
            return self._call(preparer, spec, operands, [target], made)

        return Request(LANE, "sparse.dot", prepare)
