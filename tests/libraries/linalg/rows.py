"""Results of every method of ``device.linalg``, against NumPy and SciPy in double precision.

Factors are unique neither to the last bit nor in sign. The tests therefore compare the product of
the factors with the original matrix, and check that they are orthonormal.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import scipy.linalg

from ..conformance import COMPLEX, REAL, Array, Near, Operation, Sample, eps_of, product, real_name

DTYPES: Final = (*REAL, *COMPLEX)
SQUARES: Final = product(lead=[(), (3,), (2, 2), (0,)], n=[1, 2, 5, 9])
SHAPES: Final = product(lead=[(), (3,)], m=[1, 4, 7], n=[1, 4, 6])
FACTOR: Final = 400.0
"""Conditions of these matrices are far below 100, and errors grow with the size."""


def double(array: Any) -> Any:
    """An array as LAPACK takes it."""
    return np.asarray(array, np.complex128 if np.asarray(array).dtype.kind == "c" else np.float64)


def near(value: Any, **options: Any) -> Near:
    """A value, with an error in terms of the largest one."""
    options.setdefault("magnitude", np.abs(value).max(initial=1.0))
    return Near(np.asarray(value), **options)


def one_by_one(function: Callable[..., Any], *arrays: Array, ndim: int = 2) -> Any:
    """A function of SciPy's for one matrix after the other."""
    lead = arrays[0].shape[:-ndim]
    results = [
        function(*[array[at] for array in arrays]) for at in itertools.product(*map(range, lead))
    ]
    return np.reshape(results, (*lead, *np.shape(results[0]))) if results else None


def adjoint(array: Array) -> Array:
    return np.conj(array.swapaxes(-1, -2))


def hermitian(sample: Sample, lead: tuple[int, ...], n: int) -> Array:
    """Positive definite matrices."""
    a = double(sample.array(*lead, n, n))
    return np.asarray(a @ adjoint(a) + np.eye(n)).astype(sample.dtype)


# --- inputs ---------------------------------------------------------------------------------


def regular(sample: Sample, lead: tuple[int, ...], n: int, **_: Any) -> tuple[Array]:
    return (sample.regular(*lead, n, n),)


def definite(sample: Sample, lead: tuple[int, ...], n: int, **_: Any) -> tuple[Array]:
    return (hermitian(sample, lead, n),)


def definite_pair(sample: Sample, lead: tuple[int, ...], n: int, **_: Any) -> tuple[Array, ...]:
    return hermitian(sample, lead, n), hermitian(sample, lead, n)


def rectangle(sample: Sample, lead: tuple[int, ...], m: int, n: int, **_: Any) -> tuple[Array]:
    return (sample.array(*lead, m, n),)


def system(sample: Sample, lead: tuple[int, ...], n: int, nrhs: int | None, **_: Any) -> Any:
    sides = sample.array(n) if nrhs is None else sample.array(*lead, n, nrhs)
    return sample.regular(*lead, n, n), sides


def definite_system(sample: Sample, lead: tuple[int, ...], n: int, **_: Any) -> Any:
    return hermitian(sample, lead, n), sample.array(*lead, n, 3)


def overdetermined(sample: Sample, lead: tuple[int, ...], m: int, n: int, **_: Any) -> Any:
    return sample.array(*lead, m, n), sample.array(*lead, m, 2)


# --- calls ----------------------------------------------------------------------------------


def calling(name: str, *options: str) -> Callable[..., Any]:
    """Call a method, with these of a case's options."""

    async def call(device: Any, *refs: Any, **case: Any) -> Any:
        given = {each: case[each] for each in options}
        return await getattr(device.linalg, name)(*refs, **given)

    return call


async def call_cholesky(device: Any, a: Any, upper: bool, **_: Any) -> Any:
    return await device.linalg.cholesky(a, lower=not upper)


async def call_cho_solve(device: Any, a: Any, b: Any, upper: bool, **_: Any) -> Any:
    factor = await device.linalg.cholesky(a, lower=not upper)
    return await device.linalg.cho_solve((factor, not upper), b)


