"""Kernels on CUDA: NVRTC on one lane, modules and launches on another."""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import msgspec

from ....backends.cuda.host.driver import check, driver, failure
from ....executors.compiler import load_nvrtc
from ....executors.vendor import undone_on_error
from ....wire import PLACE
from ..wire.messages import (
    ArrayArgument,
    Compile,
    CompiledCode,
    DescribeFunction,
    Disassemble,
    KernelAttributes,
    LaunchKernel,
    LinkImage,
    Load,
    MapVariable,
    Occupancy,
    StructArgument,
    SuggestBlock,
    SurfaceObject,
    TextureObject,
    TiledMap,
    Unload,
)
from ._disassembler import disassemble
from ._modules import LaneModules
from ._program import find_module, link_image
from ._tensor_maps import TENSOR_MAP_BYTES, encoded
from ._textures import Textures
from .launch_config import launch_config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ....host.templates import HostTemplate

_BUFFER_POINTER: Final = 1
_BUFFER_SIZE: Final = 2
_LINE_INFO: Final = "--generate-line-info"
_PLAIN_SHARED: Final = 48 << 10
"""More dynamic shared memory than this must be asked for."""

_PORTABLE_CLUSTER: Final = 8
"""Clusters of more blocks must be asked for."""

Slot = tuple[int, int]
"""Bytes of an argument and their alignment, 0 if only the kernel's image determines it. Negative
bytes are those of a pointer."""

_ARRAY: Final[Slot] = (-8, 8)
_OBJECT: Final[Slot] = (8, 8)


@final
class _ArgumentLayout:
    """The arguments of a kernel, in the layout that the driver takes.

    Pointers and numbers lie one after the other, each aligned to its size, as the compiler has
    them. With a struct or a tensor map among them, only the kernel's image determines the offsets.
    Arguments with more than 16 bytes of alignment have it in the constant bank. The parameters
    begin at byte 0x210 of it on compute capability 9.0, so even the first may follow a gap. The
    driver then gets a pointer to each argument, and looks up the offsets.

    The driver has copied the arguments when a launch returns, even into a captured graph. So each
    launch overwrites those of the one before.

    Attributes:
        buffer: the arguments.
        put: writes the arguments to the buffer.
        pointers: address of an array of pointers, one to each argument, or 0.
        extra: address of the launch's ``extra`` array, with the buffer and its bytes, or 0.
    """

    def __init__(self, slots: list[Slot]) -> None:
        words, end = "=", 0
        places: list[int] = []
        for nbytes, alignment in slots:
            size, word = (-nbytes, "Q") if nbytes < 0 else (nbytes, f"{nbytes}s")
            gap = -end % max(1, alignment)
            words += f"{gap}x{word}"
            places.append(end + gap)
            end += gap + size
        self.buffer: Final = ctypes.create_string_buffer(max(1, end))
        self.put: Final = struct.Struct(words).pack_into
        begin = ctypes.addressof(self.buffer)
        self._size = ctypes.c_size_t(end)
        told = [_BUFFER_POINTER, begin, _BUFFER_SIZE, ctypes.addressof(self._size), None]
        known = all(alignment for _, alignment in slots)
        if not known:
            told = [begin + place for place in places]
        self._told = (ctypes.c_void_p * len(told))(*told)
        address = ctypes.addressof(self._told)
        self.pointers, self.extra = (0, address) if known else (address, 0)


