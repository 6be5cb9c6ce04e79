"""Kernels on CUDA: NVRTC on one lane, modules and launches on another."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from ....backends.cuda.host._driver import check, driver, failure
from ....wire import PLACE
from ...host._vendor import undone_on_error
from ..wire._messages import Array, Compile, Launch, Load, Unload
from ._compiler import Compiled, find_cubin, load_nvrtc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....backends.cuda.host._context import CudaContext, CudaStream
    from ....host._templates import Template

_BUFFER_POINTER: Final = 1
_BUFFER_SIZE: Final = 2
_POINTER: Final = 8
"""Bytes."""
_PLAIN_SHARED: Final = 48 << 10
"""More dynamic shared memory than this must be asked for."""


_ARRAY: Final = -1
"""In the place of a size: a pointer, not the bytes of a scalar."""


@final
class _Layout:
    """Where a kernel's arguments lie: one after the other, each aligned to its own size.

    The driver has copied them when a launch returns, into a graph that is captured, too. So
    each launch writes over those of the one before.

    Attributes:
        sizes: bytes of each scalar; ``_ARRAY`` for an array.
        buffer: the arguments.
        put: writes them there.
        address: what the driver is told: where they are, and how many bytes.
    """

    def __init__(self, sizes: list[int]) -> None:
        self.sizes: Final = sizes
        words, end = "=", 0
        for size in sizes:
            nbytes, word = (_POINTER, "Q") if size == _ARRAY else (size, f"{size}s")
            gap = -end % nbytes
            words += f"{gap}x{word}"
            end += gap + nbytes
        self.buffer: Final = ctypes.create_string_buffer(max(1, end))
        self.put: Final = struct.Struct(words).pack_into
        self._size = ctypes.c_size_t(end)
        self._extra = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER,
            ctypes.addressof(self.buffer),
            _BUFFER_SIZE,
            ctypes.addressof(self._size),
            None,
        )
        self.address: Final = ctypes.addressof(self._extra)


@dataclass(slots=True)
class _Kernel:
    """A kernel that is loaded.

    Attributes:
        module, function: the driver's.
        shared: how much dynamic shared memory it may have.
        layout: that of the arguments that it was launched with before.
    """

    module: Any
    function: Any
    shared: int = _PLAIN_SHARED
    layout: _Layout | None = None


@final
class CudaCompiler:
    """Executes the compiler's messages."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        del stream
        self._capability: Final = context.compute_capability
        self.handlers: Final = {Compile: self._compile}

    @staticmethod
    def preload() -> None:
        """Load the library."""
        load_nvrtc()

    def close(self) -> None:
        """Nothing is held."""

    def _compile(self, message: Compile) -> Compiled:
        return find_cubin(message.source, message.name, message.options, self._capability)


@final
class CudaKernels:
    """Executes loads and launches."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._context: Final = context
        self._stream: Final = stream
        self._kernels: dict[int, _Kernel] = {}
        self.handlers: Final = {Load: self._load, Unload: self._unload, Launch: self._launch}
        self.preparers: Final = {Launch: self._prepare_launch}

    def on(self, stream: CudaStream) -> CudaKernels:
        """The same kernels, on a further stream of the lane."""
        other = CudaKernels(self._context, stream)
        other._kernels = self._kernels
        return other

    def close(self) -> None:
        """Unload the modules, which all streams of the lane share."""
        while self._kernels:
            _, kernel = self._kernels.popitem()
            check("cuModuleUnload", driver.cuModuleUnload(kernel.module))

    def _load(self, message: Load) -> None:
        if message.kernel in self._kernels:  # by another program, which executes here too
            return
        module = check("cuModuleLoadData", driver.cuModuleLoadData(message.image))
        with undone_on_error() as made:
            made.callback(driver.cuModuleUnload, module)
            function = check(
                "cuModuleGetFunction", driver.cuModuleGetFunction(module, message.name.encode())
            )
        self._kernels[message.kernel] = _Kernel(module, function)

    def _unload(self, message: Unload) -> None:
        loaded = self._kernels.pop(message.kernel, None)
        if loaded is not None:
            check("cuModuleUnload", driver.cuModuleUnload(loaded.module))

    def _launch(self, message: Launch) -> None:
        pointer = self._context.pointer
        values: list[Any] = []
        for argument in message.arguments:
            if isinstance(argument, Array):
                values.append(pointer(argument.address))
            else:
                values.append(argument.data)
        self._start(message, values, _sizes(message))

    def _prepare_launch(self, template: Template) -> Callable[[Sequence[int]], None] | None:
        """What launches on buffers that differ in addresses."""
        message: Any = template.message
        sizes = _sizes(message)
        fixed: list[Any] = []
        places: list[tuple[int, int]] = []
        for at, argument in enumerate(message.arguments):
            if isinstance(argument, Array):
                if argument.address < PLACE:
                    return None
                places.append((at, argument.address ^ PLACE))
                fixed.append(0)
            else:
                fixed.append(argument.data)
        all_pointers = self._context.pointers

        def launch(addresses: Sequence[int]) -> None:
            pointers = all_pointers(addresses)
            values = [*fixed]
            for at, place in places:
                values[at] = pointers[place]
            self._start(message, values, sizes)

        return launch

    def _start(self, message: Launch, values: list[Any], sizes: list[int]) -> None:
        """Launch with these arguments, pointers and bytes of so many bytes each."""
        kernel = self._kernels[message.kernel]
        layout = kernel.layout
        if layout is None or layout.sizes != sizes:
            layout = kernel.layout = _Layout(sizes)
        layout.put(layout.buffer, 0, *values)
        if message.shared > kernel.shared:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(
                "cuFuncSetAttribute",
                driver.cuFuncSetAttribute(kernel.function, attribute, message.shared),
            )
            kernel.shared = message.shared
        (status,) = driver.cuLaunchKernel(
            kernel.function,
            *message.grid,
            *message.block,
            message.shared,
            self._stream.handle,
            0,
            layout.address,
        )
        if status:
            raise failure("cuLaunchKernel", status)


def _sizes(message: Launch) -> list[int]:
    """How many bytes each argument takes."""
    return [
        _ARRAY if isinstance(argument, Array) else len(argument.data)
        for argument in message.arguments
    ]
