"""Sums, products by elements, parts and joins of sparse matrices, by steps of ``device.array``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from ..._dtypes import DTYPES, as_dtype
from ..._errors import Unsupported, said_of
from ...arrays import GpuRef
from ...arrays.expressions import Number, Operand, cast, constant
from ...arrays.expressions.expression import broadcast_constant, where
from ...arrays.expressions.promotion import common
from ...ops import D, op, op_family
from ...wire.options import whole
from ._structure import Coordinates, SparseStructure, To, require_elements, require_format
from .array import SparseRef
from .part import FLOATS, require_sparse

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import DTypeLike

    from ...ops import Request
    from ..array.steps import CallSteps

Axis = Literal[0, 1, -1, -2] | None
_INT64 = DTYPES["int64"]


class SparseArithmetic(SparseStructure[D]):
    """Functions that SciPy's sparse arrays have as operators and methods.

    Results are ``csr`` unless there is a ``format``. Elements that occur more than once count as
    their sum; ``add`` keeps them, and ``sum_duplicates`` adds them up.
    """

    @op
    def add(self, a: SparseRef, b: SparseRef) -> Request[SparseRef]:
        """The sum of two matrices; as SciPy's ``a + b``, but with all elements of both."""
        require_sparse(a, "a")
        require_sparse(b, "b")
        if a.shape != b.shape:
            raise ValueError(f"a and b must have one shape, not {a.shape} and {b.shape}")
        return self._joined("add", [a, b], [(0, 0), (0, 0)], a.shape, "csr")

    @op
    def multiply(self, a: SparseRef, other: SparseRef | Operand | Number) -> Request[SparseRef]:
        """Products of elements; as SciPy's ``a.multiply(other)`` and ``a * number``.

        Args:
            a: any format but ``bsr``, which takes numbers only.
            other: a number, a dense array or expression that broadcasts to the shape of ``a``, or
                a sparse matrix of its shape.

        Returns:
            A matrix of the same places; they share the indices of ``a``. Zeros, as where a sparse
            ``other`` has no element, stay until ``eliminate_zeros``. Its dtype is that of ``a``,
            or of a sparse ``other``, if that is wider.

        Raises:
            TypeError: ``a`` is ``bsr``, and ``other`` no number.
        """
        require_sparse(a, "a")
        if isinstance(other, SparseRef):
            return self._matched(a, other)
        if not isinstance(other, Operand):
            if not isinstance(other, int | float | complex | np.number):
                raise TypeError(
                    f"other must be a number, a dense array or a matrix, not {said_of(other)}"
                )
            return self._with_data("multiply", a, lambda data: data * other)
        if not other.shape:
            return self._with_data("multiply", a, lambda data: data * other)
        if np.broadcast_shapes(other.shape, a.shape) != a.shape:
            raise ValueError(f"other must broadcast to shape {a.shape}, not shape {other.shape}")

        def build(steps: CallSteps) -> SparseRef:
            found = self._coordinates(steps, a)
            if not found.data.size:
                return a
            dense = steps.ref(other, "other").broadcast_to(a.shape)
            factors = steps.do(self._array.getitem(dense, (found.row, found.col)))
            product: Any = found.data * factors
            return a.with_data(steps.evaluate(cast(product, a.dtype)))

        require_elements(a)
        return self._steps("multiply", build)

    @op
    def kron(self, a: SparseRef, b: SparseRef, format: To = "csr") -> Request[SparseRef]:  # noqa: A002
        """The Kronecker product of two matrices; as ``scipy.sparse.kron``.

        Args:
            a: any format.
            b: any format.
            format: ``"csr"``, ``"csc"`` or ``"coo"``.

        Raises:
            ValueError: another format.
            Unsupported: there are elements, and an int64 does not hold all places of the product.
        """
        require_sparse(a, "a")
        require_sparse(b, "b")
        require_format(format)
        dtype = common((a.dtype, b.dtype))
        shape = (a.shape[0] * b.shape[0], a.shape[1] * b.shape[1])
        wide = _INT64 in (a.index_dtype, b.index_dtype) or max(shape) > 2**31 - 1
        index = DTYPES["int64" if wide else "int32"]

        def build(steps: CallSteps) -> SparseRef:
            one, two = self._coordinates(steps, a), self._coordinates(steps, b)
            places = [
                steps.evaluate(cast(cast(major[:, None], index) * by + minor[None], index))
                for major, minor, by in zip(one[:2], two[:2], b.shape, strict=True)
            ]
            data = cast(one.data[:, None], dtype) * cast(two.data[None], dtype)
            made = Coordinates(
                places[0].reshape(-1), places[1].reshape(-1), steps.evaluate(data).reshape(-1)
            )
            return self._assembled(steps, made, shape, format)

        return self._steps("kron", build)

    @op
    def astype(self, a: SparseRef, dtype: DTypeLike) -> Request[SparseRef]:
        """Convert elements to another dtype; the result shares the indices of ``a``."""
        require_sparse(a, "a")
        kind = as_dtype(dtype)
        if kind.name not in FLOATS:
            raise TypeError(f"dtype must be one of {', '.join(FLOATS)}, not {kind.name}")
        return self._with_data("astype", a, lambda data: cast(data, kind))

    @op_family
    def sum(self, _name: str, a: SparseRef, axis: Axis = None) -> Request[GpuRef]:
        """Sum all elements, or those of each column (``axis=0``) or row (1), as a dense array."""
        require_sparse(a, "a")
        if axis not in (None, 0, 1, -1, -2):
            raise ValueError(f"axis must be None, 0 or 1, not {axis!r}")
        count = 1
        if _name == "mean":
            count = int(np.prod(a.shape) if axis is None else a.shape[axis])

        def build(steps: CallSteps) -> GpuRef:
            found = self._coordinates(steps, a)
            if axis is None:
                total: Any = found.data.sum()
            else:
                by_columns = axis in (0, -2)
                made = steps.evaluate(broadcast_constant((a.shape[by_columns],), a.dtype))
                if found.data.size:
                    places = found.col if by_columns else found.row
                    steps.do(self._array.add_at(made, places, found.data))
                if count == 1:
                    return made
                total = made
            # A count may be beyond float16, whose largest number is 65,504.
            wide = a.dtype if a.dtype.itemsize > 2 else np.dtype(np.float32)
            return steps.evaluate(cast(cast(total, wide) / constant(count, wide), a.dtype))

        return self._steps(_name, build)

    mean: Final = sum.like("""Means over all places, with zeros, as ``sum`` takes them.""")  # noqa: A003

    @op
    def diagonal(self, a: SparseRef, k: int = 0) -> Request[GpuRef]:
        """The elements of a diagonal, ``k`` above the main one, as a dense vector."""
        require_sparse(a, "a")
        above = whole(k, "k")
        rows, columns = a.shape
        length = min(rows + min(above, 0), columns - max(above, 0))
        if length < 0:
            raise ValueError(f"k must be a diagonal of shape {a.shape}, not {above}")

        def build(steps: CallSteps) -> GpuRef:
            made = steps.evaluate(broadcast_constant((length,), a.dtype))
            found = self._coordinates(steps, a)
            if length and found.data.size:
                row, col = (cast(each, _INT64) for each in (found.row, found.col))
                on: Any = col - row == above
                place: Any = row + min(above, 0)
                places = steps.evaluate(where(on, place, constant(0, _INT64)))
                data = steps.evaluate(where(on, found.data, constant(0, a.dtype)))
                steps.do(self._array.add_at(made, places, data))
            return made

        return self._steps("diagonal", build)

    @op_family
    def tril(
        self,
        _name: str,
        a: SparseRef,
        k: int = 0,
        format: To = "csr",  # noqa: A002
    ) -> Request[SparseRef]:
        """The elements on a diagonal and below; as ``scipy.sparse.tril``.

        How many there are only the device knows, so this waits for it.
        """
        above = whole(k, "k")

        def chosen(found: Coordinates) -> Any:
            right = found.col - found.row
            return right <= above if _name == "tril" else right >= above

        return self._kept(_name, a, format, chosen)

    triu: Final = tril.like("""The elements on a diagonal and above; as ``tril``.""")

    @op
    def eliminate_zeros(self, a: SparseRef) -> Request[SparseRef]:
        """The elements that are not zero, in the format of ``a``; waits as ``tril``."""
        require_sparse(a, "a")
        if a.format == "bsr":
            raise TypeError("a is bsr; convert it first: await device.sparse.tocsr(a)")
        return self._kept("eliminate_zeros", a, a.format, lambda found: found.data != 0)

    @op_family
    def vstack(
        self,
        _name: str,
        blocks: Sequence[SparseRef],
        format: To = "csr",  # noqa: A002
    ) -> Request[SparseRef]:
        """Put matrices below each other; as ``scipy.sparse.vstack``."""
        axis = int(_name == "hstack")
        require_format(format)
        if not blocks:
            raise ValueError("blocks must be one matrix or more, not none")
        for each in blocks:
            require_sparse(each, "blocks")
        other = {each.shape[1 - axis] for each in blocks}
        if len(other) > 1:
            raise ValueError(f"blocks must agree in axis {1 - axis}, not have {sorted(other)}")
        starts = np.cumsum([0, *[each.shape[axis] for each in blocks]]).tolist()
        offsets = [(start, 0) if axis == 0 else (0, start) for start in starts[:-1]]
        (extent,) = other
        shape = (starts[-1], extent) if axis == 0 else (extent, starts[-1])
        return self._joined(_name, blocks, offsets, shape, format)

    hstack: Final = vstack.like("""Put matrices beside each other; as ``scipy.sparse.hstack``.""")

    @op
    def eye(
        self,
        m: int,
        n: int | None = None,
        k: int = 0,
        dtype: DTypeLike = np.float64,
        format: To = "csr",  # noqa: A002
    ) -> Request[SparseRef]:
        """Ones on a diagonal; as ``scipy.sparse.eye_array``, with int32 indices."""
        kind = as_dtype(dtype)
        shape = (whole(m, "m", least=0), whole(m if n is None else n, "n", least=0))
        length = max(0, min(shape[0] + min(k, 0), shape[1] - max(k, 0)))
        ones = broadcast_constant((length,), kind, 1)
        return self._diagonals("eye", [(ones, whole(k, "k"))], shape, format)

    @op
    def diags(
        self,
        diagonals: Sequence[Operand],
        offsets: Sequence[int],
        shape: tuple[int, int],
        format: To = "csr",  # noqa: A002
    ) -> Request[SparseRef]:
        """A matrix of diagonals; as ``scipy.sparse.diags_array``, with int32 indices.

        Args:
            diagonals: vectors of the lengths of the diagonals.
            offsets: how far each is above the main one.
            shape: rows and columns.
            format: ``"csr"``, ``"csc"`` or ``"coo"``.
        """
        if len(diagonals) != len(offsets) or not len(offsets):
            raise ValueError(
                f"diagonals and offsets must be equally many, not {len(diagonals)}, {len(offsets)}"
            )
        rows, columns = (whole(each, "shape", least=0) for each in shape)
        pairs = []
        for each, offset in zip(diagonals, offsets, strict=True):
            above = whole(offset, "offsets")
            length = min(rows + min(above, 0), columns - max(above, 0))
            if each.shape != (length,):
                raise ValueError(
                    f"diagonal {above} must have shape ({max(length, 0)},), not {each.shape}"
                )
            pairs.append((each, above))
        return self._diagonals("diags", pairs, (rows, columns), format)

    # --- steps ---------------------------------------------------------------------------------

    def _with_data(
        self, name: str, a: SparseRef, make: Callable[[GpuRef], Operand]
    ) -> Request[SparseRef]:
        def build(steps: CallSteps) -> SparseRef:
            made = make(steps.preparer.stand_in(a.data))
            if made.dtype.name not in FLOATS:
                raise TypeError(f"the result would be {made.dtype.name}, which matrices are not")
            return a.with_data(steps.evaluate(made))

        return self._steps(name, build)

    def _matched(self, a: SparseRef, b: SparseRef) -> Request[SparseRef]:
        """The elements of ``a`` times those of ``b`` in the same places."""
        require_elements(a)
        require_sparse(b, "other")
        if a.shape != b.shape:
            raise ValueError(f"other must have shape {a.shape}, not {b.shape}")
        dtype = common((a.dtype, b.dtype))

        def build(steps: CallSteps) -> SparseRef:
            one, two = self._coordinates(steps, a), self._coordinates(steps, b)
            count = two.data.shape[0]
            if not one.data.size or not count:
                return a.with_data(steps.evaluate(broadcast_constant(one.data.shape, dtype)))
            mine, keys = (
                steps.evaluate(self._key(each, a.shape, False, (1, 1))) for each in (one, two)
            )
            order = steps.do(self._array.argsort(keys))
            keys = steps.do(self._array.take(keys, order))
            data = steps.do(self._array.take(two.data, order))
            # The first of several elements in one place gets their sum.
            first = steps.do(self._array.searchsorted(keys, keys))
            sums = steps.evaluate(broadcast_constant(data.shape, dtype))
            steps.do(self._array.add_at(sums, first, cast(data, dtype)))
            found: Any = steps.do(self._array.searchsorted(keys, mine))
            at = steps.evaluate(where(found < count, found, count - 1))
            there: Any = steps.do(self._array.take(keys, at))
            factors = cast(steps.do(self._array.take(sums, at)), dtype)
            product: Any = cast(one.data, dtype) * factors
            zero = constant(0, dtype)
            return a.with_data(steps.evaluate(cast(where(there == mine, product, zero), dtype)))

        return self._steps("multiply", build)

    def _kept(
        self, name: str, a: SparseRef, form: Any, choose: Callable[[Coordinates], Any]
    ) -> Request[SparseRef]:
        """The elements that a mask chooses, in order."""
        require_sparse(a, "a")
        require_format(form)

        def coordinates(inner: CallSteps) -> Coordinates:
            return self._coordinates(inner, a)

        def build(steps: CallSteps) -> SparseRef:
            found = steps.preparer.perform(self._steps(name, coordinates))
            assert found is not None
            if found.data.size:
                places = steps.preparer.perform(self._array.flatnonzero(choose(found)))
                assert places is not None
                found = Coordinates(*(steps.do(self._array.take(each, places)) for each in found))
            return self._assembled(steps, found, a.shape, form)

        return self._steps(name, build)

    def _joined(
        self,
        name: str,
        blocks: Sequence[SparseRef],
        offsets: list[tuple[int, int]],
        shape: tuple[int, int],
        form: To,
    ) -> Request[SparseRef]:
        """The elements of all matrices, each moved by some rows and columns."""
        dtype = common(tuple(each.dtype for each in blocks))
        wide = any(each.index_dtype is _INT64 for each in blocks)
        index = DTYPES["int64" if wide or max(shape) > 2**31 - 1 else "int32"]

        def build(steps: CallSteps) -> SparseRef:
            parts = [self._coordinates(steps, each) for each in blocks]
            moved = [
                [
                    steps.evaluate(cast(cast(of, index) + by, index))
                    for of, by in zip((part.row, part.col), offset, strict=True)
                ]
                + [steps.evaluate(cast(part.data, dtype))]
                for part, offset in zip(parts, offsets, strict=True)
            ]
            whole = [
                steps.do(self._array.concatenate(list(each))) for each in zip(*moved, strict=True)
            ]
            return self._assembled(steps, Coordinates(*whole), shape, form)

        return self._steps(name, build)

    def _diagonals(
        self, name: str, pairs: list[tuple[Operand, int]], shape: tuple[int, int], form: To
    ) -> Request[SparseRef]:
        require_format(form)
        dtype = common(tuple(each.dtype for each, _ in pairs))
        if dtype.name not in FLOATS:
            raise TypeError(f"dtype must be one of {', '.join(FLOATS)}, not {dtype.name}")
        index = DTYPES["int32"]
        if max(shape) > 2**31 - 1:
            raise Unsupported(f"sparse.{name} of shape {shape}, which int32 does not hold")

        def build(steps: CallSteps) -> SparseRef:
            parts: list[list[GpuRef]] = []
            for values, above in pairs:
                count = values.shape[0]
                at = steps.do(self._array.arange(count, dtype="int32"))
                parts.append(
                    [
                        steps.evaluate(cast(at + max(-above, 0), index)),
                        steps.evaluate(cast(at + max(above, 0), index)),
                        steps.evaluate(cast(values, dtype)),
                    ]
                )
            whole = [
                steps.do(self._array.concatenate(list(each))) for each in zip(*parts, strict=True)
            ]
            return self._assembled(steps, Coordinates(*whole), shape, form)

        return self._steps(name, build)
