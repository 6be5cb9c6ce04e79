"""Digests on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from ..wire.digest import digests_of
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
        return b"".join(digests_of(bytes_at(at, nbytes).data) for at, nbytes in message.ranges)
