"""The array lane on the CPU, with NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from ...._dtypes import DTYPES
from ....wire.copies import CopyStrided
from ...cub.host.cpu import CpuCub
from ...cub.wire.messages import RunCub
from ..wire.several import StepSequence, StepsThenAnswer
from ._cpu_expression import CpuExpressions
from ._cpu_indexing import CpuIndexing

if TYPE_CHECKING:
    from ....backends.cpu.host.context import CpuContext, CpuStream

_OF_SIZE: Final = {
    DTYPES[name].itemsize: DTYPES[name]
    for name in ("uint8", "uint16", "uint32", "uint64", "complex128")
}
"""Dtypes for elements that are only moved, by size."""


@final
class CpuArrayExecutor:
    """Executes the array lane's messages.

    Attributes:
        handlers: by message.
        of_steps: the same of steps, which may be CUB's.
    """

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        self._context: Final = context
        self._stream: Final = stream
        self.handlers: Final[dict[type, Any]] = {
            CopyStrided: self._copy,
            StepsThenAnswer: self._question,
            StepSequence: self._several,
            **CpuExpressions(context).handlers,
            **CpuIndexing(context, self._copy).handlers,
        }
        self.of_steps: Final[dict[type, Any]] = self.handlers | {
            RunCub: CpuCub(context, stream).handlers[RunCub]
        }

    def on(self, stream: CpuStream) -> CpuArrayExecutor:
        """Return the same executor on another stream."""
        return CpuArrayExecutor(self._context, stream)

    def close(self) -> None:
        """Do nothing: it holds nothing."""

    def _several(self, message: StepSequence) -> None:
        self._context.check()
        for step in message.steps:
            self.of_steps[type(step)](step)

    def _question(self, message: StepsThenAnswer) -> Any:
        self._context.check()
        for step in message.steps:
            self.of_steps[type(step)](step)
        return self.handlers[type(message.last)](message.last)

    def _copy(self, message: CopyStrided) -> None:
        self._context.check()
        shape, dtype = message.shape, _OF_SIZE[message.itemsize]
        source = self._context.array(message.source, shape, dtype, message.source_strides)
        target = self._context.array(message.target, shape, dtype, message.target_strides)
        target[...] = source
