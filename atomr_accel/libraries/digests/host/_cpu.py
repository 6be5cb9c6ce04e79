"""Digests on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import numpy as np

from ..wire.digest import digests_of, digests_of_rows, sums_of_rows
from ..wire.messages import Digest

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
        found = [digests_of(bytes_at(at, nbytes).data) for at, nbytes in message.ranges]
        for each in message.rows:
            nbytes = each.row_bytes * (1 + int(np.frombuffer(each.rows, "<u4").max(initial=0)))
            data = bytes_at(each.address, nbytes).data
            found.append(digests_of_rows(data, each.row_bytes, each.rows))
        for part in message.sums:
            rows = int.from_bytes(part.mask, "little").bit_length()
            data = bytes_at(part.address, part.row_bytes * rows).data
            found.append(sums_of_rows(data, part.row_bytes, part.mask))
        return b"".join(found)
