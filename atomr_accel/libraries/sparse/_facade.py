"""``device.sparse``: sparse matrices, under SciPy's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, final

from ..._dtypes import as_dtype
from ..._errors import Unsupported, said_of
from ...ops import D
from ...wire.options import whole
from ._ell import EllArrays, EllFormat, EllRef, blocked, sliced, unblocked, unsliced
from ._products import SparseProducts
from ._solves import Solves
from ._vectors import Vectors
from .array import FORMATS, SparseRef
from .direct import DirectSolves
from .part import FLOATS, require_sparse

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ...ops import Transfers


Stored = TypeVar("Stored", SparseRef, EllRef)


@final
class Sparse(SparseProducts[D], Solves[D], DirectSolves[D], Vectors[D]):
    """Sparse matrices: cuSPARSE on CUDA, ``scipy.sparse`` on the CPU.

    A sparse matrix is a ``SparseRef``, a plain value of refs: ``csr``, ``csc``, ``coo`` or ``bsr``,
    with int32 or int64 indices; or an ``EllRef``, for products alone. Calls do not check the
    contents of a matrix's refs: an index out of bounds is an illegal address, which is a fault on
    either backend. ``check``, and ``put(..., check=True)``, check them. Products take elements in
    any order, and add up duplicates.

    Conversions, checks and products of ``coo`` matrices are made of steps of ``device.array``, and
    need CUB on CUDA.

    All methods raise:
        TypeError: an object other than a sparse matrix or ref, a format or dtype that a method does
            not take, unequal dtypes.
        ValueError: shapes, lengths, blocks and options that do not fit, and operands that share
            memory with ``out``.
        GpuRefStale, GpuRefSealed: a ref that may not be read, or written; factors, plans and
            analyses of an older generation.
        Unsupported: in a batch or a recording, methods that wait for the device: ``put``, ``get``,
            ``seal``, ``free``, ``check``, ``splu``, and those whose results have as many elements
            as only it knows. On a deterministic device, sums whose order varies.
        OutOfMemory: no room for the result.

    Results go to ``out`` if it is given, else to a new buffer; methods that change an operand
    in place return it.
    """

    templated = True

    async def put(self, array: object, *, sealed: bool = False, check: bool = False) -> SparseRef:
        """Copy a sparse array of SciPy's to the device.

        Args:
            array: ``csr``, ``csc``, ``coo`` or ``bsr``, an array or a matrix, of a dtype that
                sparse matrices here have.
            sealed: make the buffers read-only for good; they then survive rebuilds.
            check: look at its indices first, and raise ``ValueError`` for those out of bounds.

        Returns:
            The matrix on the device, in the same format, with the same indices.
        """
        given = _scipys(array)
        if check:
            _look_at(given)
        moving = self._transfers_for("put")
        major, indices = given.coords if given.format == "coo" else (given.indptr, given.indices)
        if major.dtype != indices.dtype:
            major = major.astype(indices.dtype)
        refs = [await moving.put(each, sealed=sealed) for each in (given.data, major, indices)]
        return SparseRef(given.format, tuple(given.shape), *refs)

    async def put_blocked_ell(
        self,
        array: object,
        blocksize: int,
        *,
        dtype: DTypeLike | None = None,
        sealed: bool = False,
    ) -> EllRef:
        """Copy a sparse array of SciPy's to the device, as dense blocks in rows of equal number.

        ``matmul`` multiplies it with dense matrices, which is what tensor cores do; a matrix whose
        rows of blocks differ much in length is mostly padding.

        Args:
            array: as for ``put``. Elements that are there more than once are added up.
            blocksize: rows and columns of a block, which divide those of the array.
            dtype: of its elements, such as float16, which SciPy has not; by default the array's.
            sealed: make the buffers read-only for good.

        Returns:
            The matrix on the device, of format ``blocked-ell``.
        """
        size = whole(blocksize, "blocksize", least=1)
        given = _scipys(array)
        if any(extent % size for extent in given.shape):
            raise ValueError(f"shape {given.shape} is no multiple of blocks of {size} x {size}")
        return await self._put_ell("blocked-ell", given, size, dtype, sealed=sealed)

    async def put_sliced_ell(
        self,
        array: object,
        slice_size: int = 32,
        *,
        dtype: DTypeLike | None = None,
        sealed: bool = False,
    ) -> EllRef:
        """Copy a sparse array of SciPy's to the device, in slices with rows of equal length.

        ``matmul`` multiplies it with vectors.

        Args:
            array: as for ``put``.
            slice_size: rows of a slice.
            dtype: of its elements, such as float16, which SciPy has not; by default the array's.
            sealed: make the buffers read-only for good.

        Returns:
            The matrix on the device, of format ``sliced-ell``.
        """
        size = whole(slice_size, "slice_size", least=1)
        return await self._put_ell("sliced-ell", _scipys(array), size, dtype, sealed=sealed)

    async def _put_ell(
        self, form: EllFormat, given: Any, size: int, dtype: DTypeLike | None, *, sealed: bool
    ) -> EllRef:
        if 0 in given.shape:
            raise ValueError(f"shape {given.shape}: a {form} matrix has rows and columns")
        moving = self._transfers_for(f"put_{form.replace('-', '_')}")
        made: EllArrays = (blocked if form == "blocked-ell" else sliced)(given, size)
        kind = given.dtype if dtype is None else as_dtype(dtype)
        if kind.name not in FLOATS:
            raise TypeError(f"dtype is {kind.name}; it must be one of {', '.join(FLOATS)}")
        if given.dtype.kind == "c" and kind.kind != "c":
            raise TypeError(
                f"the array is {given.dtype.name}, of which {kind.name} has no imaginary parts"
            )
        arrays = (*made.parts[:-1], made.parts[-1].astype(kind))
        *offsets, indices, data = [await moving.put(each, sealed=sealed) for each in arrays]
        return EllRef(form, tuple(given.shape), made.nnz, size, data, indices, *offsets)

    async def get(self, a: SparseRef | EllRef) -> Any:  # SciPy has no types of its own
        """Copy a sparse matrix from the device.

        Args:
            a: the matrix.

        Returns:
            A sparse array of SciPy's of the same format, for ``blocked-ell`` in ``bsr``, for
            ``sliced-ell`` in ``csr``; 16-bit floats, which it has not, come as float32.
        """
        import scipy.sparse

        _require_matrix(a)
        moving = self._transfers_for("get")
        *more, data = [await moving.get(part) for part in a.parts]
        if data.dtype.itemsize == 2:
            data = data.astype("float32")
        if isinstance(a, EllRef):
            take = unblocked if a.format == "blocked-ell" else unsliced
            return take(a.shape, a.size, (*more, data))
        major, indices = more
        if a.format == "coo":
            return scipy.sparse.coo_array((data, (major, indices)), shape=a.shape)
        make: Any = getattr(scipy.sparse, f"{a.format}_array")
        return make((data, indices, major), shape=a.shape)

    async def seal(self, a: Stored) -> Stored:
        """Make the parts of a matrix read-only for good; they then survive rebuilds.

        Args:
            a: the matrix.
        """
        _require_matrix(a)
        moving = self._transfers_for("seal")
        for part in a.parts:
            if not part.sealed:
                await moving.seal(part)
        return a

    async def free(self, a: SparseRef | EllRef) -> None:
        """Give the memory of all parts back; matrices that share parts are stale, too.

        Args:
            a: the matrix.
        """
        _require_matrix(a)
        moving = self._transfers_for("free")
        for part in a.parts:
            await moving.free(part)

    def _transfers_for(self, name: str) -> Transfers:
        if self.transfers is None:
            raise Unsupported(f"sparse.{name} is awaited on the device itself")
        return self.transfers


def _require_matrix(a: object) -> None:
    """Require a sparse matrix of a device."""
    if type(a) is not EllRef:
        require_sparse(a, "a")


def _scipys(array: object) -> Any:
    """A sparse array of SciPy's, of a format and dtype that devices have."""
    form = getattr(array, "format", None)
    if form not in FORMATS or not hasattr(array, "tocsr"):
        raise TypeError(
            f"sparse.put takes sparse arrays of SciPy's in {', '.join(FORMATS)}, not "
            f"{said_of(array)}; device.put takes dense ones"
        )
    given: Any = array
    if given.ndim != 2:
        raise ValueError(f"the array must have two dimensions, not shape {given.shape}")
    if given.dtype.name not in FLOATS:
        raise TypeError(
            f"the array is {given.dtype.name}; sparse matrices are of {', '.join(FLOATS)}"
        )
    return given


def _look_at(given: Any) -> None:
    """Its indices are in bounds."""
    if given.format != "coo":
        given.check_format(full_check=True)
        return
    for each, bound in zip(given.coords, given.shape, strict=True):
        if each.size and (each.min() < 0 or each.max() >= bound):
            raise ValueError("a row or column is out of bounds")
