"""Launches: their limits, the checks before them, and the arguments of the driver."""

# ruff: noqa: N802 (the names of the fake driver's methods are the vendor's)

from __future__ import annotations

import ctypes
import itertools
import re
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import cloudpickle
import numpy as np
import pytest

from atomr_accel import Device, GpuRefStale, LibraryError, Unsupported
from atomr_accel.libraries.nvrtc.launching import LaunchWish, geometry
from atomr_accel.libraries.nvrtc.tensor_map import TensorMap, takes_tensor_maps
from atomr_accel.libraries.nvrtc.wire.messages import (
    ArrayArgument,
    DescribeFunction,
    KernelAttributes,
    KernelEntry,
    LaunchKernel,
    LaunchOptions,
    Load,
    MapVariable,
    Occupancy,
    Scalar,
    StructArgument,
    SuggestBlock,
    TiledMap,
    Unload,
    VariableContent,
)
from atomr_accel.wire import PLACE, DeviceInfo

from ...fakes.driver import FakeDriver, installed, memory
from ...harness import needs_nvrtc, on_shared

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the host cannot import tests

H200: Final = DeviceInfo(
    "H200", "cuda", 0, 1 << 37, (9, 0), multiprocessors=132, shared_memory_per_block=227 << 10
)
A100: Final = DeviceInfo(
    "A100", "cuda", 0, 1 << 36, (8, 0), multiprocessors=108, shared_memory_per_block=163 << 10
)
PLAIN: Final = KernelEntry("k")


def shape(
    grid: Any = 1, block: Any = 32, entry: KernelEntry = PLAIN, info: Any = H200, **wish: Any
) -> Any:
    return geometry(grid, block, LaunchWish(**wish), entry, info)


# --- checks ---------------------------------------------------------------------------------


def test_a_plain_launch_asks_for_nothing_more() -> None:
    assert shape((2, 3), 64, shared=1 << 16) == ((2, 3, 1), (64, 1, 1), 1 << 16, None)
    assert shape(4, entry=KernelEntry("k", cluster=(2, 1, 1))).options is None  # the image says it
    assert shape(4, entry=KernelEntry("k", cluster=(2, 1, 1)), cluster=2).options is None


@pytest.mark.parametrize(
    ("wish", "options"),
    [
        ({"cluster": 2}, LaunchOptions(cluster=(2, 1, 1))),
        ({"cluster": (1, 1, 1)}, LaunchOptions(cluster=(1, 1, 1))),
        ({"cooperative": True}, LaunchOptions(cooperative=True)),
        ({"cooperative": np.True_}, LaunchOptions(cooperative=True)),
        ({"programmatic": True}, LaunchOptions(programmatic=True)),
        ({"priority": np.int8(-5)}, LaunchOptions(priority=-5)),
        ({"priority": 0}, LaunchOptions(priority=0)),
    ],
    ids=str,
)
def test_launch_uses_its_options(wish: dict[str, Any], options: LaunchOptions) -> None:
    assert shape(4, **wish).options == options


