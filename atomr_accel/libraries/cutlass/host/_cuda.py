"""CUTLASS on CUDA: launches kernels with the parameters of their plans."""

from __future__ import annotations

import ctypes
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import numpy as np

from ....backends.cuda.host.driver import check, driver, failure
from ....executors.cuda_kernels import preload_compiler
from ....executors.timing import timing_events
from ....wire.recent import Recent
from ...nvrtc.host.launch_config import launch_config
from ...nvrtc.wire.messages import LaunchKernel, LaunchOptions
from ..wire._messages import (
    BuildCutlass,
    Grouped,
    RecallKernel,
    RunCutlass,
    TuneCutlass,
    table_parts,
)
from ..wire._spec import walk
from ._plans import filled, store_of
from ._tuned import keep_tuned, recall_tuned

if TYPE_CHECKING:
    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ..wire._messages import Sizes
    from ._plans import CutlassPlan

_MOST_CALLS: Final = 1024
_WARM_UPS: Final = 2
_RUNS: Final = 5
_FLOAT_BYTES: Final = 4


class _CutlassLaunch(NamedTuple):
    """A launch of products of one size on one stream.

    Attributes:
        config: the launch configuration.
        zeros: slots and bytes of buffers that must be zeros first, because the kernel adds to them.
    """

    plan: CutlassPlan
    config: Any
    zeros: list[tuple[int, int]]


@final
class CudaCutlass:
    """Executes CUTLASS's messages."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._context: Final = context
        self._stream: Final = stream
        self._store: Final = store_of(context)
        self._calls: Final[Recent[tuple[bytes, Sizes, int], _CutlassLaunch]] = Recent(_MOST_CALLS)
        self.handlers: Final = {
            BuildCutlass: self._build,
            Grouped: self._grouped,
            RunCutlass: self._matmul,
            RecallKernel: self._recall,
            TuneCutlass: self._tune,
        }

    @staticmethod
    def preload() -> None:
        """Load the compiler."""
        preload_compiler()

    def close(self) -> None:
        """Nothing is held: kernels are the context's."""

    def _build(self, message: BuildCutlass) -> tuple[str, float]:
        _, origin, seconds = self._store.make(message.spec, message.sizes, message.swizzle)
        return origin, seconds

    def _recall(self, message: RecallKernel) -> list[tuple[bytes, int]]:
        return recall_tuned(message.wanted, message.sizes, self._store.processors)

    def _matmul(self, message: RunCutlass) -> None:
        self._launch(message, message.spec, message.swizzle)

    def _launch(self, message: RunCutlass, spec: bytes, swizzle: int) -> None:
        call = self._call(spec, message.sizes, swizzle)
        pointer = self._context.pointer
        c = pointer(message.c) if message.c else 0
        operands = pointer(message.a), pointer(message.b), c, pointer(message.out)
        buffers = self._context.pointers(message.buffers)
        stream = self._stream.handle
        for slot, nbytes in call.zeros:
            check("cuMemsetD8Async", driver.cuMemsetD8Async(buffers[slot], 0, nbytes, stream))
        _start(call, filled(call.plan, operands, (*operands, *buffers), message.numbers))

    def _grouped(self, message: Grouped) -> None:
        call = self._call(message.spec, message.sizes, message.swizzle)
        _, n, k, count = message.sizes
        spec = call.plan.kernel.spec
        pointers = self._context.pointers
        numbers = np.zeros((8, count), np.uint64)
        numbers[0], numbers[1], numbers[3] = map(pointers, (message.a, message.b, message.out))
        numbers[4:] = np.array([k, k if spec.trans_b else n, n, n])[:, None]
        sizes = np.array([(rows, n, k) for rows in message.rows], np.int32)
        table = self._context.pointer(message.table)
        data = np.frombuffer(numbers.tobytes() + sizes.tobytes(), np.uint8)
        _upload(self._stream, table, data)
        parts = [table + at for at in table_parts(count, self._store.processors)]
        _start(call, filled(call.plan, (table, table, 0, table), parts, message.numbers))

    def _call(self, spec: bytes, sizes: Sizes, swizzle: int) -> _CutlassLaunch:
        key = spec, sizes, swizzle
        found = self._calls.get(key)
        return self._calls.keep(key, self._prepare(*key)) if found is None else found

    def _prepare(self, spec: bytes, sizes: Sizes, swizzle: int) -> _CutlassLaunch:
        plan = self._store.find(spec, sizes, swizzle)
        _, facts, *_ = kernel = plan.kernel
        options = LaunchOptions(kernel.spec.cluster)
        block = (facts.threads, 1, 1)
        launch = LaunchKernel(0, 0, plan.grid, block, facts.shared, (), options)
        m, n, *_ = sizes
        lengths = {"amax": 1, "sum_rows": n, "sum_columns": m}
        zeros = [
            (node.slot, lengths[node.op] * _FLOAT_BYTES)
            for node in walk(kernel.spec.epilogue)
            if node.op in lengths
        ]
        return _CutlassLaunch(plan, launch_config(launch, self._stream.handle), zeros)

    def _tune(self, message: TuneCutlass) -> list[float]:
        product = message.product
        times = [self._time(product, *candidate) for candidate in message.candidates]
        best = message.candidates[times.index(min(times))]
        keep_tuned(message.wanted, product.sizes, self._store.processors, best)
        return times

    def _time(self, message: RunCutlass, spec: bytes, swizzle: int) -> float:
        """Milliseconds of the best of some runs."""
        stream = self._stream.handle
        for _ in range(_WARM_UPS):
            self._launch(message, spec, swizzle)
        with timing_events(_RUNS + 1) as events:
            check("cuEventRecord", driver.cuEventRecord(events[0], stream))
            for event in events[1:]:
                self._launch(message, spec, swizzle)
                check("cuEventRecord", driver.cuEventRecord(event, stream))
            self._stream.synchronize()
            times: list[float] = [
                check("cuEventElapsedTime", driver.cuEventElapsedTime(begin, end))
                for begin, end in pairwise(events)
            ]
        return min(times)


def _start(call: _CutlassLaunch, params: bytes) -> None:
    """Launch with parameters, which the driver copies during the call.

    They are passed as one argument, because only the driver knows their place. Tensor maps are
    aligned to 64 bytes in the constant bank, and parameters do not begin at a multiple of 64.
    """
    there = ctypes.create_string_buffer(params, len(params))
    told = ctypes.c_void_p(ctypes.addressof(there))
    product = call.plan.kernel.product
    (status,) = driver.cuLaunchKernelEx(call.config, product, ctypes.addressof(told), 0)
    if status:
        raise failure("cuLaunchKernelEx", status)


def _upload(stream: CudaStream, pointer: int, data: np.ndarray[Any, Any]) -> None:
    """Copy a few numbers to the device."""
    source = data.ctypes.data
    if stream.captures:
        # A graph copies again at every launch, so what it copies from has to stay.
        source = int(check("cuMemAllocHost", driver.cuMemAllocHost(data.nbytes)))
        stream.keep(source, partial(_free, source))
        ctypes.memmove(source, data.ctypes.data, data.nbytes)
    copied = driver.cuMemcpyHtoDAsync(pointer, source, data.nbytes, stream.handle)
    check("cuMemcpyHtoDAsync", copied)


def _free(held: int) -> None:
    check("cuMemFreeHost", driver.cuMemFreeHost(held))