async def call_lu(device: Any, a: Any, **_: Any) -> Any:
    lu, piv = [await device.get(each) for each in await device.linalg.lu_factor(a)]
    m, n = lu.shape[-2:]
    k = min(m, n)
    whole = (np.tril(lu[..., :k], -1) + np.eye(m, k)) @ np.triu(lu[..., :k, :])
    for at in itertools.product(*map(range, lu.shape[:-2])):
        for i in range(k - 1, -1, -1):
            whole[at][[i, piv[at][i]]] = whole[at][[piv[at][i], i]]
    return whole.astype(lu.dtype)


async def call_lu_solve(device: Any, a: Any, b: Any, trans: Any, **_: Any) -> Any:
    return await device.linalg.lu_solve(await device.linalg.lu_factor(a), b, trans)


async def call_ldl(device: Any, a: Any, lower: bool, **_: Any) -> Any:
    lu, d, perm = [await device.get(each) for each in await device.linalg.ldl(a, lower)]
    rows = np.take_along_axis(lu, perm[..., None], -2)
    assert not np.triu(rows, 1).any() if lower else not np.tril(rows, -1).any()
    return (lu @ d @ adjoint(lu)).astype(lu.dtype)


async def call_qr(device: Any, a: Any, mode: str, **_: Any) -> Any:
    if mode == "r":
        r = await device.get(await device.linalg.qr_r(a))
        return (adjoint(r) @ r).astype(r.dtype)
    q, r = [await device.get(each) for each in await device.linalg.qr(a, mode)]
    if mode == "raw":
        q, r = await _from_reflectors(q, r)
    assert not np.tril(r, -1).any()
    return (q @ r).astype(r.dtype), (adjoint(q) @ q).astype(r.dtype)


async def _from_reflectors(h: Array, tau: Array) -> tuple[Array, Array]:
    """Q and R of what mode "raw" gives."""
    m, k = h.shape[-1], tau.shape[-1]
    q = np.broadcast_to(np.eye(m, dtype=h.dtype), (*h.shape[:-2], m, m)).copy()
    for i in range(k - 1, -1, -1):
        v = np.zeros((*h.shape[:-2], m, 1), h.dtype)
        v[..., i, 0] = 1
        v[..., i + 1 :, 0] = h[..., i, i + 1 :]
        q = q - tau[..., i, None, None] * (v @ (adjoint(v) @ q))
    return q[..., :k], np.triu(h.swapaxes(-1, -2))[..., :k, :]


async def call_svd(device: Any, a: Any, full: bool, algorithm: Any, k: Any = None, **_: Any) -> Any:
    made = await device.linalg.svd(a, full, algorithm=algorithm, k=k)
    u, s, vh = [await device.get(each) for each in made]
    count = s.shape[-1]
    whole = (u[..., :count] * s[..., None, :]) @ vh[..., :count, :]
    return (
        s,
        whole.astype(u.dtype),
        (adjoint(u) @ u).astype(u.dtype),
        (vh @ adjoint(vh)).astype(u.dtype),
    )


async def call_eigh(device: Any, a: Any, uplo: str, algorithm: Any, subset: Any, **_: Any) -> Any:
    made = await device.linalg.eigh(
        a, lower=uplo == "L", algorithm=algorithm, subset_by_index=subset
    )
    w, v = [await device.get(each) for each in made]
    host = await device.get(a)
    return w, (host @ v - v * w[..., None, :]).astype(v.dtype), (adjoint(v) @ v).astype(v.dtype)


async def call_eigh_general(device: Any, a: Any, b: Any, type: int, **_: Any) -> Any:  # noqa: A002
    w, v = [await device.get(each) for each in await device.linalg.eigh(a, b, type=type)]
    a, b = await device.get(a), await device.get(b)
    left = {1: a @ v, 2: a @ b @ v, 3: b @ a @ v}[type]
    right = b @ v if type == 1 else v
    return w, (left - right * w[..., None, :]).astype(v.dtype)


async def call_eig(device: Any, a: Any, **_: Any) -> Any:
    w, v = [await device.get(each) for each in await device.linalg.eig(a)]
    host = await device.get(a)
    return (host @ v - v * w[..., None, :]).astype(w.dtype)


