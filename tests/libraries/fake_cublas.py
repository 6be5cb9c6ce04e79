"""cuBLAS in NumPy, behind the same symbols: what runs ``CudaBlas`` without a GPU.

It takes column-major matrices by pointer, counts indices from one, and refuses what cuBLAS
refuses (leading dimensions that are too small, types it does not have), so what our
executor makes of row-major arrays is checked on any machine. ``FakeCudaBlas`` is an executor
for the CPU backend.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from atomr_accel._dtypes import DTYPES
from atomr_accel._errors import LibraryError
from atomr_accel.libraries.blas.host import _prototypes as prototypes
from atomr_accel.libraries.blas.host._prototypes import LETTERS, symbol
from atomr_accel.libraries.host._numbers import CUDA_TYPES
from atomr_accel.wire import OFFSET_MASK, SLAB_SHIFT

from .fake_lapack import BATCHED, memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from atomr_accel.backends.cpu.host._context import CpuContext, CpuStream

Array = np.ndarray[Any, Any]

INVALID_VALUE, NOT_SUPPORTED = 7, 15
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
    """What a pointer to a host scalar points to."""
    buffer = argument._obj
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


def triangle(a: Array, uplo: int, diag: int) -> Array:
    half = np.tril(a, -1) if uplo == 0 else np.triu(a, 1)
    return half + (np.eye(len(a), dtype=a.dtype) if diag else np.diag(np.diag(a)))


def symmetric(a: Array, uplo: int, *, hermitian: bool = False) -> Any:
    half = np.tril(a, -1) if uplo == 0 else np.triu(a, 1)
    diagonal = np.diag(a).real if hermitian else np.diag(a)
    return half + (half.conj().T if hermitian else half.T) + np.diag(diagonal)


class Arguments(dict[str, Any]):
    """A call's arguments by their words, with the dtype they have."""

    def __init__(self, dtype: np.dtype[Any], values: dict[str, Any]) -> None:
        super().__init__(values)
        self.dtype = dtype
        self.compute = np.dtype(np.float32) if dtype.itemsize == 2 else dtype

    def vector(self, name: str, n: int) -> Array:
        return vector(self[name], n, self[f"inc{name}"], self.dtype)

    def matrix(self, name: str, rows: int, columns: int) -> Array:
        return matrix(self[name], rows, columns, self[f"ld{name}"], self.dtype)

    def scalar(self, name: str, dtype: np.dtype[Any] | None = None) -> Any:
        return number(self[name], dtype or self.compute)

    @property
    def real(self) -> np.dtype[Any]:
        return np.zeros(0, self.dtype).real.dtype if self.dtype.kind == "c" else self.dtype


def axpy(a: Arguments) -> None:
    x, y = a.vector("x", a["n"]), a.vector("y", a["n"])
    store(y, a.scalar("alpha") * wide(x) + wide(y))


def scal(a: Arguments) -> None:
    x = a.vector("x", a["n"])
    store(x, a.scalar("alpha") * wide(x))


def copy(a: Arguments) -> None:
    a.vector("y", a["n"])[...] = a.vector("x", a["n"])


def swap(a: Arguments) -> None:
    x, y = a.vector("x", a["n"]), a.vector("y", a["n"])
    x[...], y[...] = y.copy(), x.copy()


def rot(a: Arguments) -> None:
    x, y = a.vector("x", a["n"]), a.vector("y", a["n"])
    c, s = (wide(a.scalar(name, kind)) for name, kind in (("cosine", a.real), ("sine", a.dtype)))
    old_x, old_y = wide(x).copy(), wide(y).copy()
    store(x, c * old_x + s * old_y)
    store(y, c * old_y - np.conj(s) * old_x)


def reduction(function: Callable[[Array, Array], Any], kind: str) -> Callable[[Arguments], None]:
    def run(a: Arguments) -> None:
        x = wide(a.vector("x", a["n"]))
        y = wide(a.vector("y", a["n"])) if "y" in a else x
        dtype = {"same": a.dtype, "real": a.real, "index": DTYPES["int64"]}[kind]
        vector(a["result"], 1, 1, dtype)[0] = function(x, y)

    return run


def size_of(x: Array) -> Any:
    return np.abs(x.real) + np.abs(x.imag)


def gemv(a: Arguments) -> None:
    m, n, trans = a["m"], a["n"], a["trans"]
    whole = op(wide(a.matrix("a", m, n)), trans)
    x, y = a.vector("x", whole.shape[1]), a.vector("y", whole.shape[0])
    combine(y, a.scalar("alpha") * (whole @ wide(x)), a.scalar("beta"))


def gbmv(a: Arguments) -> None:
    m, n, kl, ku = a["m"], a["n"], a["kl"], a["ku"]
    band = a.matrix("a", kl + ku + 1, n)
    whole = np.zeros((m, n), a.dtype)
    for j in range(n):
        for i in range(max(0, j - ku), min(m, j + kl + 1)):
            whole[i, j] = band[ku + i - j, j]
    whole = op(whole, a["trans"])
    x, y = a.vector("x", whole.shape[1]), a.vector("y", whole.shape[0])
    combine(y, a.scalar("alpha") * (whole @ x), a.scalar("beta"))


