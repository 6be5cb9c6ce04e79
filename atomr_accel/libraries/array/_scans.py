"""Sums and products of all elements so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from numpy.lib.array_utils import normalize_axis_index

from ..._dtypes import NAMES, as_dtype
from ...arrays import GpuRef
from ...arrays.expressions import Operand
from ...arrays.expressions.promotion import FLOAT32, reduced
from ...ops import D, Request, op_family
from ._top import FP8, fits
from .steps import ArrayPart, CallSteps, target_of
from .wire.indexing import ScanRows

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


from ._reductions import instead_of_nan
from ._sorting import flattening


class Scans(ArrayPart[D]):
    """Cumulative sums and products."""

    @op_family
    def cumsum(
        self,
        _name: str,
        a: Operand,
        axis: int | None = None,
        dtype: DTypeLike | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Add up all elements up to each; as ``numpy.cumsum``.

        Sums of floats of 16 bits or less are made in float32. Sums of floats are not made in the
        order of the elements.

        Args:
            a: a ref or an expression.
            axis: the axis to scan; None flattens ``a`` first.
            dtype: the dtype of the computation and of the result.
            out: the buffer for the result.
        """
        given = instead_of_nan(a, 0) if _name.startswith("nan") else a
        return self._scan(
            _name, "multiply" if _name == "cumprod" else "add", given, axis, dtype, out
        )

    cumprod: Final = cumsum.like(
        """Products of all elements up to each; as ``numpy.cumprod``, and as ``cumsum``."""
    )
    nancumsum: Final = cumsum.like(
        """Add up all elements up to each, NaN as 0; as ``numpy.nancumsum``, and as ``cumsum``."""
    )

    def _scan(
        self,
        name: str,
        kind: Literal["add", "multiply"],
        a: Operand,
        axis: int | None,
        dtype: DTypeLike | None,
        out: GpuRef | None,
    ) -> Request[GpuRef]:
        given = self._operand(a, "a")
        result = reduced(kind, given.dtype) if dtype is None else as_dtype(dtype)
        if result.kind == "b":
            raise TypeError(f"{name} of bool counts nothing; give it a dtype of numbers")
        wide = FLOAT32 if NAMES[result] in FP8 else result
        axis = flattening(axis, given.shape)
        at = 0 if axis is None else normalize_axis_index(axis, len(given.shape))

        def build(steps: CallSteps) -> GpuRef:
            ref = steps.cast(steps.ref(given, "a"), wide)
            rows = steps.flat(ref) if axis is None else steps.last(ref, at)
            shape = rows.shape if axis is None else ref.shape
            to = None if out is None else target_of(steps, out, shape, result, op=name)
            last = axis is None or at == len(shape) - 1
            sums = scanned(steps, kind, rows, out=to if last else None)
            sums = steps.cast(sums, result)
            if sums is to or (to is None and last):
                return sums
            made = steps.output(shape, result) if to is None else to
            steps.assign((sums, made if axis is None else made.moveaxis(at, -1)))
            return made

        return self._several(name, build)


def scanned(
    steps: CallSteps,
    kind: Literal["add", "multiply"],
    rows: GpuRef,
    *,
    out: GpuRef | None = None,
) -> GpuRef:
    """Scan all rows along the last axis, C-contiguous; in ``out`` if possible."""
    n = rows.shape[-1] if rows.ndim else 1
    if not rows.size:
        return rows
    if out is not None and not fits(out, rows):
        out = None
    made = steps.output(rows.shape, rows.dtype) if out is None else out
    message = ScanRows(
        kind,
        rows.addressable_block.address,
        made.addressable_block.address,
        NAMES[rows.dtype],
        rows.size // n,
        n,
    )
    steps.submit("array.scan", message, (rows.addressable_block,), (made.addressable_block,))
    return made
