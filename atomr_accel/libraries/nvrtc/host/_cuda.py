"""Kernels on CUDA: NVRTC on one lane, modules and launches on another."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final, final

from ....backends.cuda.host._driver import check, driver
from ...host._vendor import undone_on_error
from ..wire._messages import Array, Compile, Launch, Load, Unload
from ._compiler import Compiled, find_cubin, load_nvrtc

if TYPE_CHECKING:
    from ....backends.cuda.host._context import CudaContext, CudaStream

_BUFFER_POINTER: Final = 1
_BUFFER_SIZE: Final = 2
_PLAIN_SHARED: Final = 48 << 10
"""More dynamic shared memory than this must be asked for."""


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
        self._kernels: dict[int, tuple[Any, Any]] = {}
        self.handlers: Final = {Load: self._load, Unload: self._unload, Launch: self._launch}

    def close(self) -> None:
        """Unload the modules."""
        for module, _ in self._kernels.values():
            check("cuModuleUnload", driver.cuModuleUnload(module))

    def _load(self, message: Load) -> None:
        if message.kernel in self._kernels:  # by another program, which executes here too
            return
        module = check("cuModuleLoadData", driver.cuModuleLoadData(message.image))
        with undone_on_error() as made:
            made.callback(driver.cuModuleUnload, module)
            function = check(
                "cuModuleGetFunction", driver.cuModuleGetFunction(module, message.name.encode())
            )
        self._kernels[message.kernel] = (module, function)

    def _unload(self, message: Unload) -> None:
        loaded = self._kernels.pop(message.kernel, None)
        if loaded is not None:
            check("cuModuleUnload", driver.cuModuleUnload(loaded[0]))

    def _launch(self, message: Launch) -> None:
        _, function = self._kernels[message.kernel]
        packed = bytearray()
        for argument in message.arguments:
            if isinstance(argument, Array):
                data = self._context.pointer(argument.address).to_bytes(8, "little")
            else:
                data = argument.data
            # Parameters lie one after the other, each aligned to its own size.
            packed += bytes(-len(packed) % len(data)) + data
        size = ctypes.c_size_t(len(packed))
        buffer = (ctypes.c_char * max(1, len(packed))).from_buffer(packed or bytearray(1))
        extra = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER,
            ctypes.addressof(buffer),
            _BUFFER_SIZE,
            ctypes.addressof(size),
            None,
        )
        if message.shared > _PLAIN_SHARED:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(
                "cuFuncSetAttribute",
                driver.cuFuncSetAttribute(function, attribute, message.shared),
            )
        check(
            "cuLaunchKernel",
            driver.cuLaunchKernel(
                function,
                *message.grid,
                *message.block,
                message.shared,
                self._stream.handle,
                0,
                ctypes.addressof(extra),
            ),
        )