def symv(a: Arguments) -> None:
    n = a["n"]
    whole = symmetric(a.matrix("a", n, n), a["uplo"])
    combine(a.vector("y", n), a.scalar("alpha") * (whole @ a.vector("x", n)), a.scalar("beta"))


def trmv(a: Arguments) -> None:
    n = a["n"]
    x = a.vector("x", n)
    x[...] = op(triangle(a.matrix("a", n, n), a["uplo"], a["diag"]), a["trans"]) @ x


def trsv(a: Arguments) -> None:
    n = a["n"]
    x = a.vector("x", n)
    whole = op(triangle(a.matrix("a", n, n), a["uplo"], a["diag"]), a["trans"])
    x[...] = np.linalg.solve(whole, x)


def ger(a: Arguments) -> None:
    m, n = a["m"], a["n"]
    a.matrix("a", m, n)[...] += a.scalar("alpha") * np.outer(a.vector("x", m), a.vector("y", n))


def symm(a: Arguments, *, hermitian: bool = False) -> None:
    m, n, right = a["m"], a["n"], a["side"]
    size = n if right else m
    whole = symmetric(a.matrix("a", size, size), a["uplo"], hermitian=hermitian)
    b, c = a.matrix("b", m, n), a.matrix("c", m, n)
    combine(c, a.scalar("alpha") * (b @ whole if right else whole @ b), a.scalar("beta"))


def rank_k(a: Arguments, *, hermitian: bool = False, two: bool = False) -> None:
    n, k, trans = a["n"], a["k"], a["trans"]
    if a.dtype.kind == "c" and trans == (1 if hermitian else 2):
        raise Refusal(INVALID_VALUE)
    shape = (k, n) if trans else (n, k)
    adjoint = 2 if hermitian else 1
    left = op(a.matrix("a", *shape), adjoint if trans else 0)
    right = op(a.matrix("b", *shape), adjoint if trans else 0) if two else left
    alpha = a.scalar("alpha", a.real if hermitian and not two else None)
    value = alpha * (left @ op(right, adjoint))
    if two:
        value = value + op(value, adjoint)
    c = a.matrix("c", n, n)
    beta = a.scalar("beta", a.real if hermitian else None)
    inside = (np.tril if a["uplo"] == 0 else np.triu)(np.ones((n, n), bool))
    part = c[inside]
    combine(part, value[inside], beta)
    c[inside] = part
    if hermitian:
        diagonal = np.arange(n)
        c[diagonal, diagonal] = c[diagonal, diagonal].real


def trmm(a: Arguments) -> None:
    m, n, right = a["m"], a["n"], a["side"]
    size = n if right else m
    whole = op(triangle(a.matrix("a", size, size), a["uplo"], a["diag"]), a["trans"])
    b = a.matrix("b", m, n)
    store(a.matrix("c", m, n), a.scalar("alpha") * (b @ whole if right else whole @ b))


def trsm(a: Arguments) -> None:
    m, n, right = a["m"], a["n"], a["side"]
    size = n if right else m
    whole = op(triangle(a.matrix("a", size, size), a["uplo"], a["diag"]), a["trans"])
    c = a.matrix("c", m, n)
    sides = a.scalar("alpha") * c
    store(c, np.linalg.solve(whole.T, sides.T).T if right else np.linalg.solve(whole, sides))


def geam(a: Arguments) -> None:
    m, n = a["m"], a["n"]
    c = a.matrix("c", m, n)
    total = np.zeros((m, n), a.dtype)
    for name, scale in (("a", "alpha"), ("b", "beta")):
        trans, factor = a[f"trans_{name}"], a.scalar(scale)
        each = a.matrix(name, *((n, m) if trans else (m, n)))
        if a[name] == a["c"] and (trans or a[f"ld{name}"] != a["ldc"]):
            raise Refusal(INVALID_VALUE)
        if factor != 0:
            total = total + factor * op(each, trans)
    store(c, total)


def dgmm(a: Arguments) -> None:
    m, n, right = a["m"], a["n"], a["side"]
    whole, x = a.matrix("a", m, n), a.vector("x", n if right else m)
    store(a.matrix("c", m, n), whole * x if right else x[:, None] * whole)


