"""Matrices in the formats blocked-ELL and sliced-ELL: what programs hold, and how they are made.

SciPy has neither, so the program makes them of its arrays, and arrays of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, final

import msgspec
import numpy as np

from ...arrays import GpuRef
from .array import MatrixOfRefs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scipy.sparse import bsr_array, csr_array

EllFormat = Literal["blocked-ell", "sliced-ell"]

_PADDING: Final = -1
"""Column of elements that only fill a row."""


@final
class EllRef(MatrixOfRefs, msgspec.Struct, frozen=True, eq=False):
    """A sparse matrix whose rows have elements of equal number, as refs of its parts.

    It is a plain value, sealed if its parts are, and stale when they are.
    ``device.sparse.put_blocked_ell`` and ``put_sliced_ell`` make it. Elements that only fill a row
    have column -1.

    Attributes:
        format: ``"blocked-ell"`` or ``"sliced-ell"``.
        shape: rows and columns.
        nnz: the number of stored elements without padding; for ``blocked-ell``, of its blocks.
        size: rows of a block, which has as many columns; or rows of a slice.
        data: of ``blocked-ell`` the elements, shape (rows, elements of a row); of ``sliced-ell``
            those of one slice after the other, each by columns.
        indices: of ``blocked-ell`` the columns of blocks, shape (rows of blocks, blocks of a row);
            of ``sliced-ell`` the column of each element.
        offsets: of ``sliced-ell`` the start of each slice in ``data``, and the end of the last.
    """

    format: EllFormat
    shape: tuple[int, int]
    nnz: int
    size: int
    data: GpuRef
    indices: GpuRef
    offsets: GpuRef | None = None

    @property
    def parts(self) -> tuple[GpuRef, ...]:
        """``offsets``, if there are any, ``indices`` and ``data``."""
        more = () if self.offsets is None else (self.offsets,)
        return (*more, self.indices, self.data)

    def split_refs(self) -> tuple[object, tuple[GpuRef, ...]]:
        """Return format and sizes, and the refs."""
        return (self.format, self.shape, self.nnz, self.size), self.parts

    def with_refs(self, parts: Sequence[GpuRef]) -> EllRef:
        """Return a matrix of the same kind on other refs."""
        *offsets, indices, data = parts
        return EllRef(self.format, self.shape, self.nnz, self.size, data, indices, *offsets)

    def __repr__(self) -> str:
        rows, columns = self.shape
        return (
            f"<EllRef {self.format} {rows}x{columns} {self.dtype.name} with {self.nnz} stored "
            f"elements on {self.data.device}>"
        )


class EllArrays(NamedTuple):
    """A matrix in the program's memory.

    Attributes:
        nnz: stored elements, without padding.
        parts: the arrays, in the order of ``EllRef.parts``.
    """

    nnz: int
    parts: tuple[np.ndarray[Any, Any], ...]


def blocked(given: Any, size: int) -> EllArrays:
    """A sparse array of SciPy's in dense blocks, each row of them padded to the longest.

    Args:
        given: any format; its extents are multiples of ``size``.
        size: rows and columns of a block.
    """
    bsr = given.tobsr(blocksize=(size, size))
    bsr.sum_duplicates()
    counts = np.diff(bsr.indptr)
    width = max(1, int(counts.max(initial=0)))
    rows = np.repeat(np.arange(len(counts)), counts)
    places = np.arange(len(bsr.indices)) - np.repeat(bsr.indptr[:-1], counts)
    indices = np.full((len(counts), width), _PADDING, _index_of(given))
    indices[rows, places] = bsr.indices
    data = np.zeros((len(counts), size, width, size), given.dtype)
    data[rows, :, places, :] = bsr.data
    return EllArrays(bsr.data.size, (indices, data.reshape(given.shape[0], width * size)))


def unblocked(shape: tuple[int, int], size: int, parts: Sequence[Any]) -> bsr_array:
    """A sparse array of SciPy's with the blocks of a matrix."""
    import scipy.sparse

    indices, data = parts
    split = data.reshape(len(indices), size, -1, size)
    rows, places = np.nonzero(indices != _PADDING)
    pointers = np.searchsorted(rows, np.arange(len(indices) + 1))
    blocks = split[rows, :, places, :]
    made: Any = scipy.sparse.bsr_array((blocks, indices[rows, places], pointers), shape=shape)
    found: bsr_array = made
    return found


def sliced(given: Any, size: int) -> EllArrays:
    """A sparse array of SciPy's in slices of rows, each padded to the longest of the slice.

    Args:
        given: any format.
        size: rows of a slice; the last one is filled with empty rows.
    """
    csr = given.tocsr()
    index = _index_of(given)
    counts = np.diff(csr.indptr)
    filled = np.zeros(-(-len(counts) // size) * size, np.int64)
    filled[: len(counts)] = counts
    widths = np.maximum(filled.reshape(-1, size).max(1), 1)
    offsets = np.concatenate(([0], np.cumsum(widths * size)))
    rows = np.repeat(np.arange(len(counts)), counts)
    places = np.arange(len(csr.indices)) - np.repeat(csr.indptr[:-1], counts)
    at = offsets[rows // size] + places * size + rows % size
    indices = np.full(offsets[-1], _PADDING, index)
    data = np.zeros(offsets[-1], given.dtype)
    indices[at], data[at] = csr.indices, csr.data
    return EllArrays(len(csr.data), (offsets.astype(index), indices, data))


def unsliced(shape: tuple[int, int], size: int, parts: Sequence[Any]) -> csr_array:
    """A sparse array of SciPy's with the elements of a matrix in slices."""
    import scipy.sparse

    offsets, indices, data = parts
    (at,) = np.nonzero(indices != _PADDING)
    slices = np.searchsorted(offsets, at, side="right") - 1
    rows = slices * size + (at - offsets[slices]) % size
    made: Any = scipy.sparse.coo_array((data[at], (rows, indices[at])), shape=shape)
    found: csr_array = made.tocsr()
    return found


def _index_of(given: Any) -> np.dtype[Any]:
    """The dtype of an array's indices."""
    kind: np.dtype[Any] = given.coords[0].dtype if given.format == "coo" else given.indices.dtype
    return kind
