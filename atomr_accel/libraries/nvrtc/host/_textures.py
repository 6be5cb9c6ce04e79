"""CUDA arrays, and texture and surface objects, by the driver."""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING, Any, Final, final

from ...._dtypes import DTYPES
from ....backends.cuda.host.driver import check, driver
from ....executors.vendor import undone_on_error
from ..wire.messages import CopyArray, FreeArray, MakeArray, SurfaceObject, TextureObject
from ._modules import Numbered

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....backends.cuda.host.context import CudaContext, CudaStream

_SURFACES: Final = 0x02
"""``CUDA_ARRAY3D_SURFACE_LDST``"""

_MOST_OBJECTS: Final = 256
"""Textures of memory that a lane keeps: of loops over a few buffers all, of chance buffers some."""

_pack: Final = struct.Struct("=Q").pack

Made = tuple[bytes, "Callable[[], object]"]
"""An object as an argument, and the function that destroys it."""


@final
class _TextureArray:
    """A CUDA array.

    Attributes:
        handle: the driver's.
        message: the message that made it.
        objects: its textures, and its surface, which go with it.
    """

    def __init__(self, message: MakeArray) -> None:
        self.message: Final = message
        self.objects: Final[dict[TextureObject | SurfaceObject, Made]] = {}
        self._lock: Final = threading.Lock()
        *outer, width = message.extent
        descriptor = driver.CUDA_ARRAY3D_DESCRIPTOR()
        descriptor.Width = width
        descriptor.Height = outer[-1] if outer else 0
        descriptor.Depth = outer[-2] if len(outer) > 1 else 0
        descriptor.Format = driver.CUarray_format(message.format)
        descriptor.NumChannels = message.channels
        descriptor.Flags = _SURFACES if message.surface else 0
        self.handle: Final = check("cuArray3DCreate", driver.cuArray3DCreate(descriptor))

    def copy(self, pointer: int, stream: CudaStream, *, to_array: bool) -> None:
        """Copy between it and contiguous memory (``cuMemcpy3DAsync``)."""
        message = self.message
        depth, height, width = (1, 1, *message.extent)[-3:]
        row = width * message.channels * DTYPES[message.dtype].itemsize
        kinds = driver.CUmemorytype
        copy = driver.CUDA_MEMCPY3D()
        if to_array:
            copy.srcMemoryType = kinds.CU_MEMORYTYPE_DEVICE
            copy.srcDevice, copy.srcPitch, copy.srcHeight = pointer, row, height
            copy.dstMemoryType, copy.dstArray = kinds.CU_MEMORYTYPE_ARRAY, self.handle
        else:
            copy.srcMemoryType, copy.srcArray = kinds.CU_MEMORYTYPE_ARRAY, self.handle
            copy.dstMemoryType = kinds.CU_MEMORYTYPE_DEVICE
            copy.dstDevice, copy.dstPitch, copy.dstHeight = pointer, row, height
        copy.WidthInBytes, copy.Height, copy.Depth = row, height, depth
        check("cuMemcpy3DAsync", driver.cuMemcpy3DAsync(copy, stream.handle))

    def object_of(self, argument: TextureObject | SurfaceObject) -> bytes:
        """A texture of it, or its surface."""
        with self._lock:  # kernels and recordings are of two lanes
            if argument not in self.objects:
                resource = driver.CUDA_RESOURCE_DESC()
                resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_ARRAY
                resource.res.array.hArray = self.handle
                self.objects[argument] = (
                    _surface(resource)
                    if isinstance(argument, SurfaceObject)
                    else _texture(resource, argument)
                )
            return self.objects[argument][0]

    def destroy(self) -> None:
        """Release the array, with its texture and surface objects."""
        for _, destroy in self.objects.values():
            destroy()
        check("cuArrayDestroy", driver.cuArrayDestroy(self.handle))


