"""Structured sparsity on CUDA: one cuSPARSELt handle on one lane, and plans that are kept.

A program need not have cuSPARSELt, so it is loaded when the lane is first used.
"""

from __future__ import annotations

import ctypes
import math
from contextlib import ExitStack, contextmanager
from ctypes import byref, c_int, c_size_t, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any, Final, final

from ...._dtypes import DTYPES
from ...._errors import LibraryError, Unsupported
from ....backends.cuda.host.driver import check, driver
from ....executors.numbers import CUDA_TYPES, Scalars
from ....executors.operations import PlacedOperand, pointer_handlers
from ....executors.timing import timing_events
from ....executors.vendor import VendorLibrary, undone_on_error
from ....wire.recent import Recent
from ..wire._messages import (
    CheckSparsity,
    Compress,
    MeasureCompressed,
    MultiplyCompressed,
    Prune,
    Structured,
    decode,
)
from ._prototypes import (
    ENUMS,
    PROTOTYPES,
    REFUSALS,
    STATUS_NAME,
    STRUCT_ALIGNMENT,
    STRUCT_BYTES,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ..wire._messages import DenseOperand, SparseLtSpec

_MOST_PLANS: Final = 256
_RUNS: Final = 10
"""Products by which an algorithm is timed."""
_ALIGNMENT: Final = 16
_INT: Final = ctypes.sizeof(c_int)
_N: Final = ENUMS["CUSPARSE_OPERATION_NON_TRANSPOSE"]
_IS_A: Final = 1
_ROW: Final = ENUMS["CUSPARSE_ORDER_ROW"]
_COLUMN: Final = ENUMS["CUSPARSE_ORDER_COL"]


@cache
def load_cusparselt() -> VendorLibrary:
    """The library, loaded once."""
    return VendorLibrary("cusparseLt", PROTOTYPES, STATUS_NAME, extra="cusparselt")


@final
class CudaSparseLt:
    """Executes the messages of structured sparsity."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._context: Final = context
        self._stream: Final = stream
        self._opened: _CusparseLtHandle | None = None
        self._scalars: Final = Scalars()
        self._plans: Recent[tuple[bytes, int], _SparseLtPlan] = Recent(
            _MOST_PLANS, lambda plan: plan.drop()
        )
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            Compress: self._compress,
            MeasureCompressed: self._measure,
            MultiplyCompressed: self._multiply,
            **pointer_handlers(context, {CheckSparsity: self._check, Prune: self._prune}),
        }

    @staticmethod
    def preload() -> None:
        """Load the library, if it is there."""
        load_cusparselt()

    def close(self) -> None:
        """Destroy the plans and the handle."""
        self._plans.clear()
        if self._opened is not None:
            self._opened.close()

    def _handle(self) -> _CusparseLtHandle:
        if self._opened is None:
            self._opened = _CusparseLtHandle()
        return self._opened

    # --- pruned and compressed matrices -------------------------------------------------------

    def _prune(self, a: PlacedOperand, alg: str, out: PlacedOperand) -> None:
        handle = self._handle()
        algorithm = ENUMS[f"CUSPARSELT_PRUNE_SPMMA_{alg.upper()}"]
        with ExitStack() as made:
            matrix = handle.structured(made, Structured(a.shape[0], a.shape[1], a.dtype))
            handle.call(
                *("cusparseLtSpMMAPrune2", matrix, _IS_A, _N, a.pointer, out.pointer, algorithm),
                self._stream.pointer,
            )

    def _check(self, a: PlacedOperand) -> bool:
        if self._stream.captures:
            raise Unsupported("a check waits for the device, so it cannot be recorded")
        handle, stream = self._handle(), self._stream
        told = c_int(1)
        with ExitStack() as made:
            matrix = handle.structured(made, Structured(a.shape[0], a.shape[1], a.dtype))
            cell = int(check("cuMemAlloc", driver.cuMemAlloc(4)))
            made.callback(lambda: check("cuMemFree", driver.cuMemFree(cell)))
            # The library does not clear it for matrices of 8-bit types.
            cleared = driver.cuMemsetD8Async(cell, 0, 4, stream.handle)
            check("cuMemsetD8Async", cleared)
            handle.call(
                *("cusparseLtSpMMAPruneCheck2", matrix, _IS_A, _N, a.pointer, cell), stream.pointer
            )
            copy = driver.cuMemcpyDtoHAsync(ctypes.addressof(told), cell, 4, stream.handle)
            check("cuMemcpyDtoHAsync", copy)
            # The lane has a thread of its own, which may wait.
            check("cuStreamSynchronize", driver.cuStreamSynchronize(stream.handle))
        return told.value == 0

    def _measure(self, message: MeasureCompressed) -> tuple[int, int]:
        handle = self._handle()
        size, scratch = c_size_t(), c_size_t()
        with ExitStack() as made:
            matrix = handle.structured(made, message.matrix)
            handle.call("cusparseLtSpMMACompressedSize2", matrix, byref(size), byref(scratch))
        return size.value, scratch.value

    def _compress(self, message: Compress) -> None:
        handle, pointer = self._handle(), self._context.pointer
        scratch = pointer(message.scratch) if message.scratch else None
        with ExitStack() as made:
            matrix = handle.structured(made, message.matrix)
            source, target = pointer(message.source), pointer(message.target)
            handle.call(
                *("cusparseLtSpMMACompress2", matrix, _IS_A, _N, source, target, scratch),
                self._stream.pointer,
            )

    # --- products -----------------------------------------------------------------------------

    def _multiply(self, message: MultiplyCompressed) -> None:
        pointer = self._context.pointer
        bias = pointer(message.bias) if message.bias else 0
        a, b, d = (pointer(each) for each in (message.a, message.b, message.d))
        c = pointer(message.c) if message.c else d
        spec = decode(message.spec)
        key = message.spec, bias
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan(spec, bias)
            if spec.tuned and not self._stream.captures:
                plan = self._tune(plan, spec, bias, a, b, self._numbers(message))
            self._plans.keep(key, plan)
        if self._stream.captures:
            plan.pinned = True  # a graph has its scratch memory
            self._stream.keep(plan)
        plan.run("cusparseLtMatmul", a, b, c, d, self._numbers(message), self._stream)

    def _numbers(self, message: MultiplyCompressed) -> tuple[Any, Any]:
        pointer = self._scalars.pointer
        return pointer("float32", message.alpha), pointer("float32", message.beta)

    def _tune(
        self,
        plan: _SparseLtPlan,
        spec: SparseLtSpec,
        bias: int,
        a: int,
        b: int,
        numbers: tuple[Any, Any],
    ) -> _SparseLtPlan:
        """Time the algorithms on scratch results, and return the plan of the fastest.

        Each has a plan, and so scratch memory, of its own. ``cusparseLtMatmulSearch`` runs all of
        them, and may split k as well, in the scratch memory of one. A plan that is not the fastest
        is destroyed, and on an error so are all.
        """
        stream = self._stream
        best = plan
        try:
            with _nobodys_memory(spec.d) as out, timing_events() as events:
                least = plan.time(a, b, out, numbers, stream, events)
                for algorithm in range(plan.algorithms):
                    try:
                        other = _SparseLtPlan(self._handle(), spec, bias, algorithm)
                    except LibraryError as error:
                        if error.status not in REFUSALS:
                            raise
                        continue  # not for these operands
                    slower = other
                    try:
                        taken = other.time(a, b, out, numbers, stream, events)
                        if taken < least:
                            slower, best, least = best, other, taken
                    finally:
                        slower.drop()
        except BaseException:
            best.drop()
            raise
        return best

    def _plan(self, spec: SparseLtSpec, bias: int) -> _SparseLtPlan:
        try:
            return _SparseLtPlan(self._handle(), spec, bias)
        except LibraryError as error:
            if error.status not in REFUSALS:
                raise
            a, d = spec.a, spec.d
            more = " and ".join(filter(None, (spec.activation, spec.bias and "bias")))
            raise Unsupported(
                f"cuSPARSELt does not multiply {a.dtype} to {d.dtype}{more and ' with ' + more} "
                f"like this on this device: {error}"
            ) from error


def _struct() -> Any:
    """Memory for one of the library's structs."""
    memory = ctypes.create_string_buffer(STRUCT_BYTES + STRUCT_ALIGNMENT)
    offset = -ctypes.addressof(memory) % STRUCT_ALIGNMENT
    return (ctypes.c_char * STRUCT_BYTES).from_buffer(memory, offset)


@contextmanager
def _nobodys_memory(target: DenseOperand) -> Iterator[int]:
    """Scratch memory for a result, with its gaps, or for the matrix that is added."""
    count = target.ld * (target.rows if target.by_rows else target.columns)
    widest = max(DTYPES[target.dtype].itemsize, 2)  # what is added to fp8 has 16 bits
    memory = int(check("cuMemAlloc", driver.cuMemAlloc(count * widest)))
    try:
        yield memory
    finally:
        check("cuMemFree", driver.cuMemFree(memory))


@final
class _CusparseLtHandle:
    """A cuSPARSELt handle."""

    def __init__(self) -> None:
        self._library: Final = load_cusparselt()
        self._struct: Final = _struct()
        self._library.call("cusparseLtInit", byref(self._struct))

    def close(self) -> None:
        """Destroy it."""
        self._library.call("cusparseLtDestroy", byref(self._struct))

    def call(self, function: str, *args: Any) -> None:
        """Call a function on the handle."""
        self._library.call(function, byref(self._struct), *args)

    def create(self, made: ExitStack, what: str, destroy: str, *args: Any) -> Any:
        """A struct of the library's by pointer, undone when ``made`` is closed."""
        pointer = byref(_struct())
        self.call(f"cusparseLt{what}Init", pointer, *args)
        if destroy:
            made.callback(self._library.call, f"cusparseLt{destroy}Destroy", pointer)
        return pointer

    def structured(self, made: ExitStack, matrix: Structured) -> Any:
        """A structured matrix, by rows."""
        return self.create(
            *(made, "StructuredDescriptor", "MatDescriptor"),
            *(matrix.rows, matrix.columns, matrix.columns, _ALIGNMENT, CUDA_TYPES[matrix.dtype]),
            *(_ROW, ENUMS["CUSPARSELT_SPARSITY_50_PERCENT"]),
        )

    def dense(self, made: ExitStack, dense: DenseOperand) -> Any:
        """A dense matrix."""
        return self.create(
            *(made, "DenseDescriptor", "MatDescriptor"),
            *(dense.rows, dense.columns, dense.ld, _ALIGNMENT, CUDA_TYPES[dense.dtype]),
            _ROW if dense.by_rows else _COLUMN,
        )


@final
class _SparseLtPlan:
    """A product as the library knows it, with one bias.

    Args:
        algorithm: by its number; the library's default if None.

    Attributes:
        algorithms: how many there are, numbered from 0; some may not be for these operands.
        pinned: whether a graph has it, so that it must stay.
    """

    def __init__(
        self, handle: _CusparseLtHandle, spec: SparseLtSpec, bias: int, algorithm: int | None = None
    ) -> None:
        self._handle = handle
        self.pinned = False
        compute = ENUMS[f"CUSPARSE_COMPUTE_{'32I' if spec.a.dtype == 'int8' else '32F'}"]
        with undone_on_error() as made:
            self._made: ExitStack = made
            matrices = (
                handle.structured(made, spec.a),
                *(handle.dense(made, each) for each in (spec.b, spec.c, spec.d)),
            )
            self._product = handle.create(made, "MatmulDescriptor", "", _N, _N, *matrices, compute)
            if spec.activation:
                self._set(f"ACTIVATION_{spec.activation.upper()}", c_int(1))
            if bias:
                self._set("BIAS_POINTER", c_void_p(bias))
            default = ENUMS["CUSPARSELT_MATMUL_ALG_DEFAULT"]
            chosen = handle.create(
                *(made, "MatmulAlgSelection", "MatmulAlgSelection", self._product, default)
            )
            count = c_int()
            most = ENUMS["CUSPARSELT_MATMUL_ALG_CONFIG_MAX_ID"]
            handle.call("cusparseLtMatmulAlgGetAttribute", chosen, most, byref(count), _INT)
            self.algorithms = count.value
            if algorithm is not None:
                number = ENUMS["CUSPARSELT_MATMUL_ALG_CONFIG_ID"]
                told = byref(c_int(algorithm))
                handle.call("cusparseLtMatmulAlgSetAttribute", chosen, number, told, _INT)
            self._plan = handle.create(*(made, "MatmulPlan", "MatmulPlan", self._product, chosen))
            self._scratch = self._allocate(self._work())

    def drop(self) -> None:
        """Destroy it, if no graph has it."""
        if not self.pinned:
            self._made.close()

    def run(
        self,
        function: str,
        a: int,
        b: int,
        c: int,
        d: int,
        numbers: tuple[Any, Any],
        stream: CudaStream,
    ) -> None:
        """Queue the product."""
        streams = (c_void_p * 1)(stream.pointer)
        alpha, beta = numbers
        self._handle.call(function, self._plan, alpha, a, b, beta, c, d, self._scratch, streams, 1)

    def time(
        self,
        a: int,
        b: int,
        out: int,
        numbers: tuple[Any, Any],
        stream: CudaStream,
        events: list[Any],
    ) -> float:
        """Milliseconds that some products take; infinity if the library refuses them.

        The memory of the result also serves as the matrix that is added: its values do not matter.
        """
        begin, end = events
        arguments = "cusparseLtMatmul", a, b, out, out, numbers, stream
        try:
            self.run(*arguments)  # the first loads the kernel
            check("cuEventRecord", driver.cuEventRecord(begin, stream.handle))
            for _ in range(_RUNS):
                self.run(*arguments)
        except LibraryError as error:
            if error.status not in REFUSALS:
                raise
            return math.inf
        check("cuEventRecord", driver.cuEventRecord(end, stream.handle))
        check("cuEventSynchronize", driver.cuEventSynchronize(end))
        return float(check("cuEventElapsedTime", driver.cuEventElapsedTime(begin, end)))

    def _set(self, name: str, value: Any) -> None:
        size = ctypes.sizeof(value)
        attribute = ENUMS[f"CUSPARSELT_MATMUL_{name}"]
        self._handle.call(
            "cusparseLtMatmulDescSetAttribute", self._product, attribute, byref(value), size
        )

    def _work(self) -> int:
        size = c_size_t()
        self._handle.call("cusparseLtMatmulGetWorkspace", self._plan, byref(size))
        return size.value

    def _allocate(self, nbytes: int) -> int | None:
        """Scratch memory that lives as long as the plan."""
        if not nbytes:
            return None
        memory = int(check("cuMemAlloc", driver.cuMemAlloc(nbytes)))
        self._made.callback(lambda: check("cuMemFree", driver.cuMemFree(memory)))
        return memory
