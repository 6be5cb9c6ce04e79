"""The array lane on CUDA: kernels of this package."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, final

from ....executors.cuda_kernels import ArgumentBlocks, Kernels, preload_compiler
from ....wire.copies import CopyStrided
from ...cub.wire.messages import RunCub
from ..wire.several import StepSequence, StepsThenAnswer
from ._cuda_expression import CudaExpressions
from ._cuda_indexing import CudaIndexing
from ._source import ALIGNED, SOURCE, CopyLaunch, launch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ...cub.host.cuda import CudaCub
    from ..wire.several import Step


@lru_cache(1024)
def _launch(*layout: Any) -> CopyLaunch:
    """Return the kernel for copies that differ only in addresses."""
    return launch(CopyStrided(*layout))


@final
class CudaArrayExecutor:
    """Executes the array lane's messages.

    Attributes:
        handlers: by message.
        of_steps: the same of steps, which may be CUB's.
    """

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._context: Final = context
        self._stream: Final = stream
        self._kernels: Final = Kernels(context, stream, SOURCE)
        self._arguments: Final = ArgumentBlocks()
        self._choosing: Final = CudaIndexing(context, stream, self._copy)
        self.handlers: Final[dict[type, Any]] = {
            CopyStrided: self._copy,
            StepsThenAnswer: self._question,
            StepSequence: lambda message: self._execute(message.steps),
            **self._choosing.handlers,
            **CudaExpressions(context, stream).handlers,
        }
        self.preparers: Final = self._choosing.preparers
        self._cub: CudaCub | None = None
        self.of_steps: Final[dict[type, Any]] = self.handlers | {RunCub: self._run}

    @staticmethod
    def preload() -> None:
        """Load the compiler."""
        preload_compiler()

    def on(self, stream: CudaStream) -> CudaArrayExecutor:
        """Return the same executor on another stream."""
        return CudaArrayExecutor(self._context, stream)

    def close(self) -> None:
        """Unload the modules."""
        self._kernels.close()
        self._choosing.close()
        if self._cub is not None:
            self._cub.close()

    def _execute(self, steps: Iterable[Step]) -> None:
        handlers = self.of_steps
        for step in steps:
            handlers[type(step)](step)

    def _question(self, message: StepsThenAnswer) -> Any:
        self._execute(message.steps)
        return self.handlers[type(message.last)](message.last)

    def _run(self, message: RunCub) -> None:
        if self._cub is None:
            from ...cub.host.cuda import CudaCub  # whose bindings most programs do without

            self._cub = CudaCub(self._context, self._stream)
        self._cub.run(message)

    def _copy(self, message: CopyStrided) -> None:
        target, source = message.target % ALIGNED, message.source % ALIGNED
        strides = message.source_strides, message.target_strides
        name, items, packed = _launch(source, target, message.itemsize, message.shape, *strides)
        arguments = self._arguments.having(packed)
        arguments.pointers[0] = self._context.pointer(message.target)
        arguments.pointers[1] = self._context.pointer(message.source)
        self._kernels.launch(self._kernels.function(name), items, arguments)
