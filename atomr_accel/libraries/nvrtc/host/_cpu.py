"""Kernels on the CPU: a Python function of each runs in its place."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, final

import cloudpickle
import numpy as np

from ...._dtypes import DTYPES
from ...._errors import LibraryMissing
from ....wire import StickyFault
from ..wire._messages import Array, Compile, Launch, Load, Scalar, Unload
from ._compiler import Compiled, find_cubin

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....backends.cpu.host._context import CpuContext, CpuStream

_CHECKED_FOR: Final = (8, 0)


@final
class CpuCompiler:
    """Has NVRTC look at the source where it is installed, so that errors show early."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._context = context
        self.handlers: Final = {Compile: self._compile}

    def close(self) -> None:
        """Nothing is held."""

    def _compile(self, message: Compile) -> Compiled:
        self._context.check()
        try:
            made = find_cubin(message.source, message.name, message.options, _CHECKED_FOR)
        except LibraryMissing:
            return Compiled(b"", message.name, "")
        return made._replace(image=b"")


@final
class CpuKernels:
    """Calls Python functions where a GPU would launch kernels."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._context: Final = context
        self._kernels: dict[int, tuple[Callable[..., object], bool, bool]] = {}
        self.handlers: Final = {Load: self._load, Unload: self._unload, Launch: self._launch}

    def on(self, stream: CpuStream) -> CpuKernels:
        """The same functions, on a further stream of the lane."""
        other = CpuKernels(self._context, stream)
        other._kernels = self._kernels
        return other

    def close(self) -> None:
        """Forget the functions."""
        self._kernels.clear()

    def _load(self, message: Load) -> None:
        self._context.check()
        function = cloudpickle.loads(message.image)
        names = list(_parameter_names(function))
        leading = names[:2] == ["grid", "block"]
        by_name = not leading and {"grid", "block"} <= set(names)
        self._kernels[message.kernel] = (function, leading, by_name)

    def _unload(self, message: Unload) -> None:
        self._kernels.pop(message.kernel, None)

    def _launch(self, message: Launch) -> None:
        self._context.check()
        function, leading, by_name = self._kernels[message.kernel]
        args = [self._argument(argument) for argument in message.arguments]
        dimensions: dict[str, Any] = {}
        if leading:
            args[:0] = [message.grid, message.block]
        elif by_name:
            dimensions = {"grid": message.grid, "block": message.block}
        try:
            function(*args, **dimensions)
        except StickyFault as fault:
            self._context.fail(fault)
            raise

    def _argument(self, argument: Array | Scalar) -> Any:
        dtype = DTYPES[argument.dtype]
        if isinstance(argument, Array):
            return self._context.array(argument.address, argument.shape, dtype)
        return np.frombuffer(argument.data, dtype=dtype)[0]


def _parameter_names(function: Callable[..., object]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some builtins do not tell
        return []
