"""Results of expression kernels, compiled for the host so that no GPU is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
import scipy.special as sp

from atomr_accel.libraries.array.host._codegen import NAME, source_of
from atomr_accel.libraries.array.host._cuda_expression import OPTIONS
from atomr_accel.wire.ufuncs import UFUNCS, find_ufunc
from tests import seeds

from ...harness import sized
from ..compiling import check_compiles
from ..host_kernels import needs_compiler
from .generated import Case, Leaves, aligned, run_all

pytestmark = needs_compiler


def data(dtype: Any, *shape: int, low: float = -3.0, high: float = 3.0) -> Any:
    """Numbers of any dtype, the same in every run."""
    rng = np.random.default_rng([*np.dtype(dtype).name.encode(), *shape])
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind.kind in "iu":
        least = 0 if kind.kind == "u" else -50
        return rng.integers(least, 50, shape).astype(kind)
    values = rng.uniform(low, high, shape)
    if kind.kind == "c":
        values = values + 1j * rng.uniform(low, high, shape)
    return values.astype(kind)


def check(folder: Path, *rows: tuple[Callable[..., Any], tuple[Any, ...]], exact: bool) -> None:
    """Check that each function gives the same result on kernels as with NumPy.

    Compilation is slow, so a run checks a sample of the functions.
    """
    part = sized(4, 1)
    rows = rows[seeds.draw() % part :: part] if len(rows) > 1 else rows
    leaves = Leaves()
    cases, wanted = [], []
    for function, arrays in rows:
        placed = [aligned(each) if each.flags.c_contiguous else each for each in arrays]
        made = function(*map(leaves.put, placed))
        cases.append(Case(leaves, made if isinstance(made, tuple) else (made,)))
        with np.errstate(all="ignore"):
            expected = function(*placed)
        wanted.append(expected if isinstance(expected, tuple) else (expected,))
    for number, (found, expected) in enumerate(zip(run_all(cases, folder), wanted, strict=True)):
        for one, other in zip(found, map(np.asarray, expected), strict=True):
            assert one.shape == other.shape, number
            assert one.dtype == other.dtype, (number, one.dtype, other.dtype)
            if exact:
                np.testing.assert_array_equal(
                    wide(one), wide(other), err_msg=f"row {number}: {cases[number].graph.values}"
                )
            else:
                tolerance = 64 * eps(one.dtype) if one.dtype.kind in "fcV" else 0
                np.testing.assert_allclose(
                    wide(one),
                    wide(other),
                    tolerance,
                    tolerance * max(1, largest(other)),  # the terms of one sum may cancel
                    err_msg=f"row {number}: {cases[number].graph.values}",
                )


def wide(array: Any) -> Any:
    """Numbers that NumPy's tests compare."""
    return array.astype(np.float64) if array.dtype.kind == "V" else array


def largest(array: Any) -> float:
    """The largest size of its numbers that are finite."""
    sizes = np.abs(wide(array))
    return float(np.max(sizes, initial=0, where=np.isfinite(sizes)))


def each(functions: tuple[Any, ...], arrays: tuple[Any, ...]) -> list[Any]:
    """Rows of several functions of the same arrays."""
    return [(function, arrays) for function in functions]


def eps(dtype: Any) -> float:
    """Return the spacing of the numbers around 1."""
    limits: Any = ml_dtypes.finfo
    return float(limits(dtype).eps)


FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
INTEGERS = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)


def _larger(x: Any, y: Any) -> Any:
    return np.where(x > y, x, y)


@pytest.mark.slow
def test_arithmetic(tmp_path: Path) -> None:
    rows: list[Any] = []
    for dtype in (*FLOATS, *INTEGERS):
        x, y = data(dtype, 5, 8), data(dtype, 8)
        rows += each(
            (
                np.add,
                np.subtract,
                np.multiply,
                np.floor_divide,
                np.remainder,
                np.fmod,
                np.maximum,
                np.fmin,
                np.less,
                np.equal,
                np.greater_equal,
                np.logical_xor,
            ),
            (x, y),
        )
        rows += [(np.negative, (x,)), (np.sign, (x,)), (np.square, (x,)), (np.absolute, (x,))]
        rows.append((lambda x, y: _larger(x, y) * 2 + 1, (x, y)))
    for dtype in INTEGERS:
        x, y = data(dtype, 40), np.arange(40).astype(dtype)
        rows += each(
            (
                np.bitwise_and,
                np.bitwise_xor,
                np.left_shift,
                np.right_shift,
                np.gcd,
                np.lcm,
            ),
            (x, y),
        )
        rows.append((np.power, (x, y)))
        rows += [(np.invert, (x,)), (np.bitwise_count, (x,))]
    check(tmp_path, *rows, exact=True)


