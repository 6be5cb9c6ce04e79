"""Plans: a kernel's parameters for products of a size, but for what a call brings."""

from __future__ import annotations

import ctypes
import math
import struct
import threading
import time
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final
from weakref import WeakKeyDictionary

from ...._dtypes import DTYPES
from ....backends.cuda.host.driver import check, driver
from ....executors.cuda_kernels import KernelArguments
from ....executors.vendor import undone_on_error
from ....wire.recent import Recent
from ..wire._spec import MOST_NUMBERS, decode
from ..wire._window import ImageWindow
from ._builds import find_build
from ._source import NUMBER_MARK, POINTER_MARK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....backends.cuda.host.context import CudaContext
    from ..wire._messages import Sizes
    from ..wire._spec import CutlassSpec
    from ._images import Facts, Map

_MOST_PLANS: Final = 4096
_MAP_BYTES: Final = 128
_GRID_BYTES: Final = 12
_OPERANDS: Final = (0, 1)
_L2_128B: Final = 2
"""``CU_TENSOR_MAP_L2_PROMOTION_L2_128B``, as CUTLASS has it."""


class CutlassKernel(NamedTuple):
    """A loaded build.

    Attributes:
        spec: the description that it was built from.
        facts: facts that its image holds.
        product, fill: its functions.
    """

    spec: CutlassSpec
    facts: Facts
    product: Any
    fill: Any


class Extents(NamedTuple):
    """A tensor as its map has it, innermost axis first.

    Attributes:
        sizes: along each axis.
        strides: between elements, of all axes but the innermost.
        window: how a filter moves over it, if one does.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    window: ImageWindow | None = None


def packed(*sizes: int, window: ImageWindow | None = None) -> Extents:
    """Return the extents of a tensor without gaps."""
    return Extents(sizes, tuple(accumulate(sizes[:-1], mul)), window)


class CutlassPlan(NamedTuple):
    """The parts of a launch that all products of one size share.

    Attributes:
        kernel: the kernel to launch.
        params: its parameters, with marks in them.
        grid: its blocks.
        pointers: positions of pointers, each with its number.
        numbers: positions of the epilogue's numbers, each with its number.
        extents: of a, b, the added operand and the result; empty if the kernel makes the maps.
    """

    kernel: CutlassKernel
    params: bytes
    grid: tuple[int, int, int]
    pointers: tuple[tuple[int, int], ...]
    numbers: tuple[tuple[int, int], ...]
    extents: tuple[Extents, ...]


def _by_tap(inner: int, outer: int, taps: int) -> Extents:
    """Return the extents of filters, as a matrix for each tap."""
    return Extents((inner, outer, taps), (taps * inner, inner))


@final
class CutlassPlanStore:
    """The kernels and plans of one context; lanes share them.

    Attributes:
        processors: multiprocessors of the device.
    """

    def __init__(self, processors: int) -> None:
        self.processors: Final = processors
        self._kernels: Final[dict[bytes, CutlassKernel]] = {}
        self._plans: Final[Recent[tuple[bytes, Sizes, int], CutlassPlan]] = Recent(_MOST_PLANS)
        self._lock: Final = threading.Lock()

    def find(self, spec: bytes, sizes: Sizes, swizzle: int) -> CutlassPlan:
        """A plan, with whatever has to be built, loaded and filled for it."""
        return self.make(spec, sizes, swizzle)[0]

    def make(self, spec: bytes, sizes: Sizes, swizzle: int) -> tuple[CutlassPlan, str, float]:
        """Return a plan, made if it is new; the kernel's origin; and the seconds spent."""
        key = spec, sizes, swizzle
        plan = self._plans.get(key)
        if plan is not None:
            return plan, "memory", 0.0
        with self._lock:
            start = time.perf_counter()
            kernel, origin = self._kernels.get(spec), "memory"
            if kernel is None:
                build = find_build(spec)
                origin = build.origin
                kernel = self._kernels[spec] = _load(decode(spec), build.image, build.facts)
            plan = self._plans.keep(key, _fill(kernel, sizes, swizzle, self.processors))
            return plan, origin, time.perf_counter() - start


