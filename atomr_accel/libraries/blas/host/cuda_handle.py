"""Handles, scalars and small transfers for every user of cuBLAS on a lane."""

from __future__ import annotations

import ctypes
import struct
from contextlib import contextmanager
from ctypes import byref, c_int, c_void_p
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._dtypes import DTYPES
from ...._errors import Unsupported
from ....backends.cuda.host.driver import check, driver
from ....executors.device_code import CudaSource
from ....executors.numbers import CUDA_TYPES, Scalars
from ....executors.vendor import VendorLibrary, undone_on_error
from ._prototypes import (
    COMPUTES,
    EMULATED,
    EMULATES,
    ENUMS,
    NOT_SUPPORTED,
    PROTOTYPES,
    STATUS_NAME,
    half_symbol,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ....executors.cuda_kernels import Kernels
    from ..wire._messages import Scalar

HOST: Final = ENUMS["CUBLAS_POINTER_MODE_HOST"]
DEVICE: Final = ENUMS["CUBLAS_POINTER_MODE_DEVICE"]

_PIECE: Final = 1 << 16
"""Uploads of up to this size return before the stream comes to them."""

_MOST_PITCH: Final = 2**31 - 1
"""Largest number of bytes between rows that the driver's functions accept
(``CU_DEVICE_ATTRIBUTE_MAX_PITCH`` of every device).
"""

_WORKSPACE: Final = 32 << 20
"""Bytes of the workspace that cuBLAS itself takes on the largest devices."""

_KERNELS: Final = CudaSource(__package__, "shift.cu")
"""cuBLAS counts from one, everybody else here from zero."""


@cache
def load_cublas() -> VendorLibrary:
    """The library, loaded once."""
    return VendorLibrary("cublas", PROTOTYPES, STATUS_NAME)


@final
class CublasHandle:
    """A cuBLAS handle on a stream.

    Attributes:
        functions: cuBLAS's, by name.
        prepare: makes calls of them that are repeated; see ``VendorLibrary.prepare``.
        value: the handle.
        small: a second handle that has no workspace. cuBLAS splits small products along
            k, which needs a workspace and a second kernel; where launching takes longer
            than computing, one kernel is faster.
        pointer: the device pointer of an address.
    """

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._library: Final = load_cublas()
        self._context: Final = context
        self._stream: Final = stream
        self.functions: Final = self._library.functions
        self.prepare: Final = self._library.prepare
        self.pointer: Final = context.pointer
        with undone_on_error() as self._made:
            # A null pointer would mean the default workspace, so nothing needs an address. It
            # is set after the stream, because cublasSetStream resets the workspace.
            nothing = self._allocate(256)
            # How much there is decides on algorithms: to be deterministic, as much as in graphs.
            own = stream.captures or context.deterministic
            workspace = self._allocate(_WORKSPACE) if own else 0
            self.value: Final = self._create()
            self.small: Final = self._create()
            self._library.call("cublasSetWorkspace_v2", self.small, nothing, 0)
            if workspace:
                self._library.call("cublasSetWorkspace_v2", self.value, workspace, _WORKSPACE)
        self._kernels: Kernels | None = None
        self._scalars: Final = Scalars()

    def close(self) -> None:
        """Destroy the handles."""
        self._made.close()
        if self._kernels is not None:
            self._kernels.close()

    def _create(self) -> int | None:
        handle = c_void_p()
        self._library.call("cublasCreate_v2", byref(handle))
        self._made.callback(self._library.call, "cublasDestroy_v2", handle.value)
        self._library.call("cublasSetStream_v2", handle, self._stream.pointer)
        return handle.value

    def _allocate(self, nbytes: int) -> int:
        """Device memory that goes with the handle, after it."""
        memory = check("cuMemAlloc", driver.cuMemAlloc(nbytes))
        self._made.callback(lambda: check("cuMemFree", driver.cuMemFree(memory)))
        return int(memory)

    def call(self, function: str, *args: Any) -> None:
        """Call a function on the handle.

        Raises:
            Unsupported: it does not do this, with these types, on this device.
        """
        status = self.functions[function](self.value, *args)
        if status:
            raise self.error(function, status)

    def compute_type(self, name: str) -> int:
        """The number of a compute type."""
        if name in EMULATED:
            version = c_int()
            self.call("cublasGetVersion_v2", byref(version))
            if version.value < EMULATES:
                raise Unsupported(
                    f"compute type {name} needs cuBLAS 13.1; this is {version.value // 10_000}."
                    f"{version.value // 100 % 100}"
                )
        return COMPUTES[name]

    def error(self, function: str, status: int) -> Exception:
        """The error for a status."""
        error = self._library.error(function, status)
        if status == NOT_SUPPORTED:
            return Unsupported(f"{error}: not with these types on this device")
        return error

    def to_device(self, function: str, *args: Any) -> None:
        """Call a function whose result goes to a device pointer."""
        with self.scalars_on_device():
            self.call(function, *args)

    @contextmanager
    def scalars_on_device(self) -> Iterator[None]:
        """Pointers to scalars, and to results, are the device's."""
        self.call("cublasSetPointerMode_v2", DEVICE)
        try:
            yield
        finally:
            self.call("cublasSetPointerMode_v2", HOST)

    def placed(self, dtype: str, value: Scalar | None, at: int) -> int:
        """The pointer of a number on the device; it goes there unless it is there."""
        pointer = self.pointer(at)
        if value is not None:
            number = complex(*value) if isinstance(value, (tuple, list)) else value
            self.upload(pointer, np.asarray(number).astype(DTYPES[dtype]))
        return pointer

    def scalar(self, dtype: str, value: Scalar) -> Any:
        """A pointer to a number of that dtype."""
        return self._scalars.pointer(dtype, value)

    # --- around the library's calls ---------------------------------------------------------

    def clear(self, pointer: int, nbytes: int) -> None:
        """Fill memory with zeros."""
        if nbytes:
            check(
                "cuMemsetD8Async", driver.cuMemsetD8Async(pointer, 0, nbytes, self._stream.handle)
            )

    def fill(self, pointer: int, value: int) -> None:
        """Write one int32."""
        check("cuMemsetD32Async", driver.cuMemsetD32Async(pointer, value, 1, self._stream.handle))

    def clear_elements(self, pointer: int, n: int, inc: int, itemsize: int) -> None:
        """Set the elements of a vector to zero."""
        if abs(inc) == 1:
            self.clear(pointer, n * itemsize)
        elif abs(inc) * itemsize > _MOST_PITCH:
            for element in range(n):  # so far apart that there are not many
                self.clear(pointer + element * abs(inc) * itemsize, itemsize)
        elif n:
            check(
                "cuMemsetD2D8Async",
                driver.cuMemsetD2D8Async(
                    pointer, abs(inc) * itemsize, 0, itemsize, n, self._stream.handle
                ),
            )

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Copy inside the device."""
        if nbytes and to != source:
            check(
                "cuMemcpyDtoDAsync",
                driver.cuMemcpyDtoDAsync(to, source, nbytes, self._stream.handle),
            )

    def copy_rows(
        self, to: int, to_pitch: int, source: int, pitch: int, width: int, n: int
    ) -> None:
        """Copy ``n`` pieces of ``width`` bytes that lie ``pitch`` bytes apart."""
        if not n or not width:
            return
        if max(pitch, to_pitch) > _MOST_PITCH:
            for row in range(n):  # so far apart that there are not many
                self.copy(to + row * to_pitch, source + row * pitch, width)
            return
        rows = driver.CUDA_MEMCPY2D()
        rows.srcMemoryType = rows.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        rows.srcDevice, rows.dstDevice = source, to
        rows.srcPitch, rows.dstPitch = pitch, to_pitch
        rows.WidthInBytes, rows.Height = width, n
        check("cuMemcpy2DAsync", driver.cuMemcpy2DAsync(rows, self._stream.handle))

    def upload(self, pointer: int, array: np.ndarray[Any, Any]) -> None:
        """Copy a few numbers to the device."""
        stream = self._stream.handle
        if self._stream.captures:
            # A graph copies again at every launch, so what it copies from has to stay.
            held = int(check("cuMemAllocHost", driver.cuMemAllocHost(array.nbytes)))
            self._stream.keep(held, partial(_free_host, held))
            ctypes.memmove(held, array.ctypes.data, array.nbytes)
            copy = driver.cuMemcpyHtoDAsync(pointer, held, array.nbytes, stream)
            check("cuMemcpyHtoDAsync", copy)
            return
        address = array.ctypes.data
        for start in range(0, array.nbytes, _PIECE):
            size = min(_PIECE, array.nbytes - start)
            check(
                "cuMemcpyHtoDAsync",
                driver.cuMemcpyHtoDAsync(pointer + start, address + start, size, stream),
            )

    def keep(self, arrays: list[np.ndarray[Any, Any]]) -> None:
        """Have host memory that a call reads stay, where a graph may read it again."""
        if self._stream.captures:
            self._stream.keep(arrays)

    def shift(self, ctype: str, to: int, source: int, count: int, delta: int) -> None:
        """Add ``delta`` to ``count`` integers."""
        from ....executors.cuda_kernels import (  # needs NVRTC, which others do not
            KernelArguments,
            Kernels,
        )

        if self._kernels is None:
            self._kernels = Kernels(self._context, self._stream, _KERNELS)
        if count:
            arguments = KernelArguments(struct.pack("QQQq", to, source, count, delta))
            self._kernels.launch(self._kernels.function(f"shift<{ctype}>"), count, arguments)

    def scale(self, pointer: int, n: int, inc: int, dtype: str, beta: Scalar) -> None:
        """``vector *= beta``, where beta 0 makes zeros of anything."""
        kind = DTYPES[dtype]
        if not n or beta in (1.0, (1.0, 0.0)):
            return
        if beta in (0.0, (0.0, 0.0)):
            self.clear_elements(pointer, n, inc, kind.itemsize)
            return
        compute = "float32" if kind.itemsize == 2 else dtype
        self.call(
            half_symbol("ScalEx"),
            *(n, self.scalar(compute, beta), CUDA_TYPES[compute]),
            *(pointer, CUDA_TYPES[dtype], abs(inc), CUDA_TYPES[compute]),
        )


def _free_host(pointer: int) -> None:
    check("cuMemFreeHost", driver.cuMemFreeHost(pointer))
