"""Kernels of the FFT lane: their results on the host, and their compilation by NVRTC."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from atomr_accel import LibraryError
from atomr_accel.executors.vendor import VendorLibrary
from atomr_accel.libraries.fft.host._prototypes import PROTOTYPES, STATUS_NAMES
from atomr_accel.libraries.fft.host._source import (
    BY_SIZE,
    ELEMENTS,
    SOURCE,
    frequencies_arguments,
    move_arguments,
    move_name,
    roll_arguments,
)
from atomr_accel.libraries.fft.wire._plan import BufferOffset, Dim, Move

from ... import seeds
from ..compiling import check_compiles
from ..conformance import dtype_of
from ..host_kernels import compile_kernels, needs_compiler, on_host, with_pointers

Array = np.ndarray[Any, Any]

PAIRS = (
    ("float32", "complex64"),
    ("int32", "complex128"),
    ("uint8", "float64"),
    ("float16", "float32"),
    ("bfloat16", "complex64"),
    ("complex64", "complex64"),
    ("complex64", "complex128"),
    ("complex128", "float64"),
    ("float16x2", "float16x2"),
    ("bfloat16x2", "bfloat16x2"),
    ("float16", "float16"),
)


def a_move(source: str, target: str, dims: tuple[Dim, ...] = (), **more: Any) -> Move:
    return Move(
        BufferOffset(0), BufferOffset(1), source, target, dims or (Dim(1, 1, 1, 1),), **more
    )


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    members = {}
    for source, target in PAIRS:
        for count in (1, 2**31):
            name = move_name(a_move(source, target), count)
            s, t = ELEMENTS[source], ELEMENTS[target]
            members[name] = f"{t}* target; {s}* source; u64 count; Moving moving"
    for element in BY_SIZE.values():
        members[f"roll<{element}>"] = (
            f"{element}* target; {element}* source; u64 count; Rolling rolling"
        )
    members["frequencies"] = "double* target; u64 count; i64 n; double step; int half"
    return compile_kernels(on_host(SOURCE), members, tmp_path_factory.mktemp("fft"))


def values_of(array: Array, kind: str) -> Array:
    wide = array.astype(np.float32) if array.dtype.itemsize == 2 else array
    if kind.endswith("x2"):
        wide = wide[..., 0] + 1j * wide[..., 1]
    return wide.astype(np.complex128)


@needs_compiler
@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("wide", [False, True])
def test_move(kernels: Any, source: str, target: str, wide: bool) -> None:
    seed = seeds.draw()
    rng = np.random.default_rng(seed)
    for trial in range(20):
        ndim = int(rng.integers(1, 5))
        sizes = tuple(map(int, rng.integers(1, 6, ndim)))
        extents = tuple(map(int, rng.integers(1, 6, ndim)))
        count = int(np.prod(sizes))
        pair = (2,) if source.endswith("x2") else ()
        raw = rng.uniform(0, 100, (*extents, *pair))
        array = raw.astype(dtype_of(source.partition("x2")[0]))
        order = rng.permutation(ndim)  # the target is contiguous in another order
        strides = np.empty(ndim, np.int64)
        step = 1
        for axis in order[::-1]:
            strides[axis] = step
            step *= sizes[axis]
        edge = int(rng.integers(-1, ndim))
        move = a_move(
            source,
            target,
            tuple(
                Dim(size, int(stride), extent_stride, extent)
                for size, stride, extent_stride, extent in zip(
                    sizes,
                    strides,
                    (np.cumprod((1, *extents[:0:-1]))[::-1]).tolist(),
                    extents,
                    strict=True,
                )
            ),
            scale=0.5,
            conjugate=bool(rng.integers(0, 2)),
            edge=edge,
            middle=2,
        )
        kind = dtype_of(target.partition("x2")[0])
        got = np.full((count, 2) if target.endswith("x2") else count, 77).astype(kind)
        name = move_name(move, 2**31 if wide else count)
        kernels[name](with_pointers(move_arguments(move, count), got, array))
        expected = np.zeros(sizes, np.complex128)
        inner = tuple(slice(min(a, b)) for a, b in zip(sizes, extents, strict=True))
        expected[inner] = values_of(array, source)[inner] * 0.5
        if move.conjugate:
            expected = expected.conj()
        if edge >= 0:
            index = np.indices(sizes)[edge]
            expected.imag[(index == 0) | (index == 2)] = 0
        flat = np.empty(count, np.complex128)
        flat[np.tensordot(strides, np.indices(sizes), 1).ravel()] = expected.ravel()
        result = values_of(got, target)
        if kind.kind == "f" and not target.endswith("x2"):
            flat.imag = 0
        tolerance = {2: 1e-2, 4: 1e-6, 8: 1e-6}.get(kind.itemsize, 1e-12)
        np.testing.assert_allclose(
            result, flat, rtol=tolerance, err_msg=f"seed {seed}, trial {trial}: {move}"
        )


@needs_compiler
def test_rounding_of_16_bit_floats(kernels: Any) -> None:
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    move = a_move("float16", "float32", (Dim(2**16, 1, 1, 2**16),))
    wide = np.empty(2**16, np.float32)
    kernels[move_name(move, 2**16)](with_pointers(move_arguments(move, 2**16), wide, every))
    np.testing.assert_array_equal(wide, every.astype(np.float32))
    move = a_move("float16", "float16", (Dim(2**16, 1, 1, 2**16),), scale=1 / 3)
    narrow = np.empty(2**16, np.float16)
    kernels[move_name(move, 2**16)](with_pointers(move_arguments(move, 2**16), narrow, every))
    with np.errstate(invalid="ignore"):
        expected = (every.astype(np.float32) * np.float32(1 / 3)).astype(np.float16)
    np.testing.assert_array_equal(narrow, expected)


@needs_compiler
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64", "complex128"])
def test_roll(kernels: Any, dtype: str) -> None:
    array = seeds.rng().integers(0, 200, (3, 4, 5)).astype(dtype)
    got = np.zeros_like(array)
    arguments = roll_arguments((3, 4, 5), (1, 0, 3), array.size)
    kernels[f"roll<{BY_SIZE[array.itemsize]}>"](with_pointers(arguments, got, array))
    np.testing.assert_array_equal(got, np.roll(array, (-1, 0, -3), (0, 1, 2)))


@needs_compiler
@pytest.mark.parametrize("n", [1, 2, 7, 8])
def test_frequencies(kernels: Any, n: int) -> None:
    for half, expected in ((False, np.fft.fftfreq(n, 0.25)), (True, np.fft.rfftfreq(n, 0.25))):
        count, arguments = frequencies_arguments(n, 1 / (n * 0.25), half=half)
        got = np.empty(len(expected))
        assert count == len(got)
        kernels["frequencies"](with_pointers(arguments, got))
        np.testing.assert_array_equal(got, expected)


@pytest.mark.headers
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_nvrtc_compiles_every_kernel(capability: tuple[int, int]) -> None:
    names = ["frequencies", *(f"roll<{element}>" for element in BY_SIZE.values())]
    targets = ("float16x2", "bfloat16x2", "float32", "float64", "complex64", "complex128")
    pairs = zip(ELEMENTS, itertools.cycle(targets))
    names += [move_name(a_move(*pair), 1) for pair in pairs]
    names.append(move_name(a_move("complex64", "complex64"), 2**31))
    check_compiles(SOURCE.text, *names, capability=capability)


@pytest.mark.headers
def test_the_vendors_library_has_every_function() -> None:
    library = VendorLibrary("cufft", PROTOTYPES, STATUS_NAMES)
    assert all(library.functions[name] for name in PROTOTYPES)
    for status, name in ((6, "CUFFT_EXEC_FAILED"), (99, "unknown status")):
        error = library.error("cufftXtExec", status)
        assert isinstance(error, LibraryError)
        assert error.status_name == name
