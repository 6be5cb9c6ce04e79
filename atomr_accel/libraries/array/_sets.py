"""``device.array``'s comparisons of whole arrays, sets, and indices in other forms."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ..._dtypes import NAMES, as_dtype, is_inexact
from ...arrays import GpuRef, as_shape
from ...arrays.expressions import Operand, cast
from ...arrays.expressions.expression import broadcast_constant, ufunc
from ...arrays.expressions.promotion import FLOAT32, common
from ...ops import D, Request, op
from ._indexing import Indexing
from ._keys import mode_of, unraveled
from ._sorting import flattening
from ._top import FP8
from ._unique import Unique
from .choosing import INT64, Mode
from .steps import CallSteps
from .wire.indexing import FindAmong

if TYPE_CHECKING:
    from ...arrays.expressions import Value

_NUMPY: Final[Any] = np
"""NumPy, whose functions make expressions of refs."""

Order = Literal["C", "F"]

_BOOL: Final = as_dtype(np.bool_)
_FEW: Final = 16
"""Number of elements that are compared one by one, without sorting them."""


class Sets(Unique[D], Indexing[D]):
    """Elements that arrays have in common, orders by several keys, and flat indices."""

    @op
    def array_equal(self, a1: Operand, a2: Operand, equal_nan: bool = False) -> Request[GpuRef]:
        """Test whether shapes and elements are equal, a bool there; as ``numpy.array_equal``."""
        x, y = self._operand(a1, "a1"), self._operand(a2, "a2")
        if x.shape != y.shape:
            return self._evaluated(broadcast_constant((), _BOOL))
        equal: Operand = x == y
        if equal_nan and is_inexact(x.dtype) and is_inexact(y.dtype):
            equal = equal | (ufunc("isnan", x) & ufunc("isnan", y))
        return self._evaluated(equal.all())

    @op
    def allclose(
        self,
        a: Value,
        b: Value,
        rtol: Value = 1.0e-5,
        atol: Value = 1.0e-8,
        equal_nan: bool = False,
    ) -> Request[GpuRef]:
        """Test whether all elements are nearly equal; as ``numpy.allclose``.

        Arguments are those of ``isclose``. The result is a bool without dimensions, on the device.
        """
        return self._evaluated(self._made(np.allclose, a, b, rtol, atol, equal_nan))

    @op
    def isin(
        self,
        element: Operand,
        test_elements: Operand | Sequence[complex] | np.ndarray[Any, Any],
        assume_unique: bool = False,  # noqa: ARG002 - as in NumPy
        invert: bool = False,
        *,
        kind: Literal["sort", "table"] | None = None,
    ) -> Request[GpuRef]:
        """Test of each element whether it is among others; as ``numpy.isin``. NaN is not.

        The others are a ref, an expression, or up to 64 KiB of the program's. ``assume_unique`` and
        ``kind`` change nothing here.
        """
        given = self._operand(element, "element")
        others: Any = test_elements
        if not isinstance(others, Operand):
            others = np.asarray(others)
            as_dtype(others.dtype)  # or it is refused
        if kind not in (None, "sort", "table"):
            raise ValueError(f"Invalid kind: '{kind}'. Please use None, 'sort' or 'table'.")

        def build(steps: CallSteps) -> GpuRef:
            if isinstance(others, Operand):
                known = steps.flat(steps.ref(others, "test_elements"))
            else:
                known = steps.upload(others.reshape(-1), as_dtype(others.dtype))
            return self._among(steps, given, known, invert=bool(invert))

        return self._several("isin", build)

    def _among(self, steps: CallSteps, x: Operand, known: GpuRef, *, invert: bool) -> GpuRef:
        """Return whether each element is in a row."""
        if not known.size or 0 in x.shape:
            return steps.evaluate(broadcast_constant(x.shape, _BOOL, invert))
        if known.size <= _FEW or "c" in (x.dtype.kind, known.dtype.kind):
            each = _NUMPY.expand_dims(x, -1)
            made: Operand = (each != known).all(-1) if invert else (each == known).any(-1)
            return steps.evaluate(made)
        dtype = common((x.dtype, known.dtype))
        if NAMES[dtype] in FP8:
            dtype = FLOAT32
        values = steps.contiguous(steps.cast(steps.ref(x, "element"), dtype))
        row, _ = self._rows(steps, steps.cast(known, dtype), 0, descending=False, order=False)
        target = steps.output(x.shape, _BOOL)
        to, *reads = (each.addressable_block for each in (target, values, row))
        message = FindAmong(
            to.address,
            reads[0].address,
            reads[1].address,
            values.size,
            row.size,
            NAMES[dtype],
            invert,
        )
        steps.submit("array.isin", message, reads, [to])
        return target

    @op
    def union1d(self, ar1: GpuRef, ar2: GpuRef) -> Request[GpuRef]:
        """Find the different elements of two arrays, sorted; as ``numpy.union1d``."""
        one, other = self._ref(ar1, "ar1"), self._ref(ar2, "ar2")
        flags = False, False, False
        return self._unique(one, flags, operator.itemgetter(0), equal_nan=True, more=(other,))

    @op
    def intersect1d(
        self,
        ar1: GpuRef,
        ar2: GpuRef,
        assume_unique: bool = False,  # noqa: ARG002 - as in NumPy
        return_indices: bool = False,
    ) -> Request[GpuRef | tuple[GpuRef, GpuRef, GpuRef]]:
        """Find the elements that two arrays have in common, sorted; as ``numpy.intersect1d``."""
        one, other = self._ref(ar1, "ar1"), self._ref(ar2, "ar2")
        dtype = common((one.dtype, other.dtype))

        def build(steps: CallSteps) -> GpuRef | tuple[GpuRef, GpuRef, GpuRef]:
            own: Any = self.as_requests(steps.preparer.home)
            ask: Any = steps.preparer.perform
            first, places = ask(own.unique(one, return_index=True))
            second, others = ask(own.unique(other, return_index=True))
            mask = ask(own.isin(first, second))
            made = steps.cast(ask(own.getitem(first, mask)), dtype)
            if not return_indices:
                return made
            back = ask(own.isin(second, first))
            return made, ask(own.getitem(places, mask)), ask(own.getitem(others, back))

        return self._several("intersect1d", build)

    @op
    def setdiff1d(self, ar1: GpuRef, ar2: GpuRef, assume_unique: bool = False) -> Request[GpuRef]:
        """Find the elements of one array that another has not; as ``numpy.setdiff1d``."""
        one, other = self._ref(ar1, "ar1"), self._ref(ar2, "ar2")

        def build(steps: CallSteps) -> GpuRef:
            own: Any = self.as_requests(steps.preparer.home)
            ask: Any = steps.preparer.perform
            row = ask(own.ascontiguousarray(one) if assume_unique else own.unique(one)).reshape(-1)
            found: GpuRef = ask(own.getitem(row, ask(own.isin(row, other, invert=True))))
            return found

        return self._several("setdiff1d", build)

    @op
    def lexsort(self, keys: Sequence[GpuRef] | GpuRef, axis: SupportsIndex = -1) -> Request[GpuRef]:
        """Return the indices that sort by several keys, int64; as ``numpy.lexsort``.

        The last one of the keys, which are refs of one shape or the rows of a ref, counts most.
        """
        if isinstance(keys, GpuRef):
            rows = [keys[at] for at in range(len(keys))]
        else:
            rows = self._refs(keys, "keys")
        if not rows:
            raise TypeError("need sequence of keys with len > 0 in lexsort")
        if len({row.shape for row in rows}) > 1:
            raise ValueError("all keys need to be the same shape")
        at = operator.index(axis)
        if flattening(at, rows[0].shape) is None:
            rows = [row.reshape(1) for row in rows]
        normalize_axis_index(at, rows[0].ndim)

        def build(steps: CallSteps) -> GpuRef:
            own: Any = self.as_requests(steps.preparer.home)
            made: GpuRef = steps.do(own.argsort(rows[0], at))
            for row in rows[1:]:
                there = steps.do(own.argsort(steps.do(own.take_along_axis(row, made, at)), at))
                made = steps.do(own.take_along_axis(made, there, at))
            return made.reshape(()) if not keys[0].ndim else made

        return self._several("lexsort", build)

    @op
    def unravel_index(
        self, indices: Operand, shape: int | tuple[int, ...], order: Order = "C"
    ) -> Request[tuple[GpuRef, ...]]:
        """Return the indices along each axis of flat ones, int64; as ``numpy.unravel_index``.

        Indices out of bounds are not found out: they wrap around.
        """
        given, sizes = self._operand(indices, "indices"), as_shape(shape)
        _require_order_name(order)
        if given.dtype.kind not in "iu":
            raise TypeError("only int indices permitted")
        if 0 in sizes and 0 not in given.shape:
            raise ValueError(f"shape must have elements, as indices are given, not be {sizes}")

        def build(steps: CallSteps) -> tuple[GpuRef, ...]:
            flat = steps.cast(steps.ref(given, "indices"), INT64)
            found = unraveled(flat, sizes if order == "C" else sizes[::-1])
            return steps.evaluate_all(found if order == "C" else found[::-1]) if found else ()

        return self._several("unravel_index", build)

    @op
    def ravel_multi_index(
        self,
        multi_index: Sequence[Operand],
        dims: int | tuple[int, ...],
        mode: Mode | tuple[Mode, ...] | None = None,
        order: Order = "C",
    ) -> Request[GpuRef]:
        """Return the flat indices of those along each axis, int64; ``numpy.ravel_multi_index``.

        ``mode`` says what indices out of bounds mean, as for ``take``: they wrap around by default,
        where NumPy raises an error.
        """
        sizes = as_shape(dims)
        modes = mode if isinstance(mode, tuple) else (mode,) * len(sizes)
        _require_order_name(order)
        if len(multi_index) != len(sizes) or len(modes) != len(sizes):
            raise ValueError(f"parameter multi_index must be a sequence of length {len(sizes)}")
        given = [self._operand(each, f"multi_index[{at}]") for at, each in enumerate(multi_index)]
        if any(each.dtype.kind not in "iu" for each in given):
            raise TypeError("only int indices permitted")
        ways = [mode_of(each) for each in modes]

        def build(steps: CallSteps) -> GpuRef:
            axes: list[Operand] = []
            for at, (each, way, n) in enumerate(zip(given, ways, sizes, strict=True)):
                if way == "raise":
                    own: Any = self.as_requests(steps.preparer.home)
                    ref: Any = steps.preparer.perform(own.astype(each, INT64))
                    try:  # negative ones are outside, too
                        self._require_inside(steps, ref.view(np.uint64), n, at)
                    except IndexError as error:
                        raise ValueError("invalid entry in coordinates array") from error
                whole = cast(each, INT64)
                if way == "clip":
                    axes.append(ufunc("minimum", ufunc("maximum", whole, 0), n - 1))
                else:
                    axes.append(ufunc("remainder", whole, n))
            made: Any = 0
            pairs = [*zip(axes, sizes, strict=True)]
            for each, n in pairs if order == "C" else pairs[::-1]:
                made = made * n + each
            return steps.evaluate(made)

        return self._several("ravel_multi_index", build)


def _require_order_name(order: object) -> None:
    if order not in ("C", "F"):
        raise ValueError(f"order must be one of 'C' or 'F', not {order!r}")
