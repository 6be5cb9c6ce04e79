"""The CUDA executor on a driver of the host's memory, with a kernel that reads its parameters."""

# ruff: noqa: N802 (the names of the fake driver's methods are the vendor's)

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest

from atomr_accel import LibraryError
from atomr_accel.libraries.cutlass._movement import Movement
from atomr_accel.libraries.cutlass.host import _plans, _tuned
from atomr_accel.libraries.cutlass.host._builds import CutlassBuild as Built
from atomr_accel.libraries.cutlass.host._cuda import CudaCutlass
from atomr_accel.libraries.cutlass.host._images import Facts, Map
from atomr_accel.libraries.cutlass.host._source import NUMBER_MARK, POINTER_MARK
from atomr_accel.libraries.cutlass.wire._messages import (
    BuildCutlass,
    Grouped,
    RecallKernel,
    RunCutlass,
    TuneCutlass,
    table_parts,
)
from atomr_accel.libraries.cutlass.wire._spec import EpilogueNode, encode

from ...fakes.driver import FakeDriver, installed, memory
from .specs import PRODUCT, spec

PROCESSORS: Final = 132
OFFSETS: Final = (64, 256, 448, 640)
POINTERS, NUMBER = 800, 1000
"""Addresses of the kernel's pointers 0 to 10, and of its number."""
PARAMS: Final = 1024

Array = np.ndarray[Any, Any]


