"""The array lane on CUDA: kernels of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from ...host._cuda_kernels import Arguments, Kernels, preload_compiler
from ..wire._messages import CopyStrided
from ._cuda_expression import CudaExpressions
from ._cuda_indexing import CudaIndexing
from ._source import SOURCE, launch

if TYPE_CHECKING:
    from ....backends.cuda.host._context import CudaContext, CudaStream


@final
class CudaArray:
    """Executes the array lane's messages."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._context: Final = context
        self._stream: Final = stream
        self._kernels: Final = Kernels(context, stream, SOURCE)
        self._choosing: Final = CudaIndexing(context, stream, self._copy)
        self.handlers: Final[dict[type, Any]] = {
            CopyStrided: self._copy,
            **self._choosing.handlers,
            **CudaExpressions(context, stream).handlers,
        }

    @staticmethod
    def preload() -> None:
        """Load the compiler."""
        preload_compiler()

    def on(self, stream: CudaStream) -> CudaArray:
        """The same on another stream."""
        return CudaArray(self._context, stream)

    def close(self) -> None:
        """Unload the modules."""
        self._kernels.close()
        self._choosing.close()

    def _copy(self, message: CopyStrided) -> None:
        name, items, packed = launch(message)
        arguments = Arguments(packed)
        arguments.pointers[0] = self._context.pointer(message.target)
        arguments.pointers[1] = self._context.pointer(message.source)
        self._kernels.launch(self._kernels.function(name), items, arguments)
