"""Messages of the digests' lane, and what a digest is."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec
import numpy as np

from ....wire import Address, Message

LEAF_BYTES: Final = 1 << 10
"""Bytes of a leaf. The digest of a chunk is XXH64, with seed 0, of the digests of its leaves, which
are little-endian numbers of 64 bits and XXH64 of the leaves' bytes. So a GPU hashes the leaves side
by side, each in a thread, and a CPU with the package ``xxhash``."""

SUM_ROWS: Final = 1 << 8
"""Number of rows of one sum of digests, modulo 2**64. Each digest has a weight: XXH64, with seed 0,
of the row's place in the sum as 8 little-endian bytes, with the lowest bit set. So a change of one
digest always changes the sum."""


class RowRange(msgspec.Struct, frozen=True, array_like=True):
    """Rows of a buffer, each of which has a digest: XXH64 of its bytes, with seed 0.

    Attributes:
        address: address of the buffer.
        row_bytes: bytes of a row, a multiple of 8.
        rows: numbers of the rows, uint32 and little-endian.
    """

    address: Address
    row_bytes: int
    rows: bytes

    @classmethod
    def of(cls, address: Any, row_bytes: int, rows: np.ndarray[Any, Any]) -> RowRange:
        """Return the range of rows that an array of any integers has the numbers of."""
        return cls(address, row_bytes, rows.astype("<u4").tobytes())


class RowSums(msgspec.Struct, frozen=True, array_like=True):
    """Rows that have sums of digests, one for each ``SUM_ROWS`` rows.

    Attributes:
        address: address of the first row.
        row_bytes: bytes of a row, a multiple of 8.
        mask: a bit for each row, the lowest first, for a multiple of ``SUM_ROWS`` rows. A sum has
            the rows whose bits are set.
    """

    address: Address
    row_bytes: int
    mask: bytes


class Digest(Message, frozen=True):
    """Digests, of eight bytes each, after all earlier ops on the memory.

    Attributes:
        ranges: address and size in bytes of each range, which begins with a chunk of its buffer.
            There is a digest for each chunk.
        rows: rows that have digests, which come after those of the ranges.
        sums: rows that have sums of digests, which come last.
    """

    required: ClassVar[bool] = True
    returns: ClassVar[Any] = bytes

    ranges: tuple[tuple[Address, int], ...]
    rows: tuple[RowRange, ...] = ()
    sums: tuple[RowSums, ...] = ()
