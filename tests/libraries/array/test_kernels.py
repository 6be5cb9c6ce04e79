"""Kernels of the array lane: their copies on the host, and their compilation by NVRTC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atomr_accel.libraries.array.host._source import SOURCE, THREADS, divisor, launch
from atomr_accel.wire.copies import CopyStrided

from ... import seeds
from ..compiling import check_compiles
from ..host_kernels import compile_kernels, needs_compiler, on_host
from .layouts import OF_SIZE, SIZES, bytes_of, laid_out, message_of, names, pointer

pytestmark = pytest.mark.slow  # to compile them takes seconds

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("array")
    return compile_kernels(on_host(SOURCE), names(), folder, threads=THREADS)


def run(kernels: Any, message: CopyStrided, *, wide: bool = False) -> str:
    """Launch the kernel for a copy, here; its name."""
    name, items, packed = launch(message)
    assert items
    if wide:
        name = name.replace("u32", "u64")
    pointers = message.target.to_bytes(8, "little") + message.source.to_bytes(8, "little")
    kernels[name](pointers + packed[len(pointers) :])
    return name


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("wide", [False, True])
def test_any_layout_is_copied_to_any(kernels: Any, size: int, wide: bool) -> None:
    seed = seeds.draw()
    rng = np.random.default_rng(seed)
    used = set()
    for trial in range(12):
        ndim = int(rng.integers(0, 6))
        most = [0, 300, 40, 12, 6, 5][ndim]
        shape = tuple(map(int, rng.integers(1, most + 1, ndim)))
        if trial % 3 == 0:  # as a transpose of matrices has them
            outer = (min(extent, 5) for extent in shape[:2])
            shape = (*outer, *map(int, rng.integers(8, 90, 2)))
        source = laid_out(rng, shape, OF_SIZE[size], gaps=trial % 2 == 0)
        target = laid_out(rng, shape, OF_SIZE[size], gaps=trial % 5 == 0)
        if trial % 2:  # turned, and of whole words every other time
            rows, columns = map(int, 4 * rng.integers(2, 70, 2) + (trial % 4 == 3))
            shape = (*shape[:1], rows, columns)
            source = np.ascontiguousarray(laid_out(rng, shape, OF_SIZE[size], gaps=False))
            target = np.zeros((*shape[:-2], columns, rows), OF_SIZE[size]).swapaxes(-1, -2)
        root = target
        while root.base is not None:
            root = root.base
        before = root.copy()
        used.add(run(kernels, message_of(target, source), wide=wide).partition("<")[0])
        np.testing.assert_array_equal(
            bytes_of(target),
            bytes_of(source),
            err_msg=f"seed {seed}, trial {trial}: {shape} {source.strides} to {target.strides}",
        )
        # What lies between the elements is as it was.
        after = root.copy()
        root[...] = before
        target[...] = source
        np.testing.assert_array_equal(after, root)
    assert used - {"turned"} == {"gather", "tiles", *(["packed"] if size < 4 else [])}


def turned(rng: np.random.Generator, shape: tuple[int, ...], size: int) -> tuple[Array, Array]:
    """A target and a source whose last two axes are exchanged, both as a device would have them."""
    count = int(np.prod(shape)) * size

    def memory() -> Array:
        room = rng.integers(0, 256, count + 256, np.uint8)
        start = -pointer(room) % 256
        return room[start : start + count].view(OF_SIZE[size])

    source = memory().reshape(*shape[:-2], shape[-1], shape[-2]).swapaxes(-1, -2)
    return memory().reshape(shape), source


@needs_compiler
@pytest.mark.parametrize("size", [1, 2, 4])
def test_matrices_of_whole_vectors_are_turned(kernels: Any, size: int) -> None:
    rng, unit, used = seeds.rng(), 16 // size, set()
    for *batch, m, n in ((2, 2), (2, 3), (9, 3), (17, 9), (5, 2, 17), (2, 3, 10, 8)):
        shape = (*batch, m * unit, n * unit)
        target, source = turned(rng, shape, size)
        name = run(kernels, message_of(target, source))
        used.add(name.partition(", ")[0] + name.split(", ")[1])
        np.testing.assert_array_equal(bytes_of(target), bytes_of(source), err_msg=f"{shape}")
    assert used >= {f"turned<{size}{times}" for times in (1, 2, 4) if times <= max(2, size)}


@needs_compiler
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("few", [2, 3, 5])
@pytest.mark.parametrize("apart", [True, False])
def test_planes_and_channels(kernels: Any, size: int, few: int, apart: bool) -> None:
    rng = seeds.rng()
    for pixels in (64, 16, 12, 40 * 16):
        for batch in ((), (3,), (2, 3)):
            shape = (*batch, few, pixels) if apart else (*batch, pixels, few)
            target, source = turned(rng, shape, size)
            name = run(kernels, message_of(target, source))
            np.testing.assert_array_equal(bytes_of(target), bytes_of(source), err_msg=name)
            wide = 16 if pixels * size % 16 == 0 else max(4, size)
            assert name.startswith(f"strands<{size}, {few}, {wide}, {str(apart).lower()}, ")
    # Some pixels of each row, and of each picture some rows.
    target, source = turned(rng, (4, few, 32) if apart else (4, 32, few), size)
    target, source = target[1:3], source[::2]
    assert run(kernels, message_of(target, source)).startswith("strands")
    np.testing.assert_array_equal(bytes_of(target), bytes_of(source))


@needs_compiler
def test_a_row_is_repeated(kernels: Any) -> None:
    row = np.arange(37, dtype=np.float32)
    target = np.zeros((19, 37), np.float32)
    run(kernels, message_of(target, np.broadcast_to(row, target.shape)))
    np.testing.assert_array_equal(target, np.broadcast_to(row, target.shape))
    turned = np.zeros((37, 19), np.float32)
    run(kernels, message_of(turned, np.broadcast_to(row, (19, 37)).T))
    np.testing.assert_array_equal(turned, np.broadcast_to(row, (19, 37)).T)


@pytest.mark.parametrize(
    "extent", [1, 2, 3, 5, 7, 31, 32, 33, 641, 2**30 - 1, 2**30 + 1, 2**31 - 1]
)
def test_a_product_and_a_shift_divide(extent: int) -> None:
    factor, shift = divisor(extent)
    assert 0 <= factor < 2**32
    numbers = {n for at in (0, 1, 2, 2**16, 2**31 // extent) for n in _around(at * extent)}
    numbers |= _around(2**31 - 1)
    for n in numbers:
        assert ((n * factor >> 32) + n) >> shift == n // extent


def _around(n: int) -> set[int]:
    return {each for each in (n - 1, n, n + 1) if 0 <= each < 2**31}


def test_which_kernel_copies_what() -> None:
    def name(target: Array, source: Array) -> str:
        return launch(message_of(target, source)).name

    matrix = np.empty((64, 96), np.float32)
    assert name(np.empty((96, 64), np.float32), matrix.T) == "turned<4, 2, 2>"
    assert name(np.empty((96, 62), np.float32), np.empty((62, 96), "f4").T) == "tiles<4, 64, 2>"
    assert name(np.empty((96, 64), np.uint8), np.empty((64, 96), np.uint8).T) == "turned<1, 1, 2>"
    assert name(np.empty((96, 60), np.uint8), np.empty((60, 96), np.uint8).T) == "packed<1, 128, 2>"
    assert name(np.empty((96, 62), np.uint8), np.empty((62, 96), np.uint8).T) == "tiles<1, 64, 2>"
    assert name(np.empty((9, 62), np.float16), np.empty((62, 9), np.float16).T) == "tiles<2, 64, 2>"
    # Rows that follow each other are moved in large elements.
    assert name(np.empty((32, 96), np.float32), matrix[::2]) == "gather<16, u32, 2>"
    assert name(np.empty((64, 48), np.float32), matrix[:, :48]) == "gather<16, u32, 2>"
    assert name(np.empty((64, 47), np.float32), matrix[:, 1:48]) == "gather<4, u32, 2>"
    assert name(np.empty((64, 48), np.float32), matrix[:, ::2]) == "gather<4, u32, 2>"
    # Contiguous elements are one row.
    assert message_of(np.empty((64, 96), np.float32), matrix).shape == (64 * 96 // 4,)
    assert message_of(np.empty((96, 64), np.float32).T, matrix.T.copy().T).shape == (64 * 24,)
    # Where the target goes backwards, both do.
    message = message_of(np.empty((4, 6), np.float32)[::-1], np.empty((4, 6), np.float32)[::-1])
    assert message.shape == (12,)
    # Numbers beyond 32 bits, in the index or in the steps.
    many = CopyStrided(0, 0, 1, (2**31, 3), (2, 2**32), (3, 1))
    assert launch(many).name == "gather<1, u64, 2>"
    assert launch(CopyStrided(0, 0, 1, (2**16, 2**16), (1, 2**16), (2**16, 1))).name == (
        "turned<1, 2, 2>"
    )
    # Pixels with some channels, and planes.
    picture = np.empty((2, 24, 32, 3), np.uint8)
    planes = np.empty((2, 3, 24, 32), np.uint8)
    assert name(planes, picture.transpose(0, 3, 1, 2)) == "strands<1, 3, 16, true, 2>"
    assert name(picture, planes.transpose(0, 2, 3, 1)) == "strands<1, 3, 16, false, 2>"
    assert name(planes[..., :30], picture.transpose(0, 3, 1, 2)[..., :30]) == "gather<1, u32, 4>"


def test_one_element_and_many_axes() -> None:
    one = message_of(np.empty((1, 1)), np.empty((1, 1)))
    assert (one.shape, one.itemsize) == ((), 8)
    assert launch(one)[:2] == ("gather<8, u32, 2>", 1)
    deep = np.empty((4,) * 9, np.uint8)[(slice(None, None, 2),) * 9]
    assert launch(message_of(np.empty(deep.shape, np.uint8), deep)).name == "gather<1, u32, 64>"


@pytest.mark.headers
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0)])
def test_nvrtc_compiles_every_kernel(capability: tuple[int, int]) -> None:
    every = list(names())
    some = every if capability == (9, 0) else every[::7]
    check_compiles(SOURCE.text, *some, capability=capability)
