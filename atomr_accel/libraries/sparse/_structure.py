"""Making, converting and checking sparse matrices, by steps of ``device.array``.

Every conversion uses coordinates: an element's place is one number, ``row * columns + column``, and
places are sorted. All formats and both dtypes of indices share this method. It is stable: duplicate
elements keep their order, and are not added up.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from ..._dtypes import DTYPES
from ..._errors import Unsupported
from ...arrays import GpuRef
from ...arrays.expressions import Operand, cast
from ...arrays.expressions.expression import broadcast_constant
from ...ops import (
    D,
    op,
    op_family,
    require_dtype,
    require_readable,
    require_shape,
    require_writable,
)
from ...wire.options import whole
from ..array.choosing import read_number
from .array import SparseRef
from .part import FLOATS, SparsePart, require_sparse
from .wire._messages import Format

if TYPE_CHECKING:
    from ...ops import Preparer, Request
    from ..array.steps import CallSteps

_INT64: Final = DTYPES["int64"]
_INDICES: Final = ("int32", "int64")
_MOST_PLACES: Final = 2**63 - 1
To = Literal["csr", "csc", "coo"]


class Coordinates(NamedTuple):
    """The elements of a matrix with their rows and columns, in any order."""

    row: GpuRef
    col: GpuRef
    data: GpuRef


class SparseStructure(SparsePart[D]):
    """Sparse matrices of refs, conversions between formats, and checks."""

    # --- of refs ------------------------------------------------------------------------------

    def csr_array(self, arg1: tuple[GpuRef, GpuRef, GpuRef], shape: tuple[int, int]) -> SparseRef:
        """A matrix by rows, of refs; as ``scipy.sparse.csr_array((data, indices, indptr))``.

        Nothing is copied and nothing executed; what the refs hold is not looked at, which
        ``check`` does.

        Args:
            arg1: data, indices and indptr: one dimension each, contiguous. Indices are both
                int32 or both int64.
            shape: rows and columns.
        """
        return self._compressed("csr", arg1, shape)

    def csc_array(self, arg1: tuple[GpuRef, GpuRef, GpuRef], shape: tuple[int, int]) -> SparseRef:
        """A matrix by columns, of refs; as ``csr_array``.

        Args:
            arg1: data, indices (of rows) and indptr (of columns).
            shape: rows and columns.
        """
        return self._compressed("csc", arg1, shape)

    def bsr_array(self, arg1: tuple[GpuRef, GpuRef, GpuRef], shape: tuple[int, int]) -> SparseRef:
        """A matrix of dense blocks, of refs; as ``csr_array``.

        Args:
            arg1: data of shape (k, r, c), the columns of blocks, and where rows of blocks begin.
            shape: rows and columns, multiples of r and c.
        """
        return self._compressed("bsr", arg1, shape)

    def coo_array(
        self, arg1: tuple[GpuRef, tuple[GpuRef, GpuRef]], shape: tuple[int, int]
    ) -> SparseRef:
        """A matrix by coordinates, of refs; as ``scipy.sparse.coo_array((data, (row, col)))``.

        cuSPARSE wants elements by rows for products, so a matrix that is not sorted has to be
        converted first.

        Args:
            arg1: data, and the rows and columns of the elements.
            shape: rows and columns.
        """
        if not (_is_of(arg1, 2) and _is_of(arg1[1], 2)):
            raise ValueError("arg1 must be (data, (row, col))")
        data, (row, col) = arg1
        return self._made("coo", data, row, col, shape)

    def _compressed(
        self, form: Format, arg1: tuple[GpuRef, GpuRef, GpuRef], shape: tuple[int, int]
    ) -> SparseRef:
        if not _is_of(arg1, 3):
            raise ValueError("arg1 must be (data, indices, indptr)")
        data, indices, indptr = arg1
        return self._made(form, data, indptr, indices, shape)

    def _made(
        self, form: Format, data: GpuRef, major: GpuRef, indices: GpuRef, shape: tuple[int, int]
    ) -> SparseRef:
        rows, columns = _pair(shape, "shape", least=0)
        parts = {"data": data, "indptr": major, "indices": indices}
        for name, part in parts.items():
            if not isinstance(part, GpuRef):
                raise TypeError(f"{name} must be a GpuRef, not {type(part).__name__}")
            if not part.contiguous:
                raise ValueError(f"{name} must be contiguous: {part!r}")
        if data.dtype.name not in FLOATS:
            raise TypeError(f"data is {data.dtype.name}; it must be one of {', '.join(FLOATS)}")
        if indices.dtype.name not in _INDICES or major.dtype is not indices.dtype:
            raise TypeError(
                f"indices are {indices.dtype.name} and {major.dtype.name}; both must be int32, or "
                "both int64"
            )
        made = SparseRef(form, (rows, columns), data, major, indices)
        if data.ndim != (3 if form == "bsr" else 1):
            raise ValueError(f"data must have a shape that {form} takes, not {data.shape}")
        r, c = made.blocksize
        if form == "bsr" and (not r or not c or rows % r or columns % c):
            raise ValueError(f"shape {shape} is no multiple of blocks of shape {(r, c)}")
        majors = {"csr": rows + 1, "csc": columns + 1, "bsr": rows // r + 1}
        expected = majors.get(form, data.shape[0])
        if major.shape != (expected,):
            raise ValueError(f"indptr must have shape ({expected},), not {major.shape}")
        if indices.shape != data.shape[:1]:
            raise ValueError(f"there are {data.shape[0]} elements and {indices.size} indices")
        return made

    # --- conversions --------------------------------------------------------------------------

    @op_family
    def tocoo(self, _name: str, a: SparseRef) -> Request[SparseRef]:
        """The matrix by coordinates, in the order in which it is stored.

        Args:
            a: any format. The result shares the parts that do not change.
        """
        form: Any = _name.removeprefix("to")
        return self._steps(_name, lambda steps: self._to(steps, a, form))

    tocsr: Final = tocoo.like(
        """The matrix by rows, with sorted indices.

        Unlike SciPy's, it keeps duplicate elements: ``sum_duplicates`` adds them up.

        Args:
            a: any format; one that is ``csr`` is returned itself.

        Raises:
            Unsupported: more places than an int64 counts.
        """
    )

    tocsc: Final = tocoo.like(
        """The matrix by columns, with sorted indices; as ``tocsr``.

        Args:
            a: any format; one that is ``csc`` is returned itself.
        """
    )

    @op
    def sort_indices(self, a: SparseRef) -> Request[SparseRef]:
        """Return a copy of the matrix with sorted indices.

        Args:
            a: ``csr``, ``csc`` or ``coo``, which is sorted by rows and then by columns.
        """
        form = require_elements(a)

        def build(steps: CallSteps) -> SparseRef:
            found = self._coordinates(steps, a)
            return self._assembled(steps, found, a.shape, form)

        return self._steps("sort_indices", build)

    @op
    def sum_duplicates(self, a: SparseRef) -> Request[SparseRef]:
        """The matrix with each place stored once, and its indices sorted.

        How many places there are only the device knows, so this waits for it.

        Args:
            a: ``csr``, ``csc`` or ``coo``.
        """
        form = require_elements(a)

        def build(steps: CallSteps) -> SparseRef:
            if not a.data.size:
                return a
            found, places, count = self._grouped(steps, a, form == "csc", (1, 1))
            parts = [
                steps.do(self._array.setitem(steps.output((count,), each.dtype), places, each))
                for each in (found.row, found.col)
            ]
            data = steps.evaluate(broadcast_constant((count,), a.dtype))
            steps.do(self._array.add_at(data, places, found.data))
            return self._pointed(steps, Coordinates(parts[0], parts[1], data), a.shape, form)

        return self._steps("sum_duplicates", build)

    @op
    def tobsr(self, a: SparseRef, blocksize: tuple[int, int]) -> Request[SparseRef]:
        """The matrix as dense blocks.

        How many blocks there are only the device knows, so this waits for it. Elements that are
        there more than once are added up.

        Args:
            a: ``csr``, ``csc`` or ``coo``.
            blocksize: rows and columns of a block, which divide those of the matrix.
        """
        require_elements(a)
        r, c = _pair(blocksize, "blocksize", least=1)
        rows, columns = a.shape
        if rows % r or columns % c:
            raise ValueError(f"shape {a.shape} is no multiple of blocks of shape {(r, c)}")

        def build(steps: CallSteps) -> SparseRef:
            index = a.index_dtype
            if not a.data.size:
                majors = steps.evaluate(broadcast_constant((rows // r + 1,), index))
                data = steps.output((0, r, c), a.dtype)
                return SparseRef("bsr", a.shape, data, majors, a.indices)
            found, places, count = self._grouped(steps, a, False, (r, c))
            row, col = cast(found.row, _INT64), cast(found.col, _INT64)
            blocks = [
                steps.do(
                    self._array.setitem(
                        steps.output((count,), index), places, steps.evaluate(cast(each, index))
                    )
                )
                for each in (row // r, col // c)
            ]
            inside = steps.evaluate((places * r + row % r) * c + col % c)
            data = steps.evaluate(broadcast_constant((count * r * c,), a.dtype))
            steps.do(self._array.add_at(data, inside, found.data))
            majors = self._pointers(steps, blocks[0], rows // r)
            return SparseRef("bsr", a.shape, data.reshape(count, r, c), majors, blocks[1])

        return self._steps("tobsr", build)

    @op
    def todense(self, a: SparseRef, *, out: GpuRef | None = None) -> Request[GpuRef]:
        """The matrix as a dense one; elements that are there more than once are added up.

        Args:
            a: any format.
            out: where it goes: of the matrix's shape and dtype, not sealed.
        """
        require_sparse(a, "a")

        def build(steps: CallSteps) -> GpuRef:
            found = self._coordinates(steps, a)
            if out is not None:
                require_writable(out, steps.preparer.memory, "out", strided=True)
                require_shape(out, a.shape, "out")
                require_dtype(out, a.dtype, "out", "a")
            made = steps.evaluate(broadcast_constant(a.shape, a.dtype), out)
            if found.data.size:
                steps.do(self._array.add_at(made, (found.row, found.col), found.data))
            return made

        return self._steps("todense", build)

    @op
    def fromdense(
        self,
        x: GpuRef,
        format: To = "csr",  # noqa: A002 - SciPy's name
        *,
        index_dtype: Literal["int32", "int64"] = "int32",
    ) -> Request[SparseRef]:
        """The elements of a dense matrix that are not zero.

        How many there are only the device knows, so this waits for it.

        Args:
            x: two dimensions, of a dtype that sparse matrices have.
            format: ``"csr"``, ``"csc"`` or ``"coo"``.
            index_dtype: of the indices.
        """
        self._require_ref(x, "x")
        if x.dtype.name not in FLOATS:
            raise TypeError(f"x is {x.dtype.name}; it must be one of {', '.join(FLOATS)}")
        if x.ndim != 2:
            raise ValueError(f"x must have two dimensions, not shape {x.shape}")
        rows, columns = x.shape
        require_format(format)
        if index_dtype not in _INDICES:
            raise ValueError(f"index_dtype must be 'int32' or 'int64', not {index_dtype!r}")

        def build(steps: CallSteps) -> SparseRef:
            seen = x.T if format == "csc" else x
            found = steps.preparer.perform(self._array.nonzero(seen))
            assert found is not None
            data = steps.do(self._array.getitem(seen, tuple(found)))
            one, other = (steps.evaluate(cast(each, DTYPES[index_dtype])) for each in found)
            row, col = (other, one) if format == "csc" else (one, other)
            return self._pointed(steps, Coordinates(row, col, data), (rows, columns), format)

        return self._steps("fromdense", build)

    @op
    def check(self, a: SparseRef) -> Request[SparseRef]:
        """Check the indices of a matrix on the device, and wait for the result.

        Other calls on CUDA do not check them: an index out of bounds is an illegal address, which
        is a fault.

        Args:
            a: any format.

        Returns:
            The matrix itself.

        Raises:
            ValueError: an index out of bounds, or an indptr that does not begin with 0, falls, or
                ends elsewhere than at the number of elements.
        """
        require_sparse(a, "a")

        def build(steps: CallSteps) -> SparseRef:
            wrong = steps.preparer.perform(
                read_number(self._cub, _wrong(steps.preparer, a), "check")
            )
            if wrong:
                raise ValueError(
                    f"{a!r} has {wrong} indices that are out of bounds or out of order; on CUDA "
                    "they would be illegal addresses"
                )
            return a

        return self._steps("check", build)

    # --- steps --------------------------------------------------------------------------------

    def _to(self, steps: CallSteps, a: SparseRef, form: To) -> SparseRef:
        require_sparse(a, "a")
        if a.format == form:
            for part in a.parts:
                require_readable(part, steps.preparer.memory, "a")
            return a
        found = self._coordinates(steps, a)
        if form == "coo":
            return SparseRef("coo", a.shape, found.data, found.row, found.col)
        return self._assembled(steps, found, a.shape, form)

    def _coordinates(self, steps: CallSteps, a: SparseRef) -> Coordinates:
        """The elements of any matrix with their places."""
        major, indices, data = (steps.preparer.stand_in(part) for part in a.parts)
        for part in (major, indices, data):
            require_readable(part, steps.preparer.memory, "a")
        if a.format == "coo":
            return Coordinates(major, indices, data)
        majors = self._expanded(steps, major, indices.size)
        if a.format == "csr":
            return Coordinates(majors, indices, data)
        if a.format == "csc":
            return Coordinates(indices, majors, data)
        r, c = a.blocksize
        shape = data.shape
        within = [
            steps.do(self._array.arange(extent, dtype=a.index_dtype.name)) for extent in (r, c)
        ]
        row = majors[:, None, None] * r + within[0][None, :, None]
        col = indices[:, None, None] * c + within[1][None, None, :]
        flat = [
            steps.evaluate(cast(each + _zeros(shape, a.index_dtype), a.index_dtype)).reshape(-1)
            for each in (row, col)
        ]
        return Coordinates(flat[0], flat[1], data.reshape(-1))

    def _expanded(self, steps: CallSteps, indptr: GpuRef, nnz: int) -> GpuRef:
        """Which row, or column, each element is of."""
        if not nnz:
            return steps.output((0,), indptr.dtype)
        places = steps.do(self._array.arange(nnz, dtype=indptr.dtype.name))
        behind = steps.do(self._array.searchsorted(indptr, places, side="right"))
        return steps.evaluate(cast(behind - 1, indptr.dtype))

    def _pointers(self, steps: CallSteps, majors: GpuRef, count: int) -> GpuRef:
        """Return the start of each row among the sorted rows of elements."""
        ends = steps.do(self._array.arange(count + 1, dtype=majors.dtype.name))
        return steps.evaluate(cast(steps.do(self._array.searchsorted(majors, ends)), majors.dtype))

    def _key(
        self, found: Coordinates, shape: tuple[int, int], by_columns: bool, block: tuple[int, int]
    ) -> Operand:
        """An element's place as one number."""
        if math.prod(shape) > _MOST_PLACES:
            raise Unsupported(f"a matrix of shape {shape}: its places do not fit an int64")
        row, col = (
            cast(each, _INT64) // extent if extent > 1 else cast(each, _INT64)
            for each, extent in zip((found.row, found.col), block, strict=True)
        )
        if by_columns:
            return col * (shape[0] // block[0]) + row
        return row * (shape[1] // block[1]) + col

    def _assembled(
        self, steps: CallSteps, found: Coordinates, shape: tuple[int, int], form: Format
    ) -> SparseRef:
        """The elements sorted, in a format."""
        if found.data.size:
            key = steps.evaluate(self._key(found, shape, form == "csc", (1, 1)))
            order = steps.do(self._array.argsort(key))
            found = Coordinates(*(steps.do(self._array.take(each, order)) for each in found))
        return self._pointed(steps, found, shape, form)

    def _pointed(
        self, steps: CallSteps, found: Coordinates, shape: tuple[int, int], form: Format
    ) -> SparseRef:
        """Elements that are sorted, in a format."""
        if form == "coo":
            return SparseRef("coo", shape, found.data, found.row, found.col)
        majors, indices = found.row, found.col
        if form == "csc":
            majors, indices = indices, majors
        pointers = self._pointers(steps, majors, shape[form == "csc"])
        return SparseRef(form, shape, found.data, pointers, indices)

    def _grouped(
        self, steps: CallSteps, a: SparseRef, by_columns: bool, block: tuple[int, int]
    ) -> tuple[Coordinates, GpuRef, int]:
        """The elements, the number of each one's place, or block, among those there are; how many.

        It is asked for before the steps of the call.
        """

        def build(inner: CallSteps) -> tuple[Coordinates, GpuRef, GpuRef]:
            found = self._coordinates(inner, a)
            place = inner.evaluate(self._key(found, a.shape, by_columns, block))
            order = inner.do(self._array.argsort(place))
            ordered = inner.do(self._array.take(place, order))
            begins = inner.evaluate(broadcast_constant(ordered.shape, _INT64))
            inner.evaluate(cast(ordered[1:] != ordered[:-1], _INT64), begins[1:])
            numbers = inner.do(self._array.cumsum(begins))
            places = inner.output(ordered.shape, _INT64)
            inner.do(self._array.setitem(places, order, numbers))
            return found, places, numbers

        made = steps.preparer.perform(self._steps("places", build))
        assert made is not None
        found, places, numbers = made
        last = steps.preparer.perform(read_number(self._cub, numbers[-1:].sum(), "places"))
        return found, places, (last or 0) + 1


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Operand:
    return broadcast_constant(shape, dtype)


def _wrong(preparer: Preparer, a: SparseRef) -> Any:
    """Return the number of invalid indices."""
    major, indices, _ = (preparer.stand_in(part) for part in a.parts)
    rows, columns = a.shape
    bound = rows if a.format == "csc" else columns // a.blocksize[1]
    wrong = _outside(indices, bound)
    if a.format == "coo":
        return wrong + _outside(major, rows)
    ends = cast(major[:1] != 0, _INT64).sum() + cast(major[-1:] != a.data.shape[0], _INT64).sum()
    return wrong + ends + cast(major[1:] < major[:-1], _INT64).sum()


def _outside(indices: GpuRef, bound: int) -> Any:
    return cast((indices < 0) | (indices >= bound), _INT64).sum()


def _is_of(thing: object, count: int) -> bool:
    """Return True for a tuple or list of ``count`` elements."""
    return isinstance(thing, (tuple, list)) and len(thing) == count


def _pair(extents: tuple[int, int], name: str, *, least: int) -> tuple[int, int]:
    """Rows and columns."""
    if not _is_of(extents, 2):
        raise ValueError(f"{name} must be rows and columns, not {extents!r}")
    one, other = (whole(each, f"an extent of {name}", least=least) for each in extents)
    return one, other


def require_format(given: object) -> None:
    """Check the format that a result is to have."""
    if given not in ("csr", "csc", "coo"):
        raise ValueError(f"format must be 'csr', 'csc' or 'coo', not {given!r}")


def require_elements(a: SparseRef) -> Format:
    """Return the format of a matrix of single elements."""
    require_sparse(a, "a")
    if a.format == "bsr":
        raise TypeError("a is bsr; convert it first: await device.sparse.tocsr(a)")
    return a.format
