"""The memory lane on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ....wire import Copy, Fill, Probe, Protect, Unprotect

if TYPE_CHECKING:
    from collections.abc import Callable

    from .context import CpuContext, CpuStream


@final
class CpuMemory:
    """Executes the memory lane's messages with NumPy."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._context: Final = context
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            Copy: self._copy,
            Fill: self._fill,
            Unprotect: self._unprotect,
            Protect: self._protect,
            Probe: self._probe,
        }

    def close(self) -> None:
        """Do nothing."""

    def _copy(self, message: Copy) -> None:
        self._context.check()
        if not message.nbytes:
            return
        target = self._context.bytes_at(message.to, message.nbytes, unsealing=True)
        target[:] = self._context.bytes_at(message.source, message.nbytes)

    def _fill(self, message: Fill) -> None:
        self._context.check()
        target = self._context.bytes_at(message.address, message.nbytes, unsealing=True)
        element = np.frombuffer(message.element, dtype=np.uint8)
        target.reshape(-1, len(element))[:] = element

    def _unprotect(self, message: Unprotect) -> None:
        self._context.check()
        self._context.unprotect(message.slab)

    def _protect(self, message: Protect) -> None:
        self._context.check()
        self._context.protect(message.slab)

    def _probe(self, message: Probe) -> bytes:
        self._context.check()
        return bytes(np.frombuffer(message.pattern, dtype=np.uint8).copy())