async def call_eigvals(device: Any, a: Any, **_: Any) -> Any:
    w = await device.get(await device.linalg.eigvals(a))
    return w.sum(-1), (w * w).sum(-1)


async def call_lstsq(device: Any, a: Any, b: Any, refine: Any, **_: Any) -> Any:
    made = await device.linalg.lstsq(a, b, refine=refine)
    return made.x, made.residuals, made.rank


async def call_polar(device: Any, a: Any, side: str, **_: Any) -> Any:
    u, p = [await device.get(each) for each in await device.linalg.polar(a, side)]
    return (u @ p if side == "right" else p @ u).astype(p.dtype), p


async def call_multi_dot(device: Any, *refs: Any, **_: Any) -> Any:
    return await device.linalg.multi_dot([*refs])


async def call_lu_whole(device: Any, a: Any, permute_l: bool, p_indices: bool, **_: Any) -> Any:
    made = await device.linalg.lu(a, permute_l, p_indices=p_indices)
    *p, left, u = [await device.get(each) for each in made]
    if not permute_l:
        assert not np.triu(left, 1).any()
    assert not np.tril(u, -1).any()
    if p and p_indices:
        return np.take_along_axis(left, p[0][..., None], -2) @ u
    return (p[0].astype(u.dtype) @ left if p else left) @ u


async def call_cho_factor(device: Any, a: Any, b: Any, lower: bool, **_: Any) -> Any:
    factored = await device.linalg.cho_factor(a, lower)
    assert factored[1] is lower
    return await device.linalg.cho_solve(factored, b)


async def call_projector(device: Any, a: Any, name: str, **_: Any) -> Any:
    q = await device.get(await getattr(device.linalg, name)(a))
    return q @ adjoint(q)


# --- references -----------------------------------------------------------------------------


def op(a: Array, trans: Any) -> Array:
    return {0: a, 1: a.swapaxes(-1, -2), 2: adjoint(a)}[trans]


def solved(a: Array, b: Array, **_: Any) -> Near:
    return near(np.linalg.solve(double(a), double(b)))


def orthonormal(a: Array, columns: int) -> Near:
    eye = np.broadcast_to(np.eye(columns), (*a.shape[:-2], columns, columns))
    return near(eye.astype(double(a).dtype))


def factored_qr(a: Array, mode: str, m: int, n: int, **_: Any) -> Any:
    if mode == "r":
        return near(adjoint(double(a)) @ double(a))
    return near(a), orthonormal(a, m if mode == "complete" else min(m, n))


def decomposed(a: Array, full: bool, m: int, n: int, k: Any = None, **_: Any) -> Any:
    count = k or min(m, n)
    u, s, vh = np.linalg.svd(double(a), False)
    whole = (u[..., :count] * s[..., None, :count]) @ vh[..., :count, :]
    rows, columns = (m, n) if full and k is None else (count, count)
    values = near(s[..., :count], dtype=None)
    return values, near(whole), orthonormal(a, rows), orthonormal(a, columns)


def decomposed_roughly(a: Array, algorithm: str, **case: Any) -> Any:
    """Return the references of drivers that promise a lower accuracy.

    "gesvda" works on the Gram matrix, whose singular values are squares: its errors are those of a
    root of a rounded number. "gesvdr" projects on a random subspace. Unless that is the whole
    space, the next singular value is the scale of its errors. Power iterations keep values within a
    fraction of it, but not vectors if the spectrum hardly decays.
    """
    values, whole, left, right = decomposed(a, algorithm=algorithm, **case)
    spectrum = np.linalg.svd(double(a), compute_uv=False)
    eps = eps_of(np.dtype(_PRECISION[a.dtype]))
    slack, k = np.sqrt(eps) * spectrum.max(initial=0), case["k"]
    partial = algorithm == "gesvdr" and spectrum.shape[-1] > k
    beyond = spectrum[..., k].max(initial=0) if partial else 0.0
    return (
        replace(values, slack=slack + 0.1 * beyond),
        replace(whole, slack=slack + beyond),
        replace(left, slack=np.sqrt(eps)),
        replace(right, slack=np.sqrt(eps)),
    )