@final
class _ModuleKernel:
    """A kernel of a module, which several lanes may launch.

    Attributes:
        handle: the driver's.
    """

    __slots__ = ("_clusters", "_lock", "_shared", "handle")

    def __init__(self, handle: Any) -> None:
        self.handle: Final = handle
        self._lock: Final = threading.Lock()
        self._shared = _PLAIN_SHARED
        self._clusters = _PORTABLE_CLUSTER

    def allow(self, shared: int, cluster: tuple[int, int, int] | None) -> None:
        """Opt in to large shared memory and large clusters (``cuFuncSetAttribute``)."""
        blocks = 1 if cluster is None else cluster[0] * cluster[1] * cluster[2]
        if shared <= self._shared and blocks <= self._clusters:
            return
        attributes = driver.CUfunction_attribute
        with self._lock:
            if shared > self._shared:
                self._set(attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
                self._shared = shared
            if blocks > self._clusters:
                self._set(attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
                self._clusters = blocks

    def _set(self, attribute: Any, value: int) -> None:
        check("cuFuncSetAttribute", driver.cuFuncSetAttribute(self.handle, attribute, value))


class _CudaModule(NamedTuple):
    """A module that is loaded.

    Attributes:
        handle: the driver's.
        functions: in the order of their symbols.
        variables: pointers and bytes of the variables.
    """

    handle: Any
    functions: list[_ModuleKernel]
    variables: list[tuple[int, int]]


@final
class _KernelLaunches:
    """Launches of a kernel on one stream that differ only in the values of arguments.

    Attributes:
        function: the kernel.
    """

    __slots__ = ("_arguments", "_call", "_layout", "_name", "function")

    def __init__(self, function: _ModuleKernel, message: LaunchKernel, stream: CudaStream) -> None:
        self.function: Final = function
        layout = _ArgumentLayout(_slots(message))
        options = message.options
        function.allow(message.shared, None if options is None else options.cluster)
        told: tuple[Any, ...]
        if options is None:  # what the older call can do it does in half the time
            name = "cuLaunchKernel"
            sizes = *message.grid, *message.block, message.shared
            told = function.handle, *sizes, stream.handle
        else:
            name = "cuLaunchKernelEx"
            told = launch_config(message, stream.handle), function.handle
        self._layout: Final = layout
        self._arguments: Final = (*told, layout.pointers, layout.extra)
        self._name: Final = name
        self._call: Final = getattr(driver, name)

    def __call__(self, values: Sequence[Any]) -> None:
        """Launch with these arguments, pointers and bytes."""
        layout = self._layout
        layout.put(layout.buffer, 0, *values)
        (status,) = self._call(*self._arguments)
        if status:
            raise failure(self._name, status)


@final
class CudaCompiler:
    """Executes the compiler's messages."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        del stream
        self._capability: Final = context.compute_capability
        self._line_info: Final = context.sanitized
        self.handlers: Final = {
            Compile: self._compile,
            LinkImage: self._link,
            Disassemble: self._disassemble,
        }

    @staticmethod
    def preload() -> None:
        """Load the library."""
        load_nvrtc()

    def close(self) -> None:
        """Nothing is held."""

    def _compile(self, message: Compile) -> CompiledCode:
        if self._line_info and _LINE_INFO not in message.options:
            message = msgspec.structs.replace(message, options=(*message.options, _LINE_INFO))
        return find_module(message, self._capability)

    def _link(self, message: LinkImage) -> CompiledCode:
        return link_image(message, self._capability)

    @staticmethod
    def _disassemble(message: Disassemble) -> str:
        return disassemble(message.image)


@final
class CudaKernels:
    """Executes loads and launches."""

    fills_streams: Final = True

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._context: Final = context
        self._stream: Final = stream
        self._modules: Final = LaneModules[_CudaModule](context, self._load, _unload)
        self._functions: dict[tuple[int, int], _ModuleKernel] = {}
        self._textures: Final = Textures(context, stream)
        self.handlers: Final = {
            Load: self._modules.load,
            Unload: self._unload,
            MapVariable: self._map,
            LaunchKernel: self._launch,
            DescribeFunction: self._describe,
            Occupancy: self._occupancy,
            SuggestBlock: self._suggest_block,
            **self._textures.handlers,
        }
        self.preparers: Final = {LaunchKernel: self._prepare_launch}

    def on(self, stream: CudaStream) -> CudaKernels:
        """Return the same kernels, on a further stream of the lane."""
        other = CudaKernels(self._context, stream)
        other._modules.share(self._modules)
        other._functions = self._functions
        other._textures.share(self._textures)
        return other

    def close(self) -> None:
        """Unload the modules, which all streams of the lane share."""
        self._functions.clear()
        self._modules.close()
        self._textures.close()

    def _load(self, message: Load) -> _CudaModule:
        if may_print(message.image):
            self._context.prints = True
        return _load(message)

    def _unload(self, message: Unload) -> None:
        for key in [key for key in self._functions if key[0] == message.module]:
            del self._functions[key]
        self._modules.unload(message)

    def _map(self, message: MapVariable) -> None:
        pointer, nbytes = self._modules.get(message.module).variables[message.at]
        self._context.map_pointer(message.slab, pointer, nbytes)

    def _function(self, module: int, function: int) -> _ModuleKernel:
        key = module, function
        known = self._functions.get(key)
        if known is None:
            known = self._functions[key] = self._modules.get(module).functions[function]
        return known

    # --- launches ---------------------------------------------------------------------------

    def _launch(self, message: LaunchKernel) -> None:
        pointer = self._context.pointer
        values: list[Any] = []
        for argument in message.arguments:
            if isinstance(argument, ArrayArgument):
                values.append(pointer(argument.address))
            elif isinstance(argument, TiledMap):
                values.append(encoded(argument, pointer(argument.address)))
            elif isinstance(argument, TextureObject | SurfaceObject):
                values.append(self._textures.object_of(argument))
            else:
                values.append(argument.data)
        _KernelLaunches(self._function(message.module, message.function), message, self._stream)(
            values
        )

    def _prepare_launch(self, template: HostTemplate) -> Callable[[Sequence[int]], None] | None:
        """Return a function that launches the template on given addresses."""
        message: Any = template.message
        fixed: list[Any] = []
        places: list[tuple[int, int]] = []
        maps: list[tuple[int, int, TiledMap]] = []
        for at, argument in enumerate(message.arguments):
            if isinstance(argument, TextureObject | SurfaceObject):
                return None
            if not isinstance(argument, ArrayArgument | TiledMap):
                fixed.append(argument.data)
                continue
            if argument.address < PLACE:
                return None
            place = argument.address ^ PLACE
            if isinstance(argument, ArrayArgument):
                places.append((at, place))
            else:
                maps.append((at, place, argument))
            fixed.append(0)
        all_pointers, find = self._context.pointers, self._function
        module, number = message.module, message.function
        call = _KernelLaunches(find(module, number), message, self._stream)

        def launch(addresses: Sequence[int]) -> None:
            nonlocal call
            function = find(module, number)
            if function is not call.function:  # the module was loaded anew
                call = _KernelLaunches(function, message, self._stream)
            pointers = all_pointers(addresses)
            values = [*fixed]
            for at, place in places:
                values[at] = pointers[place]
            for at, place, argument in maps:
                values[at] = encoded(argument, pointers[place])
            call(values)

        return launch

    # --- what the driver tells of them ----------------------------------------------------

    def _describe(self, message: DescribeFunction) -> KernelAttributes:
        function = self._function(message.module, message.function).handle
        kinds = driver.CUfunction_attribute

        def ask(kind: Any) -> int:
            value: int = check("cuFuncGetAttribute", driver.cuFuncGetAttribute(kind, function))
            return value

        return KernelAttributes(
            registers=ask(kinds.CU_FUNC_ATTRIBUTE_NUM_REGS),
            shared=ask(kinds.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
            constant=ask(kinds.CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES),
            local=ask(kinds.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES),
            most_threads=ask(kinds.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
            most_shared=ask(kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES),
            ptx_version=ask(kinds.CU_FUNC_ATTRIBUTE_PTX_VERSION),
            binary_version=ask(kinds.CU_FUNC_ATTRIBUTE_BINARY_VERSION),
        )

    def _occupancy(self, message: Occupancy) -> int:
        function = self._function(message.module, message.function)
        function.allow(message.shared, message.cluster)
        if message.cluster is not None:
            config = launch_config(message, self._stream.handle)
            clusters: int = check(
                "cuOccupancyMaxActiveClusters",
                driver.cuOccupancyMaxActiveClusters(function.handle, config),
            )
            return clusters
        x, y, z = message.block
        blocks: int = check(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                function.handle, x * y * z, message.shared
            ),
        )
        return blocks

    def _suggest_block(self, message: SuggestBlock) -> tuple[int, int]:
        function = self._function(message.module, message.function)
        function.allow(message.shared, None)
        none = driver.CUoccupancyB2DSize(0)
        blocks, threads = check(
            "cuOccupancyMaxPotentialBlockSize",
            driver.cuOccupancyMaxPotentialBlockSize(function.handle, none, message.shared, 0),
        )
        return blocks, threads


def may_print(image: bytes) -> bool:
    """Return whether kernels may call ``printf``. True for images that may be compressed."""
    plain = image.startswith(b"\x7fELF") or b".address_size" in image[:4096]
    return not plain or b"vprintf" in image


def _load(message: Load) -> _CudaModule:
    handle = check("cuModuleLoadData", driver.cuModuleLoadData(message.image))
    with undone_on_error() as made:
        made.callback(driver.cuModuleUnload, handle)
        functions = [
            _ModuleKernel(
                check("cuModuleGetFunction", driver.cuModuleGetFunction(handle, symbol.encode()))
            )
            for symbol in message.symbols
        ]
        variables = []
        for each in message.variables:
            pointer, nbytes = check(
                "cuModuleGetGlobal", driver.cuModuleGetGlobal(handle, each.symbol.encode())
            )
            if nbytes != len(each.data):
                raise ValueError(
                    f"variable {each.name!r} takes {nbytes} bytes in the module, and its array "
                    f"{len(each.data)}"
                )
            check("cuMemcpyHtoD", driver.cuMemcpyHtoD(pointer, each.data, nbytes))
            variables.append((int(pointer), nbytes))
    return _CudaModule(handle, functions, variables)


def _unload(module: _CudaModule) -> None:
    check("cuModuleUnload", driver.cuModuleUnload(module.handle))


def _slots(message: LaunchKernel) -> list[Slot]:
    """Return the size and alignment of each argument."""
    return [
        _ARRAY
        if isinstance(argument, ArrayArgument)
        else (TENSOR_MAP_BYTES, 0)
        if isinstance(argument, TiledMap)
        else _OBJECT
        if isinstance(argument, TextureObject | SurfaceObject)
        else (len(argument.data), 0)
        if isinstance(argument, StructArgument)
        else (len(argument.data), len(argument.data))
        for argument in message.arguments
    ]
