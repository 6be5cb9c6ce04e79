"""cuBLAS in NumPy, behind the same symbols: what runs ``CudaBlas`` without a GPU.

It takes column-major matrices by pointer and counts indices from one. It refuses small leading
dimensions and unsupported types, as cuBLAS does. So any machine can check how the executor handles
row-major arrays. ``FakeCudaBlas`` is an executor for the CPU backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from atomr_accel._dtypes import DTYPES
from atomr_accel.executors.numbers import CUDA_TYPES
from atomr_accel.libraries.blas.host import _prototypes as prototypes
from atomr_accel.libraries.blas.host._prototypes import LETTERS, symbol
from atomr_accel.libraries.blas.wire._rows import REAL_OF, ROWS, Row

from ..libraries.blas.rows.formulas import evaluate
from .lapack import BATCHED, memory
from .vendor import FakeCuda, FakeVendor

Array = np.ndarray[Any, Any]

INVALID_VALUE, NOT_SUPPORTED = 7, 15
HALF = 2
"""Bytes of the types that compute in float32."""
DTYPE_OF = {value: DTYPES[name] for name, value in CUDA_TYPES.items()}


class Refusal(Exception):
    """A status that is not success."""


def matrix(pointer: int, rows: int, columns: int, ld: int, dtype: np.dtype[Any]) -> Array:
    """A column-major matrix, as a view that can be written."""
    if ld < max(1, rows):
        raise Refusal(INVALID_VALUE)
    if not rows or not columns:
        return np.zeros((rows, columns), dtype)
    count = (columns - 1) * ld + rows
    strides = (dtype.itemsize, ld * dtype.itemsize)
    return np.ndarray((rows, columns), dtype, memory(pointer, count * dtype.itemsize), 0, strides)


def vector(pointer: int, n: int, inc: int, dtype: np.dtype[Any]) -> Array:
    """A vector in steps, as a view that can be written."""
    if not n:
        return np.zeros(0, dtype)
    flat = memory(pointer, ((n - 1) * abs(inc) + 1) * dtype.itemsize).view(dtype)
    return flat[::inc]


def number(argument: Any, dtype: np.dtype[Any]) -> Any:
    """Return the number that a scalar pointer refers to, on the device or in the host."""
    if isinstance(argument, int):
        return vector(argument, 1, 1, dtype)[0]
    buffer = bytes(argument._obj)
    assert len(buffer) == dtype.itemsize, (len(buffer), dtype)
    return np.frombuffer(buffer, dtype)[0]


def op(array: Array, trans: int) -> Array:
    return array if trans == 0 else array.T if trans == 1 else array.conj().T


def wide(array: Any) -> Any:
    return array.astype(np.float32) if array.dtype.itemsize <= 2 else array


def store(out: Array, value: Array) -> None:
    out[...] = value.astype(out.dtype)


def combine(out: Array, value: Array, beta: Any) -> None:
    """``out = value + beta * out``; NaNs in ``out`` do not matter where beta is 0."""
    store(out, value if beta == 0 else value + beta * wide(out))


SCALAR_WORDS = {"a": "alpha", "c": "cosine", "s": "sine"}
"""Names of the arguments that are scalars, by their letters in a row."""


def each_of(values: dict[str, Any], dtype: np.dtype[Any]) -> Iterable[dict[str, Any]]:
    """The arguments of each of a batch: by strides, or by tables of pointers."""
    for i in range(values.get("batch", 1)):
        each = dict(values)
        for word in ("a", "x", "y") if "batch" in values else ():
            if f"stride_{word}" in values:
                each[word] += i * values[f"stride_{word}"] * dtype.itemsize
            else:
                each[word] = int(vector(values[word], i + 1, 1, DTYPES["uint64"])[i])
        yield each


def run_row(row: Row, dtype: np.dtype[Any], values: dict[str, Any]) -> None:
    """Run the vendor's function of a row on arguments by name."""
    case: dict[str, Any] = {size: values[size] for size in row.sizes}
    if row.name in ("gemv", "gbmv") and values["trans"]:  # its sizes are of what is stored
        case |= {"m": case["n"], "n": case["m"]}
    for option in row.options:
        case[option] = values.get(option, values.get(option.partition("_")[0]))
    if "lower" in row.options:
        case["lower"] = values["uplo"] == 0
    if "unit_diagonal" in row.options:
        case["unit_diagonal"] = bool(values["diag"])
    transposes = [case[option] for option in row.options if option.startswith("trans")]
    if dtype.kind == "c" and not {*transposes} <= {*row.transposes}:
        raise Refusal(INVALID_VALUE)
    arrays = {}
    for operand, shape in zip(row.operands, row.shapes(case, case), strict=True):
        word = operand.word if operand.word in values else "c"
        kind = DTYPES[operand.dtype_of(dtype.name)]
        if operand.steps:
            array = vector(values[word], shape[0], values[f"inc{word}"], kind)
        elif len(shape) == 1:
            array = vector(values[word], shape[0], 1, kind)
        elif shape:
            rows, columns = shape
            array = matrix(values[word], rows, columns, values[f"ld{word}"], kind)
        else:
            array = vector(values[word], 1, 1, kind).reshape(())
        if case.get(operand.trans) and values[word] == values.get("c"):
            raise Refusal(INVALID_VALUE)
        arrays[operand.name] = array
    compute = np.dtype(np.float32) if dtype.itemsize == HALF else dtype
    scalars = {}
    for name, is_real in row.numbers:
        word = SCALAR_WORDS.get(name, name)
        kind = DTYPES[REAL_OF.get(dtype.name, dtype.name)] if is_real else dtype
        kind = compute if word in ("alpha", "beta") and dtype.itemsize == HALF else kind
        scalars[name] = wide(number(values[word], kind))
    given = {name: wide(array) for name, array in arrays.items()}
    results = evaluate(row, given, scalars, case)
    for at, result in zip(row.written, results, strict=True):
        operand = row.operands[at]
        store(arrays[operand.name], result + 1 if operand.dtype == "index" else result)