@final
class Textures:
    """Textures of a lane's kernels. CUDA arrays belong to the whole context.

    Attributes:
        handlers: functions that execute messages about CUDA arrays.
    """

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._context: Final = context
        self._stream: Final = stream
        self._arrays: Final = Numbered[_TextureArray](context)
        self._objects: dict[tuple[TextureObject, int], Made] = {}
        self._made: set[int] = set()
        self.handlers: Final = {
            MakeArray: self._make,
            CopyArray: self._copy,
            FreeArray: self._free,
        }

    def share(self, other: Textures) -> None:
        """Share the textures of another stream of the same lane."""
        self._objects, self._made = other._objects, other._made

    def object_of(self, argument: TextureObject | SurfaceObject) -> bytes:
        """A texture or surface object, as the kernel gets it.

        One of memory belongs to the lane, or to the graph that is captured: that may be launched
        for as long as it exists.
        """
        if argument.array:
            return self._arrays.get(argument.array).object_of(argument)
        assert isinstance(argument, TextureObject)
        pointer = self._context.pointer(argument.address)
        if self._stream.captures:
            made, destroy = _of_memory(argument, pointer)
            self._stream.keep(made, destroy)
            return made
        key = argument, pointer
        found = self._objects.get(key)
        if found is None:
            if len(self._objects) >= _MOST_OBJECTS:
                check("cuCtxSynchronize", driver.cuCtxSynchronize())  # kernels may be using them
                self._forget()
            found = self._objects[key] = _of_memory(argument, pointer)
        return found[0]

    def close(self) -> None:
        """Destroy the textures of memory and the CUDA arrays, which the lane's streams share."""
        self._forget()
        while self._made:
            self._destroy(self._made.pop())

    def _destroy(self, number: int) -> None:
        array = self._arrays.pop(number)
        if array is not None:
            array.destroy()

    def _forget(self) -> None:
        while self._objects:
            _, (_, destroy) = self._objects.popitem()
            destroy()

    def _make(self, message: MakeArray) -> None:
        pointer = self._context.pointer(message.address)
        array = self._arrays.find(message.array)
        if array is not None:
            array.copy(pointer, self._stream, to_array=True)
            return
        array = _TextureArray(message)
        with undone_on_error() as made:
            made.callback(array.destroy)
            array.copy(pointer, self._stream, to_array=True)
        self._arrays.add(message.array, array)
        self._made.add(message.array)

    def _copy(self, message: CopyArray) -> None:
        array = self._arrays.get(message.array)
        pointer = self._context.pointer(message.address)
        array.copy(pointer, self._stream, to_array=message.to_array)

    def _free(self, message: FreeArray) -> None:
        self._made.discard(message.array)
        if self._arrays.find(message.array) is not None:
            check("cuCtxSynchronize", driver.cuCtxSynchronize())  # kernels may be using it
        self._destroy(message.array)


def _of_memory(argument: TextureObject, pointer: int) -> Made:
    """A texture of a buffer: of one axis, or of rows that follow each other."""
    kinds, resource = driver.CUresourcetype, driver.CUDA_RESOURCE_DESC()
    *outer, width = argument.extent
    row = width * argument.channels * DTYPES[argument.dtype].itemsize
    if outer:
        resource.resType, memory = kinds.CU_RESOURCE_TYPE_PITCH2D, resource.res.pitch2D
        memory.width, memory.height, memory.pitchInBytes = width, outer[0], row
    else:
        resource.resType, memory = kinds.CU_RESOURCE_TYPE_LINEAR, resource.res.linear
        memory.sizeInBytes = row
    memory.devPtr = pointer
    memory.format = driver.CUarray_format(argument.format)
    memory.numChannels = argument.channels
    return _texture(resource, argument)


def _texture(resource: Any, argument: TextureObject) -> Made:
    how = driver.CUDA_TEXTURE_DESC()
    how.addressMode = [driver.CUaddress_mode(mode) for mode in (*argument.modes, 1, 1)[:3]]
    how.filterMode = driver.CUfilter_mode(int(argument.linear))
    how.flags = argument.flags
    how.borderColor = [*argument.border]
    made = check("cuTexObjectCreate", driver.cuTexObjectCreate(resource, how, None))
    return _pack(int(made)), lambda: check("cuTexObjectDestroy", driver.cuTexObjectDestroy(made))


def _surface(resource: Any) -> Made:
    made = check("cuSurfObjectCreate", driver.cuSurfObjectCreate(resource))
    return _pack(int(made)), lambda: check("cuSurfObjectDestroy", driver.cuSurfObjectDestroy(made))
