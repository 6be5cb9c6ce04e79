"""The kernels for stacks of small matrices, on the host."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from atomr_accel.libraries.linalg.host._cpu import ROUTINES
from atomr_accel.libraries.linalg.host._small import SOURCE, THREADS, TYPES, room_of
from atomr_accel.libraries.linalg.wire._forms import forms
from atomr_accel.libraries.linalg.wire._messages import SolverProblem

from ... import seeds
from ..compiling import check_compiles
from ..host_kernels import compile_kernels, needs_compiler, on_host

Array = np.ndarray[Any, Any]

POINTERS = {
    "potrf": "a",
    "getrf": "a pivots",
    "gesv": "a b",
    "geqrf": "a tau",
    "orgqr": "a tau",
}
NUMBERS = {"potrf": 1, "getrf": 2, "gesv": 3, "geqrf": 2, "orgqr": 3}
ROOMS = {"potrf": (8, 32), "getrf": (8, 32), "gesv": (8, 32), "geqrf": (8, 64), "orgqr": (8, 64)}
BATCH = 5


def eps(dtype: str) -> float:
    return float(np.finfo(dtype).eps)


def parameters(routine: str, dtype: str) -> str:
    """Return the parameters of a kernel, as members of a struct."""
    matrix = TYPES[dtype]
    types = {"pivots": "int"}
    pointers = [f"{types.get(name, matrix)}* {name}" for name in POINTERS[routine].split()]
    numbers = [f"u64 n{at}" for at in range(NUMBERS[routine])]
    return "; ".join([*pointers, "int* info", "u64 batch", *numbers])


def rooms(routine: str, dtype: str) -> list[int]:
    """Return the sizes of a routine that are compiled here."""
    return [32 if dtype == "complex128" else room for room in ROOMS[routine][1:]] + [8]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Callable[[bytes], None]]:
    names = {
        f"{routine}<{TYPES[dtype]}, {room}>": parameters(routine, dtype)
        for routine in POINTERS
        for dtype in TYPES
        for room in rooms(routine, dtype)
    }
    names["point"] = "u64* table; u64 start; u64 size; u64 count"
    folder = tmp_path_factory.mktemp("small")
    return compile_kernels(on_host(SOURCE), names, folder, threads=THREADS)


def given(rng: np.random.Generator, dtype: str, *shape: int) -> Array:
    """Some matrices."""
    made = rng.uniform(-1, 1, shape)
    if dtype.startswith("complex"):
        made = made + 1j * rng.uniform(-1, 1, shape)
    return made.astype(dtype)


def problem_of(routine: str, dtype: str, m: int, n: int, trans: int) -> SolverProblem:
    sizes = {
        "potrf": (n,),
        "getrf": (n, n),
        "gesv": (n, m),
        "geqrf": (m, n),
        "orgqr": (m, min(m, n), min(m, n, 3)),
    }
    options = (trans,) if routine == "gesv" else ()
    return SolverProblem(routine, dtype, BATCH, sizes[routine], options)


@pytest.mark.slow  # to compile them takes seconds
@needs_compiler
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("routine", POINTERS)
def test_small_kernels_match_lapack(kernels: Any, routine: str, dtype: str) -> None:
    rng, far = seeds.rng(), 2e3 * eps(dtype)
    most = rooms(routine, dtype)[0]
    for m, n in ((1, 1), (7, 5), (3, 8), (most, most), (most, most - 3), (most - 1, most)):
        problem = problem_of(routine, dtype, m, n, (m + n) % 3)
        assert problem.batched
        if room_of(problem) not in rooms(routine, dtype):
            continue
        buffers = [
            given(rng, form.dtype, BATCH, form.columns, form.rows)
            if not form.dtype.startswith("int")
            else np.zeros((BATCH, form.columns, form.rows), form.dtype)
            for form in forms(problem)
        ]
        if routine == "potrf":
            a = buffers[0]
            buffers[0] = (a @ a.conj().swapaxes(-1, -2) + np.eye(n)).astype(dtype)
            buffers[0][1, n // 2, n // 2] = -1
        if routine in ("getrf", "gesv"):
            buffers[0][1, :, n // 2] = 0
        if routine == "geqrf":
            buffers[0][1, :, m // 2 :] = 0  # below the diagonal there is nothing in some columns
        if routine == "orgqr":
            buffers[1] *= 0.1
        expected, told = [buffer.copy() for buffer in buffers], np.full(BATCH, 7, np.int32)
        infos = [
            ROUTINES[routine](problem, *[each[at].T for each in expected]) for at in range(BATCH)
        ]
        passed = [buffers[0], buffers[-1]] if routine == "gesv" else buffers
        pointers = [each.ctypes.data for each in (*passed, told)]
        numbers = (*pointers, BATCH, *problem.sizes, *problem.options)
        kernels[f"{routine}<{TYPES[dtype]}, {room_of(problem)}>"](
            struct.pack(f"{len(numbers)}Q", *numbers)
        )
        if routine == "gesv":  # of a transpose other pivots are zero
            told, infos = told != 0, [info != 0 for info in infos]
        assert told.tolist() == infos
        good = np.flatnonzero(told == 0)
        assert len(good) >= BATCH - 1
        for found, wanted in zip(passed, [expected[0], expected[-1]], strict=False):
            if routine == "gesv" and found is passed[0]:
                continue
            if found.dtype.kind == "i":
                assert (found[good] == wanted[good]).all()
            else:
                lower = np.triu if routine == "potrf" else np.asarray
                near = far * max(1, np.abs(wanted[good]).max(initial=0))
                np.testing.assert_allclose(
                    lower(found[good]), lower(wanted[good]), rtol=far, atol=near
                )


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("at", [(3, 3), (5, 3), (2, 6)])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_small_kernels_turn_nan_into_nan_without_a_failure(
    kernels: Any, dtype: str, at: tuple[int, int]
) -> None:
    a = np.broadcast_to(2 * np.eye(8, dtype=dtype), (BATCH, 8, 8)).copy()
    a[1][at] = np.nan
    b, told = a.copy(), np.full(BATCH, 7, np.int32)
    numbers = (a.ctypes.data, b.ctypes.data, told.ctypes.data, BATCH, 8, 8, 0)
    kernels[f"gesv<{TYPES[dtype]}, 8>"](struct.pack("7Q", *numbers))
    assert not told.any()
    assert np.isnan(b).any((1, 2)).tolist() == [False, True, False, False, False]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("size", [1e-30, 1e30, 1e-42])
def test_reflectors_do_not_overflow_on_the_way(kernels: Any, size: float) -> None:
    a = (seeds.rng().uniform(1, 2, (BATCH, 6, 8)) * size).astype(np.float32)
    tau, told = np.zeros((BATCH, 6), np.float32), np.zeros(BATCH, np.int32)
    wide = a.astype(np.float64)
    numbers = (a.ctypes.data, tau.ctypes.data, told.ctypes.data, BATCH, 8, 6)
    kernels["geqrf<float, 8>"](struct.pack("6Q", *numbers))
    r = np.tril(a[..., :6])
    for at in range(BATCH):
        expected = np.linalg.qr(wide[at].T)[1].T
        np.testing.assert_allclose(
            r[at] / size, expected / size, atol=1e-4 if size > 1e-40 else 0.2
        )


@pytest.mark.slow
@needs_compiler
def test_tables_point_to_each_matrix(kernels: Any) -> None:
    table = np.zeros(101, np.uint64)
    kernels["point"](struct.pack("4Q", table.ctypes.data, 2**40, 36, 100))
    assert table.tolist() == [*(2**40 + 36 * at for at in range(100)), 0]


@pytest.mark.headers
@pytest.mark.parametrize("dtype", TYPES)
def test_small_kernels_compile(dtype: str) -> None:
    pytest.importorskip("cuda.bindings.driver")
    kernels = ["point"]
    kernels += [f"{name}<{TYPES[dtype]}, {rooms(name, dtype)[0]}>" for name in POINTERS]
    check_compiles(SOURCE.text, *kernels, warned=True)