class Context(SimpleNamespace):
    """A host's context, whose addresses are pointers."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def pointer(self, address: int) -> int:
        return address

    def pointers(self, addresses: tuple[int, ...]) -> list[int]:
        return [*addresses]


def parameters(extra: int) -> bytes:
    """Return the launch parameters of a kernel, in the form that the driver reads."""
    _, data, _, size, _ = (ctypes.c_void_p * 5).from_address(extra)
    return ctypes.string_at(data or 0, ctypes.c_size_t.from_address(size or 0).value)


class Kernels(FakeDriver):
    """A fake driver with a kernel of float32 matrices and the function that fills its parameters.

    Attributes:
        configs: its launch configurations.
        filled: the sizes that parameters were filled for.
        tables: of products of several sizes: parameters, and where the table is.
        windows: of convolutions: where images are, their sizes, the window's corners and steps.
        status: what launches give.
        grouped: whether the kernel is one for those.
    """

    def __init__(self) -> None:
        super().__init__()
        self.configs: list[Any] = []
        self.filled: list[tuple[int, ...]] = []
        self.tables: list[tuple[bytes, int]] = []
        self.windows: list[tuple[Any, ...]] = []
        self.status = 0
        self.grouped = False
        self._maps: list[Any] = []

    def cuCtxGetDevice(self) -> Any:
        return 0, 0

    def cuDeviceGetAttribute(self, _attribute: int, _device: int) -> Any:
        return 0, PROCESSORS

    def cuModuleLoadData(self, _image: bytes) -> Any:
        return 0, 1

    def cuModuleGetFunction(self, _module: int, name: bytes) -> Any:
        return 0, name.decode()

    def cuModuleUnload(self, _module: int) -> Any:
        return (0,)

    def cuStreamCreate(self, flags: int) -> Any:
        assert int(flags) == 1  # who captures a graph is not held up
        self.streams += 1
        return 0, 9

    def cuStreamDestroy(self, _stream: int) -> Any:
        self.streams -= 1
        return (0,)

    def cuFuncSetAttribute(self, function: str, attribute: int, value: int) -> Any:
        assert (function, int(attribute), value) == ("product", 8, 200_000)
        return (0,)

    def cuLaunchKernel(self, function: str, *rest: Any) -> Any:
        assert function == "fill"
        data = parameters(rest[-1])
        count = (len(data) - 16) // 4
        *sizes, params, grid = struct.unpack(f"<{count}iQQ", data)
        self.filled.append(tuple(sizes))
        made = bytearray(PARAMS)
        for number in range(11):
            mark = (POINTER_MARK << 32) + 256 * number
            struct.pack_into("<Q", made, POINTERS + 8 * number, mark)
        struct.pack_into("<I", made, NUMBER, NUMBER_MARK)
        memory(params, PARAMS)[:] = np.frombuffer(made, np.uint8)
        memory(grid, 12)[:] = np.array([2, 66, 1], np.int32).view(np.uint8)
        return (0,)

    def cuTensorMapEncodeTiled(self, *given: Any) -> Any:
        kind, rank, pointer, sizes, strides, box, *_ = given
        assert len(sizes) == len(box) == rank == len(strides) + 1
        numbers = (int(kind), rank, pointer, *sizes, *strides, *box)
        self._maps.append(
            ctypes.create_string_buffer(struct.pack(f"<{len(numbers)}Q", *numbers), 128)
        )
        return 0, SimpleNamespace(getPtr=partial(ctypes.addressof, self._maps[-1]))

    def cuTensorMapEncodeIm2col(self, *given: Any) -> Any:
        kind, rank, pointer, sizes, strides, lower, upper, channels, pixels, steps, *_ = given
        assert len(sizes) == len(strides) + 1 == len(steps) == len(lower) + 2 == rank
        assert len(upper) == len(lower)
        self.windows.append(
            (pointer, *map(tuple, (map(int, sizes), lower, upper, map(int, steps))))
        )
        numbers = int(kind), rank, pointer, *map(int, strides), channels, pixels
        self._maps.append(
            ctypes.create_string_buffer(struct.pack(f"<{len(numbers)}Q", *numbers), 128)
        )
        return 0, SimpleNamespace(getPtr=partial(ctypes.addressof, self._maps[-1]))

    def cuLaunchKernelEx(self, config: Any, function: str, arguments: int, none: int) -> Any:
        # Not as bytes that lie one behind the other: where an argument that is aligned to 64 bytes
        # begins is for the driver to say.
        assert (function, none) == ("product", 0)
        self.configs.append(config)
        if not self.status:
            self._product(ctypes.string_at(ctypes.c_size_t.from_address(arguments).value, PARAMS))
        return (self.status,)

    def cuMemsetD8Async(self, pointer: int, value: int, nbytes: int, _stream: Any) -> Any:
        memory(pointer, nbytes)[:] = value
        return (0,)

    def cuEventElapsedTime(self, _begin: int, _end: int) -> Any:
        return 0, 1.0 + len(self.configs)

    def _product(self, params: bytes) -> None:
        pointers = struct.unpack_from("<11Q", params, POINTERS)
        (number,) = struct.unpack_from("<f", params, NUMBER)
        if self.windows:
            self.tables.append((params, 0))
            return
        if self.grouped:
            _, rank, somewhere = struct.unpack_from("<3Q", params, OFFSETS[0])
            assert (rank, somewhere) == (2, pointers[0])
            self.tables.append((params, pointers[0]))
            return
        a, b, c, out = (self._matrix(params, at) for at in OFFSETS)
        assert a is not None
        assert b is not None
        assert out is not None
        bias = memory(pointers[4], 4 * out.shape[1]).view(np.float32)
        out[...] = number * (a @ b.T) + bias + (0 if c is None else c)

    @staticmethod
    def _matrix(params: bytes, at: int) -> Array | None:
        kind, rank, pointer, row, rows, count, stride, step, *_ = struct.unpack_from(
            "<8Q", params, at
        )
        if not rank:
            return None
        assert (rank, count, stride, step) == (3, 1, 4 * row, 4 * row * rows)
        assert kind == (11 if at < 448 else 2)
        return memory(pointer, 4 * row * rows).view(np.float32).reshape(rows, row)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Kernels]:
    def find_build(_spec: bytes) -> Built:
        maps = tuple(Map(at, 2 if made.grouped else 3, (32, 64, 1), 3) for at in OFFSETS)
        facts = Facts(PARAMS, 200_000, 384, 4, maps)  # type: ignore[arg-type]
        return Built(b"image", facts, "built")

    made = Kernels()
    monkeypatch.setattr(_plans, "find_build", find_build)
    monkeypatch.setenv("ATOMR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(_tuned, "nvrtc_version", lambda: (12, 9))
    _plans._tensor_map.cache_clear()
    with installed(made):
        yield made
    _plans._tensor_map.cache_clear()


def executor() -> Any:
    stream: Any = SimpleNamespace(handle=7, captures=False, synchronize=lambda: None)
    context: Any = Context()
    return CudaCutlass(context, stream)


BIAS: Final = EpilogueNode("row", dtype="float32")
F32: Final = dict.fromkeys(("a", "b", "out"), "float32")
ONE: Final = spec(
    **F32,
    tile=(128, 128, 32),
    epilogue=EpilogueNode(
        "add", (EpilogueNode("multiply", (PRODUCT, EpilogueNode("number"))), BIAS)
    ),
    source="float32",
)


def matmul(a: Array, b: Array, c: Array | None, out: Array, *buffers: Array) -> RunCutlass:
    def at(array: Array) -> int:
        return array.ctypes.data

    sizes = (a.shape[0], b.shape[0], a.shape[1], 1)
    return RunCutlass(
        *(encode(ONE), sizes, 4, at(a), at(b), 0 if c is None else at(c), at(out)),
        *((*map(at, buffers), *[64] * (7 - len(buffers))), (0.5,)),
    )


def test_a_plan_is_filled_once_and_each_call_has_its_own_operands(driver: Kernels) -> None:
    rng = np.random.default_rng(1)
    do = executor()
    for _ in range(2):
        a, b, c, bias = (
            rng.integers(0, 9, shape).astype(np.float32)
            for shape in ((4, 8), (12, 8), (4, 12), (12,))
        )
        out = np.full((4, 12), 77, np.float32)
        do.handlers[RunCutlass](matmul(a, b, c, out, bias))
        assert (out == (a @ b.T) / 2 + bias + c).all()
        do.handlers[RunCutlass](matmul(a, b, None, out, bias))
        assert (out == (a @ b.T) / 2 + bias).all()
    assert driver.filled == [(4, 12, 8, 1, PROCESSORS, 4)]
    assert do.handlers[BuildCutlass](BuildCutlass(encode(ONE), (4, 12, 8, 1), 4))[0] == "memory"
    config = driver.configs[-1]
    assert (config.gridDimX, config.gridDimY, config.blockDimX) == (2, 66, 384)
    assert (config.sharedMemBytes, config.hStream, config.numAttrs) == (200_000, 7, 1)
    assert config.attrs[0].value.clusterDim.x == 2
    assert not driver.held  # nor is a stream
    assert not driver.streams
    driver.status = 1
    with pytest.raises(LibraryError, match="cuLaunchKernelEx"):
        do.handlers[RunCutlass](matmul(a, b, None, out, bias))


def test_marks_of_an_earlier_plan_in_padding_are_not_taken_for_its_own(driver: Kernels) -> None:
    allocate, launch = driver.cuMemAlloc, driver.cuLaunchKernel
    stale = (POINTER_MARK << 32) + 256 * 200

    def dirty(nbytes: int) -> Any:
        status, pointer = allocate(nbytes)
        memory(pointer, nbytes // 8 * 8).view(np.uint64)[:] = stale
        return status, pointer

    def fill(function: str, *rest: Any) -> Any:
        params = struct.unpack_from("<Q", parameters(rest[-1])[-16:])[0]
        padding = memory(params, 8)  # where the kernel writes nothing
        before = padding.copy()
        done = launch(function, *rest)
        padding[:] = before
        return done

    driver.change(cuMemAlloc=dirty, cuLaunchKernel=fill)
    do = executor()
    rng = np.random.default_rng(1)
    a, b = (rng.integers(0, 9, shape).astype(np.float32) for shape in ((4, 8), (12, 8)))
    bias, out = np.zeros(12, np.float32), np.full((4, 12), 77, np.float32)
    do.handlers[RunCutlass](matmul(a, b, None, out, bias))
    assert (out == (a @ b.T) / 2).all()


def test_accumulated_output_starts_with_zeros(driver: Kernels) -> None:
    node = EpilogueNode(
        "sum_columns", (EpilogueNode("amax", (PRODUCT,), "float32", 1),), "float32", 2
    )
    one = spec(**F32, tile=(128, 128, 32), epilogue=node)
    a, b, out = np.ones((4, 8), "f4"), np.ones((12, 8), "f4"), np.ones((4, 12), "f4")
    bias, largest, sums = np.zeros(12, "f4"), np.full(1, 7, "f4"), np.full(5, 7, "f4")
    message = matmul(a, b, None, out, bias, largest, sums)
    executor().handlers[RunCutlass](
        RunCutlass(encode(one), *[getattr(message, name) for name in message.__struct_fields__[1:]])
    )
    assert largest.tolist() == [0]
    assert sums.tolist() == [0, 0, 0, 0, 7]


def test_products_of_several_sizes_are_a_table(driver: Kernels) -> None:
    driver.grouped = True
    one = spec(**F32, tile=(128, 128, 32), grouped=True)
    table = np.zeros(table_parts(2, PROCESSORS)[-1] // 8, np.uint64)
    message = Grouped(
        encode(one),
        (3, 5),
        (0, 12, 8, 2),
        4,
        (16, 32),
        (48, 64),
        (80, 96),
        table.ctypes.data,
        (1.0,),
    )
    executor().handlers[Grouped](message)
    ((params, begin),) = driver.tables
    assert begin == table.ctypes.data
    numbers = table[:16].reshape(8, 2).tolist()
    assert numbers == [[16, 32], [48, 64], [0, 0], [80, 96], [8, 8], [8, 8], [12, 12], [12, 12]]
    assert table[16:19].view(np.int32).tolist() == [3, 12, 8, 5, 12, 8]
    pointers = struct.unpack_from("<11Q", params, POINTERS)
    assert pointers == tuple(begin + at for at in table_parts(2, PROCESSORS)[:-1])


def test_images_are_found_by_a_window(driver: Kernels) -> None:
    one = spec(space=2, **F32, tile=(128, 128, 32))
    movement = Movement((2, 1), [(1, 0), (2, 2)], (1, 3), 1, None)
    x, w = np.zeros((4, 9, 8, 16), "f4"), np.zeros((24, 3, 2, 16), "f4")
    sizes, shape = movement.over(x.shape, w.shape)
    out = np.zeros(shape, "f4")
    images, filters, result = (array.ctypes.data for array in (x, w, out))
    message = RunCutlass(encode(one), sizes, 4, images, filters, 0, result, (64,) * 7, (0.5,))
    executor().handlers[RunCutlass](message)
    assert driver.filled == [(*sizes, PROCESSORS, 4)]
    # From the innermost axis: the corners count from the ends of an image.
    assert driver.windows == [
        (images, (16, 8, 9, 4), (-2, -1), (-1, -3), (1, 1, 2, 1)),
    ]
    ((params, _),) = driver.tables
    maps = [struct.unpack_from("<8Q", params, offset) for offset in OFFSETS[:2]]
    assert maps == [(11, 4, images, 64, 512, 4608, 32, 64), (11, 3, filters, 16, 24, 6, 384, 64)]


def test_the_fastest_is_kept(driver: Kernels) -> None:
    a, b, out = np.ones((4, 8), "f4"), np.ones((12, 8), "f4"), np.ones((4, 12), "f4")
    product = matmul(a, b, None, out, np.zeros(12, "f4"))
    do = executor().handlers
    wanted = b"wanted"
    candidates = ((encode(ONE), 1), (encode(ONE), 2))
    first, second = do[TuneCutlass](TuneCutlass(wanted, product, candidates))
    assert first < second
    assert do[RecallKernel](RecallKernel(wanted, product.sizes)) == [candidates[0]]
    assert do[RecallKernel](RecallKernel(b"another", product.sizes)) == []
