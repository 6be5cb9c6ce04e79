"""Digests of memory that the processor can read."""

from __future__ import annotations

import numpy as np
from xxhash import xxh64_intdigest

from ....wire import CHUNK_BYTES
from .messages import LEAF_BYTES


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
    begins = (np.frombuffer(rows, "<u4").astype(np.int64) * row_bytes).tolist()
    found = (xxh64_intdigest(data[at : at + row_bytes]) for at in begins)
    return np.fromiter(found, "<u8", len(begins)).tobytes()
