"""Plans: a kernel's parameters for products of a size, but for what a call brings."""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final
from weakref import WeakKeyDictionary

from ...._dtypes import DTYPES
from ....backends.cuda.host._driver import check, driver
from ...host._cuda_kernels import Arguments
from ...host._vendor import undone_on_error
from ...wire._recent import Recent
from ..wire._spec import MOST_NUMBERS, decode
from ._builds import find_build
from ._source import NUMBER_MARK, POINTER_MARK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....backends.cuda.host._context import CudaContext
    from ..wire._messages import Sizes
    from ..wire._spec import Spec
    from ._images import Facts, Map

_MOST_PLANS: Final = 4096
_MAP_BYTES: Final = 128
_GRID_BYTES: Final = 12
_OPERANDS: Final = (0, 1)
_L2_128B: Final = 2
"""``CU_TENSOR_MAP_L2_PROMOTION_L2_128B``, as CUTLASS has it."""


class Kernel(NamedTuple):
    """A build that is loaded.

    Attributes:
        spec: what it is of.
        facts: what it tells of itself.
        product, fill: its functions.
    """

    spec: Spec
    facts: Facts
    product: Any
    fill: Any


class Plan(NamedTuple):
    """What products of a size are launched with.

    Attributes:
        kernel: what is launched.
        params: its parameters, with marks in them.
        grid: its blocks.
        pointers: where pointers belong, each with its number.
        numbers: where the epilogue's numbers belong, each with its own.
        extents: of a, b, what is added and the result: elements of a row, rows, matrices.
    """

    kernel: Kernel
    params: bytes
    grid: tuple[int, int, int]
    pointers: tuple[tuple[int, int], ...]
    numbers: tuple[tuple[int, int], ...]
    extents: tuple[tuple[int, int, int], ...]


@final
class PlanStore:
    """The kernels and plans of one context; lanes share them.

    Attributes:
        processors: multiprocessors of the device.
    """

    def __init__(self, processors: int) -> None:
        self.processors: Final = processors
        self._kernels: Final[dict[bytes, Kernel]] = {}
        self._plans: Final[Recent[tuple[bytes, Sizes, int], Plan]] = Recent(_MOST_PLANS)
        self._lock: Final = threading.Lock()

    def find(self, spec: bytes, sizes: Sizes, swizzle: int) -> Plan:
        """A plan, with whatever has to be built, loaded and filled for it."""
        return self.make(spec, sizes, swizzle)[0]

    def make(self, spec: bytes, sizes: Sizes, swizzle: int) -> tuple[Plan, str, float]:
        """The same; and where the kernel came from, and the seconds that took."""
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


_STORES: Final[WeakKeyDictionary[CudaContext, PlanStore]] = WeakKeyDictionary()
_STORES_LOCK: Final = threading.Lock()


def store_of(context: CudaContext) -> PlanStore:
    """The plans of a context. Its kernels are unloaded with it."""
    with _STORES_LOCK:
        store = _STORES.get(context)
        if store is None:
            store = _STORES[context] = PlanStore(_processors())
        return store


def _processors() -> int:
    device = check("cuCtxGetDevice", driver.cuCtxGetDevice())
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    count: int = check("cuDeviceGetAttribute", driver.cuDeviceGetAttribute(attribute, device))
    return count


def _load(spec: Spec, image: bytes, facts: Facts) -> Kernel:
    module = check("cuModuleLoadData", driver.cuModuleLoadData(image))
    with undone_on_error() as made:
        made.callback(driver.cuModuleUnload, module)
        product, fill = (
            check("cuModuleGetFunction", driver.cuModuleGetFunction(module, name))
            for name in (b"product", b"fill")
        )
        dynamic = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check("cuFuncSetAttribute", driver.cuFuncSetAttribute(product, dynamic, facts.shared))
    return Kernel(spec, facts, product, fill)


def _fill(kernel: Kernel, sizes: Sizes, swizzle: int, processors: int) -> Plan:
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
        m, n, k, count = sizes
        problem = struct.pack("<6iQQ", m, n, k, count, processors, swizzle, memory, memory + nbytes)
        arguments = Arguments(problem)
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
    pointers, numbers = marks(params)
    return Plan(kernel, params, (x, y, z), pointers, numbers, extents_of(kernel.spec, sizes))


def marks(params: bytes) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """Where in parameters pointers and numbers belong, each with its number."""
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


def extents_of(spec: Spec, sizes: Sizes) -> tuple[tuple[int, int, int], ...]:
    """Elements of a row, rows and matrices of a, b, what is added, and the result."""
    m, n, k, count = sizes
    if spec.grouped:  # the kernel itself writes what they are
        return ()
    return (
        (m, k, count) if spec.trans_a else (k, m, count),
        (k, n, count) if spec.trans_b else (n, k, count),
        (n, m, count),
        (n, m, count),
    )


def filled(
    plan: Plan,
    mapped: tuple[int, int, int, int],
    pointers: Sequence[int],
    numbers: Sequence[float],
) -> bytes:
    """The parameters of a call.

    Args:
        plan: of which.
        mapped: pointers for tensor maps of a, b, what is added, and the result; 0 for what is not
            there.
        pointers: by number.
        numbers: the epilogue's.
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
            extents = plan.extents[number] if plan.extents else part.box
            encoded = _tensor_map(dtype, number in _OPERANDS, pointer, extents, part)
            params[part.offset : part.offset + _MAP_BYTES] = encoded
    return bytes(params)


@lru_cache(1024)
def _tensor_map(
    dtype: str, rounded: bool, pointer: int, extents: tuple[int, int, int], part: Map
) -> bytes:
    """A tensor map (``cuTensorMapEncodeTiled``).

    Args:
        dtype: of elements.
        rounded: whether float32 becomes TF32.
        pointer: where they begin.
        extents: elements of a row, rows, matrices.
        part: what is loaded at a time.
    """
    kinds = driver.CUtensorMapDataType
    size = DTYPES[dtype].itemsize
    if size == 4:
        number = rounded and dtype == "float32"
        kind = (
            kinds.CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
            if number
            else kinds.CU_TENSOR_MAP_DATA_TYPE_UINT32
        )
    else:  # what is copied as it is
        kind = (
            kinds.CU_TENSOR_MAP_DATA_TYPE_UINT8
            if size == 1
            else kinds.CU_TENSOR_MAP_DATA_TYPE_UINT16
        )
    modes = part.modes
    strides = [stride * size for stride in accumulate(extents, mul)][: modes - 1]
    made = check(
        "cuTensorMapEncodeTiled",
        driver.cuTensorMapEncodeTiled(
            kind,
            modes,
            pointer,
            [driver.cuuint64_t(extent) for extent in extents[:modes]],
            [driver.cuuint64_t(stride) for stride in strides],
            [driver.cuuint32_t(extent) for extent in part.box[:modes]],
            [driver.cuuint32_t(1)] * modes,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle(part.swizzle),
            driver.CUtensorMapL2promotion(_L2_128B),
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        ),
    )
    return ctypes.string_at(int(made.getPtr()), _MAP_BYTES)
