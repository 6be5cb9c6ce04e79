"""Batches at levels 2 and 3."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...conformance import FLOATS, Array, Case, Near, Operation, Sample, product
from .common import ALPHA, BETA, DOUBLES, hide, method, near, op, scalar, solve, triangular

LEADS: list[Case] = [
    {"lead_a": a, "lead_x": x}
    for a, x in (((), ()), ((3,), (3,)), ((), (3,)), ((3,), ()), ((2, 1), (1, 3)), ((0,), (0,)))
]
SYSTEMS: list[Case] = [
    {"lead_a": a, "lead": b} for a, b in (((), ()), ((3,), (3,)), ((), (4,)), ((1, 3), (2, 3)))
]


def matvec_inputs(sample: Sample, lead_a: Any, lead_x: Any, m: int, n: int, trans: Any) -> Any:
    return sample.array(*lead_a, m, n), sample.array(*lead_x, m if trans else n)


def matvec(a: Array, x: Array, trans: Any, **_: Any) -> Near:
    return near(lambda a, x: (op(a, trans) @ x[..., None])[..., 0], a, x)


def added_inputs(sample: Sample, lead_a: Any, lead_x: Any, m: int, n: int, trans: Any) -> Any:
    a, x = matvec_inputs(sample, lead_a, lead_x, m, n, trans)
    return a, x, sample.array(*np.broadcast_shapes(lead_a, lead_x), n if trans else m)


async def call_added(device: Any, a: Any, x: Any, out: Any, trans: Any, **_: Any) -> Any:
    scalars = {"alpha": scalar(ALPHA, a), "beta": scalar(BETA, a)}
    return await device.blas.gemv_batched(a, x, out=out, trans=trans, **scalars)


def added(a: Array, x: Array, out: Array, trans: Any, **_: Any) -> Near:
    alpha, beta = scalar(ALPHA, a), scalar(BETA, a)
    value = alpha * (op(a, trans) @ x[..., None])[..., 0] + beta * out
    sizes = (op(abs(a), trans) @ abs(x)[..., None])[..., 0] + abs(out)
    return Near(value, sizes)


def triangles(sample: Sample, lead_a: Any, lead: Any, m: int, n: int, **case: Any) -> Any:
    order = n if case["side"] in (1, "R") else m
    a = np.empty((*lead_a, order, order), sample.dtype)
    for at in np.ndindex(lead_a):
        a[at] = hide(sample.triangular(order, unit=case["unit_diagonal"]), **case)
    return a, sample.array(*lead, m, n)


async def call_solve(device: Any, a: Any, b: Any, **case: Any) -> Any:
    names = ("side", "lower", "trans_a", "unit_diagonal")
    options = {name: case[name] for name in names}
    return await device.blas.trsm_batched(a, b, alpha=scalar(ALPHA, a), **options)


def solutions(a: Array, b: Array, lead_a: Any, lead: Any, m: int, n: int, **case: Any) -> Near:
    value = np.empty_like(b)
    matrices = np.broadcast_to(a, (*lead, *a.shape[-2:]))
    for at in np.ndindex(tuple(lead)):
        whole, right = op(triangular(matrices[at], case), case["trans_a"]), b[at]
        right = scalar(ALPHA, a) * right
        value[at] = solve(whole.T, right.T).T if case["side"] in (1, "R") else solve(whole, right)
    return Near(value)


_SIZES = product(m=[0, 1, 5], n=[1, 8], trans=[0, 1, "C"])
_MATVECS = [{**lead, **size} for lead in LEADS for size in _SIZES]
_CHOICES = product(m=[5], n=[0, 4], side=[0, "R"], lower=[False, True])
_SYSTEMS = [
    {**lead, **size, "trans_a": ("N", 1, 2)[at % 3], "unit_diagonal": bool(at % 2)}
    for at, size in enumerate(_CHOICES)
    for lead in SYSTEMS[at % 2 :: 2]
]

STACKED = [
    Operation(
        "blas.gemv_batched without out",
        FLOATS,
        _MATVECS[::5],
        matvec_inputs,
        method("gemv_batched"),
        matvec,
    ),
    Operation(
        "blas.gemv_batched", FLOATS, _MATVECS[1::5], added_inputs, call_added, added, writes=(2,)
    ),
    Operation("blas.trsm_batched", DOUBLES, _SYSTEMS, triangles, call_solve, solutions, factor=64),
]