def real_results(row: Callable[..., Any], *positions: int) -> Callable[..., Any]:
    """Some of the results have the real dtype of the precision."""

    def expect(*arrays: Array, **case: Any) -> Any:
        dtype = _PRECISION[arrays[0].dtype]
        found = row(*arrays, **case)
        made = found if isinstance(found, tuple) else (found,)
        return tuple(
            replace(each, dtype=real_name(dtype)) if at in positions else each
            for at, each in enumerate(made)
        )

    return expect


def complex_results(row: Callable[..., Any]) -> Callable[..., Any]:
    """All of the results are complex."""

    def expect(*arrays: Array, **case: Any) -> Any:
        dtype = {"float32": "complex64", "float64": "complex128"}
        found = row(*arrays, **case)
        return tuple(
            Near(
                np.asarray(each.value, np.complex128),
                each.magnitude,
                dtype.get(_PRECISION[arrays[0].dtype], _PRECISION[arrays[0].dtype]),
            )
            for each in (found if isinstance(found, tuple) else (found,))
        )

    return expect


_PRECISION: Final = {
    np.dtype(np.float64): "float32",
    np.dtype(np.longdouble): "float64",
    np.dtype(np.complex128): "complex64",
    np.dtype(np.clongdouble): "complex128",
}
"""The dtype that an input was of, by that in which references are computed."""


def hermitian_values(a: Array, n: int, subset: Any = None, **_: Any) -> Any:
    values = np.linalg.eigvalsh(double(a))
    first, last = subset or (0, n - 1)
    values = values[..., first : last + 1]
    zeros = np.zeros((*a.shape[:-1], values.shape[-1]), double(a).dtype)
    scale = np.abs(values).max(initial=1.0)
    return near(values), near(zeros, magnitude=scale), orthonormal(a, values.shape[-1])


def general_values(a: Array, b: Array, type: Any, **_: Any) -> Any:  # noqa: A002
    values = one_by_one(lambda x, y: scipy.linalg.eigvalsh(x, y, type=type), double(a), double(b))
    scale = np.abs(values).max(initial=1.0) * np.abs(b).max(initial=1.0) * 10
    return near(values, magnitude=scale), near(np.zeros(a.shape, double(a).dtype), magnitude=scale)


def least_squares(a: Array, b: Array, m: int, n: int, **_: Any) -> Any:
    x = np.linalg.pinv(double(a)) @ double(b)
    far = (np.abs(double(b) - double(a) @ x) ** 2).sum(-2) * (m > n)
    # Random matrices of equal extents may be badly conditioned.
    size = np.linalg.cond(double(a)).max(initial=1.0) ** 2 * np.abs(x).max(initial=1.0)
    rank = Near(np.full(a.shape[:-2], min(m, n)), dtype="int64")
    return near(x, magnitude=size), near(far, magnitude=size), rank


def conditioned(function: Callable[[Array], Any]) -> Callable[..., Near]:
    """A reference whose error grows with the condition of the matrices."""

    def expect(a: Array, **_: Any) -> Near:
        value = np.asarray(function(double(a)))
        size = np.linalg.cond(double(a)).max(initial=1.0) ** 2
        return near(value, magnitude=size * np.abs(value).max(initial=1.0))

    return expect


def polar_of(a: Array, side: str, m: int, n: int, **_: Any) -> Any:
    u, s, vh = np.linalg.svd(double(a), False)
    p = (
        (adjoint(vh) * s[..., None, :]) @ vh
        if side == "right"
        else (u * s[..., None, :]) @ adjoint(u)
    )
    product_ = double(a)
    return near(product_), near(p)


def norms(a: Array, ord: Any, axis: Any, keepdims: bool, **_: Any) -> Near:  # noqa: A002
    return near(np.linalg.norm(double(a), ord, axis, keepdims))


def sign_and_log(a: Array, **_: Any) -> Any:
    sign, log = np.linalg.slogdet(double(a))
    return near(sign), near(log)