@pytest.mark.slow
def test_functions(tmp_path: Path) -> None:
    rows: list[Any] = []
    for dtype in FLOATS:
        x = data(dtype, 3, 16)
        positive, unit = data(dtype, 48, low=0.1), data(dtype, 48, low=-0.9, high=0.9)
        rows += each((np.sqrt, np.log, np.log2, np.log10, np.log1p), (positive,))
        rows += each((np.cbrt, np.reciprocal), (positive,))
        rows += each((np.arcsin, np.arccos, np.arctanh), (unit,))
        rows += each((np.exp, np.exp2, np.expm1, np.sin, np.cos, np.tan, np.arctan, np.sinh), (x,))
        rows += each((np.cosh, np.tanh, np.arcsinh, np.floor, np.ceil, np.trunc, np.rint), (x,))
        rows += each((np.isnan, np.isfinite, np.isinf, np.signbit, np.deg2rad, np.degrees), (x,))
        rows += each(
            (np.arctan2, np.hypot, np.copysign, np.logaddexp, np.logaddexp2), (x, data(dtype, 16))
        )
        rows.append((np.power, (positive, unit)))
        rows.append((np.heaviside, (x, x)))
        rows.append((lambda x: np.modf(x), (x,)))
        rows.append((lambda x: np.frexp(x), (x,)))
        rows.append((lambda x: np.divmod(x, x.dtype.type(0.75)), (x,)))
    for dtype in (np.float32, np.float64):
        x, positive = data(dtype, 48), data(dtype, 48, low=0.1)
        rows += each((sp.erf, sp.erfc, sp.expit, sp.ndtr), (x,))
        rows += each((sp.gamma, sp.gammaln, sp.entr), (positive,))
        rows.append((sp.erfinv, (data(dtype, 48, low=-0.9, high=0.9),)))
        rows.append((sp.ndtri, (data(dtype, 48, low=0.01, high=0.99),)))
        rows += each((sp.i0, sp.i1, sp.j0, sp.j1, sp.psi), (x,))
        rows += each((sp.y0, sp.y1, sp.psi), (positive,))
        large = data(dtype, 48, low=0.1, high=3000.0)
        rows += each((sp.beta, sp.betaln), (positive, data(dtype, 48, low=0.1)))
        rows += each((sp.betaln,), (large, large[::-1].copy()))
        rows += each((sp.betaln,), (large, positive))
        ends = np.array([-20.5, -2.5, -2, -1.5, 0, 0.5, 3, 12.25, np.nan], dtype)[:, None]
        rows += each((sp.beta, sp.betaln), (ends, np.array([0.5, 1, 2, 2.5, 3, 12, 300], dtype)))
        rows.append((sp.psi, (np.array([-0.0, 0, -1, -1.5, 1e-30, 1.4616321, 9.99, 1e8], dtype),)))
        rows += [(sp.xlogy, (positive, positive)), (sp.rel_entr, (positive, positive))]
        rows.append((np.nextafter, (x, positive)))
        rows.append((np.spacing, (x,)))
    check(tmp_path, *rows, exact=False)


@pytest.mark.slow
def test_complex(tmp_path: Path) -> None:
    rows: list[Any] = []
    for dtype in (np.complex64, np.complex128):
        x, y = data(dtype, 5, 8), data(dtype, 8)
        rows += each((np.add, np.subtract, np.multiply, np.divide, np.equal, np.power), (x, y))
        rows += each((np.exp, np.log, np.sqrt, np.sin, np.cos, np.tanh, np.conj, np.absolute), (x,))
        rows += each((np.square, np.reciprocal, np.sign, np.expm1, np.log1p, np.isnan), (x,))
        rows.append((lambda x: x.real + x.imag, (x,)))
        rows.append((lambda x: (x * 2j).sum(axis=0), (x,)))
        rows.append((lambda x: x**2, (x,)))
    check(tmp_path, *rows, exact=False)


