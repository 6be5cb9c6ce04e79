"""Expressions on CUDA: kernels compiled on one lane, launched on another."""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import TYPE_CHECKING, Any, Final, final
from weakref import WeakKeyDictionary

from ...._errors import Unsupported
from ....backends.cuda.host.driver import check, driver, failure
from ....executors.compiler import find_cubin
from ....executors.cuda_kernels import preload_compiler
from ....executors.vendor import undone_on_error
from ..wire._program import BuildKernels, ForgetKernel, ForgetKernels, RunKernels
from ._codegen import NAME, source_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ..wire._program import ExpressionLaunch, KernelForm

OPTIONS: Final = ("--fmad=false", "--diag-suppress=177,186")
"""Options for code whose functions each round their result, as NumPy's do. Warnings about unused
values, and about unsigned numbers that are never negative, are off.
"""

_BUFFER_POINTER: Final = 1
_BUFFER_SIZE: Final = 2


@final
class _LoadedExpression:
    """A kernel that can be launched.

    Attributes:
        module, function: the driver's.
        threads: threads of one block.
        users: the builders that have built it, and which kernels with it.
    """

    __slots__ = ("function", "module", "threads", "users")

    def __init__(self, module: Any, function: Any, threads: int) -> None:
        self.module: Final = module
        self.function: Final = function
        self.threads: Final = threads
        self.users: Final[set[tuple[object, tuple[int, ...]]]] = set()


@final
class _KernelWords:
    """The words of kernels that have as many. The driver has copied them when a launch returns."""

    def __init__(self, count: int, numbers: int, scalars: int) -> None:
        words = max(1, count + numbers + scalars // 2)
        self._data = ctypes.create_string_buffer(8 * words)
        self._put = struct.Struct(f"={count}Q{numbers}q{scalars}I").pack_into
        self._size = ctypes.c_size_t(8 * words)
        self._extra = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER,
            ctypes.addressof(self._data),
            _BUFFER_SIZE,
            ctypes.addressof(self._size),
            None,
        )
        self.address: Final = ctypes.addressof(self._extra)

    def put(self, pointers: list[int], launch: ExpressionLaunch) -> None:
        """Write the arguments of a launch."""
        self._put(self._data, 0, *pointers, *launch.numbers, *launch.scalars)


_STORES: Final[WeakKeyDictionary[CudaContext, dict[int, _LoadedExpression]]] = WeakKeyDictionary()
_STORES_LOCK: Final = threading.Lock()


def _store_of(context: CudaContext) -> dict[int, _LoadedExpression]:
    """The kernels of a context, by number: built by one lane, launched by others."""
    with _STORES_LOCK:
        store = _STORES.get(context)
        if store is None:
            store = _STORES[context] = {}
        return store


@final
class CudaBuilder:
    """Builds kernels, which may take a second, on a lane that launches none."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        del stream
        self._capability: Final = context.compute_capability
        self._store: Final = _store_of(context)
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            BuildKernels: self._build,
            ForgetKernel: lambda message: self._forget(message.kernel),
            ForgetKernels: self._undo,
        }

    @staticmethod
    def preload() -> None:
        """Load the compiler."""
        preload_compiler()

    def close(self) -> None:
        """Forget all that it has built."""
        for number in [*self._store]:
            self._forget(number)

    def _build(self, message: BuildKernels) -> None:
        for number, form in zip(message.kernels, message.forms, strict=True):
            loaded = self._store.get(number)
            if loaded is None:
                loaded = self._store[number] = self._loaded(form)
            loaded.users.add((self, message.kernels))

    def _loaded(self, form: KernelForm) -> _LoadedExpression:
        image, lowered, *_ = find_cubin(source_of(form), NAME, OPTIONS, self._capability)
        module = check("cuModuleLoadData", driver.cuModuleLoadData(image))
        with undone_on_error() as made:
            made.callback(driver.cuModuleUnload, module)
            function = check(
                "cuModuleGetFunction", driver.cuModuleGetFunction(module, lowered.encode())
            )
        return _LoadedExpression(module, function, form.threads)

    def _undo(self, message: ForgetKernels) -> None:
        for number in message.kernels:
            loaded = self._store.get(number)
            if loaded is not None:
                self._release(number, loaded, {(self, message.kernels)})

    def _forget(self, number: int) -> None:
        loaded = self._store.get(number)
        if loaded is not None:
            self._release(number, loaded, {user for user in loaded.users if user[0] is self})

    def _release(
        self, number: int, loaded: _LoadedExpression, gone: set[tuple[object, tuple[int, ...]]]
    ) -> None:
        """Unload a kernel once it has no users."""
        loaded.users.difference_update(gone)
        if not loaded.users:
            del self._store[number]
            check("cuModuleUnload", driver.cuModuleUnload(loaded.module))


@final
class CudaExpressions:
    """Launches built kernels; its handlers are some of the lane's."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._pointers: Final = context.pointers
        self._stream: Final = stream
        self._store: Final = _store_of(context)
        self._arguments: Final[dict[tuple[int, int, int], _KernelWords]] = {}
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {RunKernels: self._run}

    def _run(self, message: RunKernels) -> None:
        stream = self._stream.handle
        for launch in message.launches:
            kernel = self._store.get(launch.kernel)
            if kernel is None:
                raise Unsupported(
                    "an expression's kernel is missing, because it could not be "
                    "built; the op array.build before this one tells why"
                )
            sizes = (len(launch.addresses), len(launch.numbers), len(launch.scalars))
            arguments = self._arguments.get(sizes)
            if arguments is None:
                arguments = self._arguments[sizes] = _KernelWords(*sizes)
            arguments.put(self._pointers(launch.addresses), launch)
            (status,) = driver.cuLaunchKernel(
                kernel.function,
                *launch.blocks,
                1,
                kernel.threads,
                1,
                1,
                0,
                stream,
                0,
                arguments.address,
            )
            if status:
                raise failure("cuLaunchKernel", status)
