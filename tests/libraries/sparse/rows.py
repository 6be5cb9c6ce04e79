"""Every call of ``device.sparse``, as conformance rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import scipy.sparse

from ..conformance import COMPLEX, FLOATS, REAL, Array, Case, Near, Operation, Sample, product
from .matrices import dense, on_device, random_parts, sizes, taken

PLAIN: Final = (*REAL, *COMPLEX)
SHAPES: Final = [(12, 18), (40, 6), (1, 3), (6, 33)]
INDICES: Final = ["int32", "int64"]


def matrix_inputs(sample: Sample, shape: Any, form: str, index: str, **_: Any) -> Any:
    return random_parts(sample, shape, form, index)


# --- products -----------------------------------------------------------------------------------


def product_inputs(
    sample: Sample,
    shape: tuple[int, int],
    form: str,
    index: str = "int32",
    trans: int = 0,
    n: int | None = None,
    beta: float = 0.0,
    **_: Any,
) -> tuple[Array, ...]:
    m, k = shape[::-1] if trans else shape
    tail = () if n is None else (n,)
    parts = random_parts(sample, shape, form, index, block=(2, 2))  # squares, on CUDA
    inputs = (*parts, sample.array(k, *tail))
    return (*inputs, sample.array(m, *tail)) if beta else inputs


async def multiply(
    device: Any,
    *refs: Any,
    shape: tuple[int, int],
    form: str,
    trans: int = 0,
    alpha: float = 1.0,
    beta: float = 0.0,
    columns: bool = False,
    **_: Any,
) -> Any:
    a = on_device(device, shape, form, refs[:3])
    x = refs[3]
    if columns:  # as the transpose of one by rows
        x = (await device.copy(x.T)).T
    out = await device.copy(refs[4]) if beta else None
    return await device.sparse.matmul(a, x, trans=trans, alpha=alpha, beta=beta, out=out)


def multiplied(
    *arrays: Array,
    shape: tuple[int, int],
    form: str,
    trans: int = 0,
    alpha: float = 1.0,
    beta: float = 0.0,
    **_: Any,
) -> Near:
    parts: Any = arrays[:3]
    value = alpha * (taken(dense(shape, form, parts), trans) @ arrays[3])
    terms = abs(alpha) * (taken(sizes(shape, form, parts), min(trans, 1)) @ np.abs(arrays[3]))
    if beta:
        value = value + beta * arrays[4]
        terms = terms + abs(beta) * np.abs(arrays[4])
    return Near(value, terms)


PRODUCTS: Final = [
    *product(shape=SHAPES, form=["csr", "csc", "coo"], trans=[0, 1, 2], n=[None, 4]),
    *product(shape=[(12, 18)], form=["csr", "coo"], index=["int64"], n=[None, 3]),
    *product(shape=[(12, 18), (4, 2)], form=["bsr"], index=["int32"], n=[None, 4]),
    *product(shape=[(12, 18)], form=["csr", "csc", "coo"], alpha=[0.5], beta=[-2.0], n=[None, 3]),
    *product(shape=[(12, 18)], form=["csr", "coo"], n=[5], columns=[True]),
    *product(shape=[(0, 3), (3, 0), (2, 2)], form=["csr"], n=[None, 2]),  # no elements
]


def ell_inputs(
    sample: Sample, shape: tuple[int, int], index: str = "int32", n: int | None = None,
    beta: float = 0.0, fill: float = 0.2, **_: Any,
) -> tuple[Array, ...]:  # fmt: skip
    tail = () if n is None else (n,)
    parts = random_parts(sample, shape, "csr", index, fill=fill, once=True)
    inputs = (*parts, sample.array(shape[1], *tail))
    return (*inputs, sample.array(shape[0], *tail)) if beta else inputs


async def multiply_ell(
    device: Any, *refs: Any, shape: tuple[int, int], size: int, form: str, beta: float = 0.0,
    alpha: float = 1.0, **_: Any,
) -> Any:  # fmt: skip
    major, indices, data = [await device.get(each) for each in refs[:3]]
    kind = data.dtype
    if kind.itemsize == 2:  # which SciPy has not
        data = data.astype(np.float32)
    matrix: Any = scipy.sparse.csr_array((data, indices, major), shape=shape)
    put = {"blocked": device.sparse.put_blocked_ell, "sliced": device.sparse.put_sliced_ell}[form]
    a = await put(matrix, size, dtype=kind)
    out = await device.copy(refs[4]) if beta else None
    return await device.sparse.matmul(a, refs[3], alpha=alpha, beta=beta, out=out)


def ell_multiplied(*arrays: Array, inexact: float = 0.0, **case: Any) -> Near:
    near = multiplied(*arrays, **{**case, "form": "csr"})
    return replace(near, slack=inexact * near.magnitude)


SLICES: Final = product(shape=[(12, 18), (33, 6), (1, 3)], size=[1, 4, 32])
ELL: Final = [
    *product(shape=[(12, 18)], size=[2], alpha=[0.5], beta=[-2.0]),
    *product(shape=[(4, 6)], size=[2], fill=[0.0], beta=[0.0, 2.0]),
]
WIDE: Final = product(shape=[(12, 18)], size=[2], index=["int64"])
SLICED: Final = [{**each, "form": "sliced"} for each in [*SLICES, *WIDE, *ELL]]
BLOCKS: Final = product(shape=[(12, 18)], size=[2, 3, 6], n=[None, 4, 8])
BLOCKED: Final = [{**each, "form": "blocked"} for each in [*BLOCKS, *ELL]]
WIDE_BLOCKED: Final = [{**each, "form": "blocked"} for each in WIDE]
TF32: Final = 2.0**-9
"""Error of float32 products that tensor cores compute."""


def sampled_inputs(sample: Sample, shape: Any, form: str, k: int, **_: Any) -> Any:
    parts = random_parts(sample, shape, form)
    return (*parts, sample.array(shape[0], k), sample.array(k, shape[1]))


async def sampled(
    device: Any, *refs: Any, shape: Any, form: str, beta: float = 0.0, **_: Any
) -> Any:
    a = on_device(device, shape, form, refs[:3])
    made = await device.sparse.sddmm(refs[3], refs[4], a, alpha=2.0, beta=beta)
    assert (made.format, made.major, made.indices) == (form, a.major, a.indices)
    return made.data


def sampled_expected(
    major: Array, indices: Array, data: Array, a: Array, b: Array, form: str, beta: float = 0.0,
    **_: Any,
) -> Near:  # fmt: skip
    majors = np.repeat(np.arange(len(major) - 1), np.diff(major))
    row, column = (indices, majors) if form == "csc" else (majors, indices)
    value = 2 * np.einsum("ik,ik->i", a[row], b.T[column]) + beta * data
    terms = 2 * np.einsum("ik,ik->i", np.abs(a[row]), np.abs(b.T[column]))
    return Near(value, terms + abs(beta) * np.abs(data))


def pair_inputs(sample: Sample, m: int, k: int, n: int, form: str, **_: Any) -> Any:
    one = random_parts(sample, (m, k), form, once=True)
    return (*one, *random_parts(sample, (k, n), form, once=True))


async def spgemm(device: Any, *refs: Any, m: int, k: int, n: int, form: str, reuse: bool) -> Any:
    a = on_device(device, (m, k), form, refs[:3])
    b = on_device(device, (k, n), form, refs[3:])
    if reuse:
        plan = await device.sparse.spgemm_plan(a, b)
        made = await device.sparse.spgemm_reuse(plan, a, b, alpha=0.5)
    else:
        made = await device.sparse.spgemm(a, b, alpha=0.5)
    await device.sparse.check(made)
    return await device.sparse.todense(made)


def spgemm_expected(*arrays: Array, m: int, k: int, n: int, form: str, **_: Any) -> Near:
    one: Any = arrays[:3]
    other: Any = arrays[3:]
    value = dense((m, k), form, one) @ dense((k, n), form, other)
    return Near(value / 2, sizes((m, k), form, one) @ sizes((k, n), form, other))


# --- conversions --------------------------------------------------------------------------------


async def convert(
    device: Any, *refs: Any, to: str, shape: Any, form: str, options: tuple[Any, ...] = (), **_: Any
) -> Any:
    a = on_device(device, shape, form, refs)
    made = await getattr(device.sparse, to)(a, *options)
    if to == "todense":
        return made
    assert made.format == {"sort_indices": form, "sum_duplicates": form}.get(to, to[2:])
    assert made.index_dtype == a.index_dtype
    await device.sparse.check(made)
    return await device.sparse.todense(made)


def converted(*parts: Array, shape: Any, form: str, **_: Any) -> Near:
    given: Any = parts
    return Near(dense(shape, form, given), sizes(shape, form, given))


def conversion(to: str, forms: list[str], dtypes: tuple[str, ...], **more: Any) -> Operation:
    cases: list[Case] = product(shape=[(12, 18), (4, 3)], form=forms, index=INDICES)
    cases = [{**case, **more} for case in cases]
    call = partial(convert, to=to)
    return Operation(f"sparse.{to}", dtypes, cases, matrix_inputs, call, converted)


def dense_inputs(sample: Sample, shape: Any, **_: Any) -> tuple[Array]:
    return (sample.array(*shape) * (sample.rng.random(shape) < 0.3).astype(sample.dtype),)


async def from_dense(device: Any, x: Any, shape: Any, format: str, index_dtype: str) -> Any:  # noqa: A002
    made = await device.sparse.fromdense(x, format, index_dtype=index_dtype)
    assert (made.format, made.index_dtype.name) == (format, index_dtype)
    await device.sparse.check(made)
    return await device.sparse.todense(made)


# --- systems ------------------------------------------------------------------------------------


def triangle_inputs(
    sample: Sample, n: int, form: str, columns: int | None, **_: Any
) -> tuple[Array, ...]:
    kept = (sample.rng.random((n, n)) < 0.3) | np.eye(n, dtype=bool)
    full = sample.regular(n, n) * kept.astype(sample.dtype)
    seen = full.T if form == "csc" else full
    major, indices = np.nonzero(seen)
    pointers = np.searchsorted(major, np.arange(n + 1)).astype("int32")
    right = sample.array(n, *(() if columns is None else (columns,)))
    return pointers, indices.astype("int32"), seen[major, indices], right


async def solve_triangle(
    device: Any, *refs: Any, n: int, form: str, lower: bool, unit: bool, trans: int, kept: bool,
    columns: int | None,
) -> Any:  # fmt: skip
    a = on_device(device, (n, n), form, refs[:3])
    options = {"lower": lower, "unit_diagonal": unit, "trans": trans}
    if kept:
        analysis = await device.sparse.analyse_triangular(a, **options, columns=columns)
        await device.sparse.spsolve_triangular(analysis, refs[3])
        return await device.sparse.spsolve_triangular(analysis, refs[3])
    return await device.sparse.spsolve_triangular(a, refs[3], **options)


def triangle_solved(
    *arrays: Array, n: int, form: str, lower: bool, unit: bool, trans: int, **_: Any
) -> Near:
    given: Any = arrays[:3]
    full = dense((n, n), form, given)
    triangle = np.tril(full) if lower else np.triu(full)
    if unit:
        np.fill_diagonal(triangle, 1)
    a = taken(triangle, trans).astype(np.complex128 if triangle.dtype.kind == "c" else float)
    value = np.linalg.solve(a, arrays[3].astype(a.dtype))
    # Each element is a sum of up to n terms that are rounded one after the other, in any order.
    return Near(value, n * (np.abs(np.linalg.inv(a)) @ np.abs(a) @ np.abs(value)))


TRIANGLES: Final = [
    *product(n=[8], form=["csr", "csc"], lower=[True, False], unit=[False, True],
             trans=[0, 1], kept=[False, True], columns=[None, 3]),
    *product(n=[8], form=["csr"], lower=[True], unit=[False], trans=[2], kept=[True],
             columns=[None]),
]  # fmt: skip


def band_inputs(sample: Sample, stack: tuple[int, ...], reach: int, n: int, columns: int) -> Any:
    ab = sample.array(*stack, 2 * reach + 1, n)
    ab[..., reach, :] += 4 * reach
    return ab, sample.array(*stack, n, *((columns,) if columns else ()))


async def solve_band(device: Any, ab: Any, b: Any, reach: int, **_: Any) -> Any:
    return await device.sparse.solve_banded((reach, reach), ab, b)


def band_solved(
    ab: Array, b: Array, stack: tuple[int, ...], reach: int, n: int, columns: int
) -> Near:
    kind = np.complex128 if ab.dtype.kind == "c" else np.float64
    full = np.zeros((*stack, n, n), kind)
    for offset in range(-reach, reach + 1):
        for i in range(max(0, -offset), min(n, n - offset)):
            full[..., i, i + offset] = ab[..., reach - offset, i + offset]
    right = b.astype(kind)
    return Near(np.linalg.solve(full, right if columns else right[..., None]).reshape(b.shape))


BANDS: Final = [
    *product(stack=[()], reach=[1, 2], n=[1, 2, 3, 17], columns=[0, 3]),
    *product(stack=[(4,), (2, 3)], reach=[1, 2], n=[1, 5, 16], columns=[0]),
]


# --- vectors ------------------------------------------------------------------------------------


def vector_inputs(sample: Sample, n: int, k: int, index: str, **_: Any) -> tuple[Array, ...]:
    indices = sample.rng.choice(n, k, replace=False).astype(index) if n else np.zeros(0, index)
    return sample.array(k), indices, sample.array(n)


async def axpby(device: Any, x: Any, indices: Any, y: Any, b: float, **_: Any) -> Any:
    return await device.sparse.axpby(x, indices, y, a=2.0, b=b)


def axpbied(x: Array, indices: Array, y: Array, b: float, **_: Any) -> Any:
    made = b * y
    made[indices] += 2 * x
    return made


async def gather(device: Any, _x: Any, indices: Any, y: Any, **_: Any) -> Any:
    return await device.sparse.gather(y, indices)


async def scatter(device: Any, x: Any, indices: Any, y: Any, **_: Any) -> Any:
    return await device.sparse.scatter(x, indices, y)


def scattered(x: Array, indices: Array, y: Array, **_: Any) -> Any:
    made = y.copy()
    made[indices] = x
    return made


async def dot(device: Any, x: Any, indices: Any, y: Any, conjugate: bool, **_: Any) -> Any:
    return await device.sparse.dot(x, indices, y, conjugate=conjugate)


def dotted(x: Array, indices: Array, y: Array, conjugate: bool, **_: Any) -> Near:
    value = np.sum((x.conj() if conjugate else x) * y[indices])
    return Near(value, np.sum(np.abs(x) * np.abs(y[indices])))


VECTORS: Final = product(n=[7, 40], k=[0, 5], index=INDICES)

ELEMENTS: Final = ["csr", "csc", "coo"]
OPERATIONS: Final = [
    Operation("sparse.matmul", FLOATS, PRODUCTS, product_inputs, multiply, multiplied),
    Operation("sparse.matmul", FLOATS, SLICED, ell_inputs, multiply_ell, ell_multiplied),
    *[
        Operation(
            "sparse.matmul",
            (dtype,),
            cases,
            ell_inputs,
            multiply_ell,
            partial(ell_multiplied, inexact=TF32 if dtype == "float32" else 0.0),
            may_refuse=(dtype,) if dtype in COMPLEX or cases is WIDE_BLOCKED else (),
        )
        for dtype in FLOATS
        for cases in (BLOCKED, WIDE_BLOCKED)
    ],
    Operation(
        "sparse.sddmm",
        PLAIN,
        product(shape=[(12, 18), (3, 2)], form=["csr", "csc"], k=[1, 5], beta=[0.0, -1.5]),
        sampled_inputs,
        sampled,
        sampled_expected,
    ),
    Operation(
        "sparse.spgemm",
        PLAIN,
        product(m=[9, 2], k=[7], n=[11], form=["csr", "csc"], reuse=[False, True]),
        pair_inputs,
        spgemm,
        spgemm_expected,
    ),
    conversion("todense", [*ELEMENTS, "bsr"], FLOATS),
    conversion("tocoo", [*ELEMENTS, "bsr"], PLAIN),
    conversion("tocsr", [*ELEMENTS, "bsr"], PLAIN),
    conversion("tocsc", [*ELEMENTS, "bsr"], PLAIN),
    conversion("sort_indices", ELEMENTS, REAL),
    conversion("sum_duplicates", ELEMENTS, PLAIN),
    conversion("tobsr", ELEMENTS, REAL, options=((2, 3),)),
    Operation(
        "sparse.fromdense",
        PLAIN,
        product(shape=[(12, 18), (3, 2)], format=ELEMENTS, index_dtype=INDICES),
        dense_inputs,
        from_dense,
        lambda x, **_: Near(x),
    ),
    Operation(
        "sparse.spsolve_triangular", PLAIN, TRIANGLES, triangle_inputs, solve_triangle,
        triangle_solved, factor=64.0,
    ),
    Operation(
        "sparse.solve_banded", PLAIN, BANDS, band_inputs, solve_band, band_solved, factor=64.0
    ),
    Operation(
        "sparse.axpby",
        PLAIN,
        [{**case, "b": b} for case in VECTORS for b in (0.0, -1.5)],
        vector_inputs,
        axpby,
        axpbied,
        writes=(2,),
    ),
    Operation(
        "sparse.gather", PLAIN, VECTORS, vector_inputs, gather, lambda _x, i, y, **_: y[i]
    ),
    Operation(
        "sparse.scatter", PLAIN, VECTORS, vector_inputs, scatter, scattered, writes=(2,)
    ),
    Operation(
        "sparse.dot",
        PLAIN,
        [{**case, "conjugate": each} for case in VECTORS for each in (False, True)],
        vector_inputs,
        dot,
        dotted,
    ),
]  # fmt: skip
"""The rows."""
