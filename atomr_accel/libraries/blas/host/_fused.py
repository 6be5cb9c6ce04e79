"""Many small products with one launch.

A product of 256 x 256 matrices takes the GPU a few microseconds and cuBLAS about ten to
launch. Independent products of one shape that came together go to
``cublasGemmBatchedEx_64``, which launches once for all of them.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final, final

from ....backends.cuda.host.driver import check, driver
from ....executors.numbers import CUDA_TYPES
from ....wire.interface import Fusion
from ..wire._messages import Gemm
from ._prototypes import COMPUTES, GEMM_DEFAULT, OP_N, OP_T

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ....executors.vendor import VendorLibrary

_MOST: Final = 32
_SLOTS: Final = 1024
"""Pointer tables in turn; more than a host has ops in flight, so none is overwritten
before it was read."""

_LAUNCH_BOUND: Final = 1 << 24
"""Up to this many multiplications a product is bound by launching (256 cubed)."""

_ALIGNED: Final = 16
"""Alignment that the library assumes of pointers in tables if it may use tensor cores."""

_TABLE_BYTES: Final = 3 * 8 * _MOST


def _key(message: Gemm) -> Hashable:
    """Return the properties that products of one call must share, or None to run one alone."""
    m, n, k = message.sizes
    if not 0 < m * n * k <= _LAUNCH_BOUND or not message.plain:
        return None
    if (message.a | message.b | message.c) % _ALIGNED:
        return None  # as views may be, for which pointers in a table are no good
    return message.sizes, message.options, message.alpha, message.beta


@final
class FusedGemm:
    """Products by pointer tables, on an executor's own handle and stream.

    Args:
        scalar: gives a host pointer to a number of a dtype.
    """

    def __init__(
        self,
        context: CudaContext,
        stream: CudaStream,
        library: VendorLibrary,
        handle: int | None,
        scalar: Callable[[str, float], Any],
    ) -> None:
        self._pointer = context.pointer
        self._stream = stream
        self._library = library
        self._handle = handle
        self._scalar = scalar
        self._call = library.functions["cublasGemmBatchedEx_64"]
        self._host = 0
        self._device = 0
        self._slot = 0
        self.fusion: Final = Fusion(_key, self._run, _MOST)

    def close(self) -> None:
        """Free the tables."""
        if self._host:
            check("cuMemFreeHost", driver.cuMemFreeHost(self._host))
            check("cuMemFree", driver.cuMemFree(self._device))

    def _run(self, messages: list[Gemm]) -> None:
        if not self._host:
            self._host = int(check("cuMemAllocHost", driver.cuMemAllocHost(_SLOTS * _TABLE_BYTES)))
            self._device = int(check("cuMemAlloc", driver.cuMemAlloc(_SLOTS * _TABLE_BYTES)))
        self._slot = (self._slot + 1) % _SLOTS
        offset = self._slot * _TABLE_BYTES
        count = len(messages)
        pointer = self._pointer
        table = (ctypes.c_uint64 * (3 * count)).from_address(self._host + offset)
        # cuBLAS is column-major: the operands change places (see CudaBlas).
        table[:] = [
            *(pointer(message.b) for message in messages),
            *(pointer(message.a) for message in messages),
            *(pointer(message.c) for message in messages),
        ]
        device = self._device + offset
        check(
            "cuMemcpyHtoDAsync",
            driver.cuMemcpyHtoDAsync(device, self._host + offset, 24 * count, self._stream.handle),
        )
        first = messages[0]
        alpha: Any = first.alpha  # a number, as of all plain products
        beta: Any = first.beta
        (m, n, k), options = first.sizes, first.options
        kind = CUDA_TYPES[options.dtype]
        status = self._call(
            self._handle,
            OP_T if options.trans_b else OP_N,
            OP_T if options.trans_a else OP_N,
            n,
            m,
            k,
            self._scalar(options.scalars, alpha),
            device,
            kind,
            k if options.trans_b else n,
            device + 8 * count,
            kind,
            m if options.trans_a else k,
            self._scalar(options.scalars, beta),
            device + 16 * count,
            kind,
            n,
            count,
            COMPUTES[options.compute],
            GEMM_DEFAULT,
        )
        if status:
            raise self._library.error("cublasGemmBatchedEx_64", status)