SCALES = {"16F": "float16", "32F": "float32", "64F": "float64", "32I": "int32"}


def scale_type(compute: int, given: int) -> np.dtype[Any]:
    """The type of alpha and beta."""
    dtype = DTYPE_OF[given]
    if dtype.kind == "c":
        return dtype
    (name,) = (name for name, value in prototypes.COMPUTES.items() if value == compute)
    return DTYPES[SCALES[name[:3]]]


def product(
    trans_a: int,
    trans_b: int,
    m: int,
    n: int,
    k: int,
    alpha: Any,
    a: tuple[int, int, int],
    b: tuple[int, int, int],
    beta: Any,
    c: tuple[int, int, int],
) -> None:
    """One product; matrices as (pointer, CUDA type, leading dimension)."""
    left = matrix(a[0], *((k, m) if trans_a else (m, k)), a[2], DTYPE_OF[a[1]])
    right = matrix(b[0], *((n, k) if trans_b else (k, n)), b[2], DTYPE_OF[b[1]])
    out = matrix(c[0], m, n, c[2], DTYPE_OF[c[1]])
    if left.dtype.kind == "i":
        if a[2] % 4 or b[2] % 4:
            raise Refusal(NOT_SUPPORTED)
        left, right = left.astype(out.dtype), right.astype(out.dtype)
    combine(out, alpha * (op(wide(left), trans_a) @ op(wide(right), trans_b)), beta)


def require_alignment(kind: int, compute: int, k: int, pointers: Iterable[Any]) -> None:
    """Check the alignment that cuBLAS documents for pointers in tables."""
    fast = [value for name, value in prototypes.COMPUTES.items() if "FAST" in name]
    if DTYPE_OF[kind].itemsize < 4 or compute in fast:
        wanted = 16 if k % 8 == 0 else 8 if k % 4 == 0 else 1
        assert not any(int(pointer) % wanted for pointer in pointers), "a misaligned access"


