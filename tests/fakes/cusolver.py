"""cuSOLVER in LAPACK, behind the same symbols: what runs ``CudaSolver`` without a GPU.

It takes column-major matrices by pointer, as many arguments as the prototypes have, and workspace
of the size that it has asked for; it refuses leading dimensions that are too small. What computes
is LAPACK as the CPU backend calls it. ``FakeCudaSolver`` is an executor for the CPU backend.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from atomr_accel._dtypes import DTYPES
from atomr_accel.executors.numbers import CUDA_TYPES
from atomr_accel.libraries.array.host.cpu import CpuArrayExecutor
from atomr_accel.libraries.linalg.host._cpu import ROUTINES
from atomr_accel.libraries.linalg.host._prototypes import LETTERS, PROTOTYPES, STATUS_NAMES
from atomr_accel.libraries.linalg.host._small import SOURCE, TYPES
from atomr_accel.libraries.linalg.wire._forms import forms
from atomr_accel.libraries.linalg.wire._messages import SolverProblem

from .cublas import Refusal, matrix
from .lapack import integers, memory, stack
from .vendor import FakeContext, FakeCuda, FakeVendor

Array = np.ndarray[Any, Any]

INVALID_VALUE = 3
DEVICE_BYTES, HOST_BYTES, ELEMENTS = 1000, 40, 96
DTYPE_OF = {number: name for name, number in CUDA_TYPES.items()}
REAL_OF = {"complex64": "float32", "complex128": "float64"}
BY_LETTER = {letter: dtype for dtype, letter in LETTERS.items()}


class FakeSolverLibrary(FakeVendor):
    """Stands in for the ``VendorLibrary`` of ``Solver``.

    Attributes:
        called: the names of the functions that were called.
        made: how many handles and the like there are.
    """

    library = "cusolver"
    status_names = STATUS_NAMES

    def __init__(self) -> None:
        self.called: list[str] = []
        self.made = 0
        self.functions: dict[str, Callable[..., int]] = {
            name: self._function(name, len(words.split())) for name, words in PROTOTYPES.items()
        }

    def _function(self, name: str, count: int) -> Callable[..., int]:
        short = name.removeprefix("cusolverDn")

        def call(*args: Any) -> int:
            assert len(args) == count, (name, len(args), count)
            self.called.append(short)
            if short.startswith("Create"):
                self.made += 1
                args[0]._obj.value = 1000 + self.made
            elif short.startswith("Destroy"):
                self.made -= 1
            elif short.endswith("_bufferSize"):
                _ask(short, args)
            elif not short.startswith("Set"):
                try:
                    _run(short, args[1:])
                except Refusal:
                    return INVALID_VALUE
            return 0

        return call


def _ask(name: str, args: tuple[Any, ...]) -> None:
    """Write the workspace sizes of a function."""
    cells = [arg._obj for arg in args if hasattr(arg, "_obj")]
    if name.startswith("X"):
        cells[-2].value, cells[-1].value = DEVICE_BYTES, HOST_BYTES
    else:
        cells[-1].value = DEVICE_BYTES if isinstance(cells[-1], ctypes.c_size_t) else ELEMENTS


def _run(name: str, args: tuple[Any, ...]) -> None:
    if name.startswith("X"):
        assert args[0] >= 1000
        if name == "Xgesvdp":
            *args, moved = args  # type: ignore[assignment]
            moved._obj.value = 0.0
        if name != "Xgetrs":
            *args_, device, nbytes, host, host_bytes, info = args[1:]
            assert (nbytes, host_bytes) == (DEVICE_BYTES, HOST_BYTES)
            memory(device, nbytes)[:] = 0xEE
            memory(host, host_bytes)[:] = 0xEE
        else:
            *args_, info = args[1:]
        integers(info, 1)[0] = WIDE[name](*args_)
        return
    letter, routine = name[0], name[1:]
    if routine[1:] in ("gesv", "gels"):
        _refined(BY_LETTER[letter], routine[1:], args)
        return
    routine = {"ungqr": "orgqr", "hegvd": "sygvd"}.get(routine, routine.replace("heevj", "syevj"))
    BY_NAME[routine](BY_LETTER[letter], *args)


def lapack(
    routine: str, dtype: str, sizes: tuple[int, ...], options: tuple[int, ...], *arrays: Array
) -> int:
    """Solve a problem on the CPU, and return its info."""
    return ROUTINES[routine](SolverProblem(routine, dtype, 1, sizes, options), *arrays)


def vector(pointer: int, n: int, dtype: str) -> Array:
    return matrix(pointer, n, 1, max(1, n), DTYPES[dtype])


def lower(uplo: int) -> int:
    assert uplo in (0, 1)
    return 1 - uplo


# --- the 64-bit interface -------------------------------------------------------------------


def xpotrf(uplo: int, n: int, kind: int, a: int, lda: int, compute: int) -> int:
    assert kind == compute
    dtype = DTYPE_OF[kind]
    return lapack("potrf", dtype, (n,), (lower(uplo),), matrix(a, n, n, lda, DTYPES[dtype]))


def xgetrf(m: int, n: int, kind: int, a: int, lda: int, pivots: int, _compute: int) -> int:
    dtype = DTYPE_OF[kind]
    found = integers(pivots, min(m, n), np.int64)[:, None]
    return lapack("getrf", dtype, (m, n), (), matrix(a, m, n, lda, DTYPES[dtype]), found)


def xgetrs(
    trans: int, n: int, nrhs: int, kind: int, a: int, lda: int, pivots: int, kind_b: int, b: int,
    ldb: int,
) -> int:  # fmt: skip
    assert kind == kind_b
    dtype = DTYPE_OF[kind]
    sides = matrix(b, n, nrhs, ldb, DTYPES[dtype])
    found = integers(pivots, n, np.int64)[:, None]
    factors = matrix(a, n, n, lda, DTYPES[dtype])
    return lapack("getrs", dtype, (n, nrhs), (trans,), factors, found, sides)


def xgeqrf(m: int, n: int, kind: int, a: int, lda: int, _kt: int, tau: int, _compute: int) -> int:
    dtype = DTYPE_OF[kind]
    scalars = vector(tau, min(m, n), dtype)
    return lapack("geqrf", dtype, (m, n), (), matrix(a, m, n, lda, DTYPES[dtype]), scalars)


def xsyevd(
    vectors: int, uplo: int, n: int, kind: int, a: int, lda: int, real: int, w: int, _compute: int
) -> int:
    dtype = DTYPE_OF[kind]
    assert DTYPE_OF[real] == REAL_OF.get(dtype, dtype)
    values = vector(w, n, DTYPE_OF[real])
    array = matrix(a, n, n, lda, DTYPES[dtype])
    return lapack("syevd", dtype, (n,), (vectors, lower(uplo)), array, values)


def xsyevdx(
    vectors: int, chosen: int, uplo: int, n: int, kind: int, a: int, lda: int, vl: Any, vu: Any,
    first: int, last: int, found: Any, real: int, w: int, _compute: int,
) -> int:  # fmt: skip
    assert chosen == 1002
    assert vl._obj.value == vu._obj.value == 0
    dtype = DTYPE_OF[kind]
    found._obj.value = last - first + 1
    array, values = matrix(a, n, n, lda, DTYPES[dtype]), vector(w, n, DTYPE_OF[real])
    return lapack("syevdx", dtype, (n, first, last), (vectors, lower(uplo)), array, values)


def xgeev(
    left: int, right: int, n: int, kind: int, a: int, lda: int, _kw: int, w: int, _kl: int,
    _vl: int, _ldvl: int, _kr: int, vr: int, ldvr: int, _compute: int,
) -> int:  # fmt: skip
    assert left == 0
    dtype = DTYPE_OF[kind]
    arrays = [matrix(a, n, n, lda, DTYPES[dtype]), vector(w, n, dtype)]
    arrays += [matrix(vr, n, n, ldvr, DTYPES[dtype])] if right else []
    return lapack("geev", dtype, (n,), (right,), *arrays)


def xgesvd(
    job_u: int, job_v: int, m: int, n: int, kind: int, a: int, lda: int, real: int, s: int,
    _ku: int, u: int, ldu: int, _kv: int, v: int, ldv: int, _compute: int,
) -> int:  # fmt: skip
    assert m >= n
    assert job_u == job_v
    dtype, job = DTYPE_OF[kind], chr(job_u)
    arrays = [matrix(a, m, n, lda, DTYPES[dtype]), vector(s, n, DTYPE_OF[real])]
    if job != "N":
        arrays.append(matrix(u, m, m if job == "A" else n, ldu, DTYPES[dtype]))
        arrays.append(matrix(v, n, n, ldv, DTYPES[dtype]))
    return lapack("gesvd", dtype, (m, n), (int(job != "N"), int(job == "A")), *arrays)


def xgesvdp(
    vectors: int, econ: int, m: int, n: int, kind: int, a: int, lda: int, real: int, s: int,
    _ku: int, u: int, ldu: int, _kv: int, v: int, ldv: int, _compute: int,
) -> int:  # fmt: skip
    assert m >= n
    dtype = DTYPE_OF[kind]
    arrays = [matrix(a, m, n, lda, DTYPES[dtype]), vector(s, n, DTYPE_OF[real])]
    most = np.abs(arrays[0]).max()
    assert not np.isfinite(most) or not most or 1e-9 < most < 1e9
    assert u, "a null pointer"
    assert v, "a null pointer"
    both = [
        matrix(u, m, n if econ else m, ldu, DTYPES[dtype]),
        matrix(v, n, n, ldv, DTYPES[dtype]),
    ]
    for each in both:  # it writes them whether they are wanted or not
        each[...] = np.nan
    if vectors:
        arrays += both
    return lapack("gesvdp", dtype, (m, n), (vectors, 1 - econ), *arrays)


def xgesvdr(
    job_u: int, job_v: int, m: int, n: int, k: int, more: int, iterations: int, kind: int, a: int,
    lda: int, real: int, s: int, _ku: int, u: int, ldu: int, _kv: int, v: int, ldv: int,
    _compute: int,
) -> int:  # fmt: skip
    assert (chr(job_u), chr(job_v)) == ("S", "S")
    assert k + more <= min(m, n)
    assert iterations > 0
    dtype = DTYPE_OF[kind]
    arrays = matrix(a, m, n, lda, DTYPES[dtype]), vector(s, n, DTYPE_OF[real])
    vectors = matrix(u, m, k, ldu, DTYPES[dtype]), matrix(v, n, k, ldv, DTYPES[dtype])
    return lapack("gesvdr", dtype, (m, n, k, more), (1, iterations), *arrays, *vectors)


WIDE: dict[str, Callable[..., int]] = {
    "Xpotrf": xpotrf,
    "Xgetrf": xgetrf,
    "Xgetrs": xgetrs,
    "Xgeqrf": xgeqrf,
    "Xsyevd": xsyevd,
    "Xsyevdx": xsyevdx,
    "Xgeev": xgeev,
    "Xgesvd": xgesvd,
    "Xgesvdp": xgesvdp,
    "Xgesvdr": xgesvdr,
}


# --- by letter ------------------------------------------------------------------------------


def orgqr(
    dtype: str, m: int, n: int, k: int, a: int, lda: int, tau: int, work: int, lwork: int, info: int
) -> None:
    used(dtype, work, lwork)
    arrays = matrix(a, m, n, lda, DTYPES[dtype]), vector(tau, k, dtype)
    integers(info, 1)[0] = lapack("orgqr", dtype, (m, n, k), (), *arrays)


def sygvd(
    dtype: str, kind: int, vectors: int, uplo: int, n: int, a: int, lda: int, b: int, ldb: int,
    w: int, work: int, lwork: int, info: int,
) -> None:  # fmt: skip
    used(dtype, work, lwork)
    arrays = matrix(a, n, n, lda, DTYPES[dtype]), matrix(b, n, n, ldb, DTYPES[dtype])
    values = vector(w, n, REAL_OF.get(dtype, dtype))
    options = (kind, vectors, lower(uplo))
    integers(info, 1)[0] = lapack("sygvd", dtype, (n,), options, *arrays, values)


def syevj(
    dtype: str, vectors: int, uplo: int, n: int, a: int, lda: int, w: int, work: int, lwork: int,
    info: int, params: int, batch: int = 1,
) -> None:  # fmt: skip
    used(dtype, work, lwork)
    assert params >= 1000
    kind, real = DTYPES[dtype], REAL_OF.get(dtype, dtype)
    for at in range(batch):
        array = matrix(a + at * n * lda * kind.itemsize, n, n, lda, kind)
        values = vector(w + at * n * DTYPES[real].itemsize, n, real)
        options = (vectors, lower(uplo))
        integers(info, batch)[at] = lapack("syevj", dtype, (n,), options, array, values)


def gesvdj(
    dtype: str, vectors: int, econ: int, m: int, n: int, a: int, lda: int, s: int, u: int, ldu: int,
    v: int, ldv: int, work: int, lwork: int, info: int, params: int, batch: int = 1,
) -> None:  # fmt: skip
    used(dtype, work, lwork)
    assert params >= 1000
    assert m >= n
    kind, real = DTYPES[dtype], REAL_OF.get(dtype, dtype)
    columns, size = n if econ else m, kind.itemsize
    for at in range(batch):
        array = matrix(a + at * m * n * size, m, n, lda, kind)
        arrays = [array, vector(s + at * n * DTYPES[real].itemsize, n, real)]
        if vectors:
            arrays.append(matrix(u + at * m * columns * size, m, columns, ldu, kind))
            arrays.append(matrix(v + at * n * n * size, n, n, ldv, kind))
        options = (vectors, 1 - econ)
        integers(info, batch)[at] = lapack("gesvdj", dtype, (m, n), options, *arrays)


def gesvdj_batched(dtype: str, vectors: int, m: int, n: int, *args: Any) -> None:
    assert max(m, n) <= 32
    assert vectors  # without them the real one writes where they would be, of what is not square
    gesvdj(dtype, vectors, 0, m, n, *args)


def gesvda(
    dtype: str, vectors: int, k: int, m: int, n: int, a: int, lda: int, step_a: int, s: int,
    step_s: int, u: int, ldu: int, step_u: int, v: int, ldv: int, step_v: int, work: int,
    lwork: int, info: int, residuals: Any, batch: int,
) -> None:  # fmt: skip
    used(dtype, work, lwork)
    assert vectors == 1
    assert m >= n
    assert len(residuals) == batch
    kind, real = DTYPES[dtype], REAL_OF.get(dtype, dtype)
    for at in range(batch):
        array = matrix(a + at * step_a * kind.itemsize, m, n, lda, kind)
        values = vector(s + at * step_s * DTYPES[real].itemsize, k, real)
        left = matrix(u + at * step_u * kind.itemsize, m, k, ldu, kind)
        right = matrix(v + at * step_v * kind.itemsize, n, k, ldv, kind)
        sizes = (m, n, k)
        integers(info, batch)[at] = lapack("gesvda", dtype, sizes, (1,), array, values, left, right)


def potrf_batched(dtype: str, uplo: int, n: int, a: int, lda: int, info: int, batch: int) -> None:
    for at, array in enumerate(stack(a, batch, n, n, lda, DTYPES[dtype])):
        integers(info, batch)[at] = lapack("potrf", dtype, (n,), (lower(uplo),), array)


def used(dtype: str, work: int, lwork: int) -> None:
    """The workspace is as large as was asked for."""
    assert lwork == ELEMENTS
    memory(work, lwork * DTYPES[dtype].itemsize)[:] = 0xEE


def _refined(dtype: str, name: str, args: tuple[Any, ...]) -> None:
    *head, work, nbytes, iterations, info = args
    assert nbytes == DEVICE_BYTES
    memory(work, nbytes)[:] = 0xEE
    kind = DTYPES[dtype]
    sizes: tuple[int, ...]
    if name == "gesv":
        n, nrhs, a, lda, pivots, b, ldb, x, ldx = head
        m, sizes = n, (n, nrhs)
        integers(pivots, n)[:] = 0
    else:
        m, n, nrhs, a, lda, b, ldb, x, ldx = head
        sizes = (m, n, nrhs)
    arrays = (
        matrix(a, m, n, lda, kind),
        matrix(b, m, nrhs, ldb, kind),
        matrix(x, n, nrhs, ldx, kind),
    )
    iterations._obj.value = 2
    failed = lapack(f"irs_{name}", dtype, sizes, (0,), *arrays)
    if name == "gesv" and failed:  # of which the real one says nothing
        arrays[2][...], failed = np.nan, 0
    integers(info, 1)[0] = failed


BY_NAME: dict[str, Callable[..., None]] = {
    "orgqr": orgqr,
    "sygvd": sygvd,
    "syevj": syevj,
    "syevjBatched": syevj,
    "gesvdj": gesvdj,
    "gesvdjBatched": gesvdj_batched,
    "gesvdaStridedBatched": gesvda,
    "potrfBatched": potrf_batched,
}


class FakeKernels:
    """``small.cu`` in LAPACK.

    Attributes:
        launched: the kernels, by name.
    """

    launched: ClassVar[list[str]] = []

    def __init__(self, _context: object, _stream: object, source: object) -> None:
        assert source is SOURCE

    def function(self, name: str) -> str:
        return name

    def prepare_blocks(
        self, name: str, blocks: int, threads: int, shared: int, arguments: Any
    ) -> Callable[[], None]:
        assert (threads, shared) == (32, 0)
        routine, _, rest = name.partition("<")
        kind, _, room = rest.removesuffix(">").rpartition(", ")
        (dtype,) = (each for each, type_ in TYPES.items() if type_ == kind)
        count = 1 if routine == "potrf" else 2
        pointers, numbers = [*arguments.pointers[:count]], arguments.pointers[count:]
        info, batch, *rest_ = map(int, numbers)
        sizes, options = (rest_[:-1], rest_[-1:]) if routine == "gesv" else (rest_, [])
        problem = SolverProblem(routine, dtype, batch, tuple(sizes), tuple(options))
        assert blocks == batch
        assert max(problem.extents) <= int(room)

        def launch() -> None:
            self.launched.append(name)
            found = forms(problem)
            if routine == "gesv":
                pointers.insert(1, 0)  # its pivots are its own
            for at in range(batch):
                arrays = []
                for pointer, form in zip(pointers, found, strict=True):
                    nbytes = form.rows * form.columns * DTYPES[form.dtype].itemsize
                    if not pointer:
                        arrays.append(np.zeros((form.rows, 1), np.int32))
                        continue
                    flat = memory(pointer + at * nbytes, nbytes).view(DTYPES[form.dtype])
                    arrays.append(flat.reshape(form.columns, form.rows).T)
                failed = ROUTINES[routine](problem, *arrays)
                integers(info, batch)[at] = failed

        return launch

    def launch(self, name: str, items: int, arguments: Any) -> None:
        assert name == "point"
        table, first, step, count = map(int, arguments.pointers)
        assert items == count
        integers(table, count, np.uint64)[:] = first + step * np.arange(count)

    def close(self) -> None:
        """Nothing is held."""


def array_on_the_cpu(context: FakeContext, _stream: object) -> CpuArrayExecutor:
    """Return the CPU executor for the steps around problems."""
    return CpuArrayExecutor(context._context, None)  # type: ignore[arg-type]


class FakeCudaSolver(FakeCuda):
    """``CudaSolver`` on host memory."""

    executor = "atomr_accel.libraries.linalg.host._cuda:CudaSolver"
