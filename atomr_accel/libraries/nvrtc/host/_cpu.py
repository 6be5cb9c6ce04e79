"""Kernels on the CPU: Python functions replace them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import cloudpickle
import msgspec
import numpy as np

from ...._dtypes import DTYPES
from ...._errors import LibraryMissing
from ....host.host import IMPORTS
from ....wire import StickyFault
from ..wire.messages import (
    UNCHECKED,
    ArrayArgument,
    Compile,
    CompiledCode,
    CopyArray,
    FreeArray,
    KernelEntry,
    LaunchKernel,
    LinkImage,
    Load,
    MakeArray,
    MapVariable,
    Scalar,
    StructArgument,
    SurfaceObject,
    TextureObject,
    TiledMap,
    Unload,
)
from ..wire.twins import TwinFunction, twin_function, value_of
from ._modules import LaneModules, Numbered
from ._program import find_module, link_image

if TYPE_CHECKING:
    from ....backends.cpu.host.context import CpuContext, CpuStream

_Sent = ArrayArgument | Scalar | StructArgument | TiledMap | TextureObject | SurfaceObject

_CHECKED_FOR: Final = (9, 0)
"""The newest instructions that are in all devices since."""


@final
class CpuCompiler:
    """Compiles sources with NVRTC if it is installed, so that errors show early."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._context = context
        self.handlers: Final = {Compile: self._compile, LinkImage: self._link}

    def close(self) -> None:
        """Do nothing, because the compiler holds no resources."""

    def _compile(self, message: Compile) -> CompiledCode:
        self._context.check()
        try:
            made = find_module(message, _CHECKED_FOR)
        except LibraryMissing:
            entries = tuple(map(KernelEntry, message.names))
            names = message.names
            return CompiledCode(b"", entries, message.variables, UNCHECKED, names=names)
        return msgspec.structs.replace(made, image=b"")

    def _link(self, message: LinkImage) -> CompiledCode:
        self._context.check()
        try:
            return link_image(message, _CHECKED_FOR)
        except LibraryMissing:
            return CompiledCode(b"", tuple(map(KernelEntry, message.names)), (), UNCHECKED)


class _CpuModule(NamedTuple):
    """A module: the functions that replace its kernels, and its variables."""

    functions: tuple[TwinFunction | None, ...]
    variables: dict[str, np.ndarray[Any, Any]]


@final
class CpuKernels:
    """Calls Python functions instead of kernels."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._context: Final = context
        self._modules: Final = LaneModules[_CpuModule](context, _functions, _nothing)
        self._arrays: Final = Numbered[np.ndarray[Any, Any]](context)
        self.handlers: Final = {
            Load: self._load,
            Unload: self._modules.unload,
            MapVariable: self._map,
            LaunchKernel: self._launch,
            MakeArray: self._make_array,
            CopyArray: self._copy_array,
            FreeArray: self._free_array,
        }

    def on(self, stream: CpuStream) -> CpuKernels:
        """Return kernels with the same functions, on a further stream of the lane."""
        other = CpuKernels(self._context, stream)
        other._modules.share(self._modules)
        return other

    def close(self) -> None:
        """Forget the functions."""
        self._modules.close()

    def _load(self, message: Load) -> None:
        self._context.check()
        self._modules.load(message)

    def _map(self, message: MapVariable) -> None:
        arrays = [*self._modules.get(message.module).variables.values()]
        array = arrays[message.at]
        self._context.map_pointer(message.slab, array.ctypes.data, array.nbytes)

    def _make_array(self, message: MakeArray) -> None:
        self._context.check()
        given = self._context.array(message.address, message.shape, DTYPES[message.dtype])
        self._arrays.add(message.array, given.copy())

    def _copy_array(self, message: CopyArray) -> None:
        self._context.check()
        array = self._arrays.get(message.array)
        other = self._context.array(message.address, array.shape, array.dtype)
        to, given = (array, other) if message.to_array else (other, array)
        to[...] = given

    def _free_array(self, message: FreeArray) -> None:
        self._arrays.pop(message.array)

    def _launch(self, message: LaunchKernel) -> None:
        self._context.check()
        loaded = self._modules.get(message.module)
        function = loaded.functions[message.function]
        assert function is not None  # or the program has refused it
        arguments = [self._argument(argument) for argument in message.arguments]
        try:
            with IMPORTS.running():
                function.call(message.grid, message.block, arguments, loaded.variables)
        except StickyFault as fault:
            self._context.fail(fault)
            raise

    def _argument(self, argument: _Sent) -> Any:
        if isinstance(argument, Scalar | StructArgument):
            return value_of(argument)
        if isinstance(argument, SurfaceObject) or (
            isinstance(argument, TextureObject) and argument.array
        ):
            return self._arrays.get(argument.array)
        dtype = DTYPES[argument.dtype]
        return self._context.array(argument.address, argument.shape, dtype)


def _functions(message: Load) -> _CpuModule:
    variables = {
        each.name: np.frombuffer(bytearray(each.data), DTYPES[each.dtype]).reshape(each.shape)
        for each in message.variables
    }
    with IMPORTS.running():
        given = cloudpickle.loads(message.image)
    functions = tuple(
        None if function is None else twin_function(function, variables) for function in given
    )
    return _CpuModule(functions, variables)


def _nothing(_loaded: _CpuModule) -> None:
    """Arrays and functions are released by themselves."""