class FakeLibrary(FakeVendor):
    """Stands in for the ``VendorLibrary`` of ``Handle``."""

    library = "cublas"

    def __init__(self) -> None:
        self.version = 130_100
        self.device_mode = False
        self.handles = 0
        self.functions: dict[str, Callable[..., int]] = {
            "cublasCreate_v2": lambda handle: self.create(handle),
            "cublasDestroy_v2": lambda _handle: 0,
            "cublasGetVersion_v2": self.get_version,
            "cublasSetStream_v2": lambda _handle, _stream: 0,
            "cublasSetWorkspace_v2": lambda _handle, pointer, _size: 0 if pointer else 7,
            "cublasSetPointerMode_v2": self.set_mode,
            "cublasGemmEx_64": self.guarded(self.gemm_ex),
            "cublasGemmStridedBatchedEx_64": self.guarded(self.gemm_strided),
            "cublasGemmBatchedEx_64": self.guarded(self.gemm_batched),
            "cublasGemmGroupedBatchedEx_64": self.guarded(self.gemm_grouped),
        }
        for row in ROWS.values():
            if row.vendor is not None:
                letter, name, words = row.vendor
                for dtype in LETTERS.keys() & {*row.dtypes}:
                    # dotc and dot are one symbol where the type is real.
                    self.add(symbol(letter, name, dtype), row, words, DTYPES[dtype])
            if row.half is not None:
                self.add(prototypes.half_symbol(row.half[0]), row, row.half[1], None)
        begun = {dtype: f"cublas{letters['t']}" for dtype, letters in LETTERS.items()}
        strided = {dtype: f"{begin}gemvStridedBatched_64" for dtype, begin in begun.items()}
        batched = {dtype: f"{begin}gemvBatched_64" for dtype, begin in begun.items()}
        for names, words in (
            (strided | prototypes.HALF_GEMV, prototypes.GEMV_STRIDED),
            (batched | prototypes.HALF_GEMV_BATCHED, prototypes.GEMV_BATCHED),
        ):
            for dtype, name in names.items():
                self.add(name, ROWS["gemv"], words, DTYPES[dtype])
        for dtype, letters in LETTERS.items():
            for routine, run in BATCHED.items():
                self.functions[f"cublas{letters['t']}{routine}Batched"] = self.guarded(
                    lambda *args, run=run, dtype=dtype: run(DTYPES[dtype], *args)
                )

    def add(self, name: str, row: Row, words: str, dtype: np.dtype[Any] | None) -> None:
        """A routine whose arguments have words."""

        def run(*arguments: Any) -> None:
            values = dict(zip(words.split(), arguments, strict=True))
            scalars = [values[word] for word in ("alpha", "beta", "cosine") if word in values]
            placed = [isinstance(each, int) for each in scalars]
            assert self.device_mode == (bool({"result", "param"} & values.keys()) or any(placed))
            assert all(placed) or not any(placed), "numbers in two places"
            kind = dtype or DTYPE_OF[values["type"]]
            for each in each_of(values, kind):
                run_row(row, kind, each)

        self.functions[name] = self.guarded(run)

    @staticmethod
    def guarded(run: Callable[..., None]) -> Callable[..., int]:
        """A function that takes the handle and returns a status."""

        def call(_handle: Any, *arguments: Any) -> int:
            try:
                with np.errstate(all="ignore"):
                    run(*arguments)
            except Refusal as refusal:
                return int(refusal.args[0])
            return 0

        return call

    def create(self, handle: Any) -> int:
        self.handles += 1
        handle._obj.value = self.handles
        return 0

    def get_version(self, _handle: Any, version: Any) -> int:
        version._obj.value = self.version
        return 0

    def set_mode(self, _handle: Any, mode: int) -> int:
        self.device_mode = bool(mode)
        return 0

    def gemm_ex(self, ta: int, tb: int, m: int, n: int, k: int, alpha: Any, *rest: Any) -> None:
        a, b, beta, c, (compute, _) = rest[:3], rest[3:6], rest[6], rest[7:10], rest[10:]
        kind = scale_type(compute, a[1])
        product(ta, tb, m, n, k, number(alpha, kind), a, b, number(beta, kind), c)

    def gemm_strided(
        self, ta: int, tb: int, m: int, n: int, k: int, alpha: Any, *rest: Any
    ) -> None:
        a, b, beta, c, (count, compute, _) = rest[:4], rest[4:8], rest[8], rest[9:13], rest[13:]
        kind = scale_type(compute, a[1])
        for i in range(count):
            places = [
                (each[0] + i * each[3] * DTYPE_OF[each[1]].itemsize, each[1], each[2])
                for each in (a, b, c)
            ]
            scalars = number(alpha, kind), number(beta, kind)
            product(ta, tb, m, n, k, scalars[0], places[0], places[1], scalars[1], places[2])

    def gemm_batched(
        self, ta: int, tb: int, m: int, n: int, k: int, alpha: Any, *rest: Any
    ) -> None:
        a, b, beta, c, (count, compute, _) = rest[:3], rest[3:6], rest[6], rest[7:10], rest[10:]
        kind = scale_type(compute, a[1])
        tables = [vector(each[0], count, 1, DTYPES["uint64"]) for each in (a, b, c)]
        for pointers in zip(*tables, strict=True):
            require_alignment(a[1], compute, k, pointers)
            places = [
                (int(pointer), each[1], each[2])
                for pointer, each in zip(pointers, (a, b, c), strict=True)
            ]
            scalars = number(alpha, kind), number(beta, kind)
            product(ta, tb, m, n, k, scalars[0], places[0], places[1], scalars[1], places[2])

    def gemm_grouped(self, *rest: Any) -> None:
        ta, tb, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc = rest[:16]
        groups, sizes, compute = rest[16:]
        kind = scale_type(compute, a_type)
        members = vector(sizes, groups, 1, DTYPES["int64"])
        total = int(members.sum())
        tables = [vector(each, total, 1, DTYPES["uint64"]) for each in (a, b, c)]
        ints = [vector(each, groups, 1, DTYPES["int32"]) for each in (ta, tb)]
        longs = [vector(each, groups, 1, DTYPES["int64"]) for each in (m, n, k, lda, ldb, ldc)]
        scalars = [vector(each, groups, 1, kind) for each in (alpha, beta)]
        at = 0
        for group, count in enumerate(members):
            op_a, op_b = (int(each[group]) for each in ints)
            rows, columns, depth, step_a, step_b, step_c = (int(each[group]) for each in longs)
            for _ in range(count):
                require_alignment(a_type, compute, depth, [table[at] for table in tables])
                product(
                    *(op_a, op_b, rows, columns, depth, scalars[0][group]),
                    (int(tables[0][at]), a_type, step_a),
                    (int(tables[1][at]), b_type, step_b),
                    scalars[1][group],
                    (int(tables[2][at]), c_type, step_c),
                )
                at += 1


class FakeKernels:
    """``shift``, the only kernel there is."""

    def __init__(self, _context: Any, _stream: Any, _source: object) -> None:
        pass

    def function(self, name: str) -> np.dtype[Any]:
        return DTYPES[{"shift<int>": "int32", "shift<long long>": "int64"}[name]]

    def launch(self, dtype: np.dtype[Any], items: int, arguments: Any) -> None:
        to, source, count = arguments.pointers[:3]
        delta = np.frombuffer(arguments._data, np.int64)[3]
        assert count == items
        store(vector(to, count, 1, dtype), vector(source, count, 1, dtype) + delta)

    def close(self) -> None:
        pass


class FakeCudaBlas(FakeCuda):
    """``CudaBlas`` on host memory."""

    executor = "atomr_accel.libraries.blas.host._cuda:CudaBlas"