@pytest.mark.slow
def test_casts(tmp_path: Path) -> None:
    rows: list[Any] = []
    dtypes = [*FLOATS, *INTEGERS, np.bool_, np.complex64]
    dtypes += [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn]
    for source in dtypes:
        for target in dtypes:
            if np.dtype(source).kind == "c" and np.dtype(target).kind != "c":
                continue
            x = data(source, 64, low=0) if np.dtype(target).kind == "u" else data(source, 64)
            if np.dtype(target).name.startswith("float") and np.dtype(target).itemsize == 1:
                x = data(source, 64, low=-6) if np.dtype(source).kind not in "iu" else x % 7
            rows.append((_to(target), (x,)))
    check(tmp_path, *rows, exact=True)


def _to(dtype: Any) -> Any:
    return lambda x: x.astype(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("small", [False, True])
def test_reductions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, small: bool) -> None:
    from atomr_accel.libraries.array import _geometry, _plan

    if small:  # so that rows of the test are cut into parts
        monkeypatch.setattr(_geometry, "_MANY_BLOCKS", 4)
        monkeypatch.setattr(_geometry, "_LEAST_STEPS", 1)
        monkeypatch.setattr(_geometry, "_THREADS", 64)
        monkeypatch.setattr(_plan, "_LONG_ROW", 100)
    else:
        monkeypatch.setattr(_geometry, "_MANY_BLOCKS", 0)

    def softmax(x: Any) -> Any:
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    def layer_norm(x: Any, g: Any, b: Any) -> Any:
        mean = x.mean(axis=-1, keepdims=True)
        return (x - mean) / np.sqrt(x.var(axis=-1, keepdims=True) + np.float32(1e-5)) * g + b

    rows: list[Any] = []
    x = data(np.float32, 6, 40)
    for axis in (0, 1, None, (0, 1)):
        rows += [
            (lambda x, axis=axis: x.sum(axis=axis), (x,)),
            (lambda x, axis=axis: x.max(axis=axis, keepdims=True), (x,)),
            (lambda x, axis=axis: x.std(axis=axis) * 2, (x,)),
            (lambda x, axis=axis: (x > 0).any(axis=axis), (x,)),
            (lambda x, axis=axis: np.linalg.norm(x, axis=axis), (x,)),
        ]
    for axis in (0, 1, None):
        rows += [
            (lambda x, axis=axis: x.argmax(axis=axis), (x,)),
            (lambda x, axis=axis: np.argmin(x, axis=axis, keepdims=True), (x,)),
        ]
    long = data(np.float32, 3, 2000)
    three = data(np.float32, 3, 5, 16)
    g, b = data(np.float32, 40), data(np.float32, 40)
    rows += [
        (softmax, (x,)),
        (softmax, (long,)),
        (layer_norm, (x, g, b)),
        (lambda x: (x > 2.5).any(axis=1), (long,)),
        (lambda x: (x > 2.5).any(), (long,)),
        (lambda x: (x * 2.5).sum(axis=1) + 0.5, (long,)),
        (lambda x: softmax(x).sum(axis=0), (x,)),
        (lambda x: softmax(x.T), (x,)),
        (lambda x: softmax(x).T + 1, (x,)),
        (lambda x: x - x.mean(axis=0) + x.mean(axis=1)[:, None], (x,)),
        (lambda x: (x.mean(axis=0), x.var(axis=0), x * 2), (x,)),
        (lambda x: x.sum(axis=(0, 2)), (three,)),
        (lambda x: x.sum(axis=1), (three,)),
        (lambda x: x.max(axis=(1, 2)) - x.min(axis=0).sum(), (three,)),
        (lambda x: x.sum(axis=-1), (long[:, ::3],)),
        (lambda x: x.sum(axis=0), (long.T,)),
        (lambda x: x + x.sum(), (np.array([2.5], np.float32),)),
        (lambda x: x.sum(axis=1), (np.zeros((3, 0), np.float32),)),
        (lambda x: np.broadcast_to(x.sum(axis=1, keepdims=True), x.shape), (x,)),
        (lambda x: x.prod(axis=0), (data(np.int16, 4, 9),)),
        (lambda x: x.sum(axis=1), (data(np.uint8, 4, 90),)),
        (lambda x: x.mean(axis=1), (data(np.int32, 4, 90),)),
        (lambda x: np.nanmax(x, axis=1), (np.where(x > 0, np.nan, x).astype(np.float32),)),
        (lambda x: x.max(axis=1), (np.where(x > 2.9, np.nan, x).astype(np.float32),)),
        (lambda x: x.argmax(axis=1), (np.where(x > 2.5, np.nan, x).astype(np.float32),)),
        (lambda x: x.sum(axis=1), (data(np.complex64, 4, 90),)),
        (lambda x: np.bitwise_xor.reduce(x, axis=1), (data(np.int32, 4, 90),)),
        (lambda x: x.max(axis=0), (data(np.float16, 70, 24),)),
    ]
    check(tmp_path, *rows, exact=False)


