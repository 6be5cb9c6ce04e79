"""Messages of the digests' lane, and what a digest is."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from ....wire import Address, Message

LEAF_BYTES: Final = 1 << 10
"""Bytes of a leaf. The digest of a chunk is XXH64, with seed 0, of the digests of its leaves, which
are little-endian numbers of 64 bits and XXH64 of the leaves' bytes. So a GPU hashes the leaves side
by side, each in a thread, and a CPU with the package ``xxhash``."""


class Digest(Message, frozen=True):
    """Digests of some ranges, eight bytes for each chunk, after all earlier ops on the memory.

    Attributes:
        ranges: address and size in bytes of each range, which begins with a chunk of its buffer.
    """

    required: ClassVar[bool] = True
    returns: ClassVar[Any] = bytes

    ranges: tuple[tuple[Address, int], ...]