def exponential(a: Array) -> Array:
    """By Taylor's series and squaring, in the type of the argument: SciPy's is less exact."""
    halvings = 2 + int(np.ceil(np.log2(np.abs(a).sum(-2).max(initial=1.0))))
    step = a / 2**halvings
    term = made = np.broadcast_to(np.eye(a.shape[-1], dtype=a.dtype), a.shape)
    for k in range(1, 30):
        term = term @ step / k
        made = made + term
    for _ in range(halvings):
        made = made @ made
    return made


def projector(a: Array, name: str, m: int, n: int, **_: Any) -> Near:
    a = double(a)
    inverse = np.linalg.pinv(a)
    size = np.linalg.cond(a).max(initial=1.0) ** 2
    return near(a @ inverse if name == "orth" else np.eye(n) - inverse @ a, magnitude=size)


def row(name: str, cases: Any, inputs: Any, call: Any, expect: Any, **options: Any) -> Operation:
    options.setdefault("factor", FACTOR)
    return Operation(f"linalg.{name}", DTYPES, cases, inputs, call, expect, **options)


def with_each(cases: list[dict[str, Any]], **choices: Any) -> list[dict[str, Any]]:
    return [{**case, **more} for case in cases for more in product(**choices)]


NORMS: Final = [
    {"lead": (3,), "m": 4, "n": 6, "ord": order, "axis": (-2, -1), "keepdims": keep}
    for order in (None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)
    for keep in (False, True)
] + [
    {"lead": (3,), "m": 4, "n": 6, "ord": order, "axis": axis, "keepdims": False}
    for order, axis in (
        (None, None),
        (2, 1),
        (1, 0),
        (np.inf, -1),
        (3, 2),
        (2, (2, 0)),
        (1, (0, 2)),
    )
]