ROUTINES: dict[str, Callable[[Arguments], None]] = {
    "axpy": axpy,
    "scal": scal,
    "copy": copy,
    "swap": swap,
    "rot": rot,
    "dot": reduction(lambda x, y: x @ y, "same"),
    "dotc": reduction(lambda x, y: x.conj() @ y, "same"),
    "nrm2": reduction(lambda x, _: np.sqrt((np.abs(x) ** 2).sum()), "real"),
    "asum": reduction(lambda x, _: size_of(x).sum(), "real"),
    "amax": reduction(lambda x, _: np.argmax(size_of(x)) + 1, "index"),
    "amin": reduction(lambda x, _: np.argmin(size_of(x)) + 1, "index"),
    "gemv": gemv,
    "gbmv": gbmv,
    "symv": symv,
    "trmv": trmv,
    "trsv": trsv,
    "ger": ger,
    "symm": symm,
    "hemm": lambda a: symm(a, hermitian=True),
    "syrk": rank_k,
    "herk": lambda a: rank_k(a, hermitian=True),
    "syr2k": lambda a: rank_k(a, two=True),
    "her2k": lambda a: rank_k(a, hermitian=True, two=True),
    "trmm": trmm,
    "trsm": trsm,
    "geam": geam,
    "dgmm": dgmm,
}

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
    """What the vendor's documentation asks of pointers in tables."""
    fast = [value for name, value in prototypes.COMPUTES.items() if "FAST" in name]
    if DTYPE_OF[kind].itemsize < 4 or compute in fast:
        wanted = 16 if k % 8 == 0 else 8 if k % 4 == 0 else 1
        assert not any(int(pointer) % wanted for pointer in pointers), "a misaligned access"


class FakeLibrary:
    """What ``VendorLibrary`` is for ``Handle``."""

    def __init__(self) -> None:
        self.device_mode = False
        self.handles = 0
        self.functions: dict[str, Callable[..., int]] = {
            "cublasCreate_v2": lambda handle: self.create(handle),
            "cublasDestroy_v2": lambda _handle: 0,
            "cublasSetStream_v2": lambda _handle, _stream: 0,
            "cublasSetWorkspace_v2": lambda _handle, pointer, _size: 0 if pointer else 7,
            "cublasSetPointerMode_v2": self.set_mode,
            "cublasGemmEx_64": self.guarded(self.gemm_ex),
            "cublasGemmStridedBatchedEx_64": self.guarded(self.gemm_strided),
            "cublasGemmBatchedEx_64": self.guarded(self.gemm_batched),
            "cublasGemmGroupedBatchedEx_64": self.guarded(self.gemm_grouped),
        }
        for routine, (kind, name, words) in (
            prototypes.ROUTINES | prototypes.COMPLEX_ROUTINES
        ).items():
            for dtype in LETTERS:
                if routine in prototypes.ROUTINES or dtype.startswith("complex"):
                    # dotc and dot are one symbol where the type is real.
                    self.add(symbol(kind, name, dtype), routine, words, DTYPES[dtype])
        for routine, (name, words) in prototypes.HALF_ROUTINES.items():
            self.add(name, routine, words, None)
        for half, name in prototypes.HALF_GEMV.items():
            self.add(name, "gemv", prototypes.HALF_GEMV_ARGUMENTS, DTYPES[half])
        for dtype, letters in LETTERS.items():
            for routine, run in BATCHED.items():
                self.functions[f"cublas{letters['t']}{routine}Batched"] = self.guarded(
                    lambda *args, run=run, dtype=dtype: run(DTYPES[dtype], *args)
                )

    def add(self, name: str, routine: str, words: str, dtype: np.dtype[Any] | None) -> None:
        """A routine whose arguments have words."""

        def run(*arguments: Any) -> None:
            values = dict(zip(words.split(), arguments, strict=True))
            assert self.device_mode == ("result" in values)
            kind = dtype or DTYPE_OF[values["type"]]
            ROUTINES[routine](Arguments(kind, values))

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

    def call(self, function: str, *arguments: Any) -> None:
        status = self.functions[function](*arguments)
        if status:
            raise self.error(function, status)

    def prepare(self, function: str, *arguments: Any) -> Callable[[], int]:
        """A call of which some arguments are ``ctypes`` objects that change in between."""

        def call() -> int:
            plain = [
                each.value or 0 if isinstance(each, ctypes.c_void_p) else each for each in arguments
            ]
            return self.functions[function](*plain)

        return call

    def error(self, function: str, status: int) -> LibraryError:
        return LibraryError(
            f"{function} returned {status}",
            library="cublas",
            call=function,
            status=status,
            status_name=str(status),
        )


class FakeContext:
    """The CPU's context as a CUDA executor sees one: with pointers."""

    compute_capability = (9, 0)
    deterministic = False

    def __init__(self, context: CpuContext) -> None:
        self._context = context

    def pointer(self, address: int) -> int:
        slab: Array = self._context._slabs[address >> SLAB_SHIFT]
        return int(slab.ctypes.data) + (address & OFFSET_MASK)


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


class FakeCudaBlas:
    """``CudaBlas`` on host memory."""

    stream: Any = SimpleNamespace(handle=0, pointer=0, captures=False)

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        from atomr_accel.libraries.blas.host._cuda import CudaBlas

        self._context = context
        executor: Any = CudaBlas(
            FakeContext(context),  # type: ignore[arg-type]
            self.stream,
        )
        self._executor = executor
        self.handlers = {kind: self._checked(run) for kind, run in executor.handlers.items()}
        self.fusions = executor.fusions

    def _checked(self, run: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def handle(message: Any) -> Any:
            self._context.check()
            return run(message)

        return handle

    def close(self) -> None:
        """Destroy the handles."""
        self._executor.close()