@pytest.mark.slow
def test_reductions_of_each_element_alone(tmp_path: Path) -> None:
    number, table = aligned(data(np.float32)), aligned(data(np.float32, 3, 4))

    def reduced(x: Any, y: Any) -> tuple[Any, ...]:
        alone = np.max(y, axis=()), np.sum(y * 2, axis=(), keepdims=True), np.mean(y, axis=())
        return (x.sum(), (x != 0).any(), x.argmax(), x.sum(dtype=np.float64), *alone)

    check(tmp_path, (reduced, (number, table)), exact=True)


@pytest.mark.slow
def test_rows_that_share_a_block(tmp_path: Path) -> None:
    arrays = [aligned(data(np.float32, 5, 1000, low=low)) for low in (-4, -3, -2, -1)]

    def reduced(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, ...]:
        return a.max(axis=-1), b.min(axis=-1), c.argmax(axis=-1), d.argmin(axis=-1)

    leaves = Leaves()
    forms = Case(leaves, reduced(*map(leaves.put, arrays))).forms
    assert [form for form in forms if 32 < form.group < form.threads]  # with several warps each
    check(tmp_path, (reduced, tuple(arrays)), exact=True)


@pytest.mark.slow
def test_layouts(tmp_path: Path) -> None:
    x = aligned(data(np.float32, 12, 16))
    h = aligned(data(np.float16, 12, 16))
    rows: list[Any] = [
        (lambda x: x * 2 + 1, (x,)),
        (lambda x: x * 2 + 1, (x[:, 1:],)),
        (lambda x: x * 2 + 1, (x[1:, ::2],)),
        (lambda x: x * 2 + 1, (x[::-1, ::-1],)),
        (lambda x: x.T + 1, (x,)),
        (lambda x, y: x + y, (x, x.T[:12, :12][:, :1])),
        (lambda x, y: x[:, None] * y[None, :], (x[0] * 1, x[1] * 1)),
        (lambda x: x + x, (h,)),
        (lambda x: np.transpose(x * x) - 1, (x,)),
        (lambda x: x.swapaxes(0, 2) * 2, (data(np.int8, 3, 4, 5),)),
        (lambda x: x + 1, (np.float64(3) * np.ones(()),)),
        (lambda x: np.zeros_like(x), (x,)),
        (lambda x: (x + 1, x * 2, (x + 1) * 2), (x,)),
    ]
    check(tmp_path, *rows, exact=True)


@pytest.mark.slow
def test_elements_that_are_not_taken_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atomr_accel.libraries.array import _geometry

    monkeypatch.setattr(_geometry, "_MANY_ELEMENTS", 64)
    x = aligned(data(np.float32, 1001))

    def differences(x: Any) -> Any:
        return x[1:] - x[:-1]

    leaves = Leaves()
    (form,) = Case(leaves, [differences(leaves.put(x))]).forms
    assert (form.vector, form.items) == (1, 8)
    check(tmp_path, (differences, (x,)), exact=True)


@pytest.mark.slow
@pytest.mark.parametrize(("blocks", "group"), [(0, 1), (1000, 8)])
def test_windows_are_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, group: int
) -> None:
    from atomr_accel.libraries.array import _geometry

    monkeypatch.setattr(_geometry, "_MANY_BLOCKS", blocks)
    monkeypatch.setattr(_geometry, "_LEAST_STEPS", 100)  # no parts
    x, factors = aligned(data(np.float32, 700)), aligned(data(np.float32, 31))

    def sums(x: Any, factors: Any) -> Any:
        of = (670, 31), (4, 4)
        seen = (
            np.lib.stride_tricks.as_strided(x, *of) if type(x) is np.ndarray else x.with_layout(*of)
        )
        return (seen * factors).sum(-1)

    leaves = Leaves()
    (form,) = Case(leaves, [sums(leaves.put(x), leaves.put(factors))]).forms
    assert (form.layout, form.group) == ("columns", group)
    check(tmp_path, (sums, (x, factors)), exact=False)