OPERATIONS: Final = [
    row("solve", with_each(SQUARES, nrhs=[None, 1, 4]), system, calling("solve"), solved),
    row(
        "solve, refined",
        with_each(SQUARES[:8], nrhs=[None, 2], refine=["bfloat16", "float16", "tfloat32"]),
        system,
        calling("solve", "refine"),
        solved,
    ),
    row("inv", SQUARES, regular, calling("inv"), lambda a, **_: near(np.linalg.inv(double(a)))),
    row(
        "solve_triangular",
        with_each(SQUARES, nrhs=[None, 3], trans=[0, 1, 2], lower=[False, True]),
        system,
        calling("solve_triangular", "trans", "lower"),
        lambda a, b, trans, lower, **_: solved(op((np.triu, np.tril)[lower](a), trans), b),
    ),
    row(
        "cho_solve",
        with_each(SQUARES[:8], upper=[False, True]),
        definite_system,
        call_cho_solve,
        solved,
    ),
    row(
        "lu_solve",
        with_each(SQUARES, nrhs=[None, 3], trans=[0, 1, 2]),
        system,
        call_lu_solve,
        lambda a, b, trans, **_: solved(op(a, trans), b),
    ),
    row(
        "cholesky",
        with_each(SQUARES, upper=[False, True]),
        definite,
        call_cholesky,
        lambda a, upper, **_: near(np.linalg.cholesky(double(a), upper=upper)),
    ),
    row("lu_factor", SHAPES, rectangle, call_lu, lambda a, **_: near(a)),
    row(
        "ldl",
        with_each(SQUARES[:8], lower=[False, True]),
        definite,
        call_ldl,
        lambda a, **_: near(a),
        may_refuse=DTYPES,
    ),
    row(
        "qr",
        with_each(SHAPES, mode=["reduced", "complete", "r", "raw"]),
        rectangle,
        call_qr,
        factored_qr,
    ),
    row(
        "svd",
        with_each(SHAPES, full=[False, True], algorithm=[None, "gesvd", "gesvdj", "gesvdp"]),
        rectangle,
        call_svd,
        real_results(decomposed, 0),
    ),
    row(
        "svd, approximate",
        with_each(
            [{"lead": lead, "m": 9, "n": 6} for lead in ((), (3,))],
            full=[False],
            k=[6],
            algorithm=["gesvdr", "gesvda"],
        ),
        rectangle,
        call_svd,
        real_results(decomposed_roughly, 0),
    ),
    row(
        "svdvals",
        SHAPES,
        rectangle,
        calling("svdvals"),
        real_results(lambda a, **_: near(np.linalg.svdvals(double(a))), 0),
    ),
    row(
        "eigh",
        with_each(SQUARES[:-4], uplo=["L", "U"], algorithm=[None, "evd", "evj"], subset=[None])
        + with_each(SQUARES[2:4], uplo=["L"], algorithm=[None], subset=[(0, 0), (1, 3)]),
        definite,
        call_eigh,
        real_results(hermitian_values, 0),
    ),
    row(
        "eigh, general",
        with_each(SQUARES[:8], type=[1, 2, 3]),
        definite_pair,
        call_eigh_general,
        real_results(general_values, 0),
        factor=4000.0,
    ),
    row(
        "eigvalsh",
        SQUARES,
        definite,
        calling("eigvalsh"),
        real_results(lambda a, **_: near(np.linalg.eigvalsh(double(a))), 0),
    ),
    row(
        "eig",
        SQUARES,
        regular,
        call_eig,
        complex_results(lambda a, **_: near(np.zeros(a.shape), magnitude=10.0)),
        may_refuse=DTYPES,
    ),
    row(
        "eigvals",
        SQUARES[:-4],
        regular,
        call_eigvals,
        complex_results(
            lambda a, **_: (
                near(np.trace(double(a), axis1=-2, axis2=-1)),
                near(np.trace(double(a) @ double(a), axis1=-2, axis2=-1)),
            )
        ),
        may_refuse=DTYPES,
    ),
    row("pinv", SHAPES, rectangle, calling("pinv"), conditioned(np.linalg.pinv)),
    row(
        "lstsq",
        [
            *with_each(SHAPES, refine=[None]),
            {"lead": (), "m": 9, "n": 4, "refine": "float16"},
            {"lead": (2,), "m": 5, "n": 2, "refine": "bfloat16"},
        ],
        overdetermined,
        call_lstsq,
        real_results(least_squares, 1),
    ),
    row(
        "matrix_rank",
        SHAPES,
        rectangle,
        calling("matrix_rank"),
        lambda a, m, n, **_: Near(np.full(a.shape[:-2], min(m, n)), dtype="int64"),
    ),
    row("polar", with_each(SHAPES, side=["right", "left"]), rectangle, call_polar, polar_of),
    row("det", SQUARES, regular, calling("det"), lambda a, **_: near(np.linalg.det(double(a)))),
    row("slogdet", SQUARES, regular, calling("slogdet"), real_results(sign_and_log, 1)),
    row(
        "norm", NORMS, rectangle, calling("norm", "ord", "axis", "keepdims"), real_results(norms, 0)
    ),
    row(
        "cond",
        with_each(SQUARES[:8], p=[None, -2, 1, np.inf, "fro"]),
        regular,
        calling("cond", "p"),
        real_results(lambda a, p, **_: near(np.linalg.cond(double(a), p)), 0),
    ),
    row(
        "matrix_power",
        [
            {**case, "n": case["n"], "power": power}
            for case in SQUARES[:8]
            for power in (0, 1, 5, -2)
        ],
        regular,
        lambda device, a, power, **_: device.linalg.matrix_power(a, power),
        lambda a, power, **_: near(np.linalg.matrix_power(double(a), power)),
    ),
    row(
        "expm",
        with_each(SQUARES[:8], squarings=[None, 3]),
        regular,
        calling("expm", "squarings"),
        lambda a, **_: near(exponential(a)),
    ),
    row(
        "outer",
        product(m=[1, 4], n=[1, 5]),
        lambda sample, m, n: (sample.array(m), sample.array(n)),
        calling("outer"),
        lambda x, y, **_: near(np.outer(double(x), double(y))),
    ),
    row(
        "tensordot",
        product(m=[1, 4], n=[1, 5]),
        lambda sample, m, n: (sample.array(m, n, 3), sample.array(n, 3, 2)),
        calling("tensordot"),
        lambda x, y, n, **_: near(np.tensordot(double(x), double(y)), magnitude=12.0 * n),
    ),
    row(
        "cross",
        product(m=[1, 4]),
        lambda sample, m: (sample.array(m, 3), sample.array(3)),
        calling("cross"),
        lambda x, y, **_: near(np.cross(double(x), double(y))),
    ),
    row(
        "trace",
        SHAPES,
        rectangle,
        calling("trace"),
        lambda a, **_: near(np.linalg.trace(double(a)), magnitude=8.0),
    ),
    row(
        "multi_dot",
        product(m=[1, 4], n=[1, 5]),
        lambda sample, m, n: (
            *(sample.array(m, n), sample.array(n, 3), sample.array(3, m), sample.array(m)),
        ),
        call_multi_dot,
        lambda *given, m, n: near(
            np.linalg.multi_dot([double(each) for each in given]), magnitude=24.0 * m * n
        ),
    ),
    row(
        "vector_norm",
        with_each(
            [{"lead": (3,), "m": 4, "n": 6}],
            axis=[None, 0, -1, (0, 2), (2, 1)],
            ord=[2, 1, np.inf, 3],
            keepdims=[False, True],
        ),
        rectangle,
        calling("vector_norm", "axis", "ord", "keepdims"),
        real_results(
            lambda a, axis, ord, keepdims, **_: near(  # noqa: A006
                np.linalg.vector_norm(double(a), axis=axis, ord=ord, keepdims=keepdims)
            ),
            0,
        ),
    ),
    row(
        "matrix_norm",
        with_each(
            [{"lead": (3,), "m": 4, "n": 6}],
            ord=["fro", "nuc", 1, 2, np.inf],
            keepdims=[False, True],
        ),
        rectangle,
        calling("matrix_norm", "ord", "keepdims"),
        real_results(
            lambda a, ord, keepdims, **_: near(  # noqa: A006
                np.linalg.matrix_norm(double(a), ord=ord, keepdims=keepdims)
            ),
            0,
        ),
    ),
    row(
        "tensorsolve",
        product(n=[1, 3]),
        lambda sample, n: (
            *(sample.regular(2 * n, 2 * n).reshape(n, 2, 2, n), sample.array(n, 2)),
        ),
        calling("tensorsolve"),
        lambda a, b, **_: near(np.linalg.tensorsolve(double(a), double(b))),
    ),
    row(
        "tensorinv",
        product(n=[1, 3]),
        lambda sample, n: (sample.regular(2 * n, 2 * n).reshape(n, 2, 2 * n),),
        calling("tensorinv"),
        lambda a, **_: near(np.linalg.tensorinv(double(a))),
    ),
    row(
        "lu",
        [
            {**case, "permute_l": permute, "p_indices": places}
            for case in SHAPES
            for permute, places in ((False, False), (True, False), (False, True))
        ],
        rectangle,
        call_lu_whole,
        lambda a, **_: near(a),
    ),
    row(
        "cho_factor",
        with_each(SQUARES[:8], lower=[False, True]),
        definite_system,
        call_cho_factor,
        solved,
    ),
    row("pinvh", SQUARES[:8], definite, calling("pinvh"), conditioned(np.linalg.pinv)),
    row(
        "null_space, orth",
        with_each(
            [{"lead": (), **case} for case in product(m=[1, 4, 7], n=[1, 4, 6])],
            name=["null_space", "orth"],
        ),
        rectangle,
        call_projector,
        projector,
    ),
    row(
        "block_diag",
        product(m=[1, 4], n=[1, 5]),
        lambda sample, m, n: (sample.array(m, n), sample.array(n), sample.array(2, 1, 2)),
        calling("block_diag"),
        lambda *given, m, n: near(scipy.linalg.block_diag(*map(double, given))),
    ),
    row(
        "toeplitz",
        product(m=[1, 4], n=[1, 5]),
        lambda sample, m, n: (sample.array(m), sample.array(n)),
        calling("toeplitz"),
        lambda c, r, **_: near(scipy.linalg.toeplitz(double(c), double(r))),
    ),
]