_STORES: Final[WeakKeyDictionary[CudaContext, CutlassPlanStore]] = WeakKeyDictionary()
_STORES_LOCK: Final = threading.Lock()


def store_of(context: CudaContext) -> CutlassPlanStore:
    """The plans of a context. Its kernels are unloaded with it."""
    with _STORES_LOCK:
        store = _STORES.get(context)
        if store is None:
            store = _STORES[context] = CutlassPlanStore(_processors())
        return store


def _processors() -> int:
    device = check("cuCtxGetDevice", driver.cuCtxGetDevice())
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    count: int = check("cuDeviceGetAttribute", driver.cuDeviceGetAttribute(attribute, device))
    return count


def _load(spec: CutlassSpec, image: bytes, facts: Facts) -> CutlassKernel:
    module = check("cuModuleLoadData", driver.cuModuleLoadData(image))
    with undone_on_error() as made:
        made.callback(driver.cuModuleUnload, module)
        product, fill = (
            check("cuModuleGetFunction", driver.cuModuleGetFunction(module, name))
            for name in (b"product", b"fill")
        )
        dynamic = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check("cuFuncSetAttribute", driver.cuFuncSetAttribute(product, dynamic, facts.shared))
    return CutlassKernel(spec, facts, product, fill)


def _fill(kernel: CutlassKernel, sizes: Sizes, swizzle: int, processors: int) -> CutlassPlan:
    """Have the device write the parameters.

    That waits for it, on a stream of its own: whoever captures a graph does not capture this.
    """
    nbytes = -(-kernel.facts.params // 16) * 16
    with undone_on_error() as made:
        memory = int(check("cuMemAlloc", driver.cuMemAlloc(nbytes + _GRID_BYTES)))
        made.callback(driver.cuMemFree, memory)
        none_default = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        stream = check("cuStreamCreate", driver.cuStreamCreate(none_default))
        made.callback(driver.cuStreamDestroy, stream)
        # The kernel leaves padding alone, where marks of an earlier plan could be left.
        total = nbytes + _GRID_BYTES
        check("cuMemsetD8Async", driver.cuMemsetD8Async(memory, 0, total, stream))
        numbers = *sizes, processors, swizzle  # as many as are aligned for pointers
        problem = struct.pack(f"<{len(numbers)}iQQ", *numbers, memory, memory + nbytes)
        arguments = KernelArguments(problem)
        check(
            "cuLaunchKernel",
            driver.cuLaunchKernel(kernel.fill, 1, 1, 1, 1, 1, 1, 0, stream, 0, arguments.address),
        )
        there = ctypes.create_string_buffer(nbytes + _GRID_BYTES)
        copied = driver.cuMemcpyDtoHAsync(ctypes.addressof(there), memory, len(there), stream)
        check("cuMemcpyDtoHAsync", copied)
        check("cuStreamSynchronize", driver.cuStreamSynchronize(stream))
    check("cuStreamDestroy", driver.cuStreamDestroy(stream))
    check("cuMemFree", driver.cuMemFree(memory))
    x, y, z = struct.unpack_from("<3i", there.raw, nbytes)
    params = there.raw[: kernel.facts.params]
    return CutlassPlan(kernel, params, (x, y, z), *marks(params), extents_of(kernel.spec, sizes))


def marks(params: bytes) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """Return the positions of pointers and numbers in parameters, each with its number."""
    pointers, numbers = [], []
    for at in range(0, len(params) - 7, 8):
        low, high = struct.unpack_from("<II", params, at)
        if high == POINTER_MARK:
            pointers.append((at, low // 256))
    for at in range(0, len(params) - 3, 4):
        (word,) = struct.unpack_from("<I", params, at)
        if word - NUMBER_MARK in range(MOST_NUMBERS):
            numbers.append((at, word - NUMBER_MARK))
    return tuple(pointers), tuple(numbers)


def extents_of(spec: CutlassSpec, sizes: Sizes) -> tuple[Extents, ...]:
    """Return the extents of a, b, the added operand, and the result."""
    m, n, k, count, *_ = sizes
    if spec.grouped:  # the kernel itself writes what they are
        return ()
    out = packed(n, m, count)
    if spec.space:
        window = ImageWindow.of(sizes, spec.space)
        channels, taps = window.channels, window.taps
        images = (k if spec.trans_a else m) // math.prod(window.positions)
        gathered = packed(channels, *reversed(window.image), images, window=window)
        if spec.trans_a:
            out = _by_tap(n, m, taps)
            return packed(m, k, 1), gathered, out, out
        filters = _by_tap(channels, n, taps) if spec.trans_b else _by_tap(n, channels, taps)
        return gathered, filters, out, out
    return (
        packed(m, k, count) if spec.trans_a else packed(k, m, count),
        packed(k, n, count) if spec.trans_b else packed(n, k, count),
        out,
        out,
    )


def filled(
    plan: CutlassPlan,
    mapped: tuple[int, int, int, int],
    pointers: Sequence[int],
    numbers: Sequence[float],
) -> bytes:
    """Return the parameters of a call.

    ``mapped`` are the pointers for tensor maps of a, b, the added operand and the result, 0 if
    absent.
    """
    params = bytearray(plan.params)
    for at, number in plan.pointers:
        struct.pack_into("<Q", params, at, pointers[number])
    for at, number in plan.numbers:
        struct.pack_into("<f", params, at, numbers[number])
    _, facts, *_ = kernel = plan.kernel
    spec = kernel.spec
    dtypes = spec.a, spec.b, spec.source, spec.out
    for number, (dtype, pointer, part) in enumerate(zip(dtypes, mapped, facts.maps, strict=True)):
        if pointer:
            extents = plan.extents[number] if plan.extents else packed(*part.box)
            encoded = _tensor_map(dtype, number in _OPERANDS, pointer, extents, part)
            params[part.offset : part.offset + _MAP_BYTES] = encoded
    return bytes(params)


@lru_cache(1024)
def _tensor_map(dtype: str, rounded: bool, pointer: int, extents: Extents, part: Map) -> bytes:
    """Return a tensor map (``cuTensorMapEncodeTiled``, ``cuTensorMapEncodeIm2col``).

    ``rounded`` rounds float32 to TF32, and ``part`` is loaded at a time.
    """
    size = DTYPES[dtype].itemsize
    modes = part.modes if extents.window is None else len(extents.sizes)
    begin = (
        _kind(dtype, size, rounded),
        modes,
        pointer,
        [driver.cuuint64_t(extent) for extent in extents.sizes[:modes]],
        [driver.cuuint64_t(stride * size) for stride in extents.strides[: modes - 1]],
    )
    end = (
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle(part.swizzle),
        driver.CUtensorMapL2promotion(_L2_128B),
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if extents.window is None:
        box = [driver.cuuint32_t(extent) for extent in part.box[:modes]]
        steps = [driver.cuuint32_t(1)] * modes
        made = check(
            "cuTensorMapEncodeTiled", driver.cuTensorMapEncodeTiled(*begin, box, steps, *end)
        )
    else:
        window = extents.window
        channels, pixels, _ = part.box
        last = [at - (size - 1) for at, size in zip(window.last, window.image, strict=True)]
        made = check(
            "cuTensorMapEncodeIm2col",
            driver.cuTensorMapEncodeIm2col(
                *begin,
                [*reversed(window.corner)],
                [*reversed(last)],
                channels,
                pixels,
                [driver.cuuint32_t(step) for step in (1, *reversed(window.stride), 1)],
                *end,
            ),
        )
    return ctypes.string_at(int(made.getPtr()), _MAP_BYTES)


def _kind(dtype: str, size: int, rounded: bool) -> Any:
    """Return the type of a map's elements; elements that are not rounded are copied as bytes."""
    kinds = driver.CUtensorMapDataType
    if size == 4 and rounded and dtype == "float32":
        return kinds.CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
    return {
        1: kinds.CU_TENSOR_MAP_DATA_TYPE_UINT8,
        2: kinds.CU_TENSOR_MAP_DATA_TYPE_UINT16,
        4: kinds.CU_TENSOR_MAP_DATA_TYPE_UINT32,
    }[size]
