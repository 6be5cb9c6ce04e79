"""Digests on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import numpy as np
from xxhash import xxh64_intdigest

from ....wire import CHUNK_BYTES
from ..wire.messages import LEAF_BYTES, Digest

if TYPE_CHECKING:
    from ....backends.cpu.host.context import CpuContext, CpuStream


@final
class CpuDigests:
    """Computes digests with ``xxhash``."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._context: Final = context
        self.handlers: Final = {Digest: self._digest}

    def close(self) -> None:
        """Do nothing."""

    def _digest(self, message: Digest) -> bytes:
        self._context.check()
        bytes_at = self._context.bytes_at
        return b"".join(digests_of(bytes_at(at, nbytes).data) for at, nbytes in message.ranges)


def digests_of(data: memoryview) -> bytes:
    """Return the digests of all chunks of ``data``, one after the other, little-endian."""
    leaves = np.fromiter(
        (xxh64_intdigest(data[at : at + LEAF_BYTES]) for at in range(0, len(data), LEAF_BYTES)),
        "<u8",
    )
    most = CHUNK_BYTES // LEAF_BYTES
    chunks = (leaves[at : at + most].data for at in range(0, len(leaves), most))
    return np.fromiter((xxh64_intdigest(chunk) for chunk in chunks), "<u8").tobytes()
