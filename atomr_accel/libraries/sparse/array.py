"""Sparse matrices on a device: what programs hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import msgspec

from ...arrays import GpuRef
from .wire._messages import Format

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

FORMATS: Final = ("csr", "csc", "coo", "bsr")

_TRANSPOSED: Final[dict[Format, Format]] = {"csr": "csc", "csc": "csr", "coo": "coo"}


class MatrixOfRefs:
    """Base of matrices of refs, which are plain values, made of their parts."""

    __slots__ = ()

    data: GpuRef
    indices: GpuRef

    @property
    def parts(self) -> tuple[GpuRef, ...]:
        """Its refs."""
        raise NotImplementedError

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements."""
        return self.data.dtype

    @property
    def index_dtype(self) -> np.dtype[Any]:
        """The dtype of indices."""
        return self.indices.dtype

    @property
    def ndim(self) -> int:
        """Two."""
        return 2

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts)

    @property
    def sealed(self) -> bool:
        """True if all parts are read-only and survive rebuilds."""
        return all(part.sealed for part in self.parts)

    @property
    def is_stale(self) -> bool:
        """True if the content of a part is gone."""
        return any(part.is_stale for part in self.parts)


@final
class SparseRef(MatrixOfRefs, msgspec.Struct, frozen=True, eq=False):
    """A sparse matrix in device memory, as refs of its parts; named as SciPy's sparse arrays.

    It is a plain value: a view of the same memory as its parts, sealed where they are, and stale
    when they are. ``device.sparse`` makes them, by ``put``, by ``csr_array`` and its like of
    refs, and by conversions.

    Attributes:
        format: ``"csr"``, ``"csc"``, ``"coo"`` or ``"bsr"``.
        shape: rows and columns.
        data: the stored elements, shape (nnz,); of ``bsr`` the blocks, shape (k, r, c).
        major: ``indptr``: where each row (of ``csc``: column; of ``bsr``: row of blocks) begins
            in ``indices``, one more than there are. Of ``coo``: the rows of the elements.
        indices: the column of each stored element; of ``csc`` its row, of ``bsr`` the column of
            blocks.
    """

    format: Format
    shape: tuple[int, int]
    data: GpuRef
    major: GpuRef
    indices: GpuRef

    @property
    def indptr(self) -> GpuRef:
        """The start of each row, or column, in ``indices``.

        Raises:
            AttributeError: the format is ``coo``.
        """
        if self.format == "coo":
            raise AttributeError("a coo matrix has row and col, and no indptr")
        return self.major

    @property
    def row(self) -> GpuRef:
        """The rows of the elements.

        Raises:
            AttributeError: it is not ``coo``.
        """
        if self.format != "coo":
            raise AttributeError(f"a {self.format} matrix has indptr and indices, and no row")
        return self.major

    @property
    def col(self) -> GpuRef:
        """The columns of the elements.

        Raises:
            AttributeError: it is not ``coo``.
        """
        if self.format != "coo":
            raise AttributeError(f"a {self.format} matrix has indptr and indices, and no col")
        return self.indices

    @property
    def nnz(self) -> int:
        """The number of stored elements, including zeros and duplicates."""
        return self.data.size

    @property
    def blocksize(self) -> tuple[int, int]:
        """Rows and columns of a block; (1, 1) of other formats than ``bsr``."""
        return (self.data.shape[1], self.data.shape[2]) if self.format == "bsr" else (1, 1)

    @property
    def parts(self) -> tuple[GpuRef, GpuRef, GpuRef]:
        """``major``, ``indices`` and ``data``."""
        return self.major, self.indices, self.data

    @property
    def generation(self) -> int:
        """The device's generation in which its newest part was made."""
        return max(part.generation for part in self.parts)

    @property
    def T(self) -> SparseRef:  # noqa: N802 - SciPy's name
        """The transpose, of the same parts: of ``csr`` a ``csc`` matrix, and the other way.

        Raises:
            ValueError: it is ``bsr``, whose blocks would have to be moved.
        """
        if self.format == "bsr":
            raise ValueError(
                "the transpose of a bsr matrix is not a view: convert it first, "
                "(await device.sparse.tocsr(a)).T"
            )
        major, indices = self.major, self.indices
        if self.format == "coo":
            major, indices = indices, major
        rows, columns = self.shape
        return SparseRef(_TRANSPOSED[self.format], (columns, rows), self.data, major, indices)

    def split_refs(self) -> tuple[object, tuple[GpuRef, ...]]:
        """Return format and shape, and the refs."""
        return (self.format, self.shape), self.parts

    def with_refs(self, parts: Sequence[GpuRef]) -> SparseRef:
        """Return a matrix of the same kind on other refs."""
        major, indices, data = parts
        return SparseRef(self.format, self.shape, data, major, indices)

    def with_data(self, data: GpuRef) -> SparseRef:
        """Return a matrix of the same structure with other elements.

        Args:
            data: of the same shape; of any dtype that matrices may have.

        Raises:
            ValueError: another shape.
        """
        if data.shape != self.data.shape:
            raise ValueError(
                f"data must have the shape of the matrix's, {self.data.shape}, not {data.shape}"
            )
        return msgspec.structs.replace(self, data=data)

    def __matmul__(self, _other: object) -> NoReturn:
        raise TypeError(
            "products of sparse matrices are calls of a library: "
            "await device.sparse.matmul(a, b), or device.sparse.spgemm(a, b) of two sparse ones"
        )

    def __rmatmul__(self, other: object) -> NoReturn:
        self.__matmul__(other)

    def __repr__(self) -> str:
        rows, columns = self.shape
        return (
            f"<SparseRef {self.format} {rows}x{columns} {self.dtype.name} with {self.nnz} stored "
            f"elements on {self.data.device}>"
        )
