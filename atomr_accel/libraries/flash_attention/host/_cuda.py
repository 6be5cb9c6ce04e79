"""FlashAttention on CUDA: our own kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from ....executors.cuda_kernels import KernelArguments, Kernels, preload_compiler
from ...dnn.host.cuda_sequences import CudaSequences
from ..wire._messages import PLACES, Flash
from ._launches import HOPPER, launches

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ....executors.device_code import CudaSource
    from ._launches import AttentionLaunch

_MOST_CALLS: Final = 512
"""Number of kinds of calls whose launches are kept."""

_Ready = tuple["AttentionLaunch", KernelArguments, "Callable[[], None]"]


@final
class CudaFlashAttention:
    """Executes the messages with our own kernels, on one stream."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._context: Final = context
        self._stream: Final = stream
        self._sequences: Final = CudaSequences(context, stream, {})
        self._kernels: dict[CudaSource, Kernels] = {}
        self._ready: dict[tuple[object, ...], list[_Ready]] = {}
        self.handlers: Final = {Flash: self._flash}

    @staticmethod
    def preload() -> None:
        """Load the compiler, whose version is part of the key of kernels on disk."""
        preload_compiler()

    def close(self) -> None:
        """Unload the kernels."""
        self._ready.clear()
        self._sequences.close()
        for kernels in self._kernels.values():
            kernels.close()
        self._kernels.clear()

    def _flash(self, message: Flash) -> None:
        if message.append is not None:
            self._sequences.append(message.append)
        pointer = self._context.pointer
        pointers = {
            name: pointer(place) if place else 0
            for name, place in zip(PLACES, message.places, strict=True)
        }
        given = tuple([name for name, place in pointers.items() if place])
        key = (message.form, given)
        ready = self._ready.get(key)
        if ready is None:
            if len(self._ready) >= _MOST_CALLS:
                self._ready.clear()
            info = self._context.info
            processors = info.multiprocessors if info.compute_capability == HOPPER else 0
            made = launches(*key, info.shared_memory_per_block, processors)
            ready = self._ready[key] = [self._prepare(each) for each in made]
        for launch, arguments, run in ready:
            arguments.put_pointers(launch.pointers(pointers))
            run()

    def _prepare(self, launch: AttentionLaunch) -> _Ready:
        kernels = self._kernels.get(launch.source)
        if kernels is None:
            kernels = Kernels(self._context, self._stream, launch.source)
            self._kernels[launch.source] = kernels
        function = kernels.function(launch.name, launch.shared)
        arguments = KernelArguments(bytes(launch.arguments))
        run = kernels.prepare_blocks(
            function, launch.blocks, launch.threads, launch.shared, arguments
        )
        return launch, arguments, run
