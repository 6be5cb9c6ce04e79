"""Compressed matrices on a device: what programs hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import msgspec
import numpy as np

from ...arrays import GpuRef

if TYPE_CHECKING:
    from collections.abc import Sequence


@final
class StructuredRef(msgspec.Struct, frozen=True, eq=False):
    """A matrix of which half of each group of elements is zero, compressed in device memory.

    A group is four elements of a row that follow each other, of float32 two. It is a plain value,
    sealed where its data are, and stale when they are; ``device.sparselt.compress`` makes it.

    Attributes:
        shape: rows and columns of the matrix.
        dtype: the dtype of its elements.
        data: what the library has made of it, as bytes; backends have forms of their own.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    data: GpuRef

    @property
    def ndim(self) -> int:
        """Two."""
        return 2

    @property
    def nbytes(self) -> int:
        """Bytes of the compressed matrix."""
        return self.data.nbytes

    @property
    def sealed(self) -> bool:
        """True if it is read-only and survives rebuilds: ``await device.seal(a.data)``."""
        return self.data.sealed

    @property
    def is_stale(self) -> bool:
        """True if its content is gone."""
        return self.data.is_stale

    def split_refs(self) -> tuple[object, tuple[GpuRef, ...]]:
        """Return shape and dtype, and the refs."""
        return (self.shape, self.dtype), (self.data,)

    def with_refs(self, parts: Sequence[GpuRef]) -> StructuredRef:
        """Return a matrix of the same kind on other refs."""
        (data,) = parts
        return StructuredRef(self.shape, self.dtype, data)

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"<StructuredRef {rows}x{columns} {self.dtype.name} on {self.data.device}>"