@pytest.mark.parametrize(
    ("elements", "block", "grid"),
    [
        (1, 256, (1, 1, 1)),
        (256, 256, (1, 1, 1)),
        (257, 256, (2, 1, 1)),
        ((100, 9), (32, 8), (4, 2, 1)),
        (2**31 * 64, 128, (2**30, 1, 1)),
        (np.int64(5), 4, (2, 1, 1)),
        (0, 256, None),
        ((4, 0), 256, None),
    ],
)
def test_the_grid_is_counted_from_elements(elements: Any, block: Any, grid: Any) -> None:
    assert shape(None, block, elements=elements).grid == grid


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"grid": None}, TypeError, "either a grid or elements="),
        ({"grid": 1, "elements": 5}, TypeError, "either a grid or elements="),
        ({"grid": None, "elements": -1}, ValueError, "elements is"),
        ({"grid": None, "elements": 2**50, "block": 1}, ValueError, "elements is"),
        ({"grid": None, "elements": (1, 2**17), "block": 1}, ValueError, r"grid is \(1, 131072"),
        ({"grid": None, "elements": 1.5}, TypeError, "elements takes whole numbers"),
        ({"shared": 228 << 10}, ValueError, "from 0 to 232448"),
        ({"shared": 164 << 10, "info": A100}, ValueError, "from 0 to 166912"),
        ({"shared": -1}, ValueError, "from 0 to 232448"),
        ({"cluster": 2, "info": A100, "grid": 2}, Unsupported, r"A100 has .* 8\.0; clusters"),
        ({"cluster": 2, "grid": 3}, ValueError, r"grid \(3, 1, 1\) is not made of whole clusters"),
        ({"cluster": (2, 2), "grid": (2, 3)}, ValueError, "whole clusters"),
        ({"cluster": 17, "grid": 17}, ValueError, "cluster is"),
        ({"cluster": (4, 4, 2), "grid": (4, 4, 2)}, ValueError, "has 32 blocks; 16 are the most"),
        ({"cluster": 0}, ValueError, "cluster is"),
        ({"cluster": "x"}, TypeError, "cluster takes whole numbers"),
        ({"cooperative": True, "grid": 132 * 32 + 1}, ValueError, "132 multiproc.*4224 at most"),
        ({"cooperative": 1}, TypeError, "cooperative must be a bool"),
        ({"cooperative": 0}, TypeError, "cooperative must be a bool"),
        ({"programmatic": np.array([1, 2])}, TypeError, "programmatic must be a bool"),
        ({"priority": np.array([1, 2])}, TypeError, "priority takes whole numbers"),
        ({"grid": b"1"}, TypeError, "grid takes whole numbers"),
        ({"programmatic": None}, TypeError, "programmatic must be a bool"),
        ({"priority": 0.5}, TypeError, "priority takes whole numbers"),
        ({"priority": 1000}, ValueError, "about -5"),
    ],
    ids=str,
)
def test_launch_refuses_invalid_options(
    arguments: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        shape(**arguments)


@pytest.mark.parametrize(
    ("entry", "arguments", "said"),
    [
        (
            KernelEntry("k", most_threads=128),
            {"block": 129},
            "block must have at most 128 threads, for which the kernel is compiled",
        ),
        (
            KernelEntry("k", threads=(8, 8, 1)),
            {"block": 64},
            r"block must be \(8, 8, 1\), for which the kernel is compiled, not \(64,",
        ),
        (KernelEntry("k", cluster=(2, 1, 1)), {"grid": 3}, "whole clusters"),
        (
            KernelEntry("k", cluster=(2, 1, 1)),
            {"grid": 4, "cluster": 4},
            r"cluster must be \(2, 1, 1\), for which the kernel is compiled, not \(4,",
        ),
    ],
)
def test_launch_bounds_limit_a_launch(
    entry: KernelEntry, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        shape(entry=entry, **arguments)


def test_limits_are_those_that_are_known() -> None:
    """The CPU backend has none."""
    cpu = DeviceInfo("cpu", "cpu", 0, 1)
    assert shape(2, info=cpu, cluster=2, shared=1 << 20, cooperative=True).shared == 1 << 20


ADD: Final = """
    extern "C" __global__ void add(float* x, float a, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] += a;
    }
"""


def add(x: Any, a: Any, n: Any, *, grid: Any, block: Any) -> None:
    threads = grid[0] * block[0]
    x[: min(n, threads)] += a


@needs_nvrtc
@on_shared
async def test_all_elements_have_threads(device: Device) -> None:
    kernel = await device.nvrtc.compile(ADD, "add", cpu=add)
    x = await device.zeros(1000, np.float32)
    for elements in (1000, 999, 1, 0):
        await kernel.launch(None, 32, x, 1.0, elements, elements=elements)
    async with device.batch() as batch:
        batch.launch(kernel, None, 32, x, 1.0, 1000, elements=1000, priority=0)
    found = await device.get(x)
    assert found[:1].tolist() == [4]
    assert found[1:999].tolist() == [3] * 998
    assert found[999:].tolist() == [2]
    with pytest.raises(TypeError, match="takes 3 arguments"):
        await kernel.launch(None, 32, x, elements=0)  # also where nothing is launched
    with pytest.raises(TypeError, match="either a grid or elements="):
        await kernel.launch(None, 32, x, 1.0, 3)


# --- arguments of the driver ----------------------------------------------------------------


class Context(SimpleNamespace):
    """A host's context, whose addresses are pointers."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def pointer(self, address: int) -> int:
        return address

    def map_pointer(self, slab: int, pointer: int, nbytes: int) -> None:
        self.mapped = slab, pointer, nbytes


class Launches(FakeDriver):
    """Keeps what kernels are launched with."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[tuple[Any, bytes | list[bytes]]] = []
        self.sizes: list[int] = []
        self.allowed: list[tuple[int, int]] = []
        self.modules = 0
        self.status = 0
        self.variable = ctypes.create_string_buffer(16)
        self._numbers = itertools.count(1)

    def cuModuleLoadData(self, _image: bytes) -> Any:
        self.modules += 1
        return 0, next(self._numbers)

    def cuModuleGetFunction(self, module: int, name: bytes) -> Any:
        return 0, f"{name.decode()} of {module}"

    def cuModuleGetGlobal(self, _module: int, _name: bytes) -> Any:
        return 0, ctypes.addressof(self.variable), len(self.variable)

    def cuModuleUnload(self, _module: int) -> Any:
        self.modules -= 1
        return (0,)

    def cuFuncSetAttribute(self, _function: str, attribute: int, value: int) -> Any:
        self.allowed.append((int(attribute), value))
        return (0,)

    def cuFuncGetAttribute(self, attribute: int, _function: str) -> Any:
        return 0, 100 + int(attribute)

    def cuMemcpyHtoD(self, to: int, source: Any, nbytes: int) -> Any:
        memory(to, nbytes)[:] = np.frombuffer(source, np.uint8)
        return (0,)

    def cuLaunchKernel(self, *arguments: Any) -> Any:
        self.launched.append((arguments[:-2], self._read(*arguments[-2:])))
        return (self.status,)

    def cuLaunchKernelEx(self, config: Any, function: str, parameters: int, extra: int) -> Any:
        self.launched.append(((config, function), self._read(parameters, extra)))
        return (self.status,)

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(
        self, _function: str, threads: int, shared: int
    ) -> Any:
        return 0, 2048 // threads if shared < 1 << 16 else 1

    def cuOccupancyMaxActiveClusters(self, _function: str, config: Any) -> Any:
        return 0, 100 * config.attrs[0].value.clusterDim.x

    def cuOccupancyMaxPotentialBlockSize(
        self, _function: str, _sizes: int, _shared: int, _limit: int
    ) -> Any:
        return 0, 264, 1024

    def cuTensorMapEncodeTiled(self, *arguments: Any) -> Any:
        self.encoded = arguments
        self.map = ctypes.create_string_buffer(bytes(range(128)), 128)
        return 0, SimpleNamespace(getPtr=lambda: ctypes.addressof(self.map))

    def _read(self, parameters: int, extra: int) -> bytes | list[bytes]:
        """All arguments as they lie, or each by itself, as long as the image says."""
        assert not (parameters and extra)
        if extra:
            _, data, _, size, _ = (ctypes.c_void_p * 5).from_address(extra)
            return ctypes.string_at(data or 0, ctypes.c_size_t.from_address(size or 0).value)
        pointers = (ctypes.c_void_p * len(self.sizes)).from_address(parameters)
        return [ctypes.string_at(at or 0, n) for at, n in zip(pointers, self.sizes, strict=True)]


@pytest.fixture
def driver() -> Iterator[Launches]:
    made = Launches()
    with installed(made):
        yield made


CONTENT: Final = VariableContent(
    "table", "_table", "float32", (4,), np.arange(4, dtype="f4").tobytes()
)
LOAD: Final = Load(1, b"image", ("one", "two"), (CONTENT,))


def executor(context: Any) -> Any:
    from atomr_accel.libraries.nvrtc.host._cuda import CudaKernels

    stream: Any = SimpleNamespace(handle=7)
    return CudaKernels(context, stream)


def launch(function: int = 0, *arguments: Any, shared: int = 0, **options: Any) -> LaunchKernel:
    told = LaunchOptions(**options) if options else None
    return LaunchKernel(1, function, (4, 2, 1), (32, 1, 1), shared, arguments, told)


def test_options_are_attributes_of_the_launch(driver: Launches) -> None:
    kernels = executor(Context())
    do = kernels.handlers
    do[Load](LOAD)
    do[LaunchKernel](launch(1, cluster=(2, 1, 1), cooperative=True, programmatic=True, priority=-3))
    (config, function), _ = driver.launched[-1]
    assert function == "two of 1"
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (4, 2, 1)
    assert (config.blockDimX, config.hStream, config.numAttrs) == (32, 7, 4)
    cluster, cooperative, programmatic, priority = config.attrs
    assert (cluster.id, cluster.value.clusterDim.x, cluster.value.clusterDim.z) == (4, 2, 1)
    assert (cooperative.id, cooperative.value.cooperative) == (2, 1)
    assert programmatic.id == 6
    assert programmatic.value.programmaticStreamSerializationAllowed == 1
    assert (priority.id, priority.value.priority) == (8, -3)
    assert not driver.allowed
    do[LaunchKernel](launch(1, cluster=(16, 1, 1)))
    do[LaunchKernel](launch(1, cluster=(16, 1, 1)))
    assert driver.allowed == [(14, 1)]
    driver.status = 720
    with pytest.raises(LibraryError, match=r"cuLaunchKernelEx .*COOPERATIVE_LAUNCH_TOO_LARGE"):
        do[LaunchKernel](launch(cooperative=True))
    kernels.close()
    assert not driver.modules


def test_arguments_are_aligned_as_the_compiler_does(driver: Launches) -> None:
    do = executor(Context()).handlers
    do[Load](LOAD)
    do[LaunchKernel](
        launch(0, Scalar(b"1", "int8"), ArrayArgument(512, (1,), "float32"), Scalar(b"ab", "int16"))
    )
    _, data = driver.launched[-1]
    assert data == b"1" + bytes(7) + (512).to_bytes(8, "little") + b"ab"


@pytest.mark.parametrize("options", [{}, {"cluster": (2, 1, 1)}], ids=["plain", "cluster"])
def test_driver_decides_the_layout_of_structs_and_tensor_maps(
    driver: Launches, options: dict[str, Any]
) -> None:
    """Only the image tells, so each argument has a pointer of its own."""
    do = executor(Context()).handlers
    do[Load](LOAD)
    struct = StructArgument(b"abcdefgh", "[('x', '<f4'), ('y', '<f4')]")
    tiled = TiledMap(4096, "float32", 7, (6, 8), (2, 4), (1, 1), 0, 0, 0)
    one, two = Scalar(b"1", "int8"), ArrayArgument(512, (1,), "float32")
    pointer = (512).to_bytes(8, "little")
    for given, expected in (
        ((one, struct, two), [b"1", b"abcdefgh", pointer]),
        ((tiled, two, one), [bytes(range(128)), pointer, b"1"]),
        ((two, one), pointer + b"1"),  # and not to this one
        ((one, struct, two), [b"1", b"abcdefgh", pointer]),
    ):
        driver.sizes = [len(each) for each in expected if isinstance(each, bytes)]
        do[LaunchKernel](launch(0, *given, **options))
        assert driver.launched[-1][1] == expected


@pytest.mark.headers
@pytest.mark.parametrize(("alignment", "first"), [(16, 0), (32, 0x10), (64, 0x30), (128, 0x70)])
def test_the_image_tells_where_parameters_lie(alignment: int, first: int) -> None:
    """Parameters lie where the vendor aligns them in the constant bank."""
    pytest.importorskip("cuda.bindings.nvrtc")
    from atomr_accel.executors.compiler import compile_cubin

    source = f"""
        struct Wide {{ alignas({alignment}) char data[128]; }};
        extern "C" __global__ void k(const __grid_constant__ Wide wide, char* x) {{
            *x = wide.data[blockIdx.x];
        }}
    """
    image, *_ = compile_cubin(source, "k", (), (9, 0))
    told = re.findall(rb"\x04\x17\x0c\0.{4}(..)(..).{4}", image, re.DOTALL)  # EIATTR_KPARAM_INFO
    places = {int.from_bytes(at, "little"): int.from_bytes(to, "little") for at, to in told}
    assert places == {0: first, 1: first + 128}


def test_tensor_maps_are_told_from_the_innermost_axis(driver: Launches) -> None:
    from atomr_accel.libraries.nvrtc.host._tensor_maps import encoded

    tiled = TiledMap(0, "bfloat16", 9, (5, 6, 8), (1, 2, 8), (2, 1, 1), 3, 2, 1)
    assert encoded(tiled, 3 << 20) == bytes(range(128))
    kind, rank, pointer, sizes, strides, box, steps, *rest = driver.encoded
    assert (kind, rank, pointer) == (9, 3, 3 << 20)
    assert (sizes, strides) == ([8, 6, 5], [16, 96])
    assert (box, steps) == ([8, 2, 1], [1, 1, 2])
    assert rest == [0, 3, 2, 1]


def test_tensor_maps_of_one_axis_have_a_stride(driver: Launches) -> None:
    """The driver refuses none, although it needs none."""
    from atomr_accel.libraries.nvrtc.host._tensor_maps import encoded

    encoded(TiledMap(0, "float32", 7, (32,), (16,), (1,), 0, 0, 0), 1 << 20)
    assert driver.encoded[3:5] == ([32], [16])


def test_lanes_share_a_module(driver: Launches) -> None:
    """Its variables are there once, and it goes with the last who uses it."""
    context = Context()
    one, other = executor(context), executor(context)
    for kernels in (one, other, one):
        kernels.handlers[Load](LOAD)
    assert driver.modules == 1
    other.handlers[MapVariable](MapVariable(1, 0, 5))
    assert context.mapped == (5, ctypes.addressof(driver.variable), 16)
    assert np.frombuffer(driver.variable.raw, "f4").tolist() == [0, 1, 2, 3]
    for kernels in (one, other):  # what one was allowed, the other is
        kernels.handlers[LaunchKernel](launch(shared=1 << 16))
    assert driver.allowed == [(8, 1 << 16)]
    one.handlers[Unload](Unload(1))
    assert driver.modules == 1
    other.handlers[LaunchKernel](launch())
    other.close()
    assert driver.modules == 0
    one.handlers[Load](LOAD)
    assert driver.modules == 1
    executor(Context()).handlers[Load](LOAD)  # of another device
    assert driver.modules == 2


def test_a_variable_of_another_size_is_refused(driver: Launches) -> None:
    wrong = Load(1, b"image", ("one",), (VariableContent("table", "t", "float32", (1,), bytes(4)),))
    with pytest.raises(ValueError, match="'table' takes 16 bytes in the module, and its array 4"):
        executor(Context()).handlers[Load](wrong)
    assert driver.modules == 0


def test_driver_attributes_of_kernels_are_reported(driver: Launches) -> None:
    do = executor(Context()).handlers
    do[Load](LOAD)
    assert do[DescribeFunction](DescribeFunction(1, 0)) == KernelAttributes(
        registers=104,
        shared=101,
        constant=102,
        local=103,
        most_threads=100,
        most_shared=108,
        ptx_version=105,
        binary_version=106,
    )
    assert do[Occupancy](Occupancy(1, 0, (16, 16, 1), 0)) == 8
    assert do[Occupancy](Occupancy(1, 0, (16, 16, 1), 1 << 16)) == 1
    assert do[Occupancy](Occupancy(1, 0, (16, 16, 1), 0, (4, 1, 1))) == 400
    assert do[SuggestBlock](SuggestBlock(1, 0, 1 << 17)) == (264, 1024)
    assert driver.allowed == [(8, 1 << 16), (8, 1 << 17)]


# --- tensor maps ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape_and_dtype", "arguments", "error", "said"),
    [
        (((8, 8), "f4"), {"box": (9,)}, ValueError, "for 1 axes; the array has 2"),
        (((8, 8), "f4"), {"box": (8, 257)}, ValueError, "from 1 to 256"),
        (((8, 8), "f4"), {"box": (0, 8)}, ValueError, "from 1 to 256"),
        (((8, 8), "f4"), {"box": (8, 2)}, ValueError, "takes 8 bytes of float32; TMA moves"),
        (((8, 8), "f4"), {"box": 8}, TypeError, "box takes whole numbers"),
        (((8, 8), "f4"), {"box": (8, 8), "steps": (9, 1)}, ValueError, "from 1 to 8"),
        (((8, 8), "f4"), {"box": (8, 8), "steps": (1, 2)}, ValueError, "innermost axis"),
        (((8, 8), "f4"), {"box": (8, 8), "swizzle": 16}, ValueError, "swizzle must be one of"),
        (((8, 16), "f4"), {"box": (8, 16), "swizzle": 32}, ValueError, "takes 32 at most"),
        (((8, 8), "f4"), {"box": (8, 8), "promotion": 32}, ValueError, "promotion must be"),
        (((8, 8), "f4"), {"box": (8, 8), "fill": "ones"}, ValueError, "fill must be one of"),
        (((8, 8), "i4"), {"box": (8, 8), "fill": "nan"}, ValueError, "is for floats"),
        (((8, 6), "f2"), {"box": (8, 8)}, ValueError, "take 12 bytes; TMA wants .* pad the rows"),
        (((0, 8), "f4"), {"box": (1, 8)}, ValueError, "axis 0 .* has 0 elements"),
        (((), "f4"), {"box": ()}, ValueError, "1 to 5 axes"),
        (((1,) * 5 + (8,), "f4"), {"box": (1,) * 6}, ValueError, "1 to 5 axes"),
        (((8, 8), "c8"), {"box": (8, 8)}, Unsupported, "complex64"),
    ],
)
@on_shared
async def test_invalid_tensor_map_is_refused(
    device: Device,
    shape_and_dtype: Any,
    arguments: dict[str, Any],
    error: type[Exception],
    said: str,
) -> None:
    ref = await device.zeros(*shape_and_dtype)
    with pytest.raises(error, match=said):
        TensorMap(ref, **arguments)


COPY: Final = """
    struct CUtensorMap { alignas(64) unsigned long long opaque[16]; };
    extern "C" __global__ void copy(
        const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap y, int n) {
        __shared__ alignas(128) float tile[16];
        __shared__ alignas(8) unsigned long long arrived;
        unsigned to = __cvta_generic_to_shared(tile), barrier = __cvta_generic_to_shared(&arrived);
        if (threadIdx.x) return;
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        for (int at = 0; at < n; at += 16) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 64;"
                         :: "r"(barrier) : "memory");
            asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.tile"
                         ".mbarrier::complete_tx::bytes [%0], [%1, {%2}], [%3];"
                         :: "r"(to), "l"(&x), "r"(at), "r"(barrier) : "memory");
            asm volatile("{\\n"
                         ".reg .pred done;\\n"
                         "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\\n"
                         "@!done bra again;\\n"
                         "}" :: "r"(barrier), "r"(at / 16 & 1) : "memory");
            asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%0, {%1}], [%2];"
                         :: "l"(&y), "r"(at), "r"(to) : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        }
    }
"""
"""Copy floats from one array to the other by TMA, 16 at a time."""


def copy(x: Any, y: Any, n: Any) -> None:
    y[:n] = x[:n]


@pytest.mark.parametrize(
    ("size", "right"),
    [((128, 64), True), ((128, 128), True), (None, True), ((128, 16), False), ((64, 64), False)],
)
def test_tensor_map_parameters_accept_tensor_maps(
    size: tuple[int, int] | None, right: bool
) -> None:
    """``cuda.h`` aligns them to 64 bytes up to CUDA 12, and to 128 since."""
    assert takes_tensor_maps(size) == right


@needs_nvrtc
@on_shared
async def test_tensor_maps_are_arrays_to_twins(device: Device) -> None:
    if device.backend != "cpu":
        pytest.skip("the kernel does nothing; a twin does")
    kernel = await device.nvrtc.compile(COPY, "copy", cpu=copy)
    data = np.arange(64, dtype=np.float32).reshape(8, 8)
    x, y = await device.put(data, sealed=True), await device.zeros((8, 8), np.float32)
    loads = TensorMap(x, (4, 8), written=False)
    stores = TensorMap(y, np.array([4, 8]))  # type: ignore[arg-type]
    assert stores.box == (4, 8)
    await kernel.launch(1, 128, loads, stores, 8)
    assert (await device.get(y)).tolist() == data.tolist()
    with pytest.raises(Exception, match="sealed"):
        await kernel.launch(1, 128, TensorMap(x, (4, 8)), stores, 8)
    with pytest.raises(TypeError, match=r"argument 2 must be for 'int', .* not a TensorMap"):
        await kernel.launch(1, 128, loads, stores, stores)
    with pytest.raises(TypeError, match=r"argument 0 must be a scalar, .* not a GpuRef"):
        await kernel.launch(1, 128, x, stores, 8)
    part = TensorMap(y.reshape(64)[1:33], (16,))
    with pytest.raises(ValueError, match="begins at byte 4; TMA wants a multiple of 16"):
        await kernel.launch(1, 128, loads, part, 8)
    turned = TensorMap(y.T, (4, 8))  # what of the buffer is wrong a launch tells
    with pytest.raises(ValueError, match="contiguous"):
        await kernel.launch(1, 128, loads, turned, 8)
    freed = TensorMap(await device.zeros((8, 8), np.float32), (4, 8))
    await device.free(freed.ref)
    with pytest.raises(GpuRefStale):
        await kernel.launch(1, 128, loads, freed, 8)
    with pytest.raises(TypeError, match="a TensorMap is of a GpuRef"):
        TensorMap(data, (4, 8))  # type: ignore[arg-type]


@on_shared
async def test_recordings_replace_the_arrays_of_tensor_maps(device: Device) -> None:
    assert device.info is not None
    if device.backend != "cpu" and device.info.compute_capability < (9, 0):
        pytest.skip("TMA is there from compute capability 9.0 on")
    kernel = await device.nvrtc.compile(COPY, "copy", cpu=copy)
    source = await device.put(np.arange(32, dtype=np.float32), sealed=True)
    old, new = await device.zeros(32, np.float32), await device.zeros(33, np.float32)
    async with device.record(old) as recording:
        loads, stores = TensorMap(source, (16,), written=False), TensorMap(old, (16,))
        recording.launch(kernel, 1, 128, loads, stores, 32)
    await recording.replay(new[:32])
    assert not (await device.get(old)).any()
    assert (await device.get(new)).tolist() == [*range(32), 0]
    with pytest.raises(
        ValueError, match=r"<GpuRef float32\[32\] on .*:0, generation 1> must begin at a multiple"
    ):
        await recording.replay(new[1:])
    await recording.replay()
    assert (await device.get(old)).tolist() == [*range(32)]
    await device.free(old)
    with pytest.raises(GpuRefStale):
        await recording.replay()


def test_templated_launch_is_reported_once(driver: Launches) -> None:
    """Also maps of other arrays; and a module that was loaded anew has other functions."""
    context = Context(pointers=lambda addresses: [*addresses])
    kernels = executor(context)
    do = kernels.handlers
    do[Load](LOAD)
    tiled = TiledMap(PLACE, "float32", 7, (6, 8), (2, 4), (1, 1), 0, 0, 0)
    message = launch(1, tiled, ArrayArgument(PLACE | 1, (1,), "float32"), cluster=(2, 1, 1))
    driver.sizes = [128, 8]
    template: Any = SimpleNamespace(message=message)
    call = kernels.preparers[LaunchKernel](template)
    assert call is not None
    for address in (512, 1024):
        call((4096 + address, address))
        assert driver.encoded[2] == 4096 + address
        assert driver.launched[-1][1] == [bytes(range(128)), address.to_bytes(8, "little")]
    (one, _), (other, _) = [told for told, _ in driver.launched]
    assert one is other
    do[Unload](Unload(1))
    do[Load](LOAD)
    call((0, 0))
    assert driver.launched[-1][0][0] is not one
