"""BLAS on CUDA: cuBLAS on one lane; matrix products.

cuBLAS is column-major, where a row-major array is its own transpose. So products change
the places of their operands, not their layout: ``c.T = op(b).T @ op(a).T``.
"""

from __future__ import annotations

import math
from ctypes import c_void_p
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import numpy as np

from ...._dtypes import DTYPES
from ....executors.numbers import CUDA_TYPES, number_cell
from ....wire import PLACE
from ....wire.recent import Recent
from ..wire._messages import Gemm, GemmList, ProductOptions
from ._cuda_factor import CudaFactorizations
from ._cuda_routines import CudaBlasRoutines
from ._cuda_stacked import CudaStacked, places
from ._fused import FusedGemm
from ._prototypes import EMULATED, GEMM_DEFAULT
from .cuda_handle import CublasHandle, load_cublas

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ....host.templates import HostTemplate

_LAUNCH_BOUND: Final = 1 << 26
_SHALLOW: Final = 512
"""Largest k of a small product that runs best as one kernel.

Such a product takes less time on the device than launching the two kernels of a split-K product: at
256 cubed 14.4 us against 9.7 us for one kernel.
"""

_MOST_PRODUCTS: Final = 1000

_GEMM_KEY: Final = attrgetter(
    "sizes", "batch", "strides_a", "strides_b", "strides_c", "options", "rows"
)
"""Return the part of a message that selects its prepared product."""

_NARROW: Final = ("float16", "bfloat16", "int8")


class _CublasProduct(NamedTuple):
    """A product with everything converted for the call but its addresses and scalars.

    Attributes:
        a, b, c: where those go.
        alpha, beta: where the scalars go.
        calls: what to try, one after the other, until one succeeds.
        function: which function they call.
    """

    a: c_void_p
    b: c_void_p
    c: c_void_p
    alpha: Any
    beta: Any
    calls: tuple[Callable[[], int], ...]
    function: str


