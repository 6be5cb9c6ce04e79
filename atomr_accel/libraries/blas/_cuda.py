"""BLAS on CUDA: one cuBLAS handle on one lane."""

from __future__ import annotations

from ctypes import byref, c_double, c_float, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any, Final, final

from ...backends.cuda._driver import check, driver
from .._vendor import VendorLibrary
from ._messages import Gemm
from ._prototypes import (
    COMPUTE_TYPES,
    CUDA_TYPES,
    GEMM_DEFAULT,
    OP_N,
    OP_T,
    PROTOTYPES,
    STATUS_NAME,
)

if TYPE_CHECKING:
    from ...backends.cuda._context import CudaContext, CudaStream


_LAUNCH_BOUND: Final = 1 << 26
_SHALLOW: Final = 512
"""Products of at most this m * n * k and k take less time on the device than launching the
two kernels of a split-K product (at 256 cubed 14.4 us against 9.7 us for one kernel)."""


@cache
def _library() -> VendorLibrary:
    return VendorLibrary("cublas", PROTOTYPES, STATUS_NAME)


@final
class CudaBlas:
    """Executes BLAS messages on cuBLAS handles of its own.

    There are two: cuBLAS splits small products along k, which needs a workspace and a
    second kernel. A handle without workspace cannot, and serves what is bound by launching.
    """

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._library: Final = _library()
        self._pointer: Final = context.pointer
        self._gemm_ex: Final = self._library.functions["cublasGemmEx_64"]
        self._scalars: dict[tuple[str, float], Any] = {}
        self._handle: Final = self._create(stream)
        self._small: Final = self._create(stream)
        # A null pointer would mean the default workspace, so nothing needs an address. It
        # comes after the stream, because cublasSetStream resets the workspace.
        self._nothing: Final = check("cuMemAlloc", driver.cuMemAlloc(256))
        self._library.call("cublasSetWorkspace_v2", self._small, int(self._nothing), 0)
        self.handlers: Final = {Gemm: self._gemm}

    @staticmethod
    def preload() -> None:
        """Load the library."""
        _library()

    def close(self) -> None:
        """Destroy the handles."""
        self._library.call("cublasDestroy_v2", self._small)
        self._library.call("cublasDestroy_v2", self._handle)
        check("cuMemFree", driver.cuMemFree(self._nothing))

    def _create(self, stream: CudaStream) -> int | None:
        handle = c_void_p()
        self._library.call("cublasCreate_v2", byref(handle))
        self._library.call("cublasSetStream_v2", handle, stream.pointer)
        return handle.value

    def _gemm(self, message: Gemm) -> None:
        m, n, k, dtype = message.m, message.n, message.k, message.dtype
        if not m or not n:
            return
        pointer = self._pointer
        cuda_type = CUDA_TYPES[dtype]
        # cuBLAS is column-major, where our row-major c is c transposed, and
        # c.T = op(b).T @ op(a).T: so the operands change places, not their layout.
        arguments = (
            OP_T if message.trans_b else OP_N,
            OP_T if message.trans_a else OP_N,
            n,
            m,
            k,
            self._scalar(dtype, message.alpha),
            pointer(message.b),
            cuda_type,
            max(1, k if message.trans_b else n),
            pointer(message.a),
            cuda_type,
            max(1, m if message.trans_a else k),
            self._scalar(dtype, message.beta),
            pointer(message.c),
            cuda_type,
            n,
            COMPUTE_TYPES[dtype],
            GEMM_DEFAULT,
        )
        status = 1
        if k <= _SHALLOW and m * n * k <= _LAUNCH_BOUND:
            status = self._gemm_ex(self._small, *arguments)
        if status:  # also where nothing goes without a workspace
            status = self._gemm_ex(self._handle, *arguments)
        if status:
            raise self._library.error("cublasGemmEx_64", status)

    def _scalar(self, dtype: str, value: float) -> Any:
        """A pointer to ``value`` in the compute type; kept, because gemm repeats itself."""
        key = (dtype, value)
        scalar = self._scalars.get(key)
        if scalar is None:
            if len(self._scalars) > 1000:
                self._scalars.clear()
            cell = c_double(value) if dtype == "float64" else c_float(value)
            scalar = self._scalars[key] = byref(cell)
        return scalar
