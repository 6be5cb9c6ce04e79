"""Functions on the CPU backend: buffers are NumPy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import numpy as np

from ...._dtypes import DTYPES
from ....wire import StickyFault
from ....wire.interop import ON_HOST, borrow, device_type
from ._runner import FunctionRunner

if TYPE_CHECKING:
    from ....backends.cpu.host.context import CpuContext, CpuStream
    from ..wire.messages import Buffer, CallFunction, Initialize
    from ..wire.pickling import Bytes


@final
class CpuRunner(FunctionRunner):
    """Executes calls; a ``StickyFault`` that a function raises is one of the context."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        super().__init__(context)

    def array_of(self, buffer: Buffer) -> np.ndarray[Any, Any]:
        """Return the buffer's memory; read-only if it is sealed."""
        array: np.ndarray[Any, Any] = self._context.array(
            buffer.address, buffer.shape, DTYPES[buffer.dtype], buffer.strides
        )
        if buffer.sealed:
            array.flags.writeable = False
        return array

    def on_device(self, thing: Any) -> bool:
        """Return whether ``thing`` is an array of another library; NumPy's stay NumPy's."""
        return device_type(thing) in ON_HOST

    def hold(self, thing: Any) -> np.ndarray[Any, Any]:
        """Return a copy: the array may be a view of a buffer that others write."""
        return np.array(borrow(thing).as_numpy(), order="C")

    def keep(self, held: np.ndarray[Any, Any], address: int) -> None:
        """Copy it."""
        self._context.array(address, held.shape, held.dtype)[...] = held

    def begin(self) -> None:
        """Check the context; no work is ever in flight."""
        self._context.check()

    def _run(
        self, message: Initialize | CallFunction, parts: list[Bytes], first: tuple[Any, ...]
    ) -> Any:
        try:
            return super()._run(message, parts, first)
        except StickyFault as fault:
            self._context.fail(fault)
            raise