@final
class CudaBlas:
    """Executes BLAS messages."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._handle: Final = CublasHandle(context, stream)
        self._context: Final = context
        self._pointer: Final = context.pointer
        self._products: Recent[tuple[Any, ...], _CublasProduct] = Recent(_MOST_PRODUCTS)
        self._fused: Final = FusedGemm(
            context, stream, load_cublas(), self._handle.value, self._handle.scalar
        )
        self.fusions: Final = {Gemm: self._fused.fusion}
        self.handlers: Final[dict[type, Callable[[Any], None]]] = {
            Gemm: self._gemm,
            GemmList: self._gemm_list,
            **CudaBlasRoutines(self._handle).handlers,
            **CudaStacked(self._handle).handlers,
            **CudaFactorizations(self._handle).handlers,
        }
        self.preparers: Final = {Gemm: self._prepare_gemm}

    @staticmethod
    def preload() -> None:
        """Load the library."""
        load_cublas()

    def close(self) -> None:
        """Destroy the handles."""
        self._fused.close()
        self._handle.close()

    def _gemm(self, message: Gemm) -> None:
        (m, n, k), batch, options = message.sizes, message.batch, message.options
        if not m or not n or 0 in batch:
            return
        if message.at:
            with self._handle.scalars_on_device():
                self._gemm_by_placed_scalars(message)
            return
        if not k:
            count = math.prod(batch)
            c = self._pointer(message.c)
            assert message.beta is not None
            self._handle.scale(c, count * m * n, 1, options.dtype_c, message.beta)
            return
        if len(batch) > 1:
            self._gemm_by_pointers(message)
            return
        key = _GEMM_KEY(message)
        product = self._products.get(key)
        if product is None:
            product = self._products.keep(key, self._new_product(message))
        self._run(product, message)

    def _new_product(self, message: Gemm) -> _CublasProduct:
        """A product with at most one stride, of matrices that are not empty."""
        (m, n, k), options = message.sizes, message.options
        kind, handles = self._handle.compute_type(options.compute), [self._handle.value]
        steps: tuple[tuple[int, ...], ...] = ((), (), ())
        if message.plain:
            if k <= _SHALLOW and m * n * k <= _LAUNCH_BOUND:
                handles.insert(0, self._handle.small)  # the other one where that does not do
            return self._prepare("cublasGemmEx_64", message, steps, (kind, GEMM_DEFAULT), handles)
        step_c = (m * n,) if message.strides_c is None else message.strides_c or (0,)
        steps = (message.strides_a or (0,), message.strides_b or (0,), step_c)
        end = (math.prod(message.batch), kind, GEMM_DEFAULT)
        return self._prepare("cublasGemmStridedBatchedEx_64", message, steps, end, handles)

    def _prepare_gemm(self, template: HostTemplate) -> Callable[[Sequence[int]], None] | None:
        """Return a function that runs products of this template with other addresses, or None."""
        message: Any = template.message
        given = message.a, message.b, message.c
        if 0 in (*message.sizes, *message.batch) or len(message.batch) > 1 or message.at:
            return None
        if min(given) < PLACE or message.options.compute in EMULATED:
            return None
        product = self._new_product(message)  # of its own, whose scalars stay
        product.alpha.value, product.beta.value = message.alpha, message.beta
        a, b, c = (value ^ PLACE for value in given)
        to_a, to_b, to_c, all_pointers = product.a, product.b, product.c, self._context.pointers
        first = product.calls[0]

        def run(addresses: Sequence[int]) -> None:
            pointers = all_pointers(addresses)
            to_a.value = pointers[a]
            to_b.value = pointers[b]
            to_c.value = pointers[c]
            status = first()
            if status:
                self._call_others(product, status)

        return run

    def _gemm_by_placed_scalars(self, message: Gemm) -> None:
        """Products whose alpha and beta are on the device."""
        (m, n, k), batch, options = message.sizes, message.batch, message.options
        if len(batch) > 1:
            self._gemm_by_pointers(message)
            return
        alpha, beta = self._scalars(message)
        row_a, row_b, row_c = message.rows or _rows(message.sizes, options)
        step_c = m * n if message.strides_c is None else sum(message.strides_c)
        pointer, a_type = self._pointer, CUDA_TYPES[options.dtype]
        self._handle.call(
            "cublasGemmStridedBatchedEx_64",
            *(options.trans_b, options.trans_a, n, m, k),
            alpha,
            *(pointer(message.b), a_type, row_b, sum(message.strides_b)),
            *(pointer(message.a), a_type, row_a, sum(message.strides_a)),
            beta,
            *(pointer(message.c), CUDA_TYPES[options.dtype_c], row_c, step_c),
            *(math.prod(batch), self._handle.compute_type(options.compute), GEMM_DEFAULT),
        )

    def _prepare(
        self,
        function: str,
        message: Gemm,
        steps: tuple[tuple[int, ...], ...],
        end: tuple[int, ...],
        handles: list[int | None],
    ) -> _CublasProduct:
        """Convert the arguments of a product, to be tried with one handle after the other."""
        (m, n, k), options = message.sizes, message.options
        scalars = options.scalars
        a, b, c = (c_void_p() for _ in range(3))
        (alpha, alpha_pointer), (beta, beta_pointer) = number_cell(scalars), number_cell(scalars)
        a_type, c_type = CUDA_TYPES[options.dtype], CUDA_TYPES[options.dtype_c]
        row_a, row_b, row_c = message.rows or _rows(message.sizes, options)
        arguments = (
            *(options.trans_b, options.trans_a, n, m, k),
            alpha_pointer,
            *(b, a_type, row_b, *steps[1]),
            *(a, a_type, row_a, *steps[0]),
            beta_pointer,
            *(c, c_type, row_c, *steps[2]),
            *end,
        )
        calls = [self._handle.prepare(function, handle, *arguments) for handle in handles]
        return _CublasProduct(a, b, c, alpha, beta, tuple(calls), function)

    def _run(self, product: _CublasProduct, message: Gemm) -> None:
        pointer = self._pointer
        product.a.value = pointer(message.a)
        product.b.value = pointer(message.b)
        product.c.value = pointer(message.c)
        product.alpha.value = message.alpha
        product.beta.value = message.beta
        self._call(product)

    def _call(self, product: _CublasProduct) -> None:
        status = product.calls[0]()
        if status:
            self._call_others(product, status)

    def _call_others(self, product: _CublasProduct, status: int) -> None:
        """The first call has failed: make the others until one does not."""
        for call in product.calls[1:]:
            status = call()
            if not status:
                return
        raise self._handle.error(product.function, status)

    def _gemm_by_pointers(self, message: Gemm) -> None:
        """Products of which no single step leads from one to the next."""
        pointer, batch, itemsize = (
            self._pointer,
            message.batch,
            DTYPES[message.options.dtype].itemsize,
        )
        (m, n, k), count = message.sizes, math.prod(batch)
        strides_c = message.strides_c
        itemsize_c = DTYPES[message.options.dtype_c].itemsize
        pointers = np.concatenate(
            [
                places(pointer(message.b), batch, message.strides_b, itemsize),
                places(pointer(message.a), batch, message.strides_a, itemsize),
                places(pointer(message.c), (count,), (m * n,), itemsize_c)
                if strides_c is None
                else places(pointer(message.c), batch, strides_c, itemsize_c),
            ]
        )
        sizes = (message.options.trans_b, message.options.trans_a, n, m, k)
        row_a, row_b, row_c = message.rows or _rows(message.sizes, message.options)
        self._batched(message, sizes, (row_b, row_a, row_c), pointers, count)

    def _gemm_list(self, message: GemmList) -> None:
        handle, pointer = self._handle, self._pointer
        placed = []
        for a, b, c, (m, n, k) in zip(message.a, message.b, message.c, message.shapes, strict=True):
            if m and n and k:
                placed.append((pointer(b), pointer(a), pointer(c), (m, n, k)))
            elif m and n:
                handle.scale(pointer(c), m * n, 1, message.options.dtype_c, message.beta)
        if not placed:
            return
        pointers = np.array([place[:3] for place in placed], np.uint64).T.ravel()
        shapes = [place[3] for place in placed]
        m, n, k = shapes[0]
        if all(shape == shapes[0] for shape in shapes):
            row_a, row_b = m if message.options.trans_a else k, k if message.options.trans_b else n
            sizes = (message.options.trans_b, message.options.trans_a, n, m, k)
            self._batched(message, sizes, (row_b, row_a, n), pointers, len(placed))
        else:
            self._grouped(message, shapes, pointers)

    def _batched(
        self,
        message: Gemm | GemmList,
        sizes: tuple[int, int, int, int, int],
        rows: tuple[int, int, int],
        pointers: np.ndarray[Any, Any],
        count: int,
    ) -> None:
        """Products whose matrices are given by pointers: those of b, of a, of c."""
        shapes = [(sizes[3], sizes[2], sizes[4])]
        if _misaligned(message, shapes, pointers):
            self._one_by_one(message, shapes * count, pointers, rows)
            return
        alpha, beta = self._scalars(message)
        a_type, c_type = CUDA_TYPES[message.options.dtype], CUDA_TYPES[message.options.dtype_c]
        table = self._pointer(message.pointers)
        self._handle.upload(table, pointers)
        step = 8 * count
        self._handle.call(
            "cublasGemmBatchedEx_64",
            *sizes,
            alpha,
            *(table, a_type, rows[0]),
            *(table + step, a_type, rows[1]),
            beta,
            *(table + 2 * step, c_type, rows[2]),
            *(count, self._handle.compute_type(message.options.compute), GEMM_DEFAULT),
        )

    def _grouped(
        self,
        message: GemmList,
        shapes: list[tuple[int, int, int]],
        pointers: np.ndarray[Any, Any],
    ) -> None:
        """Products of different shapes; equal ones in a row make a group."""
        if _misaligned(message, shapes, pointers):
            self._one_by_one(message, shapes, pointers)
            return
        groups: list[tuple[int, int, int]] = []
        members: list[int] = []
        for shape in shapes:
            if groups and groups[-1] == shape:
                members[-1] += 1
            else:
                groups.append(shape)
                members.append(1)
        m, n, k = np.array(groups, np.int64).T.copy()
        number = len(groups)
        scalars = DTYPES[message.options.scalars]
        host = [
            np.full(number, message.options.trans_b, np.int32),
            np.full(number, message.options.trans_a, np.int32),
            n,
            m,
            k,
            np.full(number, message.alpha, scalars),
            k if message.options.trans_b else n,
            m if message.options.trans_a else k,
            np.full(number, message.beta, scalars),
            np.array(members, np.int64),
        ]
        self._handle.keep(host)
        op_b, op_a, columns, rows, depth, alpha, row_b, row_a, beta, sizes = (
            array.ctypes.data for array in host
        )
        a_type, c_type = CUDA_TYPES[message.options.dtype], CUDA_TYPES[message.options.dtype_c]
        table = self._pointer(message.pointers)
        self._handle.upload(table, pointers)
        step = 8 * len(shapes)
        self._handle.call(
            "cublasGemmGroupedBatchedEx_64",
            *(op_b, op_a, columns, rows, depth),
            alpha,
            *(table, a_type, row_b),
            *(table + step, a_type, row_a),
            beta,
            *(table + 2 * step, c_type, columns),
            *(number, sizes, self._handle.compute_type(message.options.compute)),
        )

    def _one_by_one(
        self,
        message: Gemm | GemmList,
        shapes: list[tuple[int, int, int]],
        pointers: np.ndarray[Any, Any],
        rows: tuple[int, int, int] | None = None,
    ) -> None:
        """Products that the library does not take together.

        Rows are those of b, a and c, where all products have the same.
        """
        alpha, beta = self._scalars(message)
        a_type, c_type = CUDA_TYPES[message.options.dtype], CUDA_TYPES[message.options.dtype_c]
        placed = pointers.reshape(3, len(shapes)).T.tolist()
        for (m, n, k), (b, a, c) in zip(shapes, placed, strict=True):
            row_a, row_b, row_c = _rows((m, n, k), message.options)
            if rows is not None:
                row_b, row_a, row_c = rows
            self._handle.call(
                "cublasGemmEx_64",
                *(message.options.trans_b, message.options.trans_a, n, m, k),
                alpha,
                *(b, a_type, row_b),
                *(a, a_type, row_a),
                beta,
                *(c, c_type, row_c),
                *(self._handle.compute_type(message.options.compute), GEMM_DEFAULT),
            )

    def _scalars(self, message: Gemm | GemmList) -> tuple[Any, Any]:
        kind = message.options.scalars
        handle, given = self._handle, (message.alpha, message.beta)
        if isinstance(message, Gemm) and message.at:
            both = zip(given, message.at, strict=False)
            alpha, beta = (handle.placed(kind, number, at) for number, at in both)
            return alpha, beta
        alpha, beta = (handle.scalar(kind, number) for number in given if number is not None)
        return alpha, beta


def _rows(sizes: tuple[int, int, int], options: ProductOptions) -> tuple[int, int, int]:
    """Elements from row to row of contiguous a, b and c."""
    m, n, k = sizes
    return m if options.trans_a else k, k if options.trans_b else n, n


def _misaligned(
    message: Gemm | GemmList,
    shapes: list[tuple[int, int, int]],
    pointers: np.ndarray[Any, Any],
) -> bool:
    """Return True if pointers lack the alignment that products by pointers need.

    The library does not check it, and a misaligned access would end the context. If it may use
    tensor cores, it needs 16 bytes if k is a multiple of 8, and 8 if k is a multiple of 4.
    """
    if message.options.dtype not in _NARROW and "FAST" not in message.options.compute:
        return False
    k = np.array([k for _, _, k in shapes], np.uint64)
    wanted = np.where(k % 8 == 0, 16, np.where(k % 4 == 0, 8, 1)).astype(np.uint64)
    return bool((pointers.reshape(3, -1) % wanted).any())