# --- by the vendor's compiler -------------------------------------------------------------------


def compiled_forms() -> list[Any]:
    """Kernels of all kinds, and all functions on floats."""
    leaves = Leaves()

    def put(dtype: Any, *shape: int) -> Any:
        return leaves.put(aligned(data(dtype, *shape)))

    x, h, c = put(np.float32, 64, 96), put(ml_dtypes.bfloat16, 64, 96), put(np.complex64, 8)
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    made: list[Any] = [e / e.sum(axis=-1, keepdims=True), (h - h.mean(0)) / h.std(0)]
    made += [x.argmax(axis=0), x.argmin(), (x.T + 1).sum(axis=0), np.nanmax(x), c.sum(), c**2]
    made += [x.astype(ml_dtypes.float8_e4m3fn), put(np.int8, 9).sum(), put(np.uint64, 9) // 3]
    groups = [[each] for each in made]
    for dtype in (np.float32, np.float64, np.float16, np.int32, np.uint64):
        given = put(dtype, 16)
        results: list[Any] = []
        for name in UFUNCS:
            function = find_ufunc(name)
            if name in ("nextafter", "spacing") and dtype is np.float16:
                continue
            with contextlib.suppress(TypeError):
                results.append(function(*[given] * function.nin))
        if dtype is np.float32:
            results += [*np.modf(given), *np.frexp(given), *np.divmod(given, 2)]
            results.append(np.ldexp(given, put(np.int32, 16)))
        groups.append(results)
    forms: dict[Any, None] = {}
    for group in groups:
        forms.update(dict.fromkeys(Case(leaves, group).forms))
    return list(forms)


@pytest.mark.headers
@pytest.mark.slow
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_nvrtc_compiles_every_kernel(capability: tuple[int, int]) -> None:
    forms = compiled_forms()
    assert len(forms) >= 16
    for form in forms if capability == (9, 0) else forms[::4]:
        check_compiles(source_of(form), NAME, capability=capability, options=OPTIONS)


def test_forms_that_no_program_sends_are_refused() -> None:
    leaves = Leaves()
    (form,) = Case(leaves, [leaves.put(aligned(data(np.float32, 8))) + 1]).forms
    last = form.nodes[-1]
    for wrong in (
        msgspec.structs.replace(last, name="__trap"),
        msgspec.structs.replace(last, args=(7, 8)),
        msgspec.structs.replace(last, dtype="void"),
        msgspec.structs.replace(last, kind="arg", name="add"),
    ):
        with pytest.raises(ValueError, match="no such value in a kernel"):
            source_of(msgspec.structs.replace(form, nodes=(*form.nodes[:-1], wrong)))


def test_sizes_and_numbers_are_no_part_of_a_kernel() -> None:
    leaves = Leaves()

    def forms(rows: int, columns: int, number: float) -> Any:
        x = leaves.put(aligned(data(np.float32, rows, columns)))
        return [
            Case(leaves, [each]).forms
            for each in (x * number + 1, (x * number).sum(axis=-1), x.max(0), np.sqrt(x.var(-1)))
        ]

    assert forms(64, 96, 2.0) == forms(300, 100, 3.0)


def test_one_kernel_computes_the_expression() -> None:
    leaves = Leaves()
    x = leaves.put(aligned(data(np.float32, 64, 96)))

    def kernels(*expressions: Any) -> int:
        return len(Case(leaves, expressions).plan.launches)

    e = np.exp(x - x.max(axis=-1, keepdims=True))
    assert kernels(e / e.sum(axis=-1, keepdims=True)) == 1
    assert kernels((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1)) == 1
    assert kernels(x.mean(0), x.var(0), x - x.mean(0)) == 1
    assert kernels(x + 1, x * 2, (x + 1) * (x * 2)) == 1
    assert kernels(x - x.mean(0)) == 1
    assert kernels(x.sum(0) + x.T.sum(1)) == 2
    deep: Any = x
    for _ in range(1000):
        deep = deep + x
    assert kernels(deep) == 11
