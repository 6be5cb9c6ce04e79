"""Kernels of our own inside a library's executor: compiled when first used, on its stream."""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from .._errors import LibraryMissing
from ..backends.cuda.host.driver import check, driver, failure
from .compiler import find_cubin, load_nvrtc
from .vendor import undone_on_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..backends.cuda.host.context import CudaContext, CudaStream
    from .device_code import CudaSource

_BUFFER_POINTER: Final = 1
_BUFFER_SIZE: Final = 2
_THREADS: Final = 256
_PLAIN_SHARED: Final = 48 << 10
"""Bytes of shared memory that a block may have without being asked for."""

_WAVES: Final = 4
"""Number of waves of blocks. More blocks than the device runs at once even out differences in speed
between processors. The number is whole, because a last wave that is half empty takes as long as the
others.
"""

_compiled = cache(find_cubin)
"""Compiled code by source, name and capability, which streams and devices of one kind share."""


def preload_compiler() -> None:
    """Load NVRTC, if it is installed; kernels on disk are found by its version, too."""
    with contextlib.suppress(LibraryMissing):
        load_nvrtc()


@final
class KernelArguments:
    """A kernel's arguments as one block of bytes, kept to launch again with other pointers.

    Args:
        data: the arguments, laid out as the kernel declares them, pointers first.
    """

    def __init__(self, data: bytes) -> None:
        self._data = (ctypes.c_char * len(data)).from_buffer_copy(data)
        self._size = ctypes.c_size_t(len(data))
        self.pointers: Final = (ctypes.c_uint64 * (len(data) // 8)).from_buffer(self._data)
        self.numbers: Final = (ctypes.c_double * (len(data) // 8)).from_buffer(self._data)
        self._extra = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER,
            ctypes.addressof(self._data),
            _BUFFER_SIZE,
            ctypes.addressof(self._size),
            None,
        )
        self.address: Final = ctypes.addressof(self._extra)

    def put_pointers(self, pointers: Sequence[int]) -> None:
        """Replace the first pointers."""
        for at, pointer in enumerate(pointers):
            self.pointers[at] = pointer

    def put(self, data: bytes) -> None:
        """Others in the place of all of them, of the same size."""
        ctypes.memmove(self._data, data, self._size.value)


@final
class ArgumentBlocks:
    """Blocks of arguments, one per size: the driver has copied them when a launch returns."""

    def __init__(self) -> None:
        self._blocks: dict[int, KernelArguments] = {}

    def having(self, data: bytes) -> KernelArguments:
        """Return the block of this size, with these arguments until the next call."""
        block = self._blocks.get(len(data))
        if block is None:
            block = self._blocks[len(data)] = KernelArguments(data)
        else:
            block.put(data)
        return block


class _LoadedKernel(NamedTuple):
    """A kernel.

    Attributes:
        handle: the driver's.
        most_blocks: with how many blocks it is launched at most.
    """

    handle: Any
    most_blocks: int


@final
class Kernels:
    """The kernels of one source, for one stream."""

    def __init__(self, context: CudaContext, stream: CudaStream, source: CudaSource) -> None:
        self._capability = context.compute_capability
        self._stream = stream
        self._source = source
        self._modules: list[Any] = []
        self._functions: dict[str, _LoadedKernel] = {}
        device = check("cuCtxGetDevice", driver.cuCtxGetDevice())
        parallel = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        self._processors: Final[int] = check(
            "cuDeviceGetAttribute", driver.cuDeviceGetAttribute(parallel, device)
        )

    def function(self, name: str, shared: int = 0) -> _LoadedKernel:
        """A kernel by its name expression, such as ``"move<float, double>"``.

        Args:
            name: the expression.
            shared: bytes of dynamic shared memory that a block of it has.
        """
        function = self._functions.get(name)
        if function is None:
            image, lowered, *_ = _compiled(
                self._source.text, name, self._source.options, self._capability
            )
            module = check("cuModuleLoadData", driver.cuModuleLoadData(image))
            with undone_on_error() as made:
                made.callback(driver.cuModuleUnload, module)
                handle = check(
                    "cuModuleGetFunction", driver.cuModuleGetFunction(module, lowered.encode())
                )
                if shared > _PLAIN_SHARED:
                    most = (
                        driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                    )
                    check("cuFuncSetAttribute", driver.cuFuncSetAttribute(handle, most, shared))
                resident = check(
                    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                    driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(handle, _THREADS, 0),
                )
            self._modules.append(module)
            most = max(1, resident) * self._processors * _WAVES
            function = self._functions[name] = _LoadedKernel(handle, most)
        return function

    def launch(self, function: _LoadedKernel, items: int, arguments: KernelArguments) -> None:
        """Launch with a thread for each item, or with threads that take several in turn."""
        self.prepare(function, items, arguments)()

    def prepare(
        self, function: _LoadedKernel, items: int, arguments: KernelArguments
    ) -> Callable[[], None]:
        """Return a function that makes a launch, with the arguments of the time of the launch.

        The driver has copied the arguments when the launch returns, also into a captured graph.
        """
        blocks = min(-(-items // _THREADS), function.most_blocks)
        return self.prepare_blocks(function, blocks, _THREADS, 0, arguments)

    def prepare_blocks(
        self,
        function: _LoadedKernel,
        blocks: int,
        threads: int,
        shared: int,
        arguments: KernelArguments,
    ) -> Callable[[], None]:
        """Return a function that launches blocks of threads with ``shared`` bytes of shared memory.

        The function keeps the arguments alive, because the launch only has their address.
        """
        handle, stream = function.handle, self._stream.handle

        def launch() -> None:
            (status,) = driver.cuLaunchKernel(
                handle, blocks, 1, 1, threads, 1, 1, shared, stream, 0, arguments.address
            )
            if status:
                raise failure("cuLaunchKernel", status)

        return launch

    def close(self) -> None:
        """Unload the modules."""
        for module in self._modules:
            check("cuModuleUnload", driver.cuModuleUnload(module))
        self._modules.clear()
        self._functions.clear()
