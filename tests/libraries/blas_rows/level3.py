"""Level 3: matrices with structure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..conformance import COMPLEX, Near, Operation, product
from .common import (
    ALPHA,
    BETA,
    DOUBLES,
    SIZES,
    hide,
    method,
    op,
    room,
    scalar,
    solve,
    symmetric,
    taken,
    triangular,
    turned,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..conformance import Array, Sample

BESIDE = product(m=[0, 1, 5, 33], n=[0, 1, 7], side=[0, 1], lower=[False, True])


def beside_inputs(sample: Sample, m: int, n: int, side: int, **case: Any) -> tuple[Array, ...]:
    size = n if side else m
    return (
        hide(sample.triangular(size, unit=case.get("diag") == 1), **case),
        sample.array(m, n),
        sample.array(m, n),
    )


def beside(*, hermitian: bool) -> Callable[..., Near]:
    def expect(a: Array, b: Array, c: Array, **case: Any) -> Near:
        whole = symmetric(a, case, hermitian=hermitian)
        value = b @ whole if case["side"] else whole @ b
        return Near(scalar(ALPHA, a) * value + scalar(BETA, a) * c)

    return expect


def with_out(name: str, **real: Any) -> Callable[..., Any]:
    """A call with alpha, beta and an output."""

    async def call(device: Any, *refs: Any, **case: Any) -> Any:
        options = {key: value for key, value in case.items() if key not in SIZES}
        scalars = {"alpha": scalar(ALPHA, refs[0]), "beta": scalar(BETA, refs[0])} | real
        return await getattr(device.blas, name)(*refs[:-1], out=refs[-1], **scalars, **options)

    return call


def triangle_case(name: str, in_place: bool) -> Callable[..., Any]:
    async def call(device: Any, a: Any, b: Any, _c: Any, **case: Any) -> Any:
        options = {key: value for key, value in case.items() if key not in SIZES}
        out = b if in_place else None
        alpha = scalar(ALPHA, a)
        return await getattr(device.blas, name)(a, b, out=out, alpha=alpha, **options)

    return call


def trmm(a: Array, b: Array, _c: Array, **case: Any) -> Near:
    matrix = op(triangular(a, case), case["trans_a"])
    return Near(scalar(ALPHA, a) * (b @ matrix if case["side"] else matrix @ b))


def trsm(a: Array, b: Array, _c: Array, **case: Any) -> Near:
    matrix = op(triangular(a, case), case["trans_a"])
    right = scalar(ALPHA, a) * b
    return Near(solve(matrix.T, right.T).T if case["side"] else solve(matrix, right))


def rank_k_inputs(count: int) -> Callable[..., Any]:
    def make(sample: Sample, n: int, k: int, trans: Any, **_: Any) -> tuple[Array, ...]:
        inputs = [sample.array(*turned(n, k, trans)) for _ in range(count)]
        return *inputs, sample.array(n, n)

    return make


def rank_k(*, hermitian: bool, fresh: bool = False) -> Callable[..., Near]:
    def expect(*arrays: Array, lower: bool, trans: Any, **_: Any) -> Near:
        *inputs, c = arrays
        adjoint = 2 if hermitian else 1
        a, b = (op(each, adjoint if trans else 0) for each in (inputs[0], inputs[-1]))
        alpha, beta = scalar(ALPHA, c), scalar(BETA, c)
        if fresh:
            alpha, beta, c = 1.0, 0.0, np.zeros_like(c)
        if hermitian:
            alpha, beta = (alpha if len(inputs) > 1 else alpha.real), beta.real
        value = alpha * (a @ op(b, adjoint))
        if len(inputs) > 1:
            value = value + op(value, adjoint)
        value = value + beta * c
        if hermitian:
            np.fill_diagonal(value, np.diag(value).real)
        inside = np.tril(np.ones(c.shape, bool)) if lower else np.triu(np.ones(c.shape, bool))
        return Near(np.where(inside, value, c), 2 * a.shape[1] + 1)

    return expect


def sum_inputs(sample: Sample, m: int, n: int, trans_a: Any, trans_b: Any) -> Any:
    return sample.array(*turned(m, n, trans_a)), sample.array(*turned(m, n, trans_b))


async def call_geam(device: Any, a: Any, b: Any, **case: Any) -> Any:
    options = {key: value for key, value in case.items() if key not in SIZES}
    alpha, beta = scalar(ALPHA, a), scalar(BETA, a)
    return await device.blas.geam(a, b, alpha=alpha, beta=beta, **options)


def geam(a: Array, b: Array, trans_a: Any, trans_b: Any, **_: Any) -> Near:
    left, right = op(a, trans_a), op(b, trans_b)
    return Near(scalar(ALPHA, a) * left + scalar(BETA, a) * right, np.abs(left) + np.abs(right))


def dgmm_inputs(sample: Sample, m: int, n: int, side: Any, offx: int = 0, incx: int = 1) -> Any:
    length = room(n if side in (1, "R") else m, offx, incx)
    return sample.array(m, n), sample.array(length)


def dgmm(a: Array, x: Array, m: int, n: int, side: Any, offx: int = 0, incx: int = 1) -> Near:
    right = side in (1, "R")
    diagonal = taken(x, n if right else m, offx, incx)
    value = a * diagonal if right else diagonal[:, None] * a
    return Near(value, np.abs(value))


RANK_K = product(n=[0, 1, 5, 33], k=[0, 1, 7], lower=[False, True])

LEVEL3 = [
    *(
        Operation(
            f"blas.{name}",
            dtypes,
            BESIDE,
            beside_inputs,
            with_out(name),
            beside(hermitian=name == "hemm"),
            writes=(2,),
            factor=32,
        )
        for name, dtypes in (("symm", DOUBLES), ("hemm", COMPLEX))
    ),
    *(
        Operation(
            f"blas.{name}{'' if in_place else ' without out'}",
            DOUBLES,
            [
                {**case, "trans_a": trans, "diag": diag}
                for case in (BESIDE if in_place else BESIDE[-8:])
                for trans in (0, 1, 2)
                for diag in (0, 1)
            ],
            beside_inputs,
            triangle_case(name, in_place),
            expect,
            writes=(1,) if in_place else (),
            factor=64,
        )
        for name, expect in (("trmm", trmm), ("trsm", trsm))
        for in_place in (False, True)
    ),
    *(
        Operation(
            f"blas.{name}",
            dtypes,
            [{**case, "trans": trans} for case in RANK_K for trans in transposes],
            rank_k_inputs(count),
            with_out(name, **real),
            rank_k(hermitian=name.startswith("her")),
            writes=(count,),
        )
        for name, dtypes, count, transposes, real in (
            ("syrk", DOUBLES, 1, (0, 1), {}),
            ("syr2k", DOUBLES, 2, (0, 1), {}),
            ("herk", COMPLEX, 1, (0, 2), {"alpha": ALPHA.real, "beta": BETA.real}),
            ("her2k", COMPLEX, 2, (0, 2), {"beta": BETA.real}),
        )
    ),
    Operation(
        "blas.syrk without out",
        DOUBLES,
        [{**case, "trans": trans} for case in RANK_K for trans in (0, 1)],
        rank_k_inputs(1),
        lambda device, a, _c, lower, trans, **_: device.blas.syrk(a, lower=lower, trans=trans),
        rank_k(hermitian=False, fresh=True),
    ),
    Operation(
        "blas.geam",
        DOUBLES,
        product(m=[0, 1, 5, 33], n=[1, 7], trans_a=[0, 1, 2], trans_b=[0, 1, 2]),
        sum_inputs,
        call_geam,
        geam,
    ),
    Operation(
        "blas.geam as a transposition",
        DOUBLES,
        product(m=[0, 1, 5, 33], n=[1, 7], trans_a=[0, 1, 2]),
        lambda sample, m, n, trans_a: (sample.array(*turned(m, n, trans_a)),),
        lambda device, a, trans_a, **_: device.blas.geam(a, trans_a=trans_a),
        lambda a, trans_a, **_: Near(op(a, trans_a), 0),
    ),
    Operation(
        "blas.dgmm",
        DOUBLES,
        [
            *product(m=[0, 1, 5, 33], n=[1, 7], side=[0, 1]),
            *product(m=[5], n=[7], side=["L", "R"], offx=[1], incx=[2, -2]),
        ],
        dgmm_inputs,
        method("dgmm"),
        dgmm,
    ),
]
