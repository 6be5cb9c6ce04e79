"""Digests of memory that the processor can read."""

from __future__ import annotations

import struct
from itertools import starmap
from typing import Any, Final

import numpy as np
from xxhash import xxh64_intdigest

from ....wire import CHUNK_BYTES
from .messages import LEAF_BYTES, SUM_ROWS

_PIECE_BYTES: Final = 1 << 20
"""Bytes of rows that are gathered at a time."""

_WEIGHTS: Final = np.array(
    [xxh64_intdigest(struct.pack("<Q", place)) | 1 for place in range(SUM_ROWS)], np.uint64
)

_ALL: Final = np.uint64(2**64 - 1)


def digests_of(data: memoryview) -> bytes:
    """Return the digests of all chunks of ``data``, one after the other, little-endian."""
    leaves = np.fromiter(
        (xxh64_intdigest(data[at : at + LEAF_BYTES]) for at in range(0, len(data), LEAF_BYTES)),
        "<u8",
    )
    most = CHUNK_BYTES // LEAF_BYTES
    chunks = (leaves[at : at + most].data for at in range(0, len(leaves), most))
    return np.fromiter((xxh64_intdigest(chunk) for chunk in chunks), "<u8").tobytes()


def digests_of_rows(data: memoryview, row_bytes: int, rows: bytes) -> bytes:
    """Return the digests of rows of ``data``, one after the other, little-endian.

    Args:
        data: the buffer, from its first row on.
        row_bytes: bytes of a row.
        rows: numbers of the rows, uint32 and little-endian.
    """
    return _digests_of_rows(data, row_bytes, np.frombuffer(rows, "<u4")).tobytes()


def sums_of_rows(data: memoryview, row_bytes: int, mask: bytes) -> bytes:
    """Return the sums of digests of rows of ``data``, as ``RowSums`` has them, little-endian."""
    packed = np.frombuffer(mask, np.uint8)
    rows = np.flatnonzero(np.unpackbits(packed, bitorder="little"))
    digests = np.zeros(8 * len(packed), np.uint64)
    digests[rows] = _digests_of_rows(data, row_bytes, rows)
    return sums_of(digests, packed).astype("<u8", copy=False).tobytes()


def sums_of(
    digests: np.ndarray[Any, np.dtype[np.uint64]], mask: np.ndarray[Any, np.dtype[np.uint8]]
) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the sum of the digests whose bits are set in a mask, of each ``SUM_ROWS`` rows."""
    parts, masks = digests.reshape(-1, SUM_ROWS), mask.reshape(-1, SUM_ROWS // 8)
    sums: np.ndarray[Any, np.dtype[np.uint64]] = np.einsum("ij,j->i", parts, _WEIGHTS)
    # Most parts have all bits, and are not multiplied by them.
    cut = np.bitwise_and.reduce(masks.view(np.uint64), axis=1) != _ALL
    bits = np.unpackbits(masks[cut], axis=1, bitorder="little")
    sums[cut] = np.einsum("ij,j->i", parts[cut] * bits, _WEIGHTS)
    return sums


def _digests_of_rows(
    data: memoryview, row_bytes: int, rows: np.ndarray[Any, Any]
) -> np.ndarray[Any, np.dtype[np.uint64]]:
    whole = len(data) // row_bytes
    table = np.frombuffer(data, np.uint8, whole * row_bytes).reshape(whole, row_bytes)
    found = np.empty(len(rows), "<u8")
    step = max(1, _PIECE_BYTES // row_bytes)
    for at in range(0, len(rows), step):
        piece = table[rows[at : at + step]]
        each = starmap(xxh64_intdigest, struct.iter_unpack(f"{row_bytes}s", piece.data.cast("B")))
        found[at : at + step] = np.fromiter(each, "<u8", len(piece))
    return found
